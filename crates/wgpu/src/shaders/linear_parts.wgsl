// Parts of a linear layer whose outputs follow one another: which part a workgroup computes, its weights, its outputs.
#include "epilogue.wgsl"

struct Tile { part: u32, tile: u32 }

fn tile_of(workgroup: u32) -> Tile {
  var t = Tile(0u, workgroup);
#for N in 1..PARTS
  if (workgroup >= p.first_tile_#{N}) { t = Tile(#{N}u, workgroup - p.first_tile_#{N}); }
#endfor
  return t;
}

// Eight weights of a part.
fn eight(part: u32, group: u32, lane: u32, k8: u32) -> Eight {
#for N in 1..PARTS
  if (part == #{N}u) { return eight_#{N}(p.base_#{N} + matrix * p.each_#{N}, p.step_#{N}, group, lane, k8); }
#endfor
  return eight_0(p.base_0 + matrix * p.each_0, p.step_0, group, lane, k8);
}

// Adds the bias, applies the epilogue and stores an output of a part.
fn store(part: u32, output: u32, row: u32, sum: f32) {
  if (row >= p.tokens) { return; }
  var y = sum;
  var column = 0u;
#for N in 0..PARTS
  if (part == #{N}u) {
    if (output >= p.rows_#{N}) { return; }
    column = p.column_#{N} + output;
#if BIAS_#{N}
    y = y + bias#{N}[p.bias_at_#{N} + matrix * p.bias_each_#{N} + output];
#endif
  }
#endfor
#if RESIDUAL
  let residual = residual[p.residual_at + row * p.residual_stride + column];
#else
  let residual = 0.0;
#endif
  out[out_begin(row) + column] = epilogue(y, residual);
}
