fn end_of(r: u32, row: u32, rows: u32, token: u32, head: u32, column: u32, x: f32) {
  if (r >= ROWS || row + r >= rows || column >= DIM) { return; }
  let query = head * GROUP + (row + r) % GROUP;
  let at = p.out_at + (token + (row + r) / GROUP) * p.out_stride + query * DIM + column;
  out[at] = ended(x, whole_most[r], whole_sums[r], query);
}
