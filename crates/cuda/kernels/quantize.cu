// Rounds rows of x to 8 bits, as products with tensor cores take them: `products.cuh` says how they lie.
#include "products.cuh"

// A warp has a chunk of a row, and a lane inputs 4 * lane to 4 * lane + 3 of each half of it. Rows and inputs that x lacks are
// zeros. The arithmetic is the CPU backend's, to the bit: a chunk's scale is its largest magnitude / 127, NaN if that is not finite.
KERNEL(WIDTH) quantize(Matrix<const float> x, u8* codes, u8* sums, float* scales, u32 rows) {
  u32 lane = threadIdx.x % 32, row = WIDTH / 32 * blockIdx.y + threadIdx.x / 32, chunk = blockIdx.x;
  if (row >= rows) return;
  u64 at = (u64)row * gridDim.x + chunk;
  float values[2][4];
  u32 most = 0;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    u32 k = CHUNK * chunk + 128 * (i / 4) + 4 * lane + i % 4;
    float value = row < x.rows && k < x.cols ? x.row(row)[k] : 0.0f;
    values[i / 4][i % 4] = value;
    // Magnitudes order as their bits do, and NaN is above infinity.
    u32 magnitude = bits_of(value) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  for (u32 d = 16; d > 0; d /= 2) {
    u32 other = __shfl_xor_sync(~0u, most, d);
    most = other > most ? other : most;
  }
  constexpr u32 INFINITE = 0x7f800000;
  float by = 127.0f / float_of(most);
  // All so small that this overflows: they become zero.
  if ((bits_of(by) & 0x7fffffff) >= INFINITE) by = 0.0f;
  if (lane == 0) scales[at] = most < INFINITE ? float_of(most) / 127.0f : float_of(0x7fc00000);
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 word = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      // 1.5 * 2^23 leaves no bits below 1: the sum is rounded to an integer, ties to even, which is in its lowest bits.
      u32 rounded = bits_of(__fadd_rn(__fmul_rn(values[half][i], by), ROUNDER));
      word |= (rounded & 255) << 8 * i;
    }
    u32 step = lane / 8 + 4 * half;
    ((u32*)(codes + CHUNK * at))[step / 2 * 16 + lane % 4 * 4 + step % 2 * 2 + lane / 4 % 2] = word;
    i32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) sum += (i32)(i8)(word >> 8 * i);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    i32 both = sum + __shfl_xor_sync(~0u, sum, 4);
    u8* to = sums + SUMS * at;
    u32 run = lane / 4 + 8 * half;
    if (lane % 4 == 0) {
      to[run] = (u8)(sum & 127);
      to[CHUNK / 16 + run] = (u8)(sum >> 7);
    }
    if (lane % 8 == 0) ((float*)(to + CHUNK / 8))[step] = (float)both;
  }
}
