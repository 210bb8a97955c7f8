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
  m.scale = 1.0f / sqrtf(cta_sum<WIDTH>(squares) / norm.width + norm.eps);
  return m;
}

// Column `i` of a group.
inline float normalized(const Norm& norm, Moments m, float x, u32 i) {
  float y = (x - m.mean) * m.scale;
  return norm.bias ? fmaf(y, norm.weight[i], norm.bias[i]) : y * norm.weight[i];
}
