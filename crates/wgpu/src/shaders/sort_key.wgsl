// Candidates ordered by value, then by column.
struct Found { key: u32, column: u32 }

// Order-preserving integer key: both zeros are equal, and NaN is least.
fn key(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
  if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
fn before(a: Found, b: Found) -> bool { return a.key > b.key || (a.key == b.key && a.column < b.column); }
