// One workgroup takes one token's queries, keys or values of a head, or of all heads where they are normalised together.

var<workgroup> sums: array<f32, 64>;
fn together(x: f32, id: u32) -> f32 {
  workgroupBarrier();
  sums[id] = x;
  workgroupBarrier();
  for (var half = 32u; half > 0u; half /= 2u) {
    if (id < half) { sums[id] = sums[id] + sums[id + half]; }
    workgroupBarrier();
  }
  return sums[0];
}
