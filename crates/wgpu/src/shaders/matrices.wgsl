// Which matrix of a stack a workgroup multiplies with, and what is its in x and in the result. MATRICES is `one` for a
// weight that stands alone; `heads` where each matrix has columns of x and of the result; `experts` where each has rows,
// listed in `plan` (moe_plan.wgsl): a row of the product is then a pair of a token and one of its experts.
#if MATRICES == one
const matrix = 0u;
#else
var<private> matrix: u32;
#endif

// The inputs of a row begin here. Rows past the end read the last row, and are not stored.
fn x_begin(row: u32) -> u32 {
  let r = min(row, p.tokens - 1u);
#if MATRICES == heads
  return p.x_at + r * p.x_stride + matrix * p.head_dim;
#elif MATRICES == experts
  return p.x_at + r / p.sharing * p.x_stride;
#else
  return p.x_at + r * p.x_stride;
#endif
}

// The outputs of a row begin here.
fn out_begin(row: u32) -> u32 {
#if MATRICES == heads
  return p.out_at + row * p.out_stride + matrix * p.out_dim;
#else
  return p.out_at + row * p.out_stride;
#endif
}

// Inputs of a row, times its routing weight if that multiplies the input.
fn weighted(v: vec4<f32>, row: u32) -> vec4<f32> {
#if WEIGHTED
  let token = min(row, p.tokens - 1u) / p.sharing;
  return v * routing[p.routing_at + token * p.routing_stride + p.first + matrix];
#else
  return v;
#endif
}

#if MATRICES == heads
// Copies the columns in front of the head's outputs, for `rows` rows.
fn copy_columns(first_row: u32, rows: u32, id: u32) {
  for (var i = id; i < rows * p.copied; i += 256u) {
    let row = first_row + i / p.copied;
    let column = i % p.copied;
    if (row < p.tokens) {
      let at = p.copied_at + row * p.x_stride + matrix * p.head_dim + column;
#if ALIGNED
      out[out_begin(row) + column] = x[at / 4u][at % 4u];
#else
      out[out_begin(row) + column] = x[at];
#endif
    }
  }
}
#endif
