// Rows of a weight as f32: `ids` selects them (embedding lookup), or they follow row p.start.
#include "weights.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
#if LOOKUP
  let row = ids[p.ids_at + wg.x];
#else
  let row = p.start + wg.x;
#endif
  for (var k8 = id; 8u * k8 < p.cols; k8 += 64u) {
    var w = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
    // Another block of the table has the row, and another launch writes it.
    if (row < p.table_rows && (row < p.first_row || row >= p.first_row + p.block_rows)) { return; }
    if (row < p.table_rows) {
      w = eight_0(p.base, p.step, (row - p.first_row) / 32u, row % 32u, k8);
    }
    let at = p.out_at + wg.x * p.out_stride + 8u * k8;
    for (var i = 0u; i < 4u; i++) {
      if (8u * k8 + i < p.cols) { out[at + i] = w.a[i] * p.scale; }
      if (8u * k8 + 4u + i < p.cols) { out[at + 4u + i] = w.b[i] * p.scale; }
    }
  }
}
