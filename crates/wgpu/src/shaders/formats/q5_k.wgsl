#include "formats/six_bits.wgsl"
fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let part = j >> 2u;
  let by = unpack2x16float(w#{N}[at]) * six_bits_#{N}(at, part);
  let column = 2u * (j & 3u);
  let q = at + 32u * (12u + 8u * (j >> 3u) + column);
  let h = at + 32u * (4u + column);
  let shift = j & 4u;
  let a = nibbles(w#{N}[q] >> shift) + vec4<f32>(bytes((w#{N}[h] >> part) & 0x01010101u) * 16u);
  let b = nibbles(w#{N}[q + 32u] >> shift) + vec4<f32>(bytes((w#{N}[h + 32u] >> part) & 0x01010101u) * 16u);
  return Eight(by.x * a - by.y, by.x * b - by.y);
}
