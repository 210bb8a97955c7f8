// Products of rows of x, rounded to 8 bits, with weights in planes: chunks of them by tensor cores (`chunk.cuh`), added up in
// order. So a result has the bits that it has on a CPU, however many rows there are and whatever else is computed beside it.
#pragma once
#include "rounding.cuh"

constexpr u32 ROW = 20;         // room for PANEL outputs of a row of x in shared memory: the lanes of a warp use other banks each
constexpr u32 FEW = 8;          // rows of x that a kernel rounds itself, at most
constexpr u32 MOST_PANELS = 4;  // panels of a CTA that does, at most

// Stores an output: what `finish` or an activation makes of it. `up` is that of the block's up, if it is gated.
inline void store(const Layers& layers, const Finish& finish, const Part& part, u32 row, u32 output, float y, float up) {
  y = with_bias(part, output, y);
  y = layers.act == NO_ACTIVATION ? finished(finish, row, output, y) : activated(layers, y, up);
  finish.out.row(row)[part.column + output] = y;
}

// A CTA has a panel, or two of a block's gate and up, and 8 * TILES rows of x, from `first` on. Its warps take chunks in turn, up
// to `kept` of them at a time, whose sums lie in shared memory until they are added up in order.
template <class F, u32 TILES>
inline void multiply_panel(const Layers& layers, const Rounded& x, u32 first, u32 kept, const Finish& finish) {
  extern __shared__ float of_chunks[];
  constexpr u32 ROWS = 8 * TILES, WARPS = WIDTH / 32, EACH = (PANEL * ROWS + WIDTH - 1) / WIDTH;
  const Weights& w = layers.form;
  u32 lane = threadIdx.x % 32, q = lane % 4, chunks = (w.cols + CHUNK - 1) / CHUNK;
  u32 turns = layers.is_gated ? 2 : 1, panel = blockIdx.x;
  first += ROWS * blockIdx.y;
  Part part = part_of(layers, PANEL, panel);
  const u8* at = weight_of(layers, part);
  // A thread has outputs of several rows; those of a gate wait for those of up.
  float y[EACH], gate[EACH];
#pragma unroll
  for (u32 e = 0; e < EACH; e++) y[e] = 0.0f;
#pragma unroll 1
  for (u32 turn = 0; turn < turns; turn++) {
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
      gate[e] = y[e];
      y[e] = 0.0f;
    }
    if (turn > 0) at = weight_of(layers, layers.parts[1]);
    for (u32 begin = 0; begin < chunks; begin += kept) {
      u32 end = chunks - begin < kept ? chunks : begin + kept;
      for (u32 c = begin + threadIdx.x / 32; c < end; c += WARPS) {
        u64 row = (u64)(first + lane / 4) * chunks + c, product = (u64)(first + 2 * q) * chunks + c;
        Place place = {(const Words*)(x.codes + CHUNK * row), x.sums + SUMS * row,
                       {x.sums + SUMS * product, x.sums + SUMS * (product + chunks)}, 8ull * chunks};
        float f[TILES][4];
        u32 rest = w.cols - c * CHUNK;
        multiply_chunk<F, TILES>(w, at + panel * w.panel + (u64)c * w.chunk, rest < CHUNK ? rest : CHUNK, place, f);
        float* to = of_chunks + (c - begin) * ROWS * ROW + 2 * q * ROW + lane / 4;
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) to[(8 * t + i % 2) * ROW + i / 2 * 8] = f[t][i];
        }
      }
      __syncthreads();
#pragma unroll
      for (u32 e = 0; e < EACH; e++) {
        u32 row = (WIDTH * e + threadIdx.x) / PANEL, output = threadIdx.x % PANEL;
        if (row >= ROWS) continue;
        const float* scales = x.scales + (u64)(first + row) * chunks;
        for (u32 c = begin; c < end; c++) {
          y[e] = fmaf(of_chunks[((c - begin) * ROWS + row) * ROW + output], scales[c], y[e]);
        }
      }
      __syncthreads();
    }
  }
  // A loop, so that there is one copy of what follows: the numbers go through memory, each thread's own.
  float(*own)[EACH][WIDTH] = (float(*)[EACH][WIDTH])of_chunks;
#pragma unroll
  for (u32 e = 0; e < EACH; e++) {
    own[0][e][threadIdx.x] = turns == 1 ? y[e] : gate[e];
    own[1][e][threadIdx.x] = y[e];
  }
#pragma unroll 1
  for (u32 e = 0; e < EACH; e++) {
    u32 row = (WIDTH * e + threadIdx.x) / PANEL, output = PANEL * panel + threadIdx.x % PANEL;
    if (row >= ROWS || first + row >= finish.out.rows || output >= part.rows) continue;
    float up = turns == 1 ? 0.0f : with_bias(layers.parts[1], output, own[1][e][threadIdx.x]);
    store(layers, finish, part, first + row, output, own[0][e][threadIdx.x], up);
  }
}

// A chunk of a row, rounded. Those of neighbouring rows begin at different banks.
struct alignas(16) RoundedChunk {
  u8 codes[CHUNK];
  u8 sums[SUMS];
};

// A panel of a CTA: where it begins, in bytes from the first weight on, and its outputs.
struct Panel {
  u64 begin;
  u32 outputs;
};

// The part that has panel `at`, counted over all parts, or of a block's gate and up in turn. `at` becomes its number there.
inline Part part_of_panel(const Layers& layers, u32& at) {
  if (!layers.is_gated) return part_of(layers, PANEL, at);
  bool is_up = at % 2 == 1;
  at /= 2;
  Part part = layers.parts[0];
  if (is_up) part = layers.parts[1];
  return part;
}

// Has the weights of a chunk come closer, for whoever reads them next.
inline void prefetch(const u8* at, u32 bytes) {
  constexpr u32 LINE = 128;
  for (u32 i = LINE * (threadIdx.x % 32); i < bytes; i += LINE * 32) {
    asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(at + i)));
  }
}

// A CTA has up to FEW rows of x, as they are, and some `panels`. Each warp normalizes and rounds chunks for itself, and multiplies
// all panels with them.
template <class F, bool MAY_GATHER>
inline void multiply_few(const Layers& layers, const Inputs& x, u32 panels, u32 kept, const Finish& finish) {
  extern __shared__ float of_chunks[];
  __shared__ RoundedChunk rounded[WIDTH / 32][FEW];
  __shared__ MomentsOfRows<FEW> moments;
  __shared__ Panel own_panels[MOST_PANELS];
  constexpr u32 OUTPUTS = FEW * PANEL, EACH = MOST_PANELS * OUTPUTS / WIDTH, WARPS = WIDTH / 32;
  const Weights& w = layers.form;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, chunks = (w.cols + CHUNK - 1) / CHUNK;
  u32 rows = finish.out.rows, row = threadIdx.x % OUTPUTS / PANEL, output = threadIdx.x % PANEL;
  float* scales = of_chunks + kept * panels * FEW * ROW;
  if (threadIdx.x < panels) {
    u32 panel = blockIdx.x * panels + threadIdx.x;
    Part part = part_of_panel(layers, panel);
    u32 before = PANEL * panel, outputs = part.rows > before ? part.rows - before : 0;
    own_panels[threadIdx.x] = {part.at + panel * w.panel - (u64)w.at, outputs};
  }
  if (threadIdx.x < FEW) moments.of[threadIdx.x] = {0.0f, 0.0f};
  // Rows that x lacks are zeros.
  RoundedChunk(&own)[FEW] = rounded[warp];
  for (u32 i = rows * (sizeof(RoundedChunk) / 4) + lane; i < sizeof(own) / 4; i += 32) ((u32*)own)[i] = 0;
  __syncthreads();
  // The weights of a warp's next chunk, if there is one.
  auto fetch = [&](u32 c) {
    for (u32 g = 0; c < chunks && g < panels && own_panels[g].outputs > 0; g++) {
      u64 begin = (u64)c * w.chunk, rest = w.panel - begin;
      prefetch(w.at + own_panels[g].begin + begin, rest < w.chunk ? rest : w.chunk);
    }
  };
  fetch(warp);
  if (x.norm.weight) moments_of_rows(x, 0, rows, moments);
  float y[EACH];
#pragma unroll
  for (u32 e = 0; e < EACH; e++) y[e] = 0.0f;
  for (u32 begin = 0; begin < chunks; begin += kept) {
    u32 end = chunks - begin < kept ? chunks : begin + kept;
    for (u32 c = begin + warp; c < end; c += WARPS) {
      fetch(c + WARPS);
      NormOfChunk norm;
      norm.load<MAY_GATHER>(x, c);
      // All lanes are done with the chunk before.
      __syncwarp();
#pragma unroll 1
      for (u32 r = 0; r < rows; r++) {
        float values[2][4];
        load_chunk<MAY_GATHER>(x, x.row(r, rows), moments.of[r], norm, c, values);
        round_chunk<F::HAS_MINS>(values, own[r].codes, own[r].sums, scales + (c - begin) * FEW + r);
      }
      __syncwarp();
      Place place = {(const Words*)own[lane / 4].codes, own[lane / 4].sums, {own[2 * q].sums, own[2 * q + 1].sums}, 0};
      u32 rest = w.cols - c * CHUNK;
#pragma unroll 1
      for (u32 g = 0; g < panels && own_panels[g].outputs > 0; g++) {
        const u8* chunk = w.at + own_panels[g].begin + (u64)c * w.chunk;
        float f[1][4];
        multiply_chunk<F, 1>(w, chunk, rest < CHUNK ? rest : CHUNK, place, f);
        float* to = of_chunks + (((c - begin) * panels + g) * FEW + 2 * q) * ROW + lane / 4;
#pragma unroll
        for (u32 i = 0; i < 4; i++) to[i % 2 * ROW + i / 2 * 8] = f[0][i];
      }
    }
    __syncthreads();
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
      u32 g = WIDTH / OUTPUTS * e + threadIdx.x / OUTPUTS;
      if (g >= panels || output >= own_panels[g].outputs || row >= rows) continue;
      for (u32 c = 0; c < end - begin; c++) {
        y[e] = fmaf(of_chunks[((c * panels + g) * FEW + row) * ROW + output], scales[c * FEW + row], y[e]);
      }
    }
    __syncthreads();
  }
  // Those of a gate and of up meet in shared memory.
#pragma unroll
  for (u32 e = 0; e < EACH; e++) {
    if (WIDTH * e + threadIdx.x < panels * OUTPUTS) of_chunks[WIDTH * e + threadIdx.x] = y[e];
  }
  __syncthreads();
  u32 step = layers.is_gated ? 2 : 1;
#pragma unroll 1
  for (u32 g = threadIdx.x / OUTPUTS * step; g < panels; g += WIDTH / OUTPUTS * step) {
    if (output >= own_panels[g].outputs || row >= rows) continue;
    u32 panel = blockIdx.x * panels + g;
    Part part = part_of_panel(layers, panel);
    u32 own_output = PANEL * panel + output;
    const float* of = of_chunks + g * OUTPUTS + threadIdx.x % OUTPUTS;
    float up = layers.is_gated ? with_bias(layers.parts[1], own_output, of[OUTPUTS]) : 0.0f;
    store(layers, finish, part, row, own_output, of[0], up);
  }
}

// One CTA of a multiprocessor is enough as a bound: with more the compiler spills a few registers here and there.
#define PRODUCTS_OF(rows, form)                                                        \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)                               \
      products_##rows(Layers layers, Rounded x, u32 first, u32 kept, Finish finish) {  \
    multiply_panel<form, rows / 8>(layers, x, first, kept, finish);                    \
  }

// The kernels of a form: for up to 8 rows of x as they are, and for 8, 16, 32 and 64 rows of rounded x.
#define PRODUCTS(form)                                                                \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)                              \
      products_few(Layers layers, Inputs x, u32 panels, u32 kept, Finish finish) {    \
    multiply_few<form, false>(layers, x, panels, kept, finish);                       \
  }                                                                                   \
  PRODUCTS_OF(8, form)                                                                \
  PRODUCTS_OF(16, form)                                                               \
  PRODUCTS_OF(32, form)                                                               \
  PRODUCTS_OF(64, form)

// For up to 8 rows of x whose inputs have an order: forms that files with act-order have.
#define PRODUCTS_IN_ORDER(form)                                                               \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)                                      \
      products_few_in_order(Layers layers, Inputs x, u32 panels, u32 kept, Finish finish) {   \
    multiply_few<form, true>(layers, x, panels, kept, finish);                                \
  }
