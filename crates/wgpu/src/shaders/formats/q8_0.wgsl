// Two f16 scales, then the 8-bit codes of two blocks.
fn unpack_N(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(wN[at])[j >> 2u];
  let q = at + 32u * (1u + 2u * j);
  return Eight(d * vec4<f32>(signed_bytes(wN[q])), d * vec4<f32>(signed_bytes(wN[q + 32u])));
}
