// Softmax mass outside the top k, of a chunk of a row: the sum of exp((x - max) / temperature) over the elements after the
// last of them, for each of the row's temperatures, and whether an element is NaN.
const WIDTH = 256u;
#include "sort_key.wgsl"
#include "reduce.wgsl"

override CHUNK: u32;

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.y * p.x_stride;
  let top = p.values_at + wg.y * p.values_stride;
  let most = values[top];
  let last = Found(key(values[top + p.last]), ids[p.ids_at + wg.y * p.ids_stride + p.last]);
  for (var i = 0u; i < p.temperatures; i++) {
    let scale = 1.0 / by[p.by_at + wg.y * p.by_stride + i];
    var sum = 0.0;
    // NaN has the smallest key.
    var not_numbers = 0.0;
    for (var c = wg.x * CHUNK + id; c < min((wg.x + 1u) * CHUNK, p.cols); c += WIDTH) {
      let here = Found(key(x[row + c]), c);
      if (here.key == 0u) {
        not_numbers = 1.0;
      } else if (before(last, here)) {
        sum += exp(max((x[row + c] - most) * scale, -87.0));
      }
    }
    let all = workgroup_sum(sum, id);
    let any = workgroup_sum(not_numbers, id);
    if (id == 0u) {
      let at = p.sums_at + wg.y * p.sums_stride + 2u * (wg.x * p.temperatures + i);
      sums[at] = all;
      sums[at + 1u] = any;
    }
  }
}
