// out[indices[i]] += x[i]. One invocation adds all rows of a column, in order, since several may have the same target.
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  for (var source = 0u; source < p.count; source++) {
    let target_row = indices[p.indices_at + source];
    if (target_row < p.out_rows) {
      let o = p.out_at + target_row * p.out_stride + c;
      out[o] = out[o] + x[p.x_at + source * p.x_stride + c];
    }
  }
}
