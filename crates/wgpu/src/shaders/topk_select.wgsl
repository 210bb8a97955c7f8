// The k largest of a row, p.k up to 1024. A radix select finds the last of them, ordered by value, then column: eight bits
// a pass, first of the sort key and then of the column. What it and all before it are is then sorted (bitonic sort). If
// GATHERED, elements that may be among them have been gathered (topk_gather.wgsl).

#include "topk_bins.wgsl"
#include "suffix_sums.wgsl"

#if GATHERED
override COUNTS: u32;
override MOST_GATHERED: u32;
#endif
var<workgroup> digits: array<atomic<u32>, 256>;
var<workgroup> chosen: array<Found, 1024>;
var<workgroup> filled: atomic<u32>;
var<workgroup> digit: u32;
var<workgroup> above: u32;

// Elements to select from, and one of them.
fn elements(row: u32) -> u32 {
#if GATHERED
  let n = counts[row * COUNTS + BINS];
  if (n <= MOST_GATHERED) { return n; }
#endif
  return p.cols;
}
fn element(row: u32, i: u32, n: u32) -> Found {
#if GATHERED
  if (n <= MOST_GATHERED) {
    let here = gathered[row * MOST_GATHERED + i];
    return Found(here.x, here.y);
  }
#endif
  return Found(key(x[p.x_at + row * p.x_stride + i]), i);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.x * p.x_stride;
  let n = elements(wg.x);
  // The digits found so far of the last element, and which bits they are. Columns are inverted, so that the larger of two
  // numbers comes first in both.
  var first = vec2<u32>(0u, 0u);
  var known = vec2<u32>(0u, 0u);
  var rank = p.k;
  for (var pass_of = 0u; pass_of < 8u; pass_of++) {
    let part = pass_of / 4u;
    let shift = 24u - 8u * (pass_of % 4u);
    atomicStore(&digits[id], 0u);
    workgroupBarrier();
    for (var i = id; i < n; i += 256u) {
      let found = element(wg.x, i, n);
      let here = vec2<u32>(found.key, ~found.column);
      if (all((here & known) == first)) { atomicAdd(&digits[(here[part] >> shift) & 255u], 1u); }
    }
    workgroupBarrier();
    suffix_sums(atomicLoad(&digits[id]), id);
    // Elements with this digit or a larger one are sums[id].
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
  for (var i = id; i < n; i += 256u) {
    let here = element(wg.x, i, n);
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
  for (var i = id; i < p.k; i += 256u) {
    let column = min(chosen[i].column, p.cols - 1u);
    values[p.values_at + wg.x * p.values_stride + i] = x[row + column];
    ids[p.ids_at + wg.x * p.ids_stride + i] = column;
  }
}
