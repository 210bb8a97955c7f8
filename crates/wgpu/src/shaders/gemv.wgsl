// y = x W^T for a few rows of x (GEMV).
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
  let lane = id % LANES;
  let output = LANES * t.tile + lane;
  let mine = id / LANES;
  var total = 0.0;
#for R in 0..ROUNDS
  {
    let inputs = strand(#{R}u * AT_ONCE + mine);
#for I in 0..ROWS
    var acc_#{I} = vec4<f32>(0.0);
#endfor
    for (var k8 = inputs.k_begin; k8 < inputs.k_end; k8++) {
      let w = eight(t.part, output / 32u, output % 32u, k8);
      let k = 8u * k8;
#for I in 0..ROWS
      acc_#{I} = fma(w.b, x4(row + #{I}u, k + 4u), fma(w.a, x4(row + #{I}u, k), acc_#{I}));
#endfor
    }
#if R != 0
    // The sums of the round before have been read.
    workgroupBarrier();
#endif
#for I in 0..ROWS
    sums[sum_at(#{I}u, mine, lane)] = sum4(acc_#{I});
#endfor
    workgroupBarrier();
    // The invocations of each strand add up one row.
    if (mine < ROWS) {
      for (var i = 0u; i < AT_ONCE; i++) { total = total + sums[sum_at(mine, i, lane)]; }
    }
  }
#endfor
  if (mine < ROWS) { store(t.part, output, row + mine, total); }
}
