// act(x Wgate^T) * (x Wup^T) for a few rows of x: the GEMV of gate and up, the two parts, with the gated activation.
#include "linear.wgsl"
#include "strands.wgsl"
#include "activations.wgsl"

// Rows of x per workgroup.
override ROWS: u32;
// Sums of gate, then of up.
override UP: u32 = 256u * ROWS;
var<workgroup> sums: array<f32, 2u * UP>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let first_row = wg.y * ROWS;
#if MATRICES == experts
  let expert = plan[first_row];
  if (expert - p.first >= p.count) { return; }
  matrix = expert - p.first;
#endif
  let lane = id % LANES;
  let output = LANES * wg.x + lane;
  let mine = id / LANES;
  var gate = 0.0;
  var up = 0.0;
#for R in 0..ROUNDS
  {
    let inputs = strand(#{R}u * AT_ONCE + mine);
#for I in 0..ROWS
    var gate_#{I} = vec4<f32>(0.0);
    var up_#{I} = vec4<f32>(0.0);
#endfor
    for (var k8 = inputs.k_begin; k8 < inputs.k_end; k8++) {
      let g = eight_0(p.base_0 + matrix * p.each_0, p.step_0, output / 32u, output % 32u, k8);
      let u = eight_1(p.base_1 + matrix * p.each_1, p.step_1, output / 32u, output % 32u, k8);
      let k = 8u * k8;
#for I in 0..ROWS
      {
        let a = x4(first_row + #{I}u, k);
        let b = x4(first_row + #{I}u, k + 4u);
        gate_#{I} = fma(g.b, b, fma(g.a, a, gate_#{I}));
        up_#{I} = fma(u.b, b, fma(u.a, a, up_#{I}));
      }
#endfor
    }
#if R != 0
    // The sums of the round before have been read.
    workgroupBarrier();
#endif
#for I in 0..ROWS
    sums[sum_at(#{I}u, mine, lane)] = sum4(gate_#{I});
    sums[UP + sum_at(#{I}u, mine, lane)] = sum4(up_#{I});
#endfor
    workgroupBarrier();
    // The invocations of each strand add up one row.
    if (mine < ROWS) {
      for (var i = 0u; i < AT_ONCE; i++) {
        gate = gate + sums[sum_at(mine, i, lane)];
        up = up + sums[UP + sum_at(mine, i, lane)];
      }
    }
  }
#endfor
  let row = first_row + mine;
  if (mine < ROWS && output < p.rows_0 && row < p.tokens) {
#if BIAS_0
    gate = gate + bias0[p.bias_at_0 + matrix * p.bias_each_0 + output];
#endif
#if BIAS_1
    up = up + bias1[p.bias_at_1 + matrix * p.bias_each_1 + output];
#endif
    out[out_begin(row) + output] = activate(gate) * up_factor(up);
  }
}
