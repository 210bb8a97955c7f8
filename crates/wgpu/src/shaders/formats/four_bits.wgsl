// f32 step, 16 8-bit factors, and 4-bit codes that index the codebook.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let factor = (w#{N}[at + 32u * (1u + (j >> 3u))] >> (8u * ((j >> 1u) & 3u))) & 255u;
  let scale = bitcast<f32>(w#{N}[at]) * f32(factor);
  let q = vec4<u32>(w#{N}[at + 32u * (5u + j)]);
  let a = (q >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
  let b = (q >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u);
  return Eight(scale * looked_up(a, #{VALUES_#{N}}), scale * looked_up(b, #{VALUES_#{N}}));
}
