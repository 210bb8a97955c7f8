// out[r][c] = x[r][indices[c]], and zeros for an index past the end.
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  let source = indices[p.indices_at + c];
  var y = 0.0;
  if (source < p.x_cols) { y = x[p.x_at + r * p.x_stride + source]; }
  out[p.out_at + r * p.out_stride + c] = y;
}
