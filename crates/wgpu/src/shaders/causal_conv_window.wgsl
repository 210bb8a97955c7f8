// Row `at` of the convolution's input for the sequence whose first span is `s`, counted from the oldest row of the window that
// its state keeps. `first` is the sequence's first row in the step.
#include "sequences.wgsl"

fn input(s: u32, first: u32, begins: bool, at: u32, c: u32) -> f32 {
  if (at + 1u >= p.kernel) { return x[p.x_at + (first + at + 1u - p.kernel) * p.x_stride + c]; }
  if (begins) { return 0.0; }
  return window[p.window_at + plan[p.states_at + s] * p.window_stride + at * p.width + c];
}

// The first of the spans that span `s` continues.
fn first_span(s: u32) -> u32 {
  var first = s;
  while (continues(first)) { first--; }
  return first;
}
