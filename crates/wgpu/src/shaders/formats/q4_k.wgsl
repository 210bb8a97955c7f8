fn unpack_N(at: u32, j: u32) -> Eight {
  let by = unpack2x16float(wN[at]) * six_bits_N(at, j >> 2u);
  let q = at + 32u * (4u + 8u * (j >> 3u) + 2u * (j & 3u));
  let shift = j & 4u;
  return Eight(by.x * nibbles(wN[q] >> shift) - by.y, by.x * nibbles(wN[q + 32u] >> shift) - by.y);
}
