fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let dm = unpack2x16float(w#{N}[at]);
  let q = at + 32u * (1u + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  return Eight(dm.x * nibbles(w#{N}[q] >> shift) + dm.y, dm.x * nibbles(w#{N}[q + 32u] >> shift) + dm.y);
}
