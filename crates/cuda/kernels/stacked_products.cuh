// Products with stacks of weights in planes, in whole numbers: `products.cuh` says how. Each output has the bits that a layer
// with that weight alone gives.
#pragma once
#include "rounding.cuh"
#include "stacked.cuh"

// Panels that a CTA multiplies with the same rows: of two stacks, half as many of each.
static constexpr u32 JOBS = 4;
// Bytes from the codes of a row to those of the next, and the same of sums: so that the lanes of a warp read different banks.
static constexpr u32 CODES_ROW = CHUNK + 64, SUMS_ROW = SUMS + 16;

// A chunk of a row of x, as `round_chunk` takes it; zeros past the end.
inline void load_chunk(const float* row, u32 chunk, u32 cols, float by, float (&values)[2][4]) {
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    u32 k = CHUNK * chunk + 128 * (i / 4) + 4 * (threadIdx.x % 32) + i % 4;
    values[i / 4][i % 4] = k < cols ? row[k] * by : 0.0f;
  }
}

// A CTA has up to JOBS panels and 8 * TILES rows. `kept` chunks at a time, its warps round these rows, or copy what is rounded
// already, multiply panels and chunks in turn, and add up what belongs together in the order of the chunks.
template <class F, u32 TILES>
inline void multiply_stacked(const Weights& w, const Stacked& s, const Rounded& rounded, u32 kept) {
  extern __shared__ Words room[];
  constexpr u32 ROWS = 8 * TILES, ROW = 20, WARPS = WIDTH / 32;
  Task task = task_of<ROWS>(s);
  if (task.count == 0) return;
  u8* codes = (u8*)room;
  u8* sums = codes + kept * ROWS * CODES_ROW;
  float* scales = (float*)(sums + kept * ROWS * SUMS_ROW);
  float* totals = scales + kept * ROWS;
  float* of_chunks = totals + JOBS * ROWS * PANEL;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, last = task.count - 1;
  u32 chunks = (w.cols + CHUNK - 1) / CHUNK, panels = (w.rows + PANEL - 1) / PANEL;
  u32 stacks = s.second.at ? 2 : 1, first = JOBS / stacks * blockIdx.x;
  panels = panels - first < JOBS / stacks ? panels - first : JOBS / stacks;
  u32 jobs = stacks * panels;
  // Of 8 rows those that are missing are read as the last one; of more they are copies of it.
  u32 filled = TILES == 1 ? task.count : ROWS;
  for (u32 begin = 0; begin < chunks; begin += kept) {
    u32 count = chunks - begin < kept ? chunks - begin : kept;
    for (u32 i = warp; i < count * filled; i += WARPS) {
      u32 c = i / filled, r = i % filled, to = c * ROWS + r, slot = task.first + (r < last ? r : last);
      if (rounded.codes) {
        u64 from = (u64)slot * chunks + begin + c;
        if (lane < CHUNK / 16) {
          ((Words*)(codes + CODES_ROW * to))[lane] = ((const Words*)(rounded.codes + CHUNK * from))[lane];
        } else if (lane < (CHUNK + SUMS) / 16) {
          u32 word = lane - CHUNK / 16;
          ((Words*)(sums + SUMS_ROW * to))[word] = ((const Words*)(rounded.sums + SUMS * from))[word];
        } else if (lane == 31) {
          scales[to] = rounded.scales[from];
        }
      } else {
        float values[2][4];
        load_chunk(s.x.at + inputs_of(s, task, slot), begin + c, w.cols, factor_of(s.routed, slot), values);
        round_chunk(values, codes + CODES_ROW * to, sums + SUMS_ROW * to, scales + to);
      }
    }
    __syncthreads();
    for (u32 i = warp; i < jobs * count; i += WARPS) {
      u32 job = i / count, c = i % count, rest = w.cols - (begin + c) * CHUNK;
      const u8* panel = weight_of(s, task, job % stacks) + (first + job / stacks) * w.panel;
      u32 rows[3] = {lane / 4, 2 * q, 2 * q + 1};
#pragma unroll
      for (u32 r = 0; r < 3; r++) rows[r] = c * ROWS + (TILES == 1 && rows[r] > last ? last : rows[r]);
      Place place = {(const Words*)(codes + CODES_ROW * rows[0]), sums + SUMS_ROW * rows[0],
                     {sums + SUMS_ROW * rows[1], sums + SUMS_ROW * rows[2]}, 8 * CODES_ROW / CHUNK};
      float f[TILES][4];
      multiply_chunk<F, TILES>(w, panel + (u64)(begin + c) * w.chunk, rest < CHUNK ? rest : CHUNK, place, f);
      float* to = of_chunks + (i * ROWS + 2 * q) * ROW + lane / 4;
#pragma unroll
      for (u32 t = 0; t < TILES; t++) {
#pragma unroll
        for (u32 k = 0; k < 4; k++) to[(8 * t + k % 2) * ROW + k / 2 * 8] = f[t][k];
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < jobs * ROWS * PANEL; i += WIDTH) {
      u32 job = i / (ROWS * PANEL), row = i / PANEL % ROWS;
      if (row > last) continue;
      float y = begin == 0 ? 0.0f : totals[i];
      for (u32 c = 0; c < count; c++) {
        y = fmaf(of_chunks[((job * count + c) * ROWS + row) * ROW + i % PANEL], scales[c * ROWS + row], y);
      }
      totals[i] = y;
    }
    __syncthreads();
  }
  for (u32 i = threadIdx.x; i < panels * ROWS * PANEL; i += WIDTH) {
    u32 panel = i / (ROWS * PANEL), row = i / PANEL % ROWS, output = PANEL * (first + panel) + i % PANEL;
    if (row > last || output >= w.rows) continue;
    const float* y = totals + (stacks * panel * ROWS + row) * PANEL + i % PANEL;
    finish(s, task, task.first + row, output, y[0], stacks == 2 ? y[ROWS * PANEL] : 0.0f);
  }
  copy_columns(s, task);
}

static_assert(8 * CODES_ROW % CHUNK == 0 && 8 * CODES_ROW / CHUNK * SUMS == 8 * SUMS_ROW, "tiles lie as `Place` says");

#define STACKED_OF(rows, form)                                       \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)             \
      stacked_##rows(Weights w, Stacked s, Rounded rounded, u32 kept) { \
    multiply_stacked<form, rows / 8>(w, s, rounded, kept);           \
  }

// The kernels of a form, for 8 and 32 rows.
#define STACKED(form) \
  STACKED_OF(8, form) \
  STACKED_OF(32, form)
