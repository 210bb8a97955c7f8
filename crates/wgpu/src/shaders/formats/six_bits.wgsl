// 6-bit scale and minimum of sub-block `i` of eight, packed in 12 bytes.
fn six_bits_#{N}(at: u32, i: u32) -> vec2<f32> {
  let shift = 8u * (i & 3u);
  let first = w#{N}[at + 32u] >> shift;
  let second = w#{N}[at + 64u] >> shift;
  let third = w#{N}[at + 96u] >> shift;
  let late = vec2<u32>((third & 15u) | ((first & 192u) >> 2u), ((third >> 4u) & 15u) | ((second & 192u) >> 2u));
  return vec2<f32>(select(late, vec2<u32>(first & 63u, second & 63u), i < 4u));
}
