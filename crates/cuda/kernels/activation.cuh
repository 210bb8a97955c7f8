// The activation functions, by their numbers in `Activation`.
#pragma once
#include "common.cuh"

enum Activation { SILU, GELU, GELU_TANH, RELU2, RELU, QUICK_GELU, CLAMPED, NO_ACTIVATION };

static constexpr float SLOPE = 1.702f;
static constexpr float LIMIT = 7.0f;

// Error function, Abramowitz and Stegun 7.1.26: error below 2e-7.
inline float erf_of(float x) {
  float t = 1.0f / fmaf(0.3275911f, fabsf(x), 1.0f);
  float f = fmaf(fmaf(fmaf(fmaf(1.0614054f, t, -1.453152f), t, 1.4214137f), t, -0.28449674f), t, 0.2548296f);
  return copysignf(1.0f - f * t * exp_of(-x * x), x);
}

inline float activation(u32 act, float x) {
  switch (act) {
    case SILU: return x * sigmoid_of(x);
    case GELU: return 0.5f * x * (1.0f + erf_of(x * 0.70710678f));
    case GELU_TANH: {
      float inner = 0.79788456f * x * fmaf(0.044715f * x, x, 1.0f);
      return 0.5f * x * (1.0f + tanh_of(inner));
    }
    case RELU2: {
      float y = fmaxf(x, 0.0f);
      return y * y;
    }
    case RELU: return fmaxf(x, 0.0f);
    case QUICK_GELU: return x * sigmoid_of(SLOPE * x);
    default: {
      float y = fminf(x, LIMIT);
      return y * sigmoid_of(SLOPE * y);
    }
  }
}

// What a gated activation is multiplied with.
inline float up_factor(u32 act, float x) { return act == CLAMPED ? fminf(fmaxf(x, -LIMIT), LIMIT) + 1.0f : x; }
