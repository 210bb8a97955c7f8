// Ops with a recurrent state for each sequence.
#include "activation.cuh"

// Threads of each column of a state matrix, columns of a CTA, and elements of a column that a thread has: of the longest key.
static constexpr u32 PARTS = 8, COLUMNS = 16, MOST_EACH = 32;
// Elements of a thread that are passed over together where keys are shorter.
static constexpr u32 BLOCK = 8;

// ln(1 + y) for y from 0 to 1, as twice the inverse hyperbolic tangent of y / (2 + y).
inline float log_of_one_and(float y) {
  float s = y / (2.0f + y), t = s * s;
  float p = 1.0f / 15;
  p = fmaf(p, t, 1.0f / 13);
  p = fmaf(p, t, 1.0f / 11);
  p = fmaf(p, t, 1.0f / 9);
  p = fmaf(p, t, 1.0f / 7);
  p = fmaf(p, t, 1.0f / 5);
  p = fmaf(p, t, 1.0f / 3);
  p = fmaf(p, t, 1.0f);
  return 2.0f * s * p;
}

inline float softplus(float x) { return fmaxf(x, 0.0f) + log_of_one_and(exp_of(-fabsf(x))); }

// The sum of a column's threads, in an order that is always the same.
inline float column_sum(float x) {
  for (u32 d = PARTS / 2; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// A step's spans, and the state rows of each: those read, then those written.
struct Spans {
  const u32 *starts, *lens, *states;
};

// Whether a sequence begins with a span.
inline bool begins(const Spans& spans, u32 span) {
  return spans.lens[span] == spans.starts[span + 1] - spans.starts[span];
}

// Whether a span goes on where the one before it ends, and reads the state that that one writes.
inline bool continues(const Spans& spans, u32 span, u32 count) {
  return span > 0 && !begins(spans, span) && spans.states[span] == spans.states[count + span - 1];
}

// The span that a token is in.
inline u32 span_of(const Spans& spans, u32 count, u32 token) {
  u32 low = 0, high = count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (spans.starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Tokens of a CTA of the causal convolution.
static constexpr u32 TOKENS = 8;

// A column of the inputs of a sequence whose spans are computed: those before the step are in the state, or are zeros.
struct Inputs {
  const float *x, *state;
  u32 stride, first, before, cols;

  // The input of a row of the step, or as many rows before its first one.
  float at(i32 row) const {
    if (row >= (i32)first) return x[(u64)row * stride];
    return state ? state[(u64)(before + row - first) * cols] : 0.0f;
  }
};

// The inputs of a span's sequence. What it continues is in the step, so that no state is read that is written.
inline Inputs inputs_of(Matrix<const float> x, Matrix<float> window, const Spans& spans, u32 count, u32 span, u32 column,
                        u32 before) {
  while (continues(spans, span, count)) span--;
  const float* state = begins(spans, span) ? nullptr : window.row(spans.states[span]) + column;
  return {x.at + column, state, x.stride, spans.starts[span], before, x.cols};
}

// Causal depthwise convolution, then SiLU: a column of some tokens a thread. The last CTAs write the spans' new states, the last
// inputs of each.
KERNEL(WIDTH) causal_conv(Matrix<const float> x, Matrix<const float> weight, Matrix<float> window, Matrix<float> out,
                          Spans spans, u32 count) {
  u32 column = blockIdx.y * WIDTH + threadIdx.x, before = weight.rows - 1, runs = (x.rows + TOKENS - 1) / TOKENS;
  if (column >= x.cols) return;
  if (blockIdx.x >= runs) {
    u32 span = blockIdx.x - runs, end = spans.starts[span + 1];
    Inputs inputs = inputs_of(x, window, spans, count, span, column, before);
    float* state = window.row(spans.states[count + span]) + column;
    for (u32 i = 0; i < before; i++) state[(u64)i * x.cols] = inputs.at((i32)(end - before + i));
    return;
  }
  u32 row = blockIdx.x * TOKENS, end = min(row + TOKENS, x.rows), span = span_of(spans, count, row);
  while (row < end) {
    Inputs inputs = inputs_of(x, window, spans, count, span, column, before);
#pragma unroll 1
    for (u32 until = min(end, spans.starts[span + 1]); row < until; row++) {
      float sum = weight.row(0)[column] * inputs.at((i32)(row - before));
      for (u32 i = 1; i <= before; i++) sum += weight.row(i)[column] * inputs.at((i32)(row - before + i));
      out.row(row)[column] = activation(SILU, sum);
    }
    span++;
  }
}

// Gated delta rule: some columns of a value head's state matrix S,
// S <- alpha S + beta k (v - alpha S^T k)^T, y = S^T q. The spans of a sequence are computed by the CTAs of the first one. A
// column lies in a row of the state, and every eighth of its elements in the registers of the same thread.
KERNEL(PARTS* COLUMNS) gated_delta(Matrix<const float> qk, Matrix<const float> v, Matrix<const float> gates, const float* rate,
                                   const float* bias, Matrix<float> states, Matrix<float> out, Spans spans, u32 count,
                                   u32 key_heads, u32 key_dim, u32 value_dim, u32 is_grouped, float scale) {
  __shared__ float q[PARTS * MOST_EACH], k[PARTS * MOST_EACH];
  u32 head = blockIdx.y, heads = gridDim.y, span = blockIdx.z;
  if (continues(spans, span, count)) return;
  u32 part = threadIdx.x % PARTS, column = blockIdx.x * COLUMNS + threadIdx.x / PARTS;
  bool exists = column < value_dim;
  u64 place = ((u64)head * value_dim + column) * key_dim;
  u32 key = (is_grouped ? head / (heads / key_heads) : head % key_heads) * key_dim;
  float rate_of = rate[head], bias_of = bias[head];

  float s[MOST_EACH];
  bool is_zero = begins(spans, span) || !exists;
  const float* old = states.row(spans.states[span]) + place;
#pragma unroll
  for (u32 j = 0; j < MOST_EACH; j++) {
    u32 i = PARTS * j + part;
    s[j] = is_zero || i >= key_dim ? 0.0f : old[i];
  }
  for (;;) {
    for (u32 t = spans.starts[span]; t < spans.starts[span + 1]; t++) {
      __syncthreads();
      for (u32 i = threadIdx.x; i < PARTS * MOST_EACH; i += PARTS * COLUMNS) {
        const float* row = qk.row(t) + key;
        q[i] = i < key_dim ? row[i] : 0.0f;
        k[i] = i < key_dim ? row[(u64)key_heads * key_dim + i] : 0.0f;
      }
      __syncthreads();
      float beta = sigmoid_of(gates.row(t)[head]);
      float alpha = exp_of(-rate_of * softplus(gates.row(t)[heads + head] + bias_of));
      float value = exists ? v.row(t)[head * value_dim + column] : 0.0f;
      float recalled = 0.0f;
#pragma unroll
      for (u32 b = 0; b < MOST_EACH; b += BLOCK) {
        if (PARTS * b < key_dim) {
#pragma unroll
          for (u32 j = b; j < b + BLOCK; j++) recalled = fmaf(k[PARTS * j + part], s[j], recalled);
        }
      }
      float delta = beta * fmaf(-alpha, column_sum(recalled), value);
      float sum = 0.0f;
#pragma unroll
      for (u32 b = 0; b < MOST_EACH; b += BLOCK) {
        if (PARTS * b < key_dim) {
#pragma unroll
          for (u32 j = b; j < b + BLOCK; j++) {
            s[j] = fmaf(k[PARTS * j + part], delta, alpha * s[j]);
            sum = fmaf(q[PARTS * j + part], s[j], sum);
          }
        }
      }
      float y = column_sum(sum) * scale;
      if (exists && part == 0) out.row(t)[head * value_dim + column] = y;
    }
    float* next = states.row(spans.states[count + span]) + place;
#pragma unroll
    for (u32 j = 0; j < MOST_EACH; j++) {
      u32 i = PARTS * j + part;
      if (exists && i < key_dim) next[i] = s[j];
    }
    span++;
    if (span == count || !continues(spans, span, count)) break;
  }
}
