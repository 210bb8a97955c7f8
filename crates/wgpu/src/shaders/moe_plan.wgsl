// Which experts a row has, or which rows an expert has: those with a routing weight other than zero. The first ROWS
// workgroups write the experts of a row each, in order; the others the rows of an expert each, in order, as pairs of a
// row and the place among its experts: row * top_k + place.
const NONE = 0xffffffffu;
var<workgroup> counts: array<u32, 256>;

// NaN counts, so that it shows in the result.
fn is_routed(row: u32, expert: u32) -> bool {
  return (bitcast<u32>(routing[p.routing_at + row * p.routing_stride + expert]) & 0x7fffffffu) != 0u;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let by_row = wg.x < p.rows;
  let line = select(wg.x - p.rows, wg.x, by_row);
  let len = select(p.rows, p.experts, by_row);
  var found = 0u;
  for (var first = 0u; first < len; first += 256u) {
    let i = first + id;
    let row = select(i, line, by_row);
    let expert = select(line, i, by_row);
    let routed = i < len && is_routed(min(row, p.rows - 1u), min(expert, p.experts - 1u));
    // Counts up to and including each invocation.
    counts[id] = u32(routed);
    workgroupBarrier();
    for (var step = 1u; step < 256u; step *= 2u) {
      var before = 0u;
      if (id >= step) { before = counts[id - step]; }
      workgroupBarrier();
      counts[id] += before;
      workgroupBarrier();
    }
    let place = found + counts[id] - 1u;
    found += counts[255];
    workgroupBarrier();
    if (routed && by_row && place < p.top_k) { plan[row * p.top_k + place] = expert; }
    if (routed && !by_row) {
      var earlier = 0u;
      for (var e = 0u; e < expert; e++) { earlier += u32(is_routed(row, e)); }
      plan[p.lists_at + expert * p.rows + place] = select(NONE, row * p.top_k + earlier, earlier < p.top_k);
    }
  }
  if (by_row) {
    for (var place = found + id; place < p.top_k; place += 256u) { plan[line * p.top_k + place] = NONE; }
  } else if (id == 0u) {
    plan[p.counts_at + line] = found;
  }
}
