// Rounds rows of x to 8 bits, as products with tensor cores take them: `chunk.cuh` says how they lie.
#pragma once
#include "chunk.cuh"
#include "layers.cuh"

// Rows of x, rounded.
struct Rounded {
  const u8* codes;
  const u8* sums;
  const float* scales;
};

// The bytes of four words that are lowest there.
inline u32 lowest_bytes(const u32 (&words)[4]) {
  return permuted(permuted(words[0], words[1], 0x0040), permuted(words[2], words[3], 0x0040), 0x5410);
}

// The sum of four signed bytes.
inline i32 sum_of_bytes(u32 word) {
  i32 sum;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(word), "r"(0x01010101), "r"(0));
  return sum;
}

// The largest number of a warp's lanes.
inline u32 warp_most(u32 x) {
  u32 most;
  asm volatile("redux.sync.max.u32 %0, %1, %2;" : "=r"(most) : "r"(x), "r"(~0u));
  return most;
}

// Rounds a chunk of a row by a warp. A lane has inputs 4 * lane to 4 * lane + 3 of each half of it; `codes` has room for 256
// bytes, `sums` for SUMS, which are written if anybody reads them. The arithmetic is the CPU backend's, to the bit: a chunk's
// scale is its largest magnitude / 127, NaN if that is not finite.
template <bool HAS_SUMS = true>
inline void round_chunk(const float (&values)[2][4], u8* codes, u8* sums, float* scale) {
  u32 lane = threadIdx.x % 32, most = 0;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    // Magnitudes order as their bits do, and NaN is above infinity.
    u32 magnitude = bits_of(values[i / 4][i % 4]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  most = warp_most(most);
  constexpr u32 INFINITE = 0x7f800000;
  float by = 127.0f / float_of(most);
  // All so small that this overflows: they become zero.
  if ((bits_of(by) & 0x7fffffff) >= INFINITE) by = 0.0f;
  if (lane == 0) *scale = most < INFINITE ? float_of(most) / 127.0f : float_of(0x7fc00000);
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 rounded[4];
    // 1.5 * 2^23 leaves no bits below 1: the sum is rounded to an integer, ties to even, which is in its lowest bits.
#pragma unroll
    for (u32 i = 0; i < 4; i++) rounded[i] = bits_of(__fadd_rn(__fmul_rn(values[half][i], by), ROUNDER));
    u32 word = lowest_bytes(rounded), step = lane / 8 + 4 * half;
    ((u32*)codes)[step / 2 * 16 + lane % 4 * 4 + step % 2 * 2 + lane / 4 % 2] = word;
    if (!HAS_SUMS) continue;
    i32 sum = sum_of_bytes(word);
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

// Weights and biases of a norm in a chunk; a lane has those of its inputs.
struct NormOfChunk {
  float weight[2][4], bias[2][4];

  template <bool MAY_GATHER> void load(const Inputs& x, u32 chunk) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      u32 k = CHUNK * chunk + 128 * half + 4 * (threadIdx.x % 32);
      inputs_at<MAY_GATHER>(x, x.norm.weight, k, x.norm.weight ? x.x.cols : 0, weight[half]);
      inputs_at<MAY_GATHER>(x, x.norm.bias, k, x.norm.bias ? x.x.cols : 0, bias[half]);
    }
  }
};

// A chunk of a row, normalized if there is a norm, as `round_chunk` takes it.
template <bool MAY_GATHER>
inline void load_chunk(const Inputs& x, const Row& row, Moments moments, const NormOfChunk& norm, u32 chunk,
                       float (&values)[2][4]) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 k = CHUNK * chunk + 128 * half + 4 * (threadIdx.x % 32);
    inputs_at<MAY_GATHER>(x, x.at(row), k, row.is_there ? x.x.cols : 0, values[half]);
    if (!x.norm.weight) continue;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      float y = normalized_by(moments, values[half][i], norm.weight[half][i], x.norm.bias, norm.bias[half][i]);
      values[half][i] = k + i < x.x.cols ? y : 0.0f;
    }
  }
}
