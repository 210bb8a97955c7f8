// y = x W^T for a few rows of x (GEMV): 32 outputs times 8 strands per workgroup.
#include "linear.wgsl"
#include "linear_parts.wgsl"
#include "strands.wgsl"

// Rows of x per workgroup.
override ROWS: u32;
var<workgroup> sums: array<f32, 256u * ROWS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let t = tile_of(wg.x);
  let row = wg.y * ROWS;
#if MATRICES == heads
  matrix = wg.z;
  if (t.tile == 0u) { copy_columns(row, ROWS, id); }
#elif MATRICES == experts
  let expert = plan[row];
  if (expert - p.first >= p.count) { return; }
  matrix = expert - p.first;
#endif
  let strand = strand_of(id);
#for I in 0..ROWS
  var acc_#{I} = vec4<f32>(0.0);
#endfor
  for (var k8 = strand.k_begin; k8 < strand.k_end; k8++) {
    let w = eight(t.part, t.tile, strand.lane, k8);
    let k = 8u * k8;
#for I in 0..ROWS
    acc_#{I} = fma(w.b, x4(row + #{I}u, k + 4u), fma(w.a, x4(row + #{I}u, k), acc_#{I}));
#endfor
  }
#for I in 0..ROWS
  sums[sum_at(#{I}u, strand.index, strand.lane)] = sum4(acc_#{I});
#endfor
  workgroupBarrier();
  // Each strand's invocations now add up one row.
  if (strand.index < ROWS) {
    var total = 0.0;
    for (var i = 0u; i < 8u; i++) { total = total + sums[sum_at(strand.index, i, strand.lane)]; }
    store(t.part, 32u * t.tile + strand.lane, row + strand.index, total);
  }
}
