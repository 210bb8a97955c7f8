fn unpack_#{N}(at: u32, j: u32) -> Eight {
  let d = unpack2x16float(w#{N}[at + 32u * 52u]).x;
  let scale = d * f32(signed_bytes(w#{N}[at + 32u * (48u + (j >> 3u))])[(j >> 1u) & 3u]);
  let sub = (j >> 2u) & 3u;
  let column = 2u * (j & 3u);
  let l = at + 32u * (16u * (j >> 4u) + 8u * (sub & 1u) + column);
  let h = at + 32u * (32u + 8u * (j >> 4u) + column);
  let low = 4u * (sub >> 1u);
  let high = 2u * sub;
  let a = bytes((w#{N}[l] >> low) & 0x0f0f0f0fu) + bytes((w#{N}[h] >> high) & 0x03030303u) * 16u;
  let b = bytes((w#{N}[l + 32u] >> low) & 0x0f0f0f0fu) + bytes((w#{N}[h + 32u] >> high) & 0x03030303u) * 16u;
  return Eight(scale * (vec4<f32>(a) - 32.0), scale * (vec4<f32>(b) - 32.0));
}
