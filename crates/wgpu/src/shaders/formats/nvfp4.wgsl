// Four scales (UE4M3), then 4-bit codes.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let part = j >> 1u;
  let s = (w#{N}[at] >> (8u * part)) & 255u;
  let bits = (s & 127u) << 20u;
  let number = select(bitcast<f32>(bits + (119u << 23u)), f32(s & 7u) / 1024.0, bits < (1u << 23u));
  let scale = select(number, 0.0, s == 127u);
  let q = at + 32u * (1u + 2u * part);
  let shift = (j & 1u) * 4u;
  let a = bytes((w#{N}[q] >> shift) & 0x0f0f0f0fu);
  let b = bytes((w#{N}[q + 32u] >> shift) & 0x0f0f0f0fu);
  return Eight(scale * looked_up(a, TINY), scale * looked_up(b, TINY));
}
