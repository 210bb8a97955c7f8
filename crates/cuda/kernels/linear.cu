// Products with weights in any storage, in f32.
#include "layers.cuh"
#include "strands.cuh"

// cap * tanh(scale * y / cap) + residual, or scale * y + residual.
inline float epilogue(float y, float scale, float cap, float residual) {
  if (cap > 0.0f) return fmaf(cap, tanh_of(y * scale / cap), residual);
  return fmaf(y, scale, residual);
}

// A CTA has 32 outputs, or as many of a block's gate and of its up, and ROWS rows of x. A lane has one of the outputs, for all of
// the rows, and a warp one of the strands. It keeps its segment of the rows in shared memory, padded with zeros, so that x may
// lie anywhere.
template <u32 ROWS> inline void multiply(const Layers& layers, const Inputs& x, const Finish& finish) {
  __shared__ Four inputs[STRANDS][ROWS][SEGMENT / 4];
  __shared__ float sums[STRANDS][ROWS][OUTPUTS];
  __shared__ MomentsOfRows<ROWS> moments;
  __shared__ Row from[ROWS];
  u32 lane = threadIdx.x % 32, strand = threadIdx.x / 32;
  u32 group = blockIdx.x, first = ROWS * blockIdx.y, rows = finish.out.rows, row = first + strand;
  if (threadIdx.x < ROWS) {
    from[threadIdx.x] = x.row(first + threadIdx.x, rows);
    moments.of[threadIdx.x] = {0.0f, 0.0f};
  }
  __syncthreads();
  if (x.norm.weight) moments_of_rows(x, first, rows, moments);
  Weights w = layers.form;
  Part part = part_of(layers, OUTPUTS, group);
  u32 output = OUTPUTS * group + lane;
  u32 segments = (w.cols + SEGMENT - 1) / SEGMENT;
  u32 begin = strand * segments / STRANDS, end = (strand + 1) * segments / STRANDS;
  float gate = 0.0f;
#pragma unroll 1
  for (u32 turn = 0;; turn++) {
    if (turn > 0) part = layers.parts[1];
    w.at = weight_of(layers, part);
    w.rows = part.rows;
    Four four[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) four[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 segment = begin; segment < end; segment++) {
      u32 k = x.column(SEGMENT * segment + lane);
      bool is_input = k < w.cols;
      float weight = x.norm.weight && is_input ? x.norm.weight[k] : 0.0f;
      float bias = x.norm.bias && is_input ? x.norm.bias[k] : 0.0f;
      // All lanes are done with the segment before.
      __syncwarp();
#pragma unroll
      for (u32 i = 0; i < ROWS; i++) {
        float value = is_input && from[i].is_there ? x.at(from[i])[k] : 0.0f;
        if (x.norm.weight && is_input && first + i < rows) {
          value = normalized_by(moments.of[i], value, weight, x.norm.bias, bias);
        }
        ((float*)inputs[strand][i])[lane] = value;
      }
      __syncwarp();
      add_segment(four, inputs[strand], w, output, segment);
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) sums[strand][i][lane] = strand_of(four[i]);
    __syncthreads();
    // The warps are the rows now.
    float y = 0.0f;
    if (strand < ROWS && row < rows && output < part.rows) {
      y = with_bias(part, output, sum_of(sums, strand, lane));
    }
    if (turn > 0 || !layers.is_gated) {
      if (strand >= ROWS || row >= rows || output >= part.rows) return;
      float residual = finish.residual.at ? finish.residual.row(row)[output] : 0.0f;
      y = epilogue(y, finish.scale, finish.cap, residual);
      if (layers.act != NO_ACTIVATION) y = activated(layers, layers.is_gated ? gate : y, y);
      finish.out.row(row)[part.column + output] = y;
      return;
    }
    gate = epilogue(y, finish.scale, finish.cap, 0.0f);
    __syncthreads();
  }
}

// Left to itself the compiler takes few registers and spills a few more.
#define LINEAR(rows)                                                                                             \
  extern "C" __global__ void __launch_bounds__(WIDTH, 2) linear_##rows(Layers layers, Inputs x, Finish finish) { \
    multiply<rows>(layers, x, finish);                                                                           \
  }

LINEAR(1)
LINEAR(8)
