// cap * tanh(scale * y / cap) + residual, or scale * y + residual. Products and sums are written as fma everywhere, so
// that a compiler cannot contract them in one kernel and not in another.
fn epilogue(y: f32, residual: f32) -> f32 {
  if (p.cap > 0.0) {
    return fma(p.cap, tanh(clamp(y * p.scale / p.cap, -20.0, 20.0)), residual);
  }
  return fma(y, p.scale, residual);
}
