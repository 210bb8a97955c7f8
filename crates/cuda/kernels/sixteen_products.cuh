// Kernels of layers of floats of 16 or 8 bits: `sixteen.cuh` says what a strand is.
#pragma once
#include "sixteen.cuh"

// Up to FEW rows of x as they are. A warp rounds its segments for itself.
template <Sixteen KIND> struct FewRows {
  const Inputs& x;
  MomentsOfRows<FEW>& moments;
  u32 rows;
  u32 (&own)[FEW][SPREAD];
  float (&factors)[FEW];

  inline void prepare() {
    if (x.norm.weight) moments_of_rows(x, 0, rows, moments);
  }

  inline void begin(u32 segment) {
    NormOfSegment norm;
    norm.load<false>(x, segment);
    // All lanes are done with the segment before.
    __syncwarp();
#pragma unroll 1
    for (u32 first = 0; first < rows; first += 2) {
      u32 r = first + threadIdx.x % 32 / 16, at = threadIdx.x % 16;
      float values[4], factor;
      load_segment<false>(x, x.row(r, rows), moments.of[r], norm, segment, values);
      TwoWords two = round_segment<KIND == F16S>(values, factor);
      ((TwoWords*)own[r])[at] = two;
      if (KIND == F16S && at == 0) factors[r] = factor;
    }
    __syncwarp();
  }

  inline void words(u32, u32 i, u32 (&b)[2]) const {
    const u32* at = own[threadIdx.x % 32 / 4] + word_of_x<KIND>(i, threadIdx.x % 4);
    b[0] = at[0];
    b[1] = at[next_word_of_x<KIND>()];
  }

  inline float factor(u32, u32 j) const { return factors[threadIdx.x % 4 * 2 + j]; }
};

// Rows of rounded x, from `first` on, in global memory.
template <Sixteen KIND> struct ManyRows {
  const RoundedRows& x;
  u32 first, segments, segment;

  inline void prepare() {}

  inline void begin(u32 at) { segment = at; }

  inline u64 place(u32 row) const { return (u64)(first + row) * segments + segment; }

  inline void words(u32 t, u32 i, u32 (&b)[2]) const {
    const u32* at = x.at + SEGMENT_WORDS * place(8 * t + threadIdx.x % 32 / 4) + word_of_x<KIND>(i, threadIdx.x % 4);
    b[0] = at[0];
    b[1] = at[next_word_of_x<KIND>()];
  }

  inline float factor(u32 t, u32 j) const { return x.factors[place(8 * t + threadIdx.x % 4 * 2 + j)]; }
};

// A CTA has up to MOST panels and 8 * TILES rows of x, from `first` on.
template <Sixteen KIND, u32 TILES, u32 MOST, class X>
inline void multiply_layers(const Layers& layers, X& x, u32 first, u32 panels, const Finish& finish) {
  constexpr u32 ROWS = 8 * TILES;
  __shared__ SumsOfStrands<MOST, ROWS> sums;
  __shared__ Panel own_panels[MOST];
  const Weights& w = layers.form;
  if (threadIdx.x < MOST) {
    u32 panel = blockIdx.x * panels + threadIdx.x;
    Part part = part_of_panel(layers, panel);
    u32 before = PANEL * panel;
    Panel& own = own_panels[threadIdx.x];
    own.begin = part.at + panel * w.panel - (u64)w.at;
    own.outputs = threadIdx.x < panels && part.rows > before ? part.rows - before : 0;
  }
  __syncthreads();
  multiply_strands<KIND, TILES>(w, own_panels, x, sums);
  u32 step = layers.is_gated ? 2 : 1;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < panels / step * ROWS * PANEL; i += WIDTH) {
    u32 g = i / (ROWS * PANEL) * step, row = i / PANEL % ROWS, output = i % PANEL;
    if (output >= own_panels[g].outputs || first + row >= finish.out.rows) continue;
    u32 panel = blockIdx.x * panels + g;
    Part part = part_of_panel(layers, panel);
    u32 own_output = PANEL * panel + output;
    float up = layers.is_gated ? with_bias(layers.parts[1], own_output, sums.total(g + 1, row, output)) : 0.0f;
    store(layers, finish, part, first + row, own_output, sums.total(g, row, output), up);
  }
}

// Up to FEW rows of x as they are.
template <Sixteen KIND> inline void multiply_few_rows(const Layers& layers, const Inputs& x, u32 panels, const Finish& finish) {
  __shared__ alignas(8) u32 rounded[WIDTH / 32][FEW][SPREAD];
  __shared__ float factors[WIDTH / 32][FEW];
  __shared__ MomentsOfRows<FEW> moments;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = finish.out.rows;
  // Rows that x lacks are zeros.
  for (u32 i = lane; i < FEW * SPREAD; i += 32) rounded[warp][i / SPREAD][i % SPREAD] = 0;
  if (lane < FEW) factors[warp][lane] = 0.0f;
  if (threadIdx.x < FEW) moments.of[threadIdx.x] = {0.0f, 0.0f};
  __syncthreads();
  FewRows<KIND> own = {x, moments, rows, rounded[warp], factors[warp]};
  multiply_layers<KIND, 1, MOST_PANELS>(layers, own, 0, panels, finish);
}

// 8 * TILES rows of rounded x.
template <Sixteen KIND, u32 TILES>
inline void multiply_many_rows(const Layers& layers, const RoundedRows& x, u32 panels, const Finish& finish) {
  u32 first = 8 * TILES * blockIdx.y;
  ManyRows<KIND> own = {x, first, (layers.form.cols + SEGMENT - 1) / SEGMENT, 0};
  multiply_layers<KIND, TILES, 2>(layers, own, first, panels, finish);
}

constexpr u32 TILE_ROWS = 64;
// Segments of a tile's rows in shared memory: one is multiplied, the others are on their way.
constexpr u32 STAGES = 4;

// A segment of the rows of a tile. Pieces of 16 bytes are permuted within their row, so that lanes read different banks.
struct Stage {
  Words of[TILE_ROWS][SEGMENT_WORDS / 4];
};

inline u32 piece_of(u32 row, u32 piece) { return piece ^ row % 8; }

// Rows of a warp in a stage, from `first` of the tile on.
template <Sixteen KIND> struct RowsOfStage {
  const Stage& stage;
  const float* factors;
  u32 first, segments;

  inline void words(u32 t, u32 i, u32 (&b)[2]) const {
    u32 row = first + 8 * t + threadIdx.x % 32 / 4, word = word_of_x<KIND>(i, threadIdx.x % 4);
    u32 next = word + next_word_of_x<KIND>();
    const u32* at = (const u32*)&stage.of[row][piece_of(row, word / 4)];
    if (KIND == EIGHTHS_AS_BF16S) {
      TwoWords two = ((const TwoWords*)at)[word % 4 / 2];
      b[0] = two.x;
      b[1] = two.y;
    } else {
      b[0] = at[word % 4];
      b[1] = ((const u32*)&stage.of[row][piece_of(row, next / 4)])[next % 4];
    }
  }

  inline float factor(u32 t, u32 j) const { return factors[(u64)(first + 8 * t + threadIdx.x % 4 * 2 + j) * segments]; }
};

inline void copy_later(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               : : "r"((u32)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)) : "memory");
}

// A CTA has 8 panels and 64 rows of rounded x. A warp has two panels, which may be a block's gate and up, and 32
// rows. Weights come from global memory a segment ahead, x through shared memory.
template <Sixteen KIND>
inline void multiply_tile(const Layers& layers, const RoundedRows& x, const Finish& finish) {
  __shared__ Stage stages[STAGES];
  constexpr u32 TILES = 4, EACH = 2 * TILES * 4;
  static_assert(sizeof(stages) >= 4 * EACH * WIDTH, "results of all threads fit there too");
  const Weights& w = layers.form;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, segments = (w.cols + SEGMENT - 1) / SEGMENT;
  u32 panel[2], first = TILE_ROWS * blockIdx.y, row = warp / 4 * 32;
  Part part[2];
  const u8* at[2];
#pragma unroll
  for (u32 p = 0; p < 2; p++) {
    panel[p] = 8 * blockIdx.x + warp % 4 * 2 + p;
    part[p] = part_of_panel(layers, panel[p]);
    // A panel that is not there is read as the first.
    bool is_there = PANEL * panel[p] < part[p].rows;
    at[p] = w.at + (is_there ? part[p].at + panel[p] * w.panel - (u64)w.at : 0);
  }
  auto fetch = [&](u32 segment) {
    u32 piece = threadIdx.x % 8;
    for (u32 r = threadIdx.x / 8; segment < segments && r < TILE_ROWS; r += WIDTH / 8) {
      const u32* from = x.at + SEGMENT_WORDS * ((u64)(first + r) * segments + segment) + 4 * piece;
      copy_later(&stages[segment % STAGES].of[r][piece_of(r, piece)], from);
    }
    asm volatile("cp.async.commit_group;" : : : "memory");
  };
#pragma unroll
  for (u32 s = 0; s < STAGES - 1; s++) fetch(s);
  SegmentOfPanel<KIND> weights[2], next[2];
#pragma unroll
  for (u32 p = 0; p < 2; p++) next[p].load(w, at[p], 0, lane);
  float f[2][TILES][4], total[2][TILES][4];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) f[i / 16][i / 4 % 4][i % 4] = total[i / 16][i / 4 % 4][i % 4] = 0.0f;
  u32 strand = 0;
#pragma unroll 1
  for (u32 segment = 0; segment < segments; segment++) {
    // Of the copies under way only the oldest must have come; and all warps are done with the stage that is filled next.
    asm volatile("cp.async.wait_group %0;" : : "n"(STAGES - 2) : "memory");
    __syncthreads();
    fetch(segment + STAGES - 1);
#pragma unroll
    for (u32 p = 0; p < 2; p++) {
      weights[p] = next[p];
      next[p].load(w, at[p], segment + 1 < segments ? segment + 1 : segment, lane);
    }
    const float* factors = x.factors + (KIND == F16S ? (u64)first * segments + segment : 0);
    RowsOfStage<KIND> own = {stages[segment % STAGES], factors, row, segments};
    add_segment<KIND>(weights, own, f);
    // Strands without a segment change nothing.
    while (first_of(strand + 1, segments) <= segment) strand++;
    if (first_of(strand + 1, segments) > segment + 1) continue;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
      total[i / 16][i / 4 % 4][i % 4] += f[i / 16][i / 4 % 4][i % 4];
      f[i / 16][i / 4 % 4][i % 4] = 0.0f;
    }
  }
  asm volatile("cp.async.wait_all;" : : : "memory");
  __syncthreads();
  // A loop, so that there is one copy of what follows: the numbers go through memory, each thread's own.
  float(*results)[WIDTH] = (float(*)[WIDTH])stages;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) results[i][threadIdx.x] = total[i / 16][i / 4 % 4][i % 4];
#pragma unroll 1
  for (u32 i = 0; i < (layers.is_gated ? EACH / 2 : EACH); i++) {
    u32 r = first + row + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2, before = PANEL * (i < 16 ? panel[0] : panel[1]);
    Part own = i < 16 ? part[0] : part[1];
    u32 output = before + lane / 4 + i / 2 % 2 * 8;
    if (r >= finish.out.rows || output >= own.rows) continue;
    float up = layers.is_gated ? with_bias(layers.parts[1], output, results[EACH / 2 + i][threadIdx.x]) : 0.0f;
    store(layers, finish, own, r, output, results[i][threadIdx.x], up);
  }
}

#define SIXTEEN_OF(rows, kind)                                                   \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)                         \
      sixteen_##rows(Layers layers, RoundedRows x, u32 panels, Finish finish) {  \
    multiply_many_rows<kind, rows / 8>(layers, x, panels, finish);               \
  }

// The kernels of a kind: for up to 8 rows of x as they are, for 16 and 32 rows of rounded x, and for tiles of 64.
// The first reads weights as fast as it can, for which a multiprocessor should have two CTAs of it.
#define SIXTEEN(kind)                                                       \
  extern "C" __global__ void __launch_bounds__(WIDTH, 2)                    \
      sixteen_few(Layers layers, Inputs x, u32 panels, Finish finish) {     \
    multiply_few_rows<kind>(layers, x, panels, finish);                     \
  }                                                                         \
  SIXTEEN_OF(16, kind)                                                      \
  SIXTEEN_OF(32, kind)                                                      \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)                    \
      sixteen_64(Layers layers, RoundedRows x, Finish finish) {             \
    multiply_tile<kind>(layers, x, finish);                                 \
  }
