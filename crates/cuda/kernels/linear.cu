// Products with weights in any storage, in f32.
//
// The sum over the inputs is cut into 8 strands of whole segments of 32. Within a strand every fourth input goes to the same of
// four sums; the four are added, then the strands in order. That does not depend on how many rows there are, nor on which
// kernel computes them.
#include "weights.cuh"

constexpr u32 STRANDS = 8;
constexpr u32 SEGMENT = 32;
constexpr u32 OUTPUTS = 32;

struct alignas(16) Four {
  float x, y, z, w;
};

// cap * tanh(scale * y / cap) + residual, or scale * y + residual.
inline float epilogue(float y, float scale, float cap, float residual) {
  if (cap > 0.0f) return fmaf(cap, tanh_of(y * scale / cap), residual);
  return fmaf(y, scale, residual);
}

// A CTA has 32 outputs and ROWS rows of x. A lane has one of the outputs, for all of the rows, and a warp one of the strands.
// It keeps its segment of the rows in shared memory, padded with zeros, so that x may lie anywhere.
template <u32 ROWS>
inline void multiply(const Matrix<const float>& x, const Weights& w, const float* bias, const Matrix<const float>& residual,
                     const Matrix<float>& out, float scale, float cap) {
  __shared__ Four inputs[STRANDS][ROWS][SEGMENT / 4];
  __shared__ float sums[STRANDS][ROWS][OUTPUTS];
  u32 lane = threadIdx.x % 32, strand = threadIdx.x / 32;
  u32 output = OUTPUTS * blockIdx.x + lane, first = ROWS * blockIdx.y;
  u64 segments = (w.cols + SEGMENT - 1) / SEGMENT;
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
      bool there = first + i < x.rows && k < x.cols;
      ((float*)inputs[strand][i])[lane] = there ? x.row(first + i)[k] : 0.0f;
    }
    __syncwarp();
#pragma unroll 1
    for (u32 e = 0; e < SEGMENT / 8; e++) {
      float v[8];
      eight(w, output, SEGMENT / 8 * segment + e, v);
#pragma unroll
      for (u32 i = 0; i < ROWS; i++) {
        Four a = inputs[strand][i][2 * e], b = inputs[strand][i][2 * e + 1];
        four[i].x = fmaf(v[4], b.x, fmaf(v[0], a.x, four[i].x));
        four[i].y = fmaf(v[5], b.y, fmaf(v[1], a.y, four[i].y));
        four[i].z = fmaf(v[6], b.z, fmaf(v[2], a.z, four[i].z));
        four[i].w = fmaf(v[7], b.w, fmaf(v[3], a.w, four[i].w));
      }
    }
  }
#pragma unroll
  for (u32 i = 0; i < ROWS; i++) sums[strand][i][lane] = (four[i].x + four[i].y) + (four[i].z + four[i].w);
  __syncthreads();
  // The warps are the rows now.
  u32 row = first + strand;
  if (strand >= ROWS || row >= out.rows || output >= out.cols) return;
  float y = 0.0f;
#pragma unroll
  for (u32 s = 0; s < STRANDS; s++) y += sums[s][strand][lane];
  if (bias) y += bias[output];
  out.row(row)[output] = epilogue(y, scale, cap, residual.at ? residual.row(row)[output] : 0.0f);
}

KERNEL(WIDTH) linear_1(Matrix<const float> x, Weights w, const float* bias, Matrix<const float> residual, Matrix<float> out,
                       float scale, float cap) {
  multiply<1>(x, w, bias, residual, out, scale, cap);
}

KERNEL(WIDTH) linear_8(Matrix<const float> x, Weights w, const float* bias, Matrix<const float> residual, Matrix<float> out,
                       float scale, float cap) {
  multiply<8>(x, w, bias, residual, out, scale, cap);
}
