#include "formats/six_bits.wgsl"
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let by = unpack2x16float(w#{N}[at]) * six_bits_#{N}(at, j >> 2u);
  let q = at + 32u * (4u + 8u * (j >> 3u) + 2u * (j & 3u));
  let shift = j & 4u;
  return Eight(by.x * nibbles(w#{N}[q] >> shift) - by.y, by.x * nibbles(w#{N}[q + 32u] >> shift) - by.y);
}
