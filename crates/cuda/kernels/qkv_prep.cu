// QK norm, RoPE and writes to the KV cache, with the bits of the kernels that do one of these.
#include "cache.cuh"
#include "norm.cuh"
#include "rope.cuh"

// Heads of a token that a CTA has: one for each warp, or those that a wide norm spans (`heads_each` in `src/ops/attention.rs`).
inline u32 heads_each(const Norm& norm, u32 dim) { return norm.width > WARP_NORM ? norm.width / dim : WARPS; }

// Some heads of a token a CTA, a head a warp. Norms span whole heads.
KERNEL(WIDTH) qkv_prep(Matrix<const float> qkv, Norm q_norm, Norm k_norm, RopeTable table, const u32* positions,
                       const u32* slots, Matrix<u8> keys, Matrix<u8> values, Layout layout, u32 query_heads,
                       Matrix<float> out) {
  u32 token = blockIdx.x, part = blockIdx.y, dim = layout.dim;
  // Queries, keys or values: their heads, those before them, and their norm.
  u32 count = query_heads, before = 0, each = heads_each(q_norm, dim), parts = (count + each - 1) / each;
  Norm norm = q_norm;
  bool is_value = false;
  if (part >= parts) {
    part -= parts;
    norm = k_norm;
    count = layout.heads, before = query_heads, each = heads_each(norm, dim), parts = (count + each - 1) / each;
    if (part >= parts) {
      part -= parts;
      norm = {};
      before += count, each = WARPS;
      is_value = true;
    }
  }
  bool is_query = before == 0, is_wide = norm.width > WARP_NORM;
  u32 first = part * each, end = min(first + each, count);
  const float* row = qkv.row(token) + (u64)before * dim;
  Moments m = {0.0f, 0.0f};
  if (is_wide) m = moments_of(norm, row + (u64)first * dim);
  for (u32 head = first + threadIdx.x / 32; head < end; head += WARPS) {
    const float* x = row + (u64)head * dim;
    // The place of its first element in the group that is normalized.
    u32 place = norm.weight ? head * dim % norm.width : 0;
    if (norm.weight && !is_wide) m = moments_of_warp(norm, x - place);
    auto normed = [&](u32 i) { return norm.weight ? normalized(norm, m, x[i], place + i) : x[i]; };
    auto rotated = [&](u32 i) { return is_value ? x[i] : table.rotated(positions[token], i, normed); };
    if (is_query) {
      float* to = out.row(token) + (u64)head * dim;
      for (u32 i = threadIdx.x % 32; i < dim; i += 32) to[i] = rotated(i);
    } else {
      write_head<32>(layout, half_of(keys, values, is_value), slots[token], head, rotated);
    }
  }
}
