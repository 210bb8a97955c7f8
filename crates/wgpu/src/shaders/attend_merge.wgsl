// Merges the segments of one token's query head, in order.
#include "online_softmax.wgsl"

override QUERY_HEADS: u32;
override DIM: u32;
override SEGMENT: u32;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  var span = 0u;
  while (span + 1u < p.spans && plan[p.starts_at + span + 1u] <= wg.x) { span++; }
  let len = plan[p.lens_at + span];
  let at = len - (plan[p.starts_at + span + 1u] - wg.x);
  let end = visible_end(at, len);
  let line = p.parts_at + (wg.x * QUERY_HEADS + wg.y) * p.parts_stride;
  for (var column = id; column < DIM; column += 64u) {
    var max_score = MASKED;
    var sum = 0.0;
    var o = 0.0;
    for (var segment = visible_begin(at) / SEGMENT; segment * SEGMENT < end; segment++) {
      let part = line + segment * (DIM + 2u);
      let factors = merge_factors(max_score, parts[part + DIM]);
      sum = merge(sum, parts[part + DIM + 1u], factors);
      o = merge(o, parts[part + column], factors);
      max_score = max(max_score, parts[part + DIM]);
    }
    out[p.out_at + wg.x * p.out_stride + wg.y * DIM + column] = normalize(o, max_score, sum, wg.y);
  }
}
