// Two f16 scales, then the 4-bit codes of two blocks.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at])[j >> 2u];
  let q = at + 32u * (1u + 4u * (j >> 2u) + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  let a = bytes((w#{N}[q] >> shift) & 0x0f0f0f0fu);
  let b = bytes((w#{N}[q + 32u] >> shift) & 0x0f0f0f0fu);
  return Eight(d * looked_up(a, UNEVEN), d * looked_up(b, UNEVEN));
}
