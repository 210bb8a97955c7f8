fn unpack_#{N}(at: u32, j: u32) -> Eight {
  return Eight(
    bitcast<vec4<f32>>(vec4<u32>(w#{N}[at], w#{N}[at + 32u], w#{N}[at + 64u], w#{N}[at + 96u])),
    bitcast<vec4<f32>>(vec4<u32>(w#{N}[at + 128u], w#{N}[at + 160u], w#{N}[at + 192u], w#{N}[at + 224u])));
}
