fn unpack_N(at: u32, j: u32) -> Eight {
  let dm = unpack2x16float(wN[at]);
  let q = at + 32u * (1u + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  return Eight(dm.x * nibbles(wN[q] >> shift) + dm.y, dm.x * nibbles(wN[q + 32u] >> shift) + dm.y);
}
