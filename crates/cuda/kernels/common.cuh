// What all kernels share: types, views of tensors, mathematics of our own, reductions.
//
// No toolkit headers. Every product that is added is an explicit `fma`: compiled with --fmad=false, the order and the rounding of
// each sum is what is written, in every kernel alike.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

// Threads of most kernels.
static constexpr u32 WIDTH = 256;

// A view of rows whose columns follow each other. Where there may be none, `at` is null.
template <typename T> struct Matrix {
  T* at;
  u32 rows, cols, stride;

  T* row(u32 r) const { return at + (u64)r * stride; }
};

// Numbers that are loaded together.
struct alignas(16) Four {
  float x, y, z, w;
};

inline u32 bits_of(float x) { return __float_as_uint(x); }
inline float float_of(u32 x) { return __uint_as_float(x); }

inline float bf16_to_float(u16 x) { return float_of((u32)x << 16); }

inline float f16_to_float(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

inline u16 float_to_f16(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

inline u16 float_to_bf16(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// e^x to about 2 ulp, by the same steps as the CPU backend's and so with the same bits on every GPU. Arguments are clamped to the
// range of normal results.
inline float exp_of(float x) {
  x = fminf(fmaxf(x, -87.0f), 88.0f);
  float n = rintf(x * 1.44269504f);
  // ln 2 in two parts, the first short enough that n times it is exact.
  float r = fmaf(n, -0.6933594f, x);
  r = fmaf(n, 2.1219444e-4f, r);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return p * float_of((u32)((i32)n + 127) << 23);
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

inline float tanh_of(float x) {
  // Above 9 it is 1 to the last bit.
  x = fminf(fmaxf(x, -9.0f), 9.0f);
  float e = exp_of(x + x);
  return (e - 1.0f) / (e + 1.0f);
}

// Sums and maxima of a warp's lanes, in an order that is always the same; every lane has the result.
inline float warp_sum(float x) {
  for (u32 d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

inline float warp_max(float x) {
  for (u32 d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// The same of all threads of a CTA, of which there are THREADS. All of them must come here.
template <u32 THREADS> inline float cta_sum(float x) {
  __shared__ float parts[THREADS / 32];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = parts[0];
  for (u32 i = 1; i < THREADS / 32; i++) sum += parts[i];
  return sum;
}

template <u32 THREADS> inline float cta_max(float x) {
  __shared__ float parts[THREADS / 32];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float most = parts[0];
  for (u32 i = 1; i < THREADS / 32; i++) most = fmaxf(most, parts[i]);
  return most;
}

// The number of this thread among all of the grid's first axis, and how many there are: for loops over elements.
inline u64 thread_of_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
inline u64 threads_of_grid() { return (u64)gridDim.x * blockDim.x; }
