fn unpack_N(at: u32, j: u32) -> Eight {
  return Eight(
    bitcast<vec4<f32>>(vec4<u32>(wN[at], wN[at + 32u], wN[at + 64u], wN[at + 96u])),
    bitcast<vec4<f32>>(vec4<u32>(wN[at + 128u], wN[at + 160u], wN[at + 192u], wN[at + 224u])));
}
