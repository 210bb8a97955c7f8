// Two f16 scales, then the codes of two blocks: one bit each.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at])[j >> 4u];
  let q = vec4<u32>(w#{N}[at + 32u * (1u + (j >> 2u))] >> (8u * (j & 3u)));
  let a = vec4<f32>((q >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u));
  let b = vec4<f32>((q >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(1u));
  return Eight(d * (2.0 * a - 1.0), d * (2.0 * b - 1.0));
}
