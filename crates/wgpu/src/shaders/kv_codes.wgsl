// 8-bit codes of the KV cache, with one scale per head and token: the largest magnitude over the largest code.
override MAX_CODE: f32;
var<workgroup> magnitudes: array<u32, WIDTH>;

// The largest magnitude in the workgroup. The bits of magnitudes compare as the magnitudes do, with NaN above all.
fn workgroup_max(bits: u32, id: u32) -> u32 {
  workgroupBarrier();
  magnitudes[id] = bits;
  workgroupBarrier();
  for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
    if (id < half) { magnitudes[id] = max(magnitudes[id], magnitudes[id + half]); }
    workgroupBarrier();
  }
  return magnitudes[0];
}
fn magnitude(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }
// Factor from elements to codes: 0 if all are almost zero, or if one is not finite.
fn code_factor(largest: u32) -> f32 {
  if (largest < 0x04000000u || largest >= 0x7f800000u) { return 0.0; }
  return MAX_CODE / bitcast<f32>(largest);
}
// Scale of the codes: 0 if all elements are almost zero, NaN if one is not finite.
fn scale_bits(largest: u32) -> u32 {
  if (largest < 0x04000000u) { return 0u; }
  return select(bitcast<u32>(bitcast<f32>(largest) / MAX_CODE), 0x7fc00000u, largest >= 0x7f800000u);
}
// f32 to F8 (E4M3), round to nearest even.
fn to_f8(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 24u) & 0x80u;
  let a = bits & 0x7fffffffu;
  if (a < 0x3c800000u) { return sign | u32(round(abs(x) * 512.0)); }
  return sign | min(((a + 0x7ffffu + ((a >> 20u) & 1u)) >> 20u) - 960u, 0x7eu);
}
fn to_code(x: f32) -> u32 {
#if DTYPE == f8
  return to_f8(x);
#else
  return u32(i32(round(x))) & 0xffu;
#endif
}
fn pack_codes(x: vec4<f32>, factor: f32) -> u32 {
  return to_code(x.x * factor) | (to_code(x.y * factor) << 8u) | (to_code(x.z * factor) << 16u) |
    (to_code(x.w * factor) << 24u);
}
