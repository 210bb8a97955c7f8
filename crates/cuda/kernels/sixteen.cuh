// Products of weights that are floats of 16 or 8 bits with rows of x, rounded to 16 bits, by tensor cores.
//
// The sum over the inputs is cut into 8 strands of whole segments of 64; the strands are added in order. How a GPU adds the products
// of one `mma` is its own affair, but alike for each column of x: so no more is needed for a row alone to have the bits of the
// row in a batch than that all kernels do the same sequence of `mma` for a strand, which `add_segment` is.
// - BF16: x is rounded to bf16, and a strand is one chain of `mma`.
// - F16: x is rounded to f16 after each segment of a row was scaled by a power of two, by which its products are scaled back.
// - F8: x is rounded to bf16, and so are codes, exactly, but for a factor of 2^8. Each run of 32 has a scale.
#pragma once
#include "products.cuh"

enum Sixteen { F16S, BF16S, EIGHTHS_AS_BF16S };

constexpr u32 SEGMENT = 64;       // inputs
constexpr u32 SEGMENT_WORDS = 32;  // of a row of x, two inputs each
constexpr u32 STRANDS = 8;
constexpr u32 MMAS = SEGMENT / 16;

// Rows of x, rounded: whole segments, as they follow each other in the row; of f16, a factor for each segment.
struct RoundedRows {
  const u32* at;
  const float* factors;
};

// c += a * b, of 16 rows of weights and 8 of x.
template <bool IS_F16> inline void mma_16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if (IS_F16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two numbers, rounded, the first in the lower half.
template <bool IS_F16> inline u32 rounded_two(float x, float y) {
  u32 two;
  if (IS_F16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(y), "f"(x));
  }
  return two;
}

// Two 8-bit floats, in the lower bytes, as bf16 of a 256th of them: that is what their bits mean in an f16.
inline u32 two_of_eighths(u32 codes) {
  u32 spread = permuted(codes, 0, 0x1404);
  u32 two = (spread & 0x80008000) | (spread >> 1 & 0x3f803f80);
  return permuted(bits_of(f16_to_float((u16)two)), bits_of(f16_to_float((u16)(two >> 16))), 0x7632);
}

// A segment of a panel: words as they lie in memory, and scales of its runs, of a lane's two rows each.
template <Sixteen KIND> struct SegmentOfPanel {
  enum : u32 { WORDS = KIND == EIGHTHS_AS_BF16S ? 2 : 4, RUNS = KIND == EIGHTHS_AS_BF16S ? 2 : 0 };
  Words words[WORDS];
  float scales[RUNS + 1][2];

  // What the weight lacks is zeros.
  inline void load(const Weights& w, const u8* panel, u32 segment, u32 lane) {
    if (KIND == EIGHTHS_AS_BF16S) {
      u32 k = SEGMENT * segment, rest = w.cols - k / CHUNK * CHUNK, inputs = rest < CHUNK ? rest : CHUNK;
      u32 steps = (inputs + STEP - 1) / STEP, step = k % CHUNK / STEP;
      const u8* chunk = panel + (u64)(k / CHUNK) * w.chunk;
      const float* at = (const float*)(chunk + 512 * steps) + lane / 4 * 2 * steps;
#pragma unroll
      for (u32 i = 0; i < WORDS; i++) {
        bool is_there = step + i < steps;
        words[i] = {0, 0, 0, 0};
        if (is_there) words[i] = ((const Words*)chunk)[32 * (step + i) + lane];
#pragma unroll
        for (u32 r = 0; r < 2; r++) scales[i][r] = is_there ? at[r * steps + step + i] : 0.0f;
      }
    } else {
      u32 groups = (w.cols + 15) / 16;
#pragma unroll
      for (u32 i = 0; i < WORDS; i++) {
        u32 group = MMAS * segment + i;
        words[i] = {0, 0, 0, 0};
        if (group < groups) words[i] = ((const Words*)panel)[32 * (u64)group + lane];
      }
    }
  }

  // What the `i`th `mma` takes of it. Of 8-bit floats a lane has 4 inputs that follow each other, and so of x.
  inline void factors_of(u32 i, u32 (&a)[4]) const {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      if (KIND == EIGHTHS_AS_BF16S) {
        u32 codes = words[i / 2].at[2 * (i % 2) + j % 2];
        a[j] = two_of_eighths(j < 2 ? codes : codes >> 16);
      } else {
        a[j] = words[i].at[j];
      }
    }
  }
};

// Has a segment of a panel come closer, for whoever loads it next. There may be no such segment, or no panel.
template <Sixteen KIND> inline void prefetch_segment(const Weights& w, const Panel& panel, u32 segment) {
  u32 k = SEGMENT * segment;
  if (k >= w.cols || panel.outputs == 0) return;
  const u8* at = w.at + panel.begin;
  if (KIND == EIGHTHS_AS_BF16S) {
    u32 rest = w.cols - k / CHUNK * CHUNK, steps = ((rest < CHUNK ? rest : CHUNK) + STEP - 1) / STEP;
    const u8* chunk = at + (u64)(k / CHUNK) * w.chunk;
    u32 step = k % CHUNK / STEP;
    prefetch(chunk + 512 * step, 512 * (steps - step < 2 ? 1 : 2));
    prefetch(chunk + 512 * steps, 4 * PANEL * steps);
  } else {
    u32 groups = (w.cols + 15) / 16 - MMAS * segment;
    prefetch(at + 2048ull * segment, 512 * (groups < MMAS ? groups : MMAS));
  }
}

// Where a lane finds the words of x for the `i`th `mma`, among those of a row's segment: the first, and how far the second is.
template <Sixteen KIND> inline u32 word_of_x(u32 i, u32 q) { return 8 * i + (KIND == EIGHTHS_AS_BF16S ? 2 * q : q); }
template <Sixteen KIND> inline u32 next_word_of_x() { return KIND == EIGHTHS_AS_BF16S ? 1 : 4; }

// Adds the products of a segment of panels with 8 * TILES rows of x to a strand. `x` has for a tile the words of the lane's row of
// it for an `mma`, and factors of the two rows whose products the lane has. A lane has those of rows lane / 4 and lane / 4 + 8 of
// a panel with rows 2 * (lane % 4) and the next one of each 8 of x.
template <Sixteen KIND, u32 TILES, u32 PANELS, class X>
inline void add_segment(const SegmentOfPanel<KIND> (&weights)[PANELS], const X& x, float (&f)[PANELS][TILES][4]) {
  constexpr bool IS_F16 = KIND == F16S;
  u32 a[PANELS][MMAS][4];
#pragma unroll
  for (u32 i = 0; i < PANELS * MMAS; i++) weights[i / MMAS].factors_of(i % MMAS, a[i / MMAS][i % MMAS]);
#pragma unroll
  for (u32 t = 0; t < TILES; t++) {
    float c[PANELS][4];
#pragma unroll
    for (u32 i = 0; i < PANELS * 4; i++) c[i / 4][i % 4] = KIND == BF16S ? f[i / 4][t][i % 4] : 0.0f;
#pragma unroll
    for (u32 i = 0; i < MMAS; i++) {
      u32 b[2];
      x.words(t, i, b);
#pragma unroll
      for (u32 p = 0; p < PANELS; p++) {
        mma_16<IS_F16>(c[p], a[p][i], b[0], b[1]);
        if (KIND == EIGHTHS_AS_BF16S && i % 2 == 1) {
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            f[p][t][j] = fmaf(c[p][j] * 256.0f, weights[p].scales[i / 2][j / 2], f[p][t][j]);
            c[p][j] = 0.0f;
          }
        }
      }
    }
#pragma unroll
    for (u32 i = 0; i < PANELS * 4; i++) {
      u32 p = i / 4, j = i % 4;
      if (KIND == BF16S) f[p][t][j] = c[p][j];
      if (KIND == F16S) f[p][t][j] = fmaf(c[p][j], x.factor(t, j % 2), f[p][t][j]);
    }
  }
}

// Two words that are stored together.
struct alignas(8) TwoWords {
  u32 x, y;
};

// Rounds a segment of a row by 16 lanes, each of which has 4 inputs; `factor` is that of the segment. All lanes of a warp come here.
// The largest magnitude becomes one from 2^14 on, which leaves room for rounding up, or less if it is below 2^-112.
template <bool IS_F16> inline TwoWords round_segment(const float (&values)[4], float& factor) {
  float by = 1.0f;
  if (IS_F16) {
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 magnitude = bits_of(values[i]) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
#pragma unroll
    for (u32 d = 8; d > 0; d /= 2) {
      u32 other = __shfl_xor_sync(~0u, most, d);
      most = other > most ? other : most;
    }
    u32 exponent = most >> 23 > 15 ? most >> 23 : 15;
    by = float_of((268 - exponent) << 23);
    factor = float_of((exponent - 14) << 23);
  }
  return {rounded_two<IS_F16>(__fmul_rn(values[0], by), __fmul_rn(values[1], by)),
          rounded_two<IS_F16>(__fmul_rn(values[2], by), __fmul_rn(values[3], by))};
}

// Weights and biases of a norm in a segment; a lane has those of its 4 inputs.
struct NormOfSegment {
  float weight[4], bias[4];

  template <bool MAY_GATHER> void load(const Inputs& x, u32 segment) {
    u32 k = SEGMENT * segment + 4 * (threadIdx.x % 16);
    inputs_at<MAY_GATHER>(x, x.norm.weight, k, x.norm.weight ? x.x.cols : 0, weight);
    inputs_at<MAY_GATHER>(x, x.norm.bias, k, x.norm.bias ? x.x.cols : 0, bias);
  }
};

// A segment of a row, normalized if there is a norm, as `round_segment` takes it.
template <bool MAY_GATHER>
inline void load_segment(const Inputs& x, const Row& row, Moments moments, const NormOfSegment& norm, u32 segment,
                         float (&values)[4]) {
  u32 k = SEGMENT * segment + 4 * (threadIdx.x % 16);
  inputs_at<MAY_GATHER>(x, x.at(row), k, row.is_there ? x.x.cols : 0, values);
  if (!x.norm.weight) return;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    float y = normalized_by(moments, values[i], norm.weight[i], x.norm.bias, norm.bias[i]);
    values[i] = k + i < x.x.cols ? y : 0.0f;
  }
}

// The first segment of a strand.
inline u32 first_of(u32 strand, u32 segments) { return strand * segments / STRANDS; }

// Words of a row's segment in shared memory of a warp's own: lanes read different banks.
constexpr u32 SPREAD = SEGMENT_WORDS + 4;

// Sums of strands of a CTA's panels and rows.
template <u32 PANELS, u32 ROWS> struct SumsOfStrands {
  float of[STRANDS][PANELS][ROWS][ROW];

  inline float total(u32 panel, u32 row, u32 output) const {
    float sum = 0.0f;
#pragma unroll
    for (u32 s = 0; s < STRANDS; s++) sum += of[s][panel][row][output];
    return sum;
  }
};

// Multiplies a CTA's panels with 8 * TILES rows of x: a warp has a strand of all of them, the weights of which are on their way while
// `x` prepares. When it writes the sums all warps are done with x, so they may lie in its place.
template <Sixteen KIND, u32 TILES, u32 MOST, class X>
inline void multiply_strands(const Weights& w, const Panel (&panels)[MOST], X& x, SumsOfStrands<MOST, 8 * TILES>& sums) {
  u32 lane = threadIdx.x % 32, strand = threadIdx.x / 32, segments = (w.cols + SEGMENT - 1) / SEGMENT;
  float f[MOST][1][TILES][4];
#pragma unroll
  for (u32 i = 0; i < MOST * TILES * 4; i++) f[i / (TILES * 4)][0][i / 4 % TILES][i % 4] = 0.0f;
  u32 begin = first_of(strand, segments), end = first_of(strand + 1, segments);
#pragma unroll
  for (u32 g = 0; g < MOST; g++) prefetch_segment<KIND>(w, panels[g], begin < end ? begin : segments);
  x.prepare();
#pragma unroll 1
  for (u32 segment = begin; segment < end; segment++) {
    // Weights are on their way while x is rounded.
    SegmentOfPanel<KIND> weights[MOST][1];
#pragma unroll
    for (u32 g = 0; g < MOST; g++) {
      if (panels[g].outputs > 0) weights[g][0].load(w, w.at + panels[g].begin, segment, lane);
    }
#pragma unroll
    for (u32 g = 0; g < MOST; g++) prefetch_segment<KIND>(w, panels[g], segment + 1 < end ? segment + 1 : segments);
    x.begin(segment);
#pragma unroll
    for (u32 g = 0; g < MOST; g++) {
      if (panels[g].outputs > 0) add_segment<KIND>(weights[g], x, f[g]);
    }
  }
  __syncthreads();
#pragma unroll
  for (u32 g = 0; g < MOST; g++) {
#pragma unroll
    for (u32 t = 0; t < TILES; t++) {
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        sums.of[strand][g][8 * t + lane % 4 * 2 + j % 2][lane / 4 + j / 2 * 8] = f[g][0][t][j];
      }
    }
  }
  __syncthreads();
}
