// Softmax mass outside the top k: the sum of exp((x - max) / temperature) over the elements after the last of them, for
// each of the row's temperatures.
const WIDTH = 256u;
#include "sort_key.wgsl"
#include "reduce.wgsl"

// Elements that are summed by themselves: an error of rounding then grows with this and the number of such sums.
const RUN = 32u;

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.x_at + wg.x * p.x_stride;
  let top = p.values_at + wg.x * p.values_stride;
  let most = values[top];
  let last = Found(key(values[top + p.last]), ids[p.ids_at + wg.x * p.ids_stride + p.last]);
  for (var i = 0u; i < p.temperatures; i++) {
    let scale = 1.0 / by[p.by_at + wg.x * p.by_stride + i];
    var sum = 0.0;
    // NaN has the smallest key.
    var not_numbers = 0.0;
    for (var start = id; start < p.cols; start += RUN * WIDTH) {
      var few = 0.0;
      for (var c = start; c < min(p.cols, start + RUN * WIDTH); c += WIDTH) {
        let here = Found(key(x[row + c]), c);
        if (here.key == 0u) {
          not_numbers = 1.0;
        } else if (before(last, here)) {
          few += exp(max((x[row + c] - most) * scale, -87.0));
        }
      }
      sum += few;
    }
    let all = workgroup_sum(sum, id);
    let any = workgroup_sum(not_numbers, id);
    if (id == 0u) {
      out[p.out_at + wg.x * p.out_stride + i] = select(all, bitcast<f32>(p.nan), any > 0.0);
    }
  }
}
