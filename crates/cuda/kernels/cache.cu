// Writes to the KV cache.
#include "cache.cuh"

// Writes one head of a token's keys or, for the second of the grid's last axis, of its values: a warp.
KERNEL(32) kv_write(Matrix<const float> k, Matrix<const float> v, Matrix<u8> keys, Matrix<u8> values, const u32* slots,
                    Layout layout) {
  u32 token = blockIdx.x, head = blockIdx.y;
  bool is_value = blockIdx.z == 1;
  const float* x = (is_value ? v.row(token) : k.row(token)) + (u64)head * layout.dim;
  write_head<32>(layout, half_of(keys, values, is_value), slots[token], head, [&](u32 i) { return x[i]; });
}
