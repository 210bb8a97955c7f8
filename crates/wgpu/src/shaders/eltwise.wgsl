// An arithmetic op with a scalar, or with `y`, whose one row or one column is broadcast.
#include "elementwise.wgsl"

fn element(r: u32, c: u32) {
  let a = x[p.x_at + r * p.x_stride + c];
#if BINARY
  let b = y[p.y_at + select(r, 0u, p.one_row == 1u) * p.y_stride + select(c, 0u, p.one_col == 1u)];
#endif
#if OP == add
  let result = a + b;
#elif OP == add_scaled
  let result = fma(b, p.scalar, a);
#elif OP == mul
  let result = a * b;
#elif OP == scale
  let result = a * p.scalar;
#elif OP == softcap
  let result = p.scalar * tanh(clamp(a / p.scalar, -20.0, 20.0));
#elif OP == gate
  let result = a / (1.0 + exp(min(-b, 80.0)));
#endif
  out[p.out_at + r * p.out_stride + c] = result;
}
