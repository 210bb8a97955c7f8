// Stores the last rows of each sequence as the window of the next step.
#include "causal_conv_window.wgsl"
#include "elementwise.wgsl"

fn element(s: u32, i: u32) {
  let first = plan[p.starts_at + s];
  let rows = plan[p.starts_at + s + 1u] - first;
  let y = input(s, first, plan[p.lens_at + s] == rows, rows + i / p.width, i % p.width);
  window[p.window_at + plan[p.states_at + p.spans + s] * p.window_stride + i] = y;
}
