// Counts the elements of a chunk of a row by the first bits of their sort keys.
#include "topk_bins.wgsl"

override CHUNK: u32;
override COUNTS: u32;
var<workgroup> bins: array<atomic<u32>, BINS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.y * p.x_stride;
  for (var i = id; i < BINS; i += 256u) { atomicStore(&bins[i], 0u); }
  workgroupBarrier();
  for (var c = wg.x * CHUNK + id; c < min((wg.x + 1u) * CHUNK, p.cols); c += 256u) {
    atomicAdd(&bins[key(x[row + c]) >> BIN_SHIFT], 1u);
  }
  workgroupBarrier();
  for (var i = id; i < BINS; i += 256u) {
    let count = atomicLoad(&bins[i]);
    if (count > 0u) { atomicAdd(&counts[wg.y * COUNTS + i], count); }
  }
}
