// RoPE.
#include "common.cuh"

// Rotates pairs of elements of each head by the angles of the row's position: `i` with `i + width / 2` or, if interleaved, `2 i`
// with `2 i + 1`. Elements past the table's width stay as they are.
KERNEL(WIDTH) rope(Matrix<const float> x, Matrix<const float> table, const u32* positions, Matrix<float> out, u32 dim,
                   u32 is_interleaved) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 n = thread_of_grid(); n < count; n += threads_of_grid()) {
    u32 r = n / out.cols, c = n % out.cols, e = c % dim, half = table.cols / 2;
    const float* in = x.row(r) + (c - e);
    float y = in[e];
    if (e < table.cols) {
      u32 angle = is_interleaved ? e / 2 : e % half;
      bool is_first = is_interleaved ? e % 2 == 0 : e < half;
      u32 other = is_interleaved ? e ^ 1 : is_first ? e + half : e - half;
      const float* row = table.row(positions[r]);
      float crossed = in[other] * row[half + angle];
      y = fmaf(y, row[angle], is_first ? -crossed : crossed);
    }
    out.row(r)[c] = y;
  }
}
