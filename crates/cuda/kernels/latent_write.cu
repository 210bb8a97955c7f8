// Writes of MLA's latent rows to the KV cache, with the bits of the kernels that normalize, rotate and write.
#include "cache.cuh"
#include "norm.cuh"
#include "rope.cuh"

// A token a CTA: the row's last elements are rotated and come first, those before them are normalized.
KERNEL(WIDTH) latent_write(Matrix<const float> x, Norm norm, RopeTable table, const u32* positions, const u32* slots,
                           Matrix<u8> keys, Layout layout) {
  u32 token = blockIdx.x, front = layout.dim - norm.width;
  const float *latent = x.row(token), *others = latent + norm.width;
  Moments m = moments_of(norm, latent);
  write_head<WIDTH>(layout, keys, slots[token], 0, [&](u32 i) {
    if (i >= front) return normalized(norm, m, latent[i - front], i - front);
    return table.rotated(positions[token], i, [&](u32 other) { return others[other]; });
  });
}
