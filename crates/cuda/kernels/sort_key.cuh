// Elements of a row in the order of a selection: by value, then by column.
#pragma once
#include "common.cuh"

// An integer that orders as values do: both zeros are equal, and NaN is least.
inline u32 sort_key(float x) {
  u32 bits = bits_of(x), magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0;
  if (magnitude == 0) return 0x80000000;
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

// An element by its key and column: the larger of two comes first, no two are equal, and none is zero.
inline u64 place_of(u32 key, u32 column) {
  u64 place;
  asm("mov.b64 %0, {%1, %2};" : "=l"(place) : "r"(~column), "r"(key));
  return place;
}
inline u32 key_of(u64 place) { return (u32)(place >> 32); }
inline u32 column_of(u64 place) { return ~(u32)place; }

inline u64 first_of(u64 a, u64 b) { return a > b ? a : b; }

// The first of those of all threads of a CTA, of which there are THREADS. All of them must come here.
template <u32 THREADS> inline u64 cta_first(u64 x) {
  __shared__ u64 parts[THREADS / 32];
  for (u32 d = 16; d > 0; d /= 2) x = first_of(x, __shfl_xor_sync(~0u, x, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  u64 first = parts[0];
  for (u32 i = 1; i < THREADS / 32; i++) first = first_of(first, parts[i]);
  return first;
}
