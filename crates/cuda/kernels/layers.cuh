// Linear layers over one input: what a kernel reads, which layers it computes, and what becomes of their outputs.
#pragma once
#include "activation.cuh"
#include "norm.cuh"
#include "weights.cuh"

// Layers of a launch, at most.
constexpr u32 PARTS = 4;

// Outputs of a layer: where the panel or row of its weight begins that has the first of them, and the column of the result that
// does. Addresses are numbers: of a pointer chosen among several the compiler does not know that it is to global memory.
struct Part {
  u64 at, bias;
  u32 rows, column;
};

// Layers over one input, whose weights have the form of the first. Their outputs lie side by side, or are those of a block's gate
// and up, in this order, of which two with the same number become one.
struct Layers {
  Weights form;
  Part parts[PARTS];
  u32 act, is_gated;
};

// The part that has group `at` of `each` outputs, counted over all parts. `at` becomes the group's number there, which is past
// the end if there are not so many.
inline Part part_of(const Layers& layers, u32 each, u32& at) {
  Part part = layers.parts[0];
#pragma unroll
  for (u32 i = 1; i < PARTS; i++) {
    u32 groups = (part.rows + each - 1) / each;
    if (at < groups) continue;
    at -= groups;
    part = layers.parts[i];
  }
  return part;
}

// The weight of a part.
inline const u8* weight_of(const Layers& layers, const Part& part) {
  return layers.form.at + (part.at - (u64)layers.form.at);
}

inline float with_bias(const Part& part, u32 output, float y) {
  if (!part.bias) return y;
  float bias;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(bias) : "l"(part.bias + 4ull * output));
  return y + bias;
}

// An activation, times what belongs to it if it is gated.
inline float activated(const Layers& layers, float gate, float up) {
  float y = activation(layers.act, gate);
  return layers.is_gated ? y * up_factor(layers.act, up) : y;
}

// Epilogue of the sums: scale * (y + bias), capped, and with the residual added.
struct Finish {
  Matrix<const float> residual;
  Matrix<float> out;
  float scale, cap;
};

inline float finished(const Finish& f, u32 row, u32 output, float y) {
  y *= f.scale;
  if (f.cap > 0.0f) y = f.cap * tanh_of(y * (1.0f / f.cap));
  return f.residual.at ? y + f.residual.row(row)[output] : y;
}

// A row of x, by the numbers before it, or a row of zeros.
struct Row {
  u64 before;
  bool is_there;
};

// Rows of x as they are: all of them, or those of `indices`, an index past the end being a row of zeros. They are normalized if
// the norm has a weight. If there is an `order`, input k is the column that it names.
struct Inputs {
  Matrix<const float> x;
  const u32* indices;
  const u32* order;
  Norm norm;

  // Row `r` of `count`, past which are rows of zeros.
  Row row(u32 r, u32 count) const {
    u32 from = r < count ? (indices ? indices[r] : r) : x.rows;
    return {(u64)from * x.stride, from < x.rows};
  }

  const float* at(const Row& row) const { return x.at + row.before; }

  // The column that is input k, or one past the end.
  u32 column(u32 k) const { return order && k < x.cols ? order[k] : k; }
};

// Moments of rows, and room for computing them, in shared memory. It is a kernel's own: what two of a module share would lie
// outside of them.
template <u32 ROWS> struct MomentsOfRows {
  Moments of[ROWS];
  float parts[ROWS][WIDTH / 32];
};

// `cta_sum` of the first `count` of several numbers, with the same bits.
template <u32 COUNT> inline void cta_sums(float (&x)[COUNT], u32 count, float (*parts)[WIDTH / 32]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) {
    if (i < count) x[i] = warp_sum(x[i]);
  }
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) {
    if (i < count && threadIdx.x % 32 == 0) parts[i][threadIdx.x / 32] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) {
    if (i >= count) continue;
    x[i] = parts[i][0];
    for (u32 j = 1; j < WIDTH / 32; j++) x[i] += parts[i][j];
  }
}

// Moments of rows `first` on, up to ROWS of `rows` that there are. A thread reads UNROLL numbers of each at a time.
template <u32 ROWS, u32 UNROLL, u32 MOST>
inline void moments_at_once(const Inputs& x, u32 first, u32 rows, MomentsOfRows<MOST>& moments) {
  static_assert(ROWS <= MOST && ROWS <= WIDTH / 32, "each row has a warp that writes its moments");
  const Norm& norm = x.norm;
  u32 count = rows - first < ROWS ? rows - first : ROWS;
  Row row[ROWS];
  float mean[ROWS], sum[ROWS];
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    row[r] = x.row(first + r, rows);
    mean[r] = 0.0f;
    sum[r] = 0.0f;
  }
  if (norm.is_centred) {
#pragma unroll(UNROLL)
    for (u32 i = threadIdx.x; i < norm.width; i += WIDTH) {
#pragma unroll
      for (u32 r = 0; r < ROWS; r++) sum[r] += row[r].is_there ? x.at(row[r])[i] : 0.0f;
    }
    cta_sums(sum, count, moments.parts);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      mean[r] = sum[r] / norm.width;
      sum[r] = 0.0f;
    }
  }
#pragma unroll(UNROLL)
  for (u32 i = threadIdx.x; i < norm.width; i += WIDTH) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      float d = (row[r].is_there ? x.at(row[r])[i] : 0.0f) - mean[r];
      sum[r] = fmaf(d, d, sum[r]);
    }
  }
  cta_sums(sum, count, moments.parts);
#pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    if (threadIdx.x == 32 * r && r < count) moments.of[r] = {mean[r], inverse_deviation(norm, sum[r])};
  }
  __syncthreads();
}

// The same of one row or several, with the bits of `moments_of`. All threads of a CTA must come here.
template <u32 ROWS> inline void moments_of_rows(const Inputs& x, u32 first, u32 rows, MomentsOfRows<ROWS>& moments) {
  if (ROWS == 1 || rows - first == 1) {
    moments_at_once<1, 8>(x, first, rows, moments);
  } else {
    moments_at_once<ROWS, 1>(x, first, rows, moments);
  }
}

// Numbers k to k + 3, of `count`; past the end they are zeros.
inline void four_at(const float* at, u32 k, u32 count, float (&four)[4]) {
  if (k + 4 <= count && ((u64)(at + k) & 15) == 0) {
    Four all = *(const Four*)(at + k);
    four[0] = all.x;
    four[1] = all.y;
    four[2] = all.z;
    four[3] = all.w;
  } else {
#pragma unroll
    for (u32 i = 0; i < 4; i++) four[i] = k + i < count ? at[k + i] : 0.0f;
  }
}

// Inputs k to k + 3 of a row of x, or of a row beside it, of which the first `count` columns are there. Kernels that never
// have an order say so: gathering takes registers.
template <bool MAY_GATHER> inline void inputs_at(const Inputs& x, const float* at, u32 k, u32 count, float (&four)[4]) {
  if constexpr (MAY_GATHER) {
    if (x.order) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 column = x.column(k + i);
        four[i] = column < count ? at[column] : 0.0f;
      }
      return;
    }
  }
  four_at(at, k, count, four);
}
