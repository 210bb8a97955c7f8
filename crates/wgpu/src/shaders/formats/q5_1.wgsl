fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let dm = unpack2x16float(w#{N}[at]);
  let high = w#{N}[at + 32u] >> (8u * j);
  let q = at + 32u * (2u + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  let a = nibbles(w#{N}[q] >> shift) + vec4<f32>(bits(high, 16u));
  let b = nibbles(w#{N}[q + 32u] >> shift) + vec4<f32>(bits(high >> 4u, 16u));
  return Eight(dm.x * a + dm.y, dm.x * b + dm.y);
}
