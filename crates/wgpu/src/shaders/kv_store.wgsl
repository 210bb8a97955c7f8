// Writes the KV cache.
#include "kv_layout.wgsl"
#include "float16.wgsl"

#for X in k v
#if HAS_#{X}
// Stores word `i` of a page.
fn #{X}_store(page: u32, i: u32, word: u32) {
#for B in 1..BLOCKS
  if (page / BLOCK_PAGES == #{B}u) { #{X}#{B}[(page % BLOCK_PAGES) * PAGE_WORDS + i] = word; return; }
#endfor
  #{X}0[page * PAGE_WORDS + i] = word;
}
#endif
#endfor

#if SCALED
#include "kv_codes.wgsl"
#else
// A word of one element, or of two.
fn pack_kv(a: f32, b: f32) -> u32 {
#if DTYPE == f16
  return to_f16(a) | (to_f16(b) << 16u);
#elif DTYPE == bf16
  return to_bf16(a) | (to_bf16(b) << 16u);
#else
  return bitcast<u32>(a);
#endif
}
#endif
