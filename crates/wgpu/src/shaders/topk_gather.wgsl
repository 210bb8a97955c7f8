// Gathers the elements of a chunk of a row that may be among its k largest: those in the bin of the last of them, and in the
// bins above. What comes after the first MOST_GATHERED is counted only.
#include "topk_bins.wgsl"
#include "suffix_sums.wgsl"

override CHUNK: u32;
override COUNTS: u32;
override MOST_GATHERED: u32;
var<workgroup> least: u32;

const EACH = BINS / 256u;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.y * p.x_stride;
  let bins = wg.y * COUNTS;
  var own = 0u;
  for (var i = 0u; i < EACH; i++) { own += atomicLoad(&counts[bins + EACH * id + i]); }
  suffix_sums(own, id);
  // Elements in the bins above those of the invocation.
  var above = sums[id] - own;
  if (above < p.k && sums[id] >= p.k) {
    for (var i = EACH; i > 0u && above < p.k; i--) {
      above += atomicLoad(&counts[bins + EACH * id + i - 1u]);
      least = EACH * id + i - 1u;
    }
  }
  workgroupBarrier();
  for (var c = wg.x * CHUNK + id; c < min((wg.x + 1u) * CHUNK, p.cols); c += 256u) {
    let here = key(x[row + c]);
    if (here >> BIN_SHIFT >= least) {
      let at = atomicAdd(&counts[bins + BINS], 1u);
      if (at < MOST_GATHERED) { gathered[wg.y * MOST_GATHERED + at] = vec2<u32>(here, c); }
    }
  }
}
