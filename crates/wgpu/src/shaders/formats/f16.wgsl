fn unpack_#{N}(at: u32, j: u32) -> Eight {
  return Eight(
    vec4<f32>(unpack2x16float(w#{N}[at]), unpack2x16float(w#{N}[at + 32u])),
    vec4<f32>(unpack2x16float(w#{N}[at + 64u]), unpack2x16float(w#{N}[at + 96u])));
}
