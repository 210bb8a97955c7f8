fn element_#{N}(i: u32) -> f32 {
#if FORMAT_#{N} == f16
  return unpack2x16float(w#{N}[i / 2u])[i % 2u];
#elif FORMAT_#{N} == bf16
  return bitcast<f32>((w#{N}[i / 2u] >> (16u * (i % 2u))) << 16u);
#else
  return bitcast<f32>(w#{N}[i]);
#endif
}
fn eight_#{N}(base: u32, step: u32, group: u32, lane: u32, k8: u32) -> Eight {
  let at = base + (32u * group + lane) * step + 8u * k8;
  var e = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
  for (var i = 0u; i < 4u; i++) {
    if (8u * k8 + i < p.cols) { e.a[i] = element_#{N}(at + i); }
    if (8u * k8 + 4u + i < p.cols) { e.b[i] = element_#{N}(at + 4u + i); }
  }
  return e;
}
