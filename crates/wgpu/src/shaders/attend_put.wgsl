// Stores a segment's partial result for the merge kernel: [DIM] sums, then the maximum and the sum of weights.
fn put(r: u32, row: u32, rows: u32, token: u32, head: u32, column: u32, segment: u32, x: f32) {
  if (r >= ROWS || row + r >= rows || column >= DIM) { return; }
  let line = (token + (row + r) / GROUP) * QUERIES + head * GROUP + (row + r) % GROUP;
  let at = p.parts_at + line * p.parts_stride + segment * (DIM + 2u);
  parts[at + column] = x;
  if (column == 0u) {
    parts[at + DIM] = most[r];
    parts[at + DIM + 1u] = sums[r];
  }
}
