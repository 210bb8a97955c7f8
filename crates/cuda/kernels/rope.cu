// RoPE alone.
#include "rope.cuh"

KERNEL(WIDTH) rope(Matrix<const float> x, RopeTable table, const u32* positions, Matrix<float> out, u32 dim) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 n = thread_of_grid(); n < count; n += threads_of_grid()) {
    u32 r = n / out.cols, c = n % out.cols, e = c % dim;
    const float* head = x.row(r) + (c - e);
    out.row(r)[c] = table.rotated(positions[r], e, [&](u32 i) { return head[i]; });
  }
}
