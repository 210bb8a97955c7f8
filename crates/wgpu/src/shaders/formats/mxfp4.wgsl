// Four E8M0 exponents, then the codes of four blocks.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let block = j >> 2u;
  let e = (w#{N}[at] >> (8u * block)) & 255u;
  let scale = bitcast<f32>(select((e - 1u) << 23u, 1u << (21u + e), e < 2u));
  let q = at + 32u * (1u + 4u * block + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  let a = bytes((w#{N}[q] >> shift) & 0x0f0f0f0fu);
  let b = bytes((w#{N}[q + 32u] >> shift) & 0x0f0f0f0fu);
  return Eight(scale * looked_up(a, TINY), scale * looked_up(b, TINY));
}
