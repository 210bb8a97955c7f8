fn element_N(i: u32) -> f32 { return ELEMENT; }
fn eight_N(base: u32, step: u32, group: u32, lane: u32, k8: u32) -> Eight {
  let at = base + (32u * group + lane) * step + 8u * k8;
  var e = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
  for (var i = 0u; i < 4u; i++) {
    if (8u * k8 + i < p.cols) { e.a[i] = element_N(at + i); }
    if (8u * k8 + 4u + i < p.cols) { e.b[i] = element_N(at + 4u + i); }
  }
  return e;
}
