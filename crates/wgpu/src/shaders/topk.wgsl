// The k largest of a row, one after another: each is the first after the previous one, ordered by value, then column.

#include "sort_key.wgsl"

var<workgroup> found: array<Found, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.x * p.x_stride;
  // Sorts before every column.
  var last = Found(0xffffffffu, 0u);
  for (var n = 0u; n < p.k; n++) {
    // Sorts after every column.
    var best = Found(0u, 0xffffffffu);
    for (var c = id; c < p.cols; c += 256u) {
      let here = Found(key(x[row + c]), c);
      if (before(last, here) && before(here, best)) { best = here; }
    }
    found[id] = best;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
      if (id < half && before(found[id + half], found[id])) { found[id] = found[id + half]; }
      workgroupBarrier();
    }
    last = found[0];
    if (id == 0u) {
      values[p.values_at + wg.x * p.values_stride + n] = x[row + last.column];
      ids[p.ids_at + wg.x * p.ids_stride + n] = last.column;
    }
    workgroupBarrier();
  }
}
