// The order of summing of products in f32, which all kernels of them share: so their bits are the same.
//
// The sum over the inputs is cut into 8 strands of whole segments of 32. Within a strand every fourth input goes to the same of
// four sums; the four are added, then the strands in order. That does not depend on how many rows there are, nor on which
// kernel computes them.
#pragma once
#include "weights.cuh"

static constexpr u32 STRANDS = 8;
static constexpr u32 SEGMENT = 32;
// Outputs of a CTA: a lane has one of them.
static constexpr u32 OUTPUTS = 32;

// Adds the products of a segment of the rows of x, which lies in shared memory, with a row of the weight.
template <u32 ROWS>
inline void add_segment(Four (&four)[ROWS], const Four (&inputs)[ROWS][SEGMENT / 4], const Weights& w, u32 output, u32 segment) {
#pragma unroll 1
  for (u32 e = 0; e < SEGMENT / 8; e++) {
    float v[8];
    eight(w, output, SEGMENT / 8 * segment + e, v);
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      Four a = inputs[i][2 * e], b = inputs[i][2 * e + 1];
      four[i].x = fmaf(v[4], b.x, fmaf(v[0], a.x, four[i].x));
      four[i].y = fmaf(v[5], b.y, fmaf(v[1], a.y, four[i].y));
      four[i].z = fmaf(v[6], b.z, fmaf(v[2], a.z, four[i].z));
      four[i].w = fmaf(v[7], b.w, fmaf(v[3], a.w, four[i].w));
    }
  }
}

// The sum of a strand.
inline float strand_of(const Four& four) { return (four.x + four.y) + (four.z + four.w); }

// The sum of all strands of a row and an output.
template <u32 ROWS> inline float sum_of(const float (&strands)[STRANDS][ROWS][OUTPUTS], u32 row, u32 lane) {
  float sum = 0.0f;
#pragma unroll
  for (u32 s = 0; s < STRANDS; s++) sum += strands[s][row][lane];
  return sum;
}
