// The KV cache: types of elements, and where they lie.
#pragma once
#include "common.cuh"

// Types of elements, by the numbers that the host passes.
enum CacheType { F32, F16, BF16, I8, F8 };

// A layer's KV cache, keys and values alike. Within a page lie its heads, of each the slots, of each the elements: a head's part of
// a page is one contiguous tile. The scales of 8-bit codes, one for each head and slot in that order, follow all codes of the page.
struct Layout {
  u32 type, page_len, heads, dim;

  bool is_coded() const { return type == I8 || type == F8; }
  u32 size() const { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }
  // The first element of a head in a slot, and its scale in bytes, from the start of the page.
  u64 element(u32 head, u32 slot) const { return ((u64)head * page_len + slot) * dim; }
  u64 scale(u32 head, u32 slot) const {
    return (u64)page_len * heads * dim + ((u64)head * page_len + slot) * sizeof(float);
  }
};

// A number that may lie at any byte, since so may the codes before it.
inline float load_scale(const u8* at) {
  return float_of((u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24);
}

inline void store_scale(u8* at, u32 bits) {
  at[0] = (u8)bits;
  at[1] = (u8)(bits >> 8);
  at[2] = (u8)(bits >> 16);
  at[3] = (u8)(bits >> 24);
}

// F8 (e4m3). Exponent and mantissa, placed in an f32, are the value over the ratio of the two biases, also where it is subnormal.
inline float f8_to_float(u8 x) {
  float y = float_of((u32)(x & 0x7f) << 20) * 0x1p120f;
  return x & 0x80 ? -y : y;
}

// Rounds to nearest even, saturating.
inline u8 float_to_f8(float x) {
  u32 sign = bits_of(x) >> 24 & 0x80, a = bits_of(x) & 0x7fffffff;
  // Below 2^-6 codes are multiples of 2^-9.
  if (a < 0x3c800000) return (u8)(sign | (u32)rintf(float_of(a) * 512.0f));
  u32 code = ((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120 << 3);
  return (u8)(sign | (code < 0x7e ? code : 0x7e));
}

// Four elements of a cache that follow each other, without their scale; of fewer than four the last one again.
inline float4 load_elements(u32 type, const u8* at, u64 first, u32 count) {
  u64 second = first + min(count - 1, 1), third = first + min(count - 1, 2), fourth = first + min(count - 1, 3);
  auto four = [&](auto load) -> float4 { return {load(first), load(second), load(third), load(fourth)}; };
  if (type == F32) return four([&](u64 i) { return ((const float*)at)[i]; });
  if (type == F16) return four([&](u64 i) { return f16_to_float(((const u16*)at)[i]); });
  if (type == BF16) return four([&](u64 i) { return bf16_to_float(((const u16*)at)[i]); });
  if (type == I8) return four([&](u64 i) { return (float)((const i8*)at)[i]; });
  return four([&](u64 i) { return f8_to_float(at[i]); });
}

inline void store_element(u32 type, u8* at, u64 i, float x) {
  if (type == F32) {
    ((float*)at)[i] = x;
  } else if (type == F16) {
    ((u16*)at)[i] = float_to_f16(x);
  } else if (type == BF16) {
    ((u16*)at)[i] = float_to_bf16(x);
  } else if (type == I8) {
    at[i] = (u8)(i32)rintf(x);
  } else {
    at[i] = float_to_f8(x);
  }
}

// The largest of THREADS threads: of a warp, or of a CTA, all of whose threads must come here.
template <u32 THREADS> inline u32 largest_of(u32 x) {
  for (u32 d = 16; d > 0; d /= 2) x = max(x, __shfl_xor_sync(~0u, x, d));
  if constexpr (THREADS > 32) {
    __shared__ u32 parts[THREADS / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    for (u32 part : parts) x = max(x, part);
  }
  return x;
}

// A cache's values or its keys. Of the two structs the compiler would make one in memory.
inline Matrix<u8> half_of(const Matrix<u8>& keys, const Matrix<u8>& values, bool is_value) {
  return {is_value ? values.at : keys.at, keys.rows, keys.cols, is_value ? values.stride : keys.stride};
}

// Writes a head of a token, whose elements are `x(i)`, to a slot of the cache's keys or values: THREADS threads, a warp or a CTA.
template <u32 THREADS, typename Head>
inline void write_head(Layout layout, Matrix<u8> cache, u32 slot, u32 head, Head x) {
  u32 page = slot / layout.page_len, thread = threadIdx.x % THREADS;
  slot %= layout.page_len;
  u8* to = cache.at + (u64)page * cache.stride * layout.size();
  float factor = 1.0f;
  if (layout.is_coded()) {
    // The bits of magnitudes compare as the magnitudes do, with NaN above all.
    u32 largest = 0;
    for (u32 i = thread; i < layout.dim; i += THREADS) largest = max(largest, bits_of(x(i)) & 0x7fffffff);
    largest = largest_of<THREADS>(largest);
    float reach = layout.type == I8 ? 127.0f : 448.0f;
    u32 scale = bits_of(float_of(largest) / reach);
    factor = reach / float_of(largest);
    // Where all are almost zero, a factor would be infinite; where one is not finite, the scale says so of all.
    if (largest < 0x04000000) factor = 0.0f, scale = 0;
    if (largest >= 0x7f800000) factor = 0.0f, scale = 0x7fc00000;
    if (thread == 0) store_scale(to + layout.scale(head, slot), scale);
  }
  u64 first = layout.element(head, slot);
  for (u32 i = thread; i < layout.dim; i += THREADS) {
    // Nothing times NaN would be NaN, and no code.
    float y = factor == 0.0f ? 0.0f : x(i) * factor;
    store_element(layout.type, to, first + i, y);
  }
}
