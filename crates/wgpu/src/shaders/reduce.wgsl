var<workgroup> partials: array<f32, WIDTH>;

// Sum over the WIDTH invocations of a workgroup, as a tree, in a fixed order.
fn workgroup_sum(x: f32, id: u32) -> f32 {
  workgroupBarrier();
  partials[id] = x;
  workgroupBarrier();
  for (var half = WIDTH / 2u; half > 0u; half /= 2u) {
    if (id < half) { partials[id] = partials[id] + partials[id + half]; }
    workgroupBarrier();
  }
  return partials[0];
}
