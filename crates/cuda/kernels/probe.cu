// The device's peak rates, beside which what it does is measured.
#include "common.cuh"

// Reads all of `x`, 16 bytes a thread at a time, four of which are under way together; the writes are negligible.
KERNEL(WIDTH) probe_read(const uint4* x, u64 count, u32* out) {
  u32 sums[4] = {0, 0, 0, 0};
  auto add = [&](uint4 part) {
    sums[0] += part.x;
    sums[1] += part.y;
    sums[2] += part.z;
    sums[3] += part.w;
  };
  u64 i = thread_of_grid(), step = threads_of_grid();
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 parts[4] = {x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]};
    for (uint4 part : parts) add(part);
  }
  for (; i < count; i += step) add(x[i]);
  // Never true, which a compiler cannot know.
  if (sums[0] == 0x12345678 && sums[1] == 0x9abcdef0) *out = sums[2] + sums[3];
}

// Fused multiply-adds, 64 a round, in eight chains whose latencies hide each other.
KERNEL(WIDTH) probe_fma(u32 rounds, u32* out) {
  float by = fmaf((float)(threadIdx.x & 7), 1e-7f, 1.0f);
  float a = by, b = by * 2, c = by * 3, d = by * 4, e = by * 5, f = by * 6, g = by * 7, h = by * 8;
#pragma unroll 1
  for (u32 i = 0; i < rounds; i++) {
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      a = fmaf(a, by, 1e-7f);
      b = fmaf(b, by, 1e-7f);
      c = fmaf(c, by, 1e-7f);
      d = fmaf(d, by, 1e-7f);
      e = fmaf(e, by, 1e-7f);
      f = fmaf(f, by, 1e-7f);
      g = fmaf(g, by, 1e-7f);
      h = fmaf(h, by, 1e-7f);
    }
  }
  float sum = a + b + c + d + e + f + g + h;
  if (sum == 0.5f) *out = bits_of(sum);
}
