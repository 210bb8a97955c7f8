// What happens to a product before it is stored: cap * tanh(scale * y / cap) + residual. Sums of products are
// written as fma everywhere, so that no compiler decides for one kernel what it does not for another.
fn finished(y: f32, residual: f32) -> f32 {
  if (p.cap > 0.0) {
    return fma(p.cap, tanh(clamp(y * p.scale / p.cap, -20.0, 20.0)), residual);
  }
  return fma(y, p.scale, residual);
}
fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }
