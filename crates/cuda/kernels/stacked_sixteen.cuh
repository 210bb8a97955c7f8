// Products with stacks of weights that are floats of 16 or 8 bits: `sixteen.cuh` says how. Each output has the bits that a layer with
// that weight alone gives.
#pragma once
#include "sixteen.cuh"
#include "stacked.cuh"

// Rows of a task: where each begins in x, and what multiplies it.
template <u32 ROWS> struct RowsOfTask {
  u64 places[ROWS];
  float by[ROWS];
};

// A warp's own: a segment of the rows, rounded, and its factors.
template <u32 ROWS> struct SegmentOfRows {
  u32 of[ROWS][SPREAD];
  float factors[ROWS];
};

// The rows of a task, which a warp rounds for itself, or copies where they are rounded already.
template <Sixteen KIND, u32 ROWS> struct TaskRows {
  const Stacked& s;
  const RoundedRows& rounded;
  const Task& task;
  const RowsOfTask<ROWS>& rows;
  SegmentOfRows<ROWS>& own;
  u32 cols;

  inline void prepare() {}

  inline void begin(u32 segment) {
    u32 at = threadIdx.x % 16, segments = (cols + SEGMENT - 1) / SEGMENT;
    // All lanes are done with the segment before.
    __syncwarp();
#pragma unroll 1
    for (u32 first = 0; first < task.count; first += 2) {
      u32 r = first + threadIdx.x % 32 / 16;
      bool is_there = r < task.count;
      TwoWords two = {0, 0};
      float factor = 0.0f;
      if (rounded.at) {
        u64 place = (u64)(task.first + r) * segments + segment;
        if (is_there) {
          two = ((const TwoWords*)rounded.at)[SEGMENT_WORDS / 2 * place + at];
          if (KIND == F16S) factor = rounded.factors[place];
        }
      } else {
        float values[4];
        four_at(s.x.at + (is_there ? rows.places[r] : 0), SEGMENT * segment + 4 * at, is_there ? cols : 0, values);
#pragma unroll
        for (u32 i = 0; i < 4; i++) values[i] = is_there ? __fmul_rn(values[i], rows.by[r]) : 0.0f;
        two = round_segment<KIND == F16S>(values, factor);
      }
      ((TwoWords*)own.of[r])[at] = two;
      if (KIND == F16S && at == 0) own.factors[r] = factor;
    }
    __syncwarp();
  }

  inline void words(u32 t, u32 i, u32 (&b)[2]) const {
    const u32* at = own.of[8 * t + threadIdx.x % 32 / 4] + word_of_x<KIND>(i, threadIdx.x % 4);
    b[0] = at[0];
    b[1] = at[next_word_of_x<KIND>()];
  }

  inline float factor(u32 t, u32 j) const { return own.factors[8 * t + threadIdx.x % 4 * 2 + j]; }
};

// Of one use after the other.
template <u32 MOST, u32 ROWS> union RoomOfTask {
  alignas(8) SegmentOfRows<ROWS> rows[WIDTH / 32];
  SumsOfStrands<MOST, ROWS> sums;
};

// A CTA has up to MOST panels, of two stacks half as many of each, and 8 * TILES rows.
template <Sixteen KIND, u32 TILES, u32 MOST>
inline void multiply_stacked(const Weights& w, const Stacked& s, const RoundedRows& rounded) {
  constexpr u32 ROWS = 8 * TILES;
  __shared__ RoomOfTask<MOST, ROWS> room;
  __shared__ RowsOfTask<ROWS> rows;
  __shared__ Panel panels[MOST];
  Task task = task_of<ROWS>(s);
  if (task.count == 0) return;
  u32 stacks = s.second.at ? 2 : 1, first = MOST / stacks * blockIdx.x;
  if (threadIdx.x < MOST) {
    u32 panel = first + threadIdx.x / stacks, before = PANEL * panel;
    const u8* at = weight_of(s, task, threadIdx.x % stacks) + panel * w.panel;
    panels[threadIdx.x] = {(u64)at - (u64)w.at, w.rows > before ? w.rows - before : 0};
  }
  if (threadIdx.x < task.count) {
    rows.places[threadIdx.x] = inputs_of(s, task, task.first + threadIdx.x);
    rows.by[threadIdx.x] = factor_of(s.routed, task.first + threadIdx.x);
  }
  // Rows that the task lacks are zeros.
  for (u32 i = threadIdx.x; i < sizeof(room.rows) / 4; i += WIDTH) ((u32*)room.rows)[i] = 0;
  __syncthreads();
  TaskRows<KIND, ROWS> own = {s, rounded, task, rows, room.rows[threadIdx.x / 32], w.cols};
  multiply_strands<KIND, TILES>(w, panels, own, room.sums);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < MOST / stacks * ROWS * PANEL; i += WIDTH) {
    u32 g = i / (ROWS * PANEL) * stacks, row = i / PANEL % ROWS, output = i % PANEL;
    if (output >= panels[g].outputs || row >= task.count) continue;
    float z = stacks == 2 ? room.sums.total(g + 1, row, output) : 0.0f;
    finish(s, task, task.first + row, PANEL * (first + g / stacks) + output, room.sums.total(g, row, output), z);
  }
  copy_columns(s, task);
}

// The kernels of a kind, for 8 and 32 rows.
#define STACKED_SIXTEEN(kind)                                     \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)          \
      stacked_8(Weights w, Stacked s, RoundedRows rounded) {      \
    multiply_stacked<kind, 1, 4>(w, s, rounded);                  \
  }                                                               \
  extern "C" __global__ void __launch_bounds__(WIDTH, 1)          \
      stacked_32(Weights w, Stacked s, RoundedRows rounded) {     \
    multiply_stacked<kind, 4, 2>(w, s, rounded);                  \
  }
