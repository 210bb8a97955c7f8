// QK norm, RoPE and the write to the KV cache, or some of them. One workgroup per token and per head of Q, K or V, or
// per group of heads that are normalized together: first the groups of Q, then those of K, then the heads of V.
const WIDTH = 64u;
#include "reduce.wgsl"
#if CACHE
#include "kv_store.wgsl"
#else
// Elements of a head.
override DIM: u32;
#endif
#if PAIRS != none
#include "rope_pairs.wgsl"
#endif

#for S in q k
#if GROUPS_#{S}
#include "qk_norm_rope.wgsl"
#endif
#endfor

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = wg.x;
  var group = wg.y;
#if CACHE
  let slot = plan[p.slots_at + row];
  let page = slot / PAGE_LEN;
  let token = slot % PAGE_LEN;
#endif
#if GROUPS_q
  if (group < GROUPS_q) {
    let first = group * GROUP_DIM_q;
    let scale = q_rms_scale(row, first, id);
    for (var c = first + id; c < first + GROUP_DIM_q; c += WIDTH) {
      out[p.out_at + row * p.out_stride + c] = q_element(row, c, scale);
    }
    return;
  }
  group -= GROUPS_q;
#endif
#if GROUPS_k
  if (group < GROUPS_k) {
    let first = group * GROUP_DIM_k;
    let scale = k_rms_scale(row, first, id);
#if SCALED
    for (var head = first / DIM; head < (first + GROUP_DIM_k) / DIM; head++) {
      var largest = 0u;
      for (var e = id; e < DIM; e += WIDTH) {
        largest = max(largest, magnitude(k_element(row, head * DIM + e, scale)));
      }
      largest = workgroup_max(largest, id);
      if (id == 0u) { k_store(page, SCALES + head * PAGE_LEN + token, scale_bits(largest)); }
      for (var e = PACK * id; e < DIM; e += PACK * WIDTH) {
        let c = head * DIM + e;
        let x = vec4<f32>(
          k_element(row, c, scale),
          k_element(row, c + 1u, scale),
          k_element(row, c + 2u, scale),
          k_element(row, c + 3u, scale));
        k_store(page, key_at(head, e / PACK, token), pack_codes(x, code_factor(largest)));
      }
    }
#else
    for (var c = first + PACK * id; c < first + GROUP_DIM_k; c += PACK * WIDTH) {
      let a = k_element(row, c, scale);
      let b = k_element(row, c + PACK - 1u, scale);
      k_store(page, key_at(c / DIM, c % DIM / PACK, token), pack_kv(a, b));
    }
#endif
    return;
  }
  group -= GROUPS_k;
#endif
#if HAS_v
  let v_at = p.xv_at + row * p.xv_stride + group * DIM;
  let v_to = (group * PAGE_LEN + token) * (DIM / PACK);
#if SCALED
  var largest = 0u;
  for (var e = id; e < DIM; e += WIDTH) { largest = max(largest, magnitude(#{X_v}[v_at + e])); }
  largest = workgroup_max(largest, id);
  if (id == 0u) { v_store(page, SCALES + group * PAGE_LEN + token, scale_bits(largest)); }
  for (var e = PACK * id; e < DIM; e += PACK * WIDTH) {
    let at = v_at + e;
    let x = vec4<f32>(#{X_v}[at], #{X_v}[at + 1u], #{X_v}[at + 2u], #{X_v}[at + 3u]);
    v_store(page, v_to + e / PACK, pack_codes(x, code_factor(largest)));
  }
#else
  for (var e = PACK * id; e < DIM; e += PACK * WIDTH) {
    let at = v_at + e;
    v_store(page, v_to + e / PACK, pack_kv(#{X_v}[at], #{X_v}[at + PACK - 1u]));
  }
#endif
#endif
}
