// Two f16 scales, then for each of two blocks the fifth bits and the low four bits.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at])[j >> 2u];
  let block = at + 32u * (1u + 5u * (j >> 2u));
  let high = w#{N}[block] >> (8u * (j & 3u));
  let q = block + 32u * (1u + 2u * (j & 1u));
  let shift = (j & 2u) * 2u;
  let a = nibbles(w#{N}[q] >> shift) + vec4<f32>(bits(high, 16u));
  let b = nibbles(w#{N}[q + 32u] >> shift) + vec4<f32>(bits(high >> 4u, 16u));
  return Eight(d * (a - 16.0), d * (b - 16.0));
}
