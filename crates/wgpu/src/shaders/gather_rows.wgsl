// out[r] = x[indices[r]], and zeros for an index past the end.
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  let source = indices[p.indices_at + r];
  var y = 0.0;
  if (source < p.x_rows) { y = x[p.x_at + source * p.x_stride + c]; }
  out[p.out_at + r * p.out_stride + c] = y;
}
