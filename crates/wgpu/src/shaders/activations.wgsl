// The activation function, by its number in `Activation`.
override ACT: u32;
const CLAMPED = 6u;
const SLOPE = 1.702;
const LIMIT = 7.0;

// Error function, Abramowitz and Stegun 7.1.26: error below 2e-7.
fn erf(x: f32) -> f32 {
  let t = 1.0 / fma(0.3275911, abs(x), 1.0);
  let f = fma(fma(fma(fma(1.0614054, t, -1.453152), t, 1.4214137), t, -0.28449674), t, 0.2548296);
  return sign(x) * (1.0 - f * t * exp(-x * x));
}

fn activate(x: f32) -> f32 {
  switch ACT {
    // SiLU
    case 0u: { return x / (1.0 + exp(min(-x, 80.0))); }
    // GELU
    case 1u: { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
    // GELU, tanh approximation
    case 2u: {
      let inner = 0.79788456080286536 * x * fma(0.044715 * x, x, 1.0);
      return 0.5 * x * (1.0 + tanh(clamp(inner, -20.0, 20.0)));
    }
    // ReLU squared
    case 3u: { let y = max(x, 0.0); return y * y; }
    // ReLU
    case 4u: { return max(x, 0.0); }
    // GELU, sigmoid approximation; or clamped SwiGLU
    default: {
      let y = select(x, min(x, LIMIT), ACT == CLAMPED);
      return y / (1.0 + exp(min(-SLOPE * y, 80.0)));
    }
  }
}

// Factor of a gated activation (GLU): activate(gate) * up_factor(up).
fn up_factor(x: f32) -> f32 { return select(x, clamp(x, -LIMIT, LIMIT) + 1.0, ACT == CLAMPED); }
