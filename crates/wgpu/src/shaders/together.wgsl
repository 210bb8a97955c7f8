var<workgroup> sums: array<f32, WIDTH>;

// Sum over the workgroup, in a fixed order.
fn together(x: f32, id: u32) -> f32 {
  workgroupBarrier();
  sums[id] = x;
  workgroupBarrier();
  for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
    if (id < half) { sums[id] = sums[id] + sums[id + half]; }
    workgroupBarrier();
  }
  return sums[0];
}
