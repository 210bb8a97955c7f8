fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = bitcast<f32>(w#{N}[at]);
  let q = at + 32u * (1u + 2u * j);
  return Eight(d * vec4<f32>(signed_bytes(w#{N}[q])), d * vec4<f32>(signed_bytes(w#{N}[q + 32u])));
}
