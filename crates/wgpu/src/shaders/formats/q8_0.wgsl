// Two f16 scales, then the 8-bit codes of two blocks.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at])[j >> 2u];
  let q = at + 32u * (1u + 2u * j);
  return Eight(d * vec4<f32>(signed_bytes(w#{N}[q])), d * vec4<f32>(signed_bytes(w#{N}[q + 32u])));
}
