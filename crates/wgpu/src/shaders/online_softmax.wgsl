// Online softmax over segments of positions, and which positions a token attends to.

// Score of a masked position; less than any real score.
const MASKED = -3.0e38;
// exp(x), exactly 1 at 0, and 0 far below.
fn softmax_exp(x: f32) -> f32 { return select(exp(max(x, -200.0)), 1.0, x == 0.0); }
// Factors for the sums so far and for those of one more segment, from their maxima.
fn merge_factors(max_so_far: f32, max_more: f32) -> vec2<f32> {
  let m = max(max_so_far, max_more);
  return vec2<f32>(softmax_exp(max_so_far - m), softmax_exp(max_more - m));
}
fn merge(so_far: f32, more: f32, factors: vec2<f32>) -> f32 { return fma(more, factors.y, so_far * factors.x); }
// Divides by the sum of weights, with the query head's attention sink if there are sinks.
fn normalize(o: f32, max_score: f32, sum: f32, query_head: u32) -> f32 {
#if SINKS
  let factors = merge_factors(max_score, sinks[p.sinks_at + query_head]);
  return o * factors.x / fma(sum, factors.x, factors.y);
#else
  return o / sum;
#endif
}
// First position visible to a token at `at`.
fn visible_begin(at: u32) -> u32 {
  return max(select(0u, at - p.window + 1u, at >= p.window), at - at % p.chunk);
}
// End (exclusive) of the positions visible to a token at `at`.
fn visible_end(at: u32, len: u32) -> u32 {
  if (p.causal != 0u) { return at + 1u; }
  return at + min(p.window, len - at);
}
