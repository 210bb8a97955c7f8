// Elements of a head that are rotated; the rest are not.
override ROPE_DIM: u32;
override HALF: u32 = ROPE_DIM / 2u;

// True if element `e` is the first of its pair, the other one, and the pair's angle.
#if PAIRS == halves
fn is_first_of_pair(e: u32) -> bool { return e < HALF; }
fn other_of_pair(e: u32) -> u32 { return select(e - HALF, e + HALF, e < HALF); }
fn angle_of_pair(e: u32) -> u32 { return e % HALF; }
#else
fn is_first_of_pair(e: u32) -> bool { return e % 2u == 0u; }
fn other_of_pair(e: u32) -> u32 { return select(e - 1u, e + 1u, e % 2u == 0u); }
fn angle_of_pair(e: u32) -> u32 { return e / 2u; }
#endif

// Element `e`, which is `x`, rotated; `other` is the other one of its pair.
fn rotated(row: u32, e: u32, x: f32, other: f32) -> f32 {
  let at = p.table_at + plan[p.positions_at + row] * p.table_stride + angle_of_pair(e);
  let crossed = other * table[at + HALF];
  return fma(x, table[at], select(crossed, -crossed, is_first_of_pair(e)));
}
