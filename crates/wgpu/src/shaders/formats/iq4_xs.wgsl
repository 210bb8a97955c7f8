fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let first = w#{N}[at];
  let part = j >> 2u;
  let low = (w#{N}[at + 32u] >> (4u * part)) & 15u;
  let high = (first >> (16u + 2u * part)) & 3u;
  let scale = unpack2x16float(first).x * (f32(low | (high << 4u)) - 32.0);
  let q = at + 32u * (2u + 4u * part + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  let a = bytes((w#{N}[q] >> shift) & 0x0f0f0f0fu);
  let b = bytes((w#{N}[q + 32u] >> shift) & 0x0f0f0f0fu);
  return Eight(scale * looked_up(a, UNEVEN), scale * looked_up(b, UNEVEN));
}
