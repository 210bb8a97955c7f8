// Rounds rows of x to 8 bits, as products with tensor cores take them: `products.cuh` says how they lie.
#pragma once
#include "products.cuh"

// Rounds a chunk of a row by a warp. A lane has inputs 4 * lane to 4 * lane + 3 of each half of it; `codes` has room for 256 bytes,
// `sums` for SUMS. The arithmetic is the CPU backend's, to the bit: a chunk's scale is its largest magnitude / 127, NaN if that is
// not finite.
inline void round_chunk(const float (&values)[2][4], u8* codes, u8* sums, float* scale) {
  u32 lane = threadIdx.x % 32, most = 0;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    // Magnitudes order as their bits do, and NaN is above infinity.
    u32 magnitude = bits_of(values[i / 4][i % 4]) & 0x7fffffff;
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
  if (lane == 0) *scale = most < INFINITE ? float_of(most) / 127.0f : float_of(0x7fc00000);
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
    ((u32*)codes)[step / 2 * 16 + lane % 4 * 4 + step % 2 * 2 + lane / 4 % 2] = word;
    i32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) sum += (i32)(i8)(word >> 8 * i);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    i32 both = sum + __shfl_xor_sync(~0u, sum, 4);
    u32 run = lane / 4 + 8 * half;
    if (lane % 4 == 0) {
      sums[run] = (u8)(sum & 127);
      sums[CHUNK / 16 + run] = (u8)(sum >> 7);
    }
    if (lane % 8 == 0) ((float*)(sums + CHUNK / 8))[step] = (float)both;
  }
}
