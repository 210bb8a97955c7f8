// Each of four bytes as the highest of a word.
fn fours(w: u32) -> vec4<u32> { return vec4<u32>(w << 24u, w << 16u, w << 8u, w) & vec4<u32>(0xff000000u); }
// Floats of eight bits. As exponent and digits of a float, twice the number times a power of two, but without a leading
// one where the exponent is zero. There, and only there, is doubling and taking that one away less than what was.
fn of_f8(q: vec4<u32>) -> vec4<f32> {
  let x = bitcast<vec4<f32>>(((q & vec4<u32>(0x7f000000u)) >> vec4<u32>(4u)) | vec4<u32>(0x40000000u));
  let y = min(x, x + x - vec4<f32>(4.0)) / 256.0;
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(y) | (q & vec4<u32>(0x80000000u)));
}
