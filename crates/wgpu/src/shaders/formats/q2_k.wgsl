fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at + 32u * 20u]);
  let both = w#{N}[at + 32u * (j >> 3u)] >> (4u * (j & 6u));
  let scale = d.x * f32(both & 15u);
  let least = d.y * f32((both >> 4u) & 15u);
  let q = at + 32u * (4u + 8u * (j >> 4u) + 2u * (j & 3u));
  let shift = ((j >> 2u) & 3u) * 2u;
  let a = vec4<f32>(bytes((w#{N}[q] >> shift) & 0x03030303u));
  let b = vec4<f32>(bytes((w#{N}[q + 32u] >> shift) & 0x03030303u));
  return Eight(scale * a - least, scale * b - least);
}
