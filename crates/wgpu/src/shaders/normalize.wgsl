// RMSNorm or LayerNorm of p.width columns per workgroup.
const WIDTH = 128u;
#include "reduce.wgsl"

@compute @workgroup_size(WIDTH)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = wg.x;
  let first = wg.y * p.width;
  let at = p.x_at + row * p.x_stride + first;
  var mean = 0.0;
  if (p.centred != 0u) {
    var sum = 0.0;
    for (var i = id; i < p.width; i += WIDTH) { sum = sum + x[at + i]; }
    mean = workgroup_sum(sum, id) / f32(p.width);
  }
  var squares = 0.0;
  for (var i = id; i < p.width; i += WIDTH) {
    let d = x[at + i] - mean;
    squares = fma(d, d, squares);
  }
  let scale = 1.0 / sqrt(workgroup_sum(squares, id) / f32(p.width) + p.eps);
  for (var i = id; i < p.width; i += WIDTH) {
    var y = (x[at + i] - mean) * scale;
    let w = weight[p.weight_at + i];
#if BIAS
    y = fma(y, w, bias[p.bias_at + i]);
#else
    y = y * w;
#endif
#if RESIDUAL
    y = y + residual[p.residual_at + row * p.residual_stride + first + i];
#endif
    out[p.out_at + row * p.out_stride + first + i] = y;
  }
}
