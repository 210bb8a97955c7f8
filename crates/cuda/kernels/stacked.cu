// Products with stacks of weights in any storage, in f32: sums in the order of `linear.cu`.
#include "stacked.cuh"
#include "strands.cuh"

// A CTA has 32 outputs and up to ROWS rows. A lane has one of the outputs, for all of the rows, and a warp one of the strands.
template <u32 ROWS> inline void multiply(const Weights& w, const Stacked& s) {
  __shared__ Four inputs[STRANDS][ROWS][SEGMENT / 4];
  __shared__ float sums[STRANDS][ROWS][OUTPUTS];
  __shared__ u64 places[ROWS];
  __shared__ float factors[ROWS];
  Task task = task_of<ROWS>(s);
  if (task.count == 0) return;
  if (threadIdx.x < task.count) {
    places[threadIdx.x] = inputs_of(s, task, task.first + threadIdx.x);
    factors[threadIdx.x] = factor_of(s.routed, task.first + threadIdx.x);
  }
  __syncthreads();
  u32 lane = threadIdx.x % 32, strand = threadIdx.x / 32, output = OUTPUTS * blockIdx.x + lane;
  u64 segments = (w.cols + SEGMENT - 1) / SEGMENT;
  u32 begin = strand * segments / STRANDS, end = (strand + 1) * segments / STRANDS;
  u32 stacks = s.second.at ? 2 : 1;
  // Products with the first stack and with the second.
  float y = 0.0f, z = 0.0f;
#pragma unroll 1
  for (u32 i = 0; i < stacks; i++) {
    Weights of = w;
    of.at = weight_of(s, task, i);
    Four four[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) four[r] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 segment = begin; segment < end; segment++) {
      u32 k = SEGMENT * segment + lane;
      // All lanes are done with the segment before.
      __syncwarp();
#pragma unroll
      for (u32 r = 0; r < ROWS; r++) {
        bool there = r < task.count && k < w.cols;
        ((float*)inputs[strand][r])[lane] = there ? s.x.at[places[r] + k] * factors[r] : 0.0f;
      }
      __syncwarp();
      add_segment(four, inputs[strand], of, output, segment);
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) sums[strand][r][lane] = strand_of(four[r]);
    __syncthreads();
    // The warps are the rows now.
    if (strand < task.count) {
      float sum = sum_of(sums, strand, lane);
      if (i == 0) {
        y = sum;
      } else {
        z = sum;
      }
    }
    __syncthreads();
  }
  if (strand < task.count && output < w.rows) finish(s, task, task.first + strand, output, y, z);
  copy_columns(s, task);
}

// One CTA of a multiprocessor is enough as a bound: with more the compiler spills.
extern "C" __global__ void __launch_bounds__(WIDTH, 1) stacked_1(Weights w, Stacked s) { multiply<1>(w, s); }
extern "C" __global__ void __launch_bounds__(WIDTH, 1) stacked_8(Weights w, Stacked s) { multiply<8>(w, s); }
