fn unpack_N(at: u32, j: u32) -> Eight {
  return Eight(
    vec4<f32>(unpack2x16float(wN[at]), unpack2x16float(wN[at + 32u])),
    vec4<f32>(unpack2x16float(wN[at + 64u]), unpack2x16float(wN[at + 96u])));
}
