// y = x W^T for many rows of x (GEMM): 64 outputs and ROWS rows per workgroup of 16 x 16 invocations, strand after
// strand. The additions are those of gemv.wgsl, in the same order.
#include "linear.wgsl"
#include "linear_parts.wgsl"

// Rows of x per workgroup: 16 * ROWS_EACH, of which an invocation computes ROWS_EACH, for 4 outputs.
override ROWS_EACH: u32;
override ROWS: u32 = 16u * ROWS_EACH;
// A segment's weights and inputs, [4 inputs][row].
var<workgroup> ws: array<vec4<f32>, 512>;
var<workgroup> xs: array<vec4<f32>, 8u * ROWS>;

// Row `i` of the product among those of the workgroup.
fn row_of(wg: vec3<u32>, i: u32) -> u32 {
#if MATRICES == experts
  // Past the expert's last row comes one that is not stored.
  let at = wg.y * ROWS + i;
  let expert = p.first + wg.z;
  if (at >= plan[p.counts_at + expert]) { return 0xffffffffu; }
  return plan[p.lists_at + expert * p.list_len + at];
#else
  return wg.y * ROWS + i;
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let t = tile_of(wg.x);
#if MATRICES == heads
  matrix = wg.z;
  if (t.tile == 0u) { copy_columns(wg.y * ROWS, ROWS, id); }
#elif MATRICES == experts
  matrix = wg.z;
  if (wg.y * ROWS >= plan[p.counts_at + p.first + wg.z]) { return; }
#endif
  let r = id % 16u;
  let c = id / 16u;
  let group = 2u * t.tile + (id % 64u) / 32u;
  let lane = id % 32u;
  let eighth = id / 64u;
#for I in 0..4
#for J in 0..ROWS_EACH
  var acc_#{I}_#{J} = vec4<f32>(0.0);
  var total_#{I}_#{J} = 0.0;
#endfor
#endfor
  for (var segment = 0u; segment < p.segments; segment++) {
    workgroupBarrier();
    let w = eight(t.part, group, lane, 4u * segment + eighth);
    ws[128u * eighth + id % 64u] = w.a;
    ws[128u * eighth + 64u + id % 64u] = w.b;
    for (var i = id; i < 8u * ROWS; i += 256u) {
      xs[(i % 8u) * ROWS + i / 8u] = x4(row_of(wg, i / 8u), 32u * segment + 4u * (i % 8u));
    }
    workgroupBarrier();
    for (var k4 = 0u; k4 < 8u; k4++) {
#for I in 0..4
      let w_#{I} = ws[k4 * 64u + r + 16u * #{I}u];
#endfor
#for J in 0..ROWS_EACH
      let x_#{J} = xs[k4 * ROWS + c + 16u * #{J}u];
#endfor
#for I in 0..4
#for J in 0..ROWS_EACH
      acc_#{I}_#{J} = fma(w_#{I}, x_#{J}, acc_#{I}_#{J});
#endfor
#endfor
    }
    // A strand may end here: strand n ends at segment n * segments / strands.
    let end = segment + 1u;
    let n = (p.strands * end + p.segments - 1u) / p.segments;
    if (n * p.segments < p.strands * (end + 1u)) {
#for I in 0..4
#for J in 0..ROWS_EACH
      total_#{I}_#{J} = total_#{I}_#{J} + sum4(acc_#{I}_#{J});
      acc_#{I}_#{J} = vec4<f32>(0.0);
#endfor
#endfor
    }
  }
#for I in 0..4
#for J in 0..ROWS_EACH
  store(t.part, 64u * t.tile + r + 16u * #{I}u, row_of(wg, c + 16u * #{J}u), total_#{I}_#{J});
#endfor
#endfor
}
