// Shared by the kernels of linear layers: reading x and the weights of up to three parts.
#include "weights.wgsl"
#include "matrices.wgsl"

// Inputs k to k + 3 of a row.
fn x4(row: u32, k: u32) -> vec4<f32> {
  let at = x_begin(row) + k;
#if ALIGNED
  return weighted(x[at / 4u], row);
#else
  var v = vec4<f32>(0.0);
  if (k < p.cols) { v.x = x[at]; }
  if (k + 1u < p.cols) { v.y = x[at + 1u]; }
  if (k + 2u < p.cols) { v.z = x[at + 2u]; }
  if (k + 3u < p.cols) { v.w = x[at + 3u]; }
  return weighted(v, row);
#endif
}

// Sum of the four accumulators.
fn sum4(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }
