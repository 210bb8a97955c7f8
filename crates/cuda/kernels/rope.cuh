// RoPE.
#pragma once
#include "common.cuh"

// Rotates pairs of a head's elements by the angles of a position, a row of the table: `i` with `i + width / 2` or, if interleaved,
// `2 i` with `2 i + 1`. Elements past the table's width stay as they are; so do all where there is no table.
struct RopeTable {
  Matrix<const float> angles;
  u32 is_interleaved;

  // Element `e` of the head whose elements are `x(e)`.
  template <typename Head> float rotated(u32 position, u32 e, Head x) const {
    float y = x(e);
    if (e >= angles.cols) return y;
    u32 half = angles.cols / 2, angle = is_interleaved ? e / 2 : e % half;
    bool is_first = is_interleaved ? e % 2 == 0 : e < half;
    u32 other = is_interleaved ? e ^ 1 : is_first ? e + half : e - half;
    const float* row = angles.row(position);
    float crossed = x(other) * row[half + angle];
    return fmaf(y, row[angle], is_first ? -crossed : crossed);
  }
};
