// Copies elements of 32 bits.
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  out[p.out_at + r * p.out_stride + c] = x[p.x_at + r * p.x_stride + c];
}
