// Merges the segments of one token's query head, in order.
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  var span = 0u;
  while (span + 1u < p.spans && plan[p.starts_at + span + 1u] <= wg.x) { span++; }
  let len = plan[p.lens_at + span];
  let at = len - (plan[p.starts_at + span + 1u] - wg.x);
  let end = seen_to(at, len);
  let line = p.parts_at + (wg.x * QUERIES + wg.y) * p.parts_stride;
  for (var column = id; column < DIM; column += 64u) {
    var most = NONE;
    var sum = 0.0;
    var o = 0.0;
    for (var segment = seen_from(at) / SEGMENT; segment * SEGMENT < end; segment++) {
      let part = line + segment * (DIM + 2u);
      let by = shares(most, parts[part + DIM]);
      sum = merged(sum, parts[part + DIM + 1u], by);
      o = merged(o, parts[part + column], by);
      most = max(most, parts[part + DIM]);
    }
    out[p.out_at + wg.x * p.out_stride + wg.y * DIM + column] = ended(o, most, sum, wg.y);
  }
}
