var<workgroup> sizes: array<u32, WIDTH>;

// The largest magnitude in the workgroup. The bits of magnitudes compare as the magnitudes do, with NaN above all.
fn largest(size: u32, id: u32) -> u32 {
  workgroupBarrier();
  sizes[id] = size;
  workgroupBarrier();
  for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
    if (id < half) { sizes[id] = max(sizes[id], sizes[id + half]); }
    workgroupBarrier();
  }
  return sizes[0];
}
fn size_of(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }
// Factor from elements to codes: 0 if all are almost zero, or if one is not finite.
fn to_codes(size: u32) -> f32 {
  if (size < 0x04000000u || size >= 0x7f800000u) { return 0.0; }
  return REACH / bitcast<f32>(size);
}
// Scale of the codes: 0 if all elements are almost zero, NaN if one is not finite.
fn scale_of(size: u32) -> u32 {
  if (size < 0x04000000u) { return 0u; }
  return select(bitcast<u32>(bitcast<f32>(size) / REACH), 0x7fc00000u, size >= 0x7f800000u);
}
// f32 to F8 (E4M3), round to nearest even.
fn as_f8(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 24u) & 0x80u;
  let a = bits & 0x7fffffffu;
  if (a < 0x3c800000u) { return sign | u32(round(abs(x) * 512.0)); }
  return sign | min(((a + 0x7ffffu + ((a >> 20u) & 1u)) >> 20u) - 960u, 0x7eu);
}
fn coded(x: vec4<f32>, by: f32) -> u32 {
  return code(x.x * by) | (code(x.y * by) << 8u) | (code(x.z * by) << 16u) | (code(x.w * by) << 24u);
}
