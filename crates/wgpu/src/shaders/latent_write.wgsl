// Writes the latent rows of MLA into the KV cache, one workgroup per token: the latent elements after RMSNorm, and in front
// of them the others after RoPE.
const WIDTH = 64u;
#include "reduce.wgsl"
#include "kv_store.wgsl"

// Latent elements, and the others.
override LATENT: u32;
override OTHERS: u32 = DIM - LATENT;
#if PAIRS != none
#include "rope_pairs.wgsl"
#endif

// Element `e` of the cache's row.
fn element(row: u32, e: u32, scale: f32) -> f32 {
  let at = p.x_at + row * p.x_stride;
  if (e >= OTHERS) { return x[at + e - OTHERS] * scale * weight[p.weight_at + e - OTHERS]; }
  let y = x[at + LATENT + e];
#if PAIRS == none
  return y;
#else
  if (e >= ROPE_DIM) { return y; }
  return rotated(row, e, y, x[at + LATENT + other_of_pair(e)]);
#endif
}

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = wg.x;
  let slot = plan[p.slots_at + row];
  let page = slot / PAGE_LEN;
  let token = slot % PAGE_LEN;
  var squares = 0.0;
  for (var i = id; i < LATENT; i += WIDTH) {
    let y = x[p.x_at + row * p.x_stride + i];
    squares = fma(y, y, squares);
  }
  let scale = 1.0 / sqrt(workgroup_sum(squares, id) / f32(LATENT) + p.eps);
#if SCALED
  var largest = 0u;
  for (var e = id; e < DIM; e += WIDTH) { largest = max(largest, magnitude(element(row, e, scale))); }
  largest = workgroup_max(largest, id);
  if (id == 0u) { k_store(page, SCALES + token, scale_bits(largest)); }
#endif
  for (var e = PACK * id; e < DIM; e += PACK * WIDTH) {
    let first = element(row, e, scale);
#if SCALED
    let x = vec4<f32>(first, element(row, e + 1u, scale), element(row, e + 2u, scale), element(row, e + 3u, scale));
    k_store(page, key_at(0u, e / PACK, token), pack_codes(x, code_factor(largest)));
#else
    k_store(page, key_at(0u, e / PACK, token), pack_kv(first, element(row, e + PACK - 1u, scale)));
#endif
  }
}
