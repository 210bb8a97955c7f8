fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at + 32u * 27u]).x;
  let part = j >> 1u;
  let low = (w#{N}[at + 32u * (24u + ((part & 7u) >> 2u))] >> (8u * (part & 3u) + 4u * (part >> 3u))) & 15u;
  let high = (w#{N}[at + 32u * 26u] >> (8u * (part & 3u) + 2u * (part >> 2u))) & 3u;
  let scale = d * (f32(low | (high << 4u)) - 32.0);
  let column = 2u * (j & 3u);
  let q = at + 32u * (8u + 8u * (j >> 4u) + column);
  let shift = ((j >> 2u) & 3u) * 2u;
  let h = at + 32u * column;
  let third = j >> 2u;
  let a = bytes((w#{N}[q] >> shift) & 0x03030303u) + bytes((w#{N}[h] >> third) & 0x01010101u) * 4u;
  let b = bytes((w#{N}[q + 32u] >> shift) & 0x03030303u) + bytes((w#{N}[h + 32u] >> third) & 0x01010101u) * 4u;
  return Eight(scale * (vec4<f32>(a) - 4.0), scale * (vec4<f32>(b) - 4.0));
}
