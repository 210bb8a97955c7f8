// Stands for a score where there is none; less than any that is.
const NONE = -3.0e38;
// Exactly one at zero, and zero far below.
fn power(x: f32) -> f32 { return select(exp(max(x, -200.0)), 1.0, x == 0.0); }
// What the sums so far, and those of one more segment, are multiplied by when they are brought together.
fn shares(most: f32, more: f32) -> vec2<f32> {
  let m = max(most, more);
  return vec2<f32>(power(most - m), power(more - m));
}
fn merged(so_far: f32, more: f32, by: vec2<f32>) -> f32 { return fma(more, by.y, so_far * by.x); }
fn ended(o: f32, most: f32, sum: f32, head: u32) -> f32 {
  if (SINKS) {
    let by = shares(most, sink(head));
    return o * by.x / fma(sum, by.x, by.y);
  }
  return o / sum;
}
// The first position that a token at `at` sees.
fn seen_from(at: u32) -> u32 {
  return max(select(0u, at - p.window + 1u, at >= p.window), at - at % p.chunk);
}
// The first position after those that it sees.
fn seen_to(at: u32, len: u32) -> u32 {
  if (p.causal != 0u) { return at + 1u; }
  return at + min(p.window, len - at);
}
