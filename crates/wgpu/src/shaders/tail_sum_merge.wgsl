// Adds up what tail_sum.wgsl has summed of each chunk of a row, for one of its temperatures. NaN if an element is.
const WIDTH = 256u;
#include "reduce.wgsl"

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  var sum = 0.0;
  var not_numbers = 0.0;
  for (var chunk = id; chunk < p.chunks; chunk += WIDTH) {
    let at = p.sums_at + wg.y * p.sums_stride + 2u * (chunk * p.temperatures + wg.x);
    sum += sums[at];
    not_numbers += sums[at + 1u];
  }
  let all = workgroup_sum(sum, id);
  let any = workgroup_sum(not_numbers, id);
  if (id == 0u) {
    out[p.out_at + wg.y * p.out_stride + wg.x] = select(all, bitcast<f32>(p.nan), any > 0.0);
  }
}
