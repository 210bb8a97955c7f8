// Sums over the invocations of a workgroup of 256, from each to the last.
var<workgroup> sums: array<u32, 256>;

fn suffix_sums(x: u32, id: u32) {
  sums[id] = x;
  workgroupBarrier();
  for (var step = 1u; step < 256u; step *= 2u) {
    var sum = sums[id];
    if (id + step < 256u) { sum += sums[id + step]; }
    workgroupBarrier();
    sums[id] = sum;
    workgroupBarrier();
  }
}
