// Rounds rows of x to 8 bits for products with tensor cores.
#include "rounding.cuh"

// A warp has a chunk of a row. Rows and inputs that x lacks are zeros.
KERNEL(WIDTH) quantize(Matrix<const float> x, u8* codes, u8* sums, float* scales, u32 rows) {
  u32 lane = threadIdx.x % 32, row = WIDTH / 32 * blockIdx.y + threadIdx.x / 32, chunk = blockIdx.x;
  if (row >= rows) return;
  u64 at = (u64)row * gridDim.x + chunk;
  float values[2][4];
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    u32 k = CHUNK * chunk + 128 * (i / 4) + 4 * lane + i % 4;
    values[i / 4][i % 4] = row < x.rows && k < x.cols ? x.row(row)[k] : 0.0f;
  }
  round_chunk(values, codes + CHUNK * at, sums + SUMS * at, scales + at);
}
