// Products of rows of x with the weights of a stack, which lie at equal distances: tiles of rows with one of them each. An expert
// takes the rows that are routed to it, a head some columns of every row.
#pragma once
#include "activation.cuh"
#include "weights.cuh"

static constexpr u32 NONE = ~0u;

// A stack: its first weight and bias, and how many bytes further the next ones are. There may be no biases.
struct Stack {
  const u8* at;
  u64 each;
  const float* bias;
  u64 bias_each;
};

// Tiles of experts, as `experts.cu` lists them: expert, first slot, number of slots. A slot is a place in the order of experts,
// and of rows within an expert; its pair is the row times `top_k` and the place of the expert among those of the row. x has a row
// for each row, or if `top_k` is 0 for each slot. `weights` multiply it, if there are any.
struct Routed {
  const u32* tiles;
  const u32* pairs;
  const float* weights;
  u32 top_k, unused;
};

// Products with one stack or two, which are gate and up and become act(gate) * up. Columns of a head begin `x_each` and
// `out_each` after those of the head before. Its outputs are behind `out_at` columns of x, which are copied from `copied_at` on.
struct Stacked {
  Stack first, second;
  Routed routed;
  Matrix<const float> x;
  // The gate, where it is computed already.
  Matrix<const float> gate;
  Matrix<float> out;
  // Of 64 bits each: pairs of shorter ones, of which one is not used somewhere, become loads that older drivers do not know.
  u64 act, x_at, x_each, out_at, out_each, copied_at;
};

// The task of a CTA: up to ROWS rows, of slots from `first` on, with one of the weights.
struct Task {
  u32 weight, first, count;
};

template <u32 ROWS> inline Task task_of(const Stacked& s) {
  Task task = {blockIdx.z, ROWS * blockIdx.y, 0};
  u32 rows = s.out.rows - task.first;
  if (s.routed.tiles) {
    const u32* tile = s.routed.tiles + 3 * blockIdx.y;
    // A tile of more rows is left to several CTAs.
    u32 before = ROWS * blockIdx.z;
    task = {tile[0], tile[1] + before, 0};
    rows = tile[2] > before ? tile[2] - before : 0;
  }
  task.count = rows < ROWS ? rows : ROWS;
  return task;
}

// The row of x of a slot, and what multiplies it.
inline u32 row_of(const Routed& routed, u32 slot) { return routed.top_k ? routed.pairs[slot] / routed.top_k : slot; }
inline float factor_of(const Routed& routed, u32 slot) { return routed.weights ? routed.weights[routed.pairs[slot]] : 1.0f; }

// The first of a slot's inputs, in elements from the beginning of x.
inline u64 inputs_of(const Stacked& s, const Task& task, u32 slot) {
  return (u64)row_of(s.routed, slot) * s.x.stride + s.x_at + s.x_each * task.weight;
}

// The weight of a task in the first stack, or in the second. No selection: that would be one between addresses of parameters.
inline const u8* weight_of(const Stacked& s, const Task& task, u32 second) {
  const u8* first = s.first.at + s.first.each * task.weight;
  return first + second * (u64)(s.second.at + s.second.each * task.weight - first);
}

inline float with_bias(const Stack& stack, u32 weight, u32 output, float y) {
  return stack.bias ? y + ((const float*)((const u8*)stack.bias + stack.bias_each * weight))[output] : y;
}

// Writes an output of a slot: y of the first stack, z of the second.
inline void finish(const Stacked& s, const Task& task, u32 slot, u32 output, float y, float z) {
  y = with_bias(s.first, task.weight, output, y);
  if (s.act != NO_ACTIVATION) {
    bool is_gated = s.second.at || s.gate.at;
    if (s.second.at) z = with_bias(s.second, task.weight, output, z);
    if (s.gate.at) {
      z = y;
      y = s.gate.row(slot)[output];
    }
    y = activation(s.act, y);
    if (is_gated) y *= up_factor(s.act, z);
  }
  s.out.row(slot)[s.out_each * task.weight + s.out_at + output] = y;
}

// The columns in front of a head's outputs.
inline void copy_columns(const Stacked& s, const Task& task) {
  if (blockIdx.x > 0) return;
  u32 columns = s.out_at;
  for (u32 i = threadIdx.x; i < task.count * columns; i += WIDTH) {
    u32 row = task.first + i / columns, c = i % columns;
    s.out.row(row)[s.out_each * task.weight + c] = s.x.row(row)[s.x_each * task.weight + s.copied_at + c];
  }
}
