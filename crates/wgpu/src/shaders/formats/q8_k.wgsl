fn unpack_N(at: u32, j: u32) -> Eight {
  let d = bitcast<f32>(wN[at]);
  let q = at + 32u * (1u + 2u * j);
  return Eight(d * vec4<f32>(signed_bytes(wN[q])), d * vec4<f32>(signed_bytes(wN[q + 32u])));
}
