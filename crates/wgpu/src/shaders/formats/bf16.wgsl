fn two_N(x: u32) -> vec2<f32> { return bitcast<vec2<f32>>(vec2<u32>(x << 16u, x & 0xffff0000u)); }
fn unpack_N(at: u32, j: u32) -> Eight {
  return Eight(
    vec4<f32>(two_N(wN[at]), two_N(wN[at + 32u])),
    vec4<f32>(two_N(wN[at + 64u]), two_N(wN[at + 96u])));
}
