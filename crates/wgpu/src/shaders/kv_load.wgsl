// Reads the KV cache.
#include "kv_layout.wgsl"

#for X in k v
// Word `i` of a page.
fn #{X}_load(page: u32, i: u32) -> u32 {
#for B in 1..BLOCKS
  if (page / BLOCK_PAGES == #{B}u) { return #{X}#{B}[(page % BLOCK_PAGES) * PAGE_WORDS + i]; }
#endfor
  return #{X}0[page * PAGE_WORDS + i];
}
// Scale `i` of a page.
fn #{X}_scale(page: u32, i: u32) -> f32 {
#if SCALED
  return bitcast<f32>(#{X}_load(page, SCALES + i));
#else
  return 1.0;
#endif
}
#endfor

// Each of the four bytes in the top byte of a word.
fn top_bytes(w: u32) -> vec4<u32> { return vec4<u32>(w << 24u, w << 16u, w << 8u, w) & vec4<u32>(0xff000000u); }
// F8 (E4M3) to f32. Exponent and mantissa, placed in an f32, give x, which is 256 times the value if it is normal.
// Subnormals have no implicit leading one: 256 times their value is 2x - 4, which is less than x only for them.
fn from_f8(q: vec4<u32>) -> vec4<f32> {
  let x = bitcast<vec4<f32>>(((q & vec4<u32>(0x7f000000u)) >> vec4<u32>(4u)) | vec4<u32>(0x40000000u));
  let y = min(x, x + x - vec4<f32>(4.0)) / 256.0;
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(y) | (q & vec4<u32>(0x80000000u)));
}

// The elements of a word.
fn unpack_kv(w: u32) -> vec4<f32> {
#if DTYPE == f16
  return vec4<f32>(unpack2x16float(w), 0.0, 0.0);
#elif DTYPE == bf16
  return vec4<f32>(bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u)), 0.0, 0.0);
#elif DTYPE == i8
  return vec4<f32>(bitcast<vec4<i32>>(top_bytes(w)) >> vec4<u32>(24u));
#elif DTYPE == f8
  return from_f8(top_bytes(w));
#else
  return vec4<f32>(bitcast<f32>(w), 0.0, 0.0, 0.0);
#endif
}
