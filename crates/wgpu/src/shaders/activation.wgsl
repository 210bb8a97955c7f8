// act(gate), or act(gate) * up.
#include "activations.wgsl"
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  let y = activate(gate[p.gate_at + r * p.gate_stride + c]);
#if GATED
  out[p.out_at + r * p.out_stride + c] = y * up_factor(up[p.up_at + r * p.up_stride + c]);
#else
  out[p.out_at + r * p.out_stride + c] = y;
#endif
}
