// Rounds rows of x to 8 bits for products with tensor cores, normalized or not.
#include "rounding.cuh"

// A CTA has a row, and each of its warps a chunk at a time. There may be more rows than x has: products with them are of no use,
// but are computed.
KERNEL(WIDTH) quantize(Inputs x, u8* codes, u8* sums, float* scales, u32 count, u32 chunks) {
  __shared__ MomentsOfRows<1> moments;
  u32 row = blockIdx.x;
  Row from = x.row(row, count);
  Moments own = {0.0f, 0.0f};
  if (x.norm.weight && row < count) {
    moments_of_rows(x, row, count, moments);
    own = moments.of[0];
  }
  for (u32 chunk = WIDTH / 32 * blockIdx.y + threadIdx.x / 32; chunk < chunks; chunk += WIDTH / 32 * gridDim.y) {
    u64 at = (u64)row * chunks + chunk;
    float values[2][4];
    NormOfChunk norm;
    norm.load<true>(x, chunk);
    load_chunk<true>(x, from, own, norm, chunk, values);
    round_chunk(values, codes + CHUNK * at, sums + SUMS * at, scales + at);
  }
}
