// f32 step, 16 8-bit factors, and codes: the low two bits of all, then the third bits.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let factor = (w#{N}[at + 32u * (1u + (j >> 3u))] >> (8u * ((j >> 1u) & 3u))) & 255u;
  let scale = bitcast<f32>(w#{N}[at]) * f32(factor);
  let low = w#{N}[at + 32u * (5u + (j >> 1u))] >> (16u * (j & 1u));
  let high = w#{N}[at + 32u * (21u + (j >> 2u))] >> (8u * (j & 3u));
  let a = ((vec4<u32>(low) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)) | bits(high, 4u);
  let b = ((vec4<u32>(low) >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)) | bits(high >> 4u, 4u);
  return Eight(scale * looked_up(a, #{VALUES_#{N}}), scale * looked_up(b, #{VALUES_#{N}}));
}
