// Stores the last rows of each span as the window that the next one reads.
#include "causal_conv_window.wgsl"
#include "elementwise.wgsl"

fn element(s: u32, i: u32) {
  let head = first_span(s);
  let first = plan[p.starts_at + head];
  let rows = plan[p.starts_at + s + 1u] - first;
  let y = input(head, first, begins_at(head), rows + i / p.width, i % p.width);
  window[p.window_at + plan[p.states_at + p.spans + s] * p.window_stride + i] = y;
}
