// Writes to the KV cache.
#include "cache.cuh"

// Writes one head of a token's keys or, for the second of the grid's last axis, of its values: a warp.
KERNEL(32) kv_write(Matrix<const float> k, Matrix<const float> v, Matrix<u8> keys, Matrix<u8> values, const u32* slots,
                    Layout layout) {
  u32 token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
  bool is_value = blockIdx.z == 1;
  const float* x = (is_value ? v.row(token) : k.row(token)) + (u64)head * layout.dim;
  u32 page = slots[token] / layout.page_len, slot = slots[token] % layout.page_len;
  u8* to = is_value ? values.at : keys.at;
  to += (u64)page * (is_value ? values.stride : keys.stride) * layout.size();
  float factor = 1.0f;
  if (layout.is_coded()) {
    // The bits of magnitudes compare as the magnitudes do, with NaN above all.
    u32 largest = 0;
    for (u32 i = lane; i < layout.dim; i += 32) largest = max(largest, bits_of(x[i]) & 0x7fffffff);
    for (u32 d = 16; d > 0; d /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    float reach = layout.type == I8 ? 127.0f : 448.0f;
    u32 scale = bits_of(float_of(largest) / reach);
    factor = reach / float_of(largest);
    // Where all are almost zero, a factor would be infinite; where one is not finite, the scale says so of all.
    if (largest < 0x04000000) factor = 0.0f, scale = 0;
    if (largest >= 0x7f800000) factor = 0.0f, scale = 0x7fc00000;
    if (lane == 0) store_scale(to + layout.scale(head, slot), scale);
  }
  u64 first = layout.element(head, slot);
  for (u32 i = lane; i < layout.dim; i += 32) {
    // Nothing times NaN would be NaN, and no code.
    float y = factor == 0.0f ? 0.0f : x[i] * factor;
    store_element(layout.type, to, first + i, y);
  }
}
