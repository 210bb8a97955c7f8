// The k largest of a row, p.k up to 1024. A radix select finds the last of them, ordered by value, then column: eight bits
// a pass, first of the sort key and then of the column. What it and all before it are is then sorted (bitonic sort).

#include "sort_key.wgsl"

var<workgroup> counts: array<atomic<u32>, 256>;
// How many elements have this digit or a larger one.
var<workgroup> sums: array<u32, 256>;
var<workgroup> chosen: array<Found, 1024>;
var<workgroup> filled: atomic<u32>;
var<workgroup> digit: u32;
var<workgroup> above: u32;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.x * p.x_stride;
  // The digits found so far of the last element, and which bits they are. Columns are inverted, so that the larger of two
  // numbers comes first in both.
  var first = vec2<u32>(0u, 0u);
  var known = vec2<u32>(0u, 0u);
  var rank = p.k;
  for (var pass_of = 0u; pass_of < 8u; pass_of++) {
    let part = pass_of / 4u;
    let shift = 24u - 8u * (pass_of % 4u);
    atomicStore(&counts[id], 0u);
    workgroupBarrier();
    for (var c = id; c < p.cols; c += 256u) {
      let here = vec2<u32>(key(x[row + c]), ~c);
      if (all((here & known) == first)) { atomicAdd(&counts[(here[part] >> shift) & 255u], 1u); }
    }
    workgroupBarrier();
    sums[id] = atomicLoad(&counts[id]);
    workgroupBarrier();
    for (var step = 1u; step < 256u; step *= 2u) {
      var sum = sums[id];
      if (id + step < 256u) { sum += sums[id + step]; }
      workgroupBarrier();
      sums[id] = sum;
      workgroupBarrier();
    }
    var larger = 0u;
    if (id < 255u) { larger = sums[id + 1u]; }
    if (sums[id] >= rank && larger < rank) {
      digit = id;
      above = larger;
    }
    workgroupBarrier();
    first[part] |= digit << shift;
    known[part] |= 255u << shift;
    rank -= above;
    workgroupBarrier();
  }

  for (var i = id; i < 1024u; i += 256u) { chosen[i] = Found(0u, 0xffffffffu); }
  if (id == 0u) { atomicStore(&filled, 0u); }
  workgroupBarrier();
  let last = Found(first.x, ~first.y);
  for (var c = id; c < p.cols; c += 256u) {
    let here = Found(key(x[row + c]), c);
    if (!before(last, here)) { chosen[min(atomicAdd(&filled, 1u), 1023u)] = here; }
  }
  workgroupBarrier();
  for (var size = 2u; size <= p.sorted; size *= 2u) {
    for (var stride = size / 2u; stride > 0u; stride /= 2u) {
      for (var i = id; i < p.sorted / 2u; i += 256u) {
        let low = 2u * stride * (i / stride) + i % stride;
        let a = chosen[low];
        let b = chosen[low + stride];
        if (((low & size) == 0u && before(b, a)) || ((low & size) != 0u && before(a, b))) {
          chosen[low] = b;
          chosen[low + stride] = a;
        }
      }
      workgroupBarrier();
    }
  }
  for (var n = id; n < p.k; n += 256u) {
    let column = min(chosen[n].column, p.cols - 1u);
    values[p.values_at + wg.x * p.values_stride + n] = x[row + column];
    ids[p.ids_at + wg.x * p.ids_stride + n] = column;
  }
}
