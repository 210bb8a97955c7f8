// The sum of a row's experts, in their order, each times its routing weight unless that multiplied the input.
#include "elementwise.wgsl"
#include "epilogue.wgsl"

fn element(r: u32, c: u32) {
  var sum = 0.0;
  for (var place = 0u; place < p.top_k; place++) {
    let pair = r * p.top_k + place;
    let expert = plan[pair];
    if (expert >= p.experts) { break; }
    let y = x[p.x_at + pair * p.x_stride + c];
#if WEIGHTED
    sum = sum + y;
#else
    sum = fma(routing[p.routing_at + r * p.routing_stride + expert], y, sum);
#endif
  }
#if RESIDUAL
  let residual = residual[p.residual_at + r * p.residual_stride + c];
#else
  let residual = 0.0;
#endif
  out[p.out_at + r * p.out_stride + c] = epilogue(sum, residual);
}
