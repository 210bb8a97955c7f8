// LoRA deltas: products with the narrow factors of adapters, in f32. A launch takes all adapters of a step and all layers over
// one input. A row's sums depend on its own adapter alone.
#include "layers.cuh"
#include "strands.cuh"

// Delta of an adapter to a layer: y += b * (scale * a * x) for rows `first` on. Several deltas may share `a` and what it
// gives, `count` rows from `narrow` on: the first of them computes that.
struct Delta {
  Weights a, b;
  u32 first, count;
  u32 narrow, column;
  float scale;
  u32 computes_a;
};

// The delta of a CTA. It is read a word at a time: wider loads, parts of which a kernel does not use, are unknown to older
// drivers.
inline Delta delta_of(const u32* deltas) {
  constexpr u32 WORDS = sizeof(Delta) / 4;
  const u32* at = deltas + WORDS * blockIdx.z;
  u32 words[WORDS];
#pragma unroll
  for (u32 i = 0; i < WORDS; i++) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[i]) : "l"(__cvta_generic_to_global(at + i)));
  }
  Delta delta;
  memcpy(&delta, words, sizeof(delta));
  return delta;
}

// A factor, whose address is to global memory, as `global` is: of one that is read from memory the compiler does not know
// that.
inline Weights in_global(Weights w, const float* global) {
  w.at = (const u8*)global + ((u64)w.at - (u64)global);
  return w;
}

// Segments of rows that the warps read, and the strands that they leave.
template <u32 ROWS> struct Strands {
  Four inputs[STRANDS][ROWS][SEGMENT / 4];
  float sums[STRANDS][ROWS][OUTPUTS];
};

// Products of ROWS rows with a group of outputs, one a lane, summed as `linear.cu` does. `input(i, k)` is number k of row
// i.
template <u32 ROWS, typename Input>
inline void multiply(const Weights& w, u32 group, const Input& input, Strands<ROWS>& strands) {
  u32 lane = threadIdx.x % 32, strand = threadIdx.x / 32;
  u32 segments = (w.cols + SEGMENT - 1) / SEGMENT;
  u32 begin = strand * segments / STRANDS, end = (strand + 1) * segments / STRANDS;
  Four four[ROWS];
#pragma unroll
  for (u32 i = 0; i < ROWS; i++) four[i] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (u32 segment = begin; segment < end; segment++) {
    u32 k = SEGMENT * segment + lane;
    // All lanes are done with the segment before.
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      ((float*)strands.inputs[strand][i])[lane] = k < w.cols ? input(i, k) : 0.0f;
    }
    __syncwarp();
    add_segment(four, strands.inputs[strand], w, OUTPUTS * group + lane, segment);
  }
#pragma unroll
  for (u32 i = 0; i < ROWS; i++) strands.sums[strand][i][lane] = strand_of(four[i]);
  __syncthreads();
}

// A CTA has ROWS rows of a delta and 32 of its ranks.
template <u32 ROWS> inline void down(const u32* deltas, const Inputs& x, float* narrow) {
  __shared__ Strands<ROWS> strands;
  __shared__ MomentsOfRows<ROWS> moments;
  __shared__ Row from[ROWS];
  Delta d = delta_of(deltas);
  Weights w = in_global(d.a, x.x.at);
  u32 group = blockIdx.x, first = ROWS * blockIdx.y;
  if (!d.computes_a || first >= d.count || OUTPUTS * group >= w.rows) return;
  u32 begin = d.first + first, end = d.first + d.count;
  if (threadIdx.x < ROWS) from[threadIdx.x] = x.row(begin + threadIdx.x, end);
  __syncthreads();
  if (x.norm.weight) moments_of_rows(x, begin, end, moments);
  auto input = [&](u32 i, u32 k) {
    if (!from[i].is_there) return 0.0f;
    float value = x.at(from[i])[k];
    return x.norm.weight ? normalized(x.norm, moments.of[i], value, k) : value;
  };
  multiply<ROWS>(w, group, input, strands);
  u32 row = threadIdx.x / 32, lane = threadIdx.x % 32, rank = OUTPUTS * group + lane;
  if (row >= ROWS || first + row >= d.count || rank >= w.rows) return;
  narrow[d.narrow + (u64)(first + row) * w.rows + rank] = d.scale * sum_of(strands.sums, row, lane);
}

// A CTA has ROWS rows of a delta and 32 of its outputs, which it adds to those of the layer.
template <u32 ROWS> inline void up(const u32* deltas, const float* narrow, const Matrix<float>& y, float scale) {
  __shared__ Strands<ROWS> strands;
  Delta d = delta_of(deltas);
  Weights w = in_global(d.b, narrow);
  u32 group = blockIdx.x, first = ROWS * blockIdx.y;
  if (first >= d.count || OUTPUTS * group >= w.rows) return;
  auto input = [&](u32 i, u32 k) {
    return first + i < d.count ? narrow[d.narrow + (u64)(first + i) * w.cols + k] : 0.0f;
  };
  multiply<ROWS>(w, group, input, strands);
  u32 row = threadIdx.x / 32, lane = threadIdx.x % 32, output = OUTPUTS * group + lane;
  if (row >= ROWS || first + row >= d.count || output >= w.rows) return;
  float* to = y.row(d.first + first + row) + d.column + output;
  *to = fmaf(sum_of(strands.sums, row, lane), scale, *to);
}

// Left to itself the compiler takes few registers and spills a few more.
#define LORA(rows)                                                                                         \
  extern "C" __global__ void __launch_bounds__(WIDTH, 2)                                                   \
      lora_down_##rows(const u32* deltas, Inputs x, float* narrow) {                                       \
    down<rows>(deltas, x, narrow);                                                                         \
  }                                                                                                        \
  extern "C" __global__ void __launch_bounds__(WIDTH, 2)                                                   \
      lora_up_##rows(const u32* deltas, const float* narrow, Matrix<float> y, float scale) {               \
    up<rows>(deltas, narrow, y, scale);                                                                    \
  }

LORA(1)
LORA(8)
