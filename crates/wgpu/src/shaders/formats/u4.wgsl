// f16 scale and 8-bit zero point, then the 4-bit codes: a word has eight, of which the first four are in the low nibbles.
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let head = w#{N}[at];
  let d = unpack2x16float(head).x;
  let zero = f32((head >> 16u) & 255u);
  let q = w#{N}[at + 32u * (1u + j)];
  return Eight(d * (nibbles(q) - zero), d * (nibbles(q >> 4u) - zero));
}
