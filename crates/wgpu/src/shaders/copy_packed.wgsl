// Copies elements smaller than a word. An invocation writes one whole word of the target, and replaces those of its
// elements that belong to the view.
#include "elementwise.wgsl"

// Elements per word.
override PACK: u32;
override BITS: u32 = 32u / PACK;
override MASK: u32 = (1u << BITS) - 1u;

fn element(r: u32, i: u32) {
  var word = out[p.first_word + i];
  for (var j = 0u; j < PACK; j++) {
    let at = (p.first_word + i) * PACK + j;
    if (at >= p.out_at) {
      let row = (at - p.out_at) / p.out_stride;
      let column = (at - p.out_at) % p.out_stride;
      if (row < p.view_rows && column < p.view_cols) {
        let source = p.x_at + row * p.x_stride + column;
        let value = (x[source / PACK] >> (BITS * (source % PACK))) & MASK;
        word = (word & ~(MASK << (BITS * j))) | (value << (BITS * j));
      }
    }
  }
  out[p.first_word + i] = word;
}
