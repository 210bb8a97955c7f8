// Rounds rows of x to 16 bits for products with tensor cores, normalized or not, or what experts take.
#include "sixteen.cuh"
#include "stacked.cuh"

// Segments that a CTA rounds at a time.
constexpr u32 AT_ONCE = WIDTH / 16;

// Rounds a segment of a row, the `at`th of all.
template <bool IS_F16>
inline void store_segment(const float (&values)[4], u32* rounded, float* factors, u64 at, bool is_there) {
  float factor;
  TwoWords two = round_segment<IS_F16>(values, factor);
  if (!is_there) return;
  ((TwoWords*)rounded)[SEGMENT_WORDS / 2 * at + threadIdx.x % 16] = two;
  if (IS_F16 && threadIdx.x % 16 == 0) factors[at] = factor;
}

// A CTA has a row, and each half of its warps a segment at a time. There may be more rows than x has: products with them are of no
// use, but are computed.
template <bool IS_F16> inline void round_row(const Inputs& x, u32* rounded, float* factors, u32 count, u32 segments) {
  __shared__ MomentsOfRows<1> moments;
  u32 row = blockIdx.x;
  Row from = x.row(row, count);
  Moments own = {0.0f, 0.0f};
  if (x.norm.weight && row < count) {
    moments_of_rows(x, row, count, moments);
    own = moments.of[0];
  }
  for (u32 first = AT_ONCE * blockIdx.y; first < segments; first += AT_ONCE * gridDim.y) {
    // Those past the end have no inputs.
    u32 segment = first + threadIdx.x / 16;
    float values[4];
    NormOfSegment norm;
    norm.load<true>(x, segment);
    load_segment<true>(x, from, own, norm, segment, values);
    store_segment<IS_F16>(values, rounded, factors, (u64)row * segments + segment, segment < segments);
  }
}

KERNEL(WIDTH) round_f16(Inputs x, u32* rounded, float* factors, u32 count, u32 segments) {
  round_row<true>(x, rounded, factors, count, segments);
}
KERNEL(WIDTH) round_bf16(Inputs x, u32* rounded, float* factors, u32 count, u32 segments) {
  round_row<false>(x, rounded, factors, count, segments);
}

// What experts take, slot by slot: a CTA has some segments of a slot.
template <bool IS_F16>
inline void round_slot(const Matrix<const float>& x, const Routed& routed, u32* rounded, float* factors, u32 segments) {
  u32 slot = blockIdx.x, segment = AT_ONCE * blockIdx.y + threadIdx.x / 16;
  if (routed.pairs[slot] == NONE) return;
  float values[4], by = factor_of(routed, slot);
  four_at(x.row(row_of(routed, slot)), SEGMENT * segment + 4 * (threadIdx.x % 16), x.cols, values);
#pragma unroll
  for (u32 i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], by);
  store_segment<IS_F16>(values, rounded, factors, (u64)slot * segments + segment, segment < segments);
}

KERNEL(WIDTH) round_slots_f16(Matrix<const float> x, Routed routed, u32* rounded, float* factors, u32 segments) {
  round_slot<true>(x, routed, rounded, factors, segments);
}
KERNEL(WIDTH) round_slots_bf16(Matrix<const float> x, Routed routed, u32* rounded, float* factors, u32 segments) {
  round_slot<false>(x, routed, rounded, factors, segments);
}
