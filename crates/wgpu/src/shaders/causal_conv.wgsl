// Causal depthwise convolution and SiLU.
#include "causal_conv_window.wgsl"
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  var s = 0u;
  for (var i = 1u; i < p.spans; i++) { if (plan[p.starts_at + i] <= r) { s = i; } }
  s = first_span(s);
  let first = plan[p.starts_at + s];
  let begins = begins_at(s);
  var sum = 0.0;
  for (var j = 0u; j < p.kernel; j++) {
    sum = fma(input(s, first, begins, r - first + j, c), weight[p.weight_at + j * p.weight_stride + c], sum);
  }
  out[p.out_at + r * p.out_stride + c] = sum / (1.0 + exp(min(-sum, 80.0)));
}
