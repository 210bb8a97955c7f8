// RMSNorm and LayerNorm of a group of columns of a row.
#pragma once
#include "common.cuh"

// Warps of a CTA.
static constexpr u32 WARPS = WIDTH / 32;
// The widest groups that a warp normalizes; a CTA those that are wider (`WARP_NORM` in `src/ops/rowwise.rs`).
static constexpr u32 WARP_NORM = 512;

// A norm: of `width` columns, less their mean or not.
struct Norm {
  const float* weight;
  const float* bias;
  u32 width, is_centred;
  float eps;
};

// Mean of a group, and one by its deviation.
struct Moments {
  float mean, scale;
};

// One by the root of the mean of squares.
inline float inverse_deviation(const Norm& norm, float squares) { return 1.0f / sqrtf(squares / norm.width + norm.eps); }

// `sum_of(part)` adds the `part(i)` of WIDTH strands: sums of every WIDTH'th column from `i` on.
template <typename Sum> inline Moments moments_by(const Norm& norm, const float* x, Sum sum_of) {
  Moments m = {0.0f, 0.0f};
  auto numbers = [&](u32 i) {
    float sum = 0;
    for (; i < norm.width; i += WIDTH) sum += x[i];
    return sum;
  };
  auto squares = [&](u32 i) {
    float sum = 0;
    for (; i < norm.width; i += WIDTH) {
      float d = x[i] - m.mean;
      sum = fmaf(d, d, sum);
    }
    return sum;
  };
  if (norm.is_centred) m.mean = sum_of(numbers) / norm.width;
  m.scale = inverse_deviation(norm, sum_of(squares));
  return m;
}

// Computed by a CTA of WIDTH threads, all of which must come here and get the same.
inline Moments moments_of(const Norm& norm, const float* x) {
  return moments_by(norm, x, [](auto part) { return cta_sum<WIDTH>(part(threadIdx.x)); });
}

// Computed by a warp, with the bits of a CTA: 32 strands at a time are what one of its warps sums. Strands past the end are zeros,
// which change no sum.
inline Moments moments_of_warp(const Norm& norm, const float* x) {
  return moments_by(norm, x, [&](auto part) {
    u32 lane = threadIdx.x % 32;
    float sum = warp_sum(part(lane));
    for (u32 first = 32; first < WIDTH && first < norm.width; first += 32) sum += warp_sum(part(first + lane));
    return sum;
  });
}

// A column of a group, by the weight and the bias of the column; there may be no biases.
inline float normalized_by(Moments m, float x, float weight, bool has_bias, float bias) {
  float y = (x - m.mean) * m.scale;
  return has_bias ? fmaf(y, weight, bias) : y * weight;
}

// Column `i` of a group.
inline float normalized(const Norm& norm, Moments m, float x, u32 i) {
  return normalized_by(m, x, norm.weight[i], norm.bias, norm.bias ? norm.bias[i] : 0.0f);
}
