// RMSNorm and LayerNorm of a group of columns of a row.
#pragma once
#include "common.cuh"

// A norm: of `width` columns, less their mean or not.
struct Norm {
  const float* weight;
  const float* bias;
  u32 width, is_centred;
  float eps;
};

// What a group's elements are normalized with.
struct Moments {
  float mean, scale;
};

// One by the root of the mean of squares.
inline float inverse_deviation(const Norm& norm, float squares) { return 1.0f / sqrtf(squares / norm.width + norm.eps); }

// Computed by a CTA of WIDTH threads, all of which must come here and get the same.
inline Moments moments_of(const Norm& norm, const float* x) {
  Moments m = {0.0f, 0.0f};
  if (norm.is_centred) {
    float sum = 0;
    for (u32 i = threadIdx.x; i < norm.width; i += WIDTH) sum += x[i];
    m.mean = cta_sum<WIDTH>(sum) / norm.width;
  }
  float squares = 0;
  for (u32 i = threadIdx.x; i < norm.width; i += WIDTH) {
    float d = x[i] - m.mean;
    squares = fmaf(d, d, squares);
  }
  m.scale = inverse_deviation(norm, cta_sum<WIDTH>(squares));
  return m;
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
