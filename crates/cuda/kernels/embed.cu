// Rows of a weight as floats: embedding lookup, and `dequant`.
#include "weights.cuh"

// A CTA a row: row `ids[i]` of the weight, or row `first + i` where there are no ids. Rows past the end are zeros.
KERNEL(WIDTH) embed(Weights w, const u32* ids, Matrix<float> out, u32 first, float scale) {
  u32 row = ids ? ids[blockIdx.x] : first + blockIdx.x;
  float* to = out.row(blockIdx.x);
  for (u32 k8 = threadIdx.x; 8 * k8 < w.cols; k8 += WIDTH) {
    float x[8];
    eight(w, row, k8, x);
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      if (8 * k8 + i < w.cols) to[8 * k8 + i] = x[i] * scale;
    }
  }
}
