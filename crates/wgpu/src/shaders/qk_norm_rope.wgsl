// QK norm and RoPE of #{S}: groups of heads, and the elements of a group, which are normalized together.
override GROUPS_#{S}: u32;
override GROUP_DIM_#{S}: u32;

// 1 / RMS of a group.
fn #{S}_rms_scale(row: u32, first: u32, id: u32) -> f32 {
#if NORM_#{S}
  var squares = 0.0;
  for (var i = id; i < GROUP_DIM_#{S}; i += WIDTH) {
    let y = #{X_#{S}}[p.x#{S}_at + row * p.x#{S}_stride + first + i];
    squares = fma(y, y, squares);
  }
  return 1.0 / sqrt(workgroup_sum(squares, id) / f32(GROUP_DIM_#{S}) + p.eps_#{S});
#else
  return 1.0;
#endif
}

// Element `c` of a row after QK norm.
fn #{S}_normed(row: u32, c: u32, scale: f32) -> f32 {
  let at = p.x#{S}_at + row * p.x#{S}_stride + c;
#if NORM_#{S}
  return #{X_#{S}}[at] * scale * w#{S}[p.w#{S}_at + c % GROUP_DIM_#{S}];
#else
  return #{X_#{S}}[at];
#endif
}

// Element `c` of a row after QK norm and RoPE.
fn #{S}_element(row: u32, c: u32, scale: f32) -> f32 {
  let y = #{S}_normed(row, c, scale);
#if PAIRS == none
  return y;
#else
  let e = c % DIM;
  if (e >= ROPE_DIM) { return y; }
  let other = c - e + other_of_pair(e);
  return rotated(row, e, y, #{S}_normed(row, other, scale));
#endif
}
