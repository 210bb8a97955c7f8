fn two_#{N}(x: u32) -> vec2<f32> { return bitcast<vec2<f32>>(vec2<u32>(x << 16u, x & 0xffff0000u)); }
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  return Eight(
    vec4<f32>(two_#{N}(w#{N}[at]), two_#{N}(w#{N}[at + 32u])),
    vec4<f32>(two_#{N}(w#{N}[at + 64u]), two_#{N}(w#{N}[at + 96u])));
}
