// f32 scale, and two-bit codes.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = bitcast<f32>(w#{N}[at]);
  let q = vec4<u32>(w#{N}[at + 32u * (1u + (j >> 1u))] >> (16u * (j & 1u)));
  let a = vec4<f32>((q >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u));
  let b = vec4<f32>((q >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u));
  return Eight(d * (a - 1.0), d * (b - 1.0));
}
