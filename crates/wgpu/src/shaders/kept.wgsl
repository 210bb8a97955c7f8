// Each of the four bytes in the top byte of a word.
fn fours(w: u32) -> vec4<u32> { return vec4<u32>(w << 24u, w << 16u, w << 8u, w) & vec4<u32>(0xff000000u); }
// F8 (E4M3) to f32. Exponent and mantissa, placed in an f32, give x, which is 256 times the value if it is normal.
// Subnormals have no implicit leading one: 256 times their value is 2x - 4, which is less than x only for them.
fn of_f8(q: vec4<u32>) -> vec4<f32> {
  let x = bitcast<vec4<f32>>(((q & vec4<u32>(0x7f000000u)) >> vec4<u32>(4u)) | vec4<u32>(0x40000000u));
  let y = min(x, x + x - vec4<f32>(4.0)) / 256.0;
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(y) | (q & vec4<u32>(0x80000000u)));
}
