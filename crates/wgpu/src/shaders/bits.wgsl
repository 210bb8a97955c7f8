struct Eight { a: vec4<f32>, b: vec4<f32> }

// The four bytes of a word, lowest first.
fn bytes(x: u32) -> vec4<u32> { return (vec4<u32>(x) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u); }
fn signed_bytes(x: u32) -> vec4<i32> {
  return bitcast<vec4<i32>>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}
// The low nibbles of four bytes.
fn nibbles(x: u32) -> vec4<f32> { return vec4<f32>(bytes(x & 0x0f0f0f0fu)); }
// Four bits as 0 or `by`.
fn bits(x: u32, by: u32) -> vec4<u32> { return ((vec4<u32>(x) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) * by; }
// Codebook lookup: sixteen signed bytes, four per word.
fn looked_up(codes: vec4<u32>, t: vec4<u32>) -> vec4<f32> {
  let low = select(vec4<u32>(t.x), vec4<u32>(t.y), (codes & vec4<u32>(4u)) != vec4<u32>(0u));
  let high = select(vec4<u32>(t.z), vec4<u32>(t.w), (codes & vec4<u32>(4u)) != vec4<u32>(0u));
  let word = select(low, high, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
  let shift = vec4<u32>(24u) - (codes & vec4<u32>(3u)) * 8u;
  return vec4<f32>(bitcast<vec4<i32>>(word << shift) >> vec4<u32>(24u));
}
const UNEVEN = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
const TINY = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
