// f32 scale, then F8 codes (E4M3): sign, 4 bits of exponent, 3 of mantissa.
fn floats_#{N}(word: u32, d: f32) -> vec4<f32> {
  let q = bytes(word);
  let x = bitcast<vec4<f32>>(((q & vec4<u32>(0x7fu)) << vec4<u32>(20u)) | vec4<u32>(0x40000000u));
  let y = min(x, x + x - vec4<f32>(4.0));
  return d * bitcast<vec4<f32>>(bitcast<vec4<u32>>(y / 256.0) | ((q & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = bitcast<f32>(w#{N}[at]);
  let q = at + 32u * (1u + 2u * j);
  return Eight(floats_#{N}(w#{N}[q], d), floats_#{N}(w#{N}[q + 32u], d));
}
