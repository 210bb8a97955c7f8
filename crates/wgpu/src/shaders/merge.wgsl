// Score of a masked position; less than any real score.
const NONE = -3.0e38;
// exp(x), exactly 1 at 0, and 0 far below.
fn power(x: f32) -> f32 { return select(exp(max(x, -200.0)), 1.0, x == 0.0); }
// Factors for the sums so far and for those of one more segment (online softmax merge), from their maxima.
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
// First position visible to a token at `at`.
fn seen_from(at: u32) -> u32 {
  return max(select(0u, at - p.window + 1u, at >= p.window), at - at % p.chunk);
}
// End (exclusive) of the positions visible to a token at `at`.
fn seen_to(at: u32, len: u32) -> u32 {
  if (p.causal != 0u) { return at + 1u; }
  return at + min(p.window, len - at);
}
