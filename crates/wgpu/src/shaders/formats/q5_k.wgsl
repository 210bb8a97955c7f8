fn unpack_N(at: u32, j: u32) -> Eight {
  let part = j >> 2u;
  let by = unpack2x16float(wN[at]) * six_bits_N(at, part);
  let column = 2u * (j & 3u);
  let q = at + 32u * (12u + 8u * (j >> 3u) + column);
  let h = at + 32u * (4u + column);
  let shift = j & 4u;
  let a = nibbles(wN[q] >> shift) + vec4<f32>(bytes((wN[h] >> part) & 0x01010101u) * 16u);
  let b = nibbles(wN[q + 32u] >> shift) + vec4<f32>(bytes((wN[h + 32u] >> part) & 0x01010101u) * 16u);
  return Eight(by.x * a - by.y, by.x * b - by.y);
}
