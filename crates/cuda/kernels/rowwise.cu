// Row-wise and element-wise ops: norms, activations, arithmetic, gather, scatter, copies.
#include "activation.cuh"
#include "norm.cuh"

// RMSNorm or LayerNorm of a group of columns a CTA, plus a residual.
KERNEL(WIDTH) normalize(Matrix<const float> x, Norm norm, Matrix<const float> residual, Matrix<float> out) {
  u32 first = blockIdx.y * norm.width;
  const float* in = x.row(blockIdx.x) + first;
  Moments m = moments_of(norm, in);
  for (u32 i = threadIdx.x; i < norm.width; i += WIDTH) {
    float y = normalized(norm, m, in[i], i);
    if (residual.at) y += residual.row(blockIdx.x)[first + i];
    out.row(blockIdx.x)[first + i] = y;
  }
}

// The same where groups are narrow: a group a warp.
KERNEL(WIDTH) normalize_narrow(Matrix<const float> x, Norm norm, Matrix<const float> residual, Matrix<float> out) {
  u32 groups = x.cols / norm.width;
  u64 group = (u64)blockIdx.x * WARPS + threadIdx.x / 32;
  if (group >= (u64)x.rows * groups) return;
  u32 r = group / groups, first = group % groups * norm.width;
  const float* in = x.row(r) + first;
  Moments m = moments_of_warp(norm, in);
  for (u32 i = threadIdx.x % 32; i < norm.width; i += 32) {
    float y = normalized(norm, m, in[i], i);
    if (residual.at) y += residual.row(r)[first + i];
    out.row(r)[first + i] = y;
  }
}

KERNEL(WIDTH) activate(Matrix<const float> gate, Matrix<const float> up, Matrix<float> out, u32 act) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
    u32 r = i / out.cols, c = i % out.cols;
    float y = activation(act, gate.row(r)[c]);
    out.row(r)[c] = up.at ? y * up_factor(act, up.row(r)[c]) : y;
  }
}

enum Arithmetic { ADD, ADD_SCALED, MUL, SCALE, SOFT_CAP, GATE };

// Arithmetic with a number, or with `y`, whose one row or one column is broadcast.
KERNEL(WIDTH) eltwise(Matrix<const float> x, Matrix<const float> y, Matrix<float> out, u32 op, float number) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
    u32 r = i / out.cols, c = i % out.cols;
    float a = x.row(r)[c], result;
    float b = y.at ? y.row(y.rows == 1 ? 0 : r)[y.cols == 1 ? 0 : c] : 0.0f;
    switch (op) {
      case ADD: result = a + b; break;
      case ADD_SCALED: result = fmaf(b, number, a); break;
      case MUL: result = a * b; break;
      case SCALE: result = a * number; break;
      case SOFT_CAP: result = number * tanh_of(a / number); break;
      default: result = a * sigmoid_of(b); break;
    }
    out.row(r)[c] = result;
  }
}

// out[r] = x[indices[r]], and zeros for an index past the end.
KERNEL(WIDTH) gather_rows(Matrix<const float> x, const u32* indices, Matrix<float> out) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
    u32 r = i / out.cols, c = i % out.cols, from = indices[r];
    out.row(r)[c] = from < x.rows ? x.row(from)[c] : 0.0f;
  }
}

// out[indices[i]] += x[i]. A thread adds all rows of a column, in order, since several may have the same target.
KERNEL(WIDTH) scatter_add_rows(Matrix<const float> x, const u32* indices, Matrix<float> out) {
  for (u64 c = thread_of_grid(); c < out.cols; c += threads_of_grid()) {
    for (u32 i = 0; i < x.rows; i++) {
      u32 to = indices[i];
      if (to < out.rows) out.row(to)[c] += x.row(i)[c];
    }
  }
}

// out[r][c] = x[r][indices[c]], and zeros for an index past the end.
KERNEL(WIDTH) permute_cols(Matrix<const float> x, const u32* indices, Matrix<float> out) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
    u32 r = i / out.cols, c = i % out.cols, from = indices[c];
    out.row(r)[c] = from < x.cols ? x.row(r)[from] : 0.0f;
  }
}

// Copies views of any element: rows of bytes.
template <typename T> inline void copy_elements(Matrix<const T> x, Matrix<T> out) {
  u64 count = (u64)out.rows * out.cols;
  for (u64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
    u32 r = i / out.cols, c = i % out.cols;
    out.row(r)[c] = x.row(r)[c];
  }
}

KERNEL(WIDTH) copy_bytes(Matrix<const u8> x, Matrix<u8> out) { copy_elements(x, out); }
KERNEL(WIDTH) copy_halves(Matrix<const u16> x, Matrix<u16> out) { copy_elements(x, out); }
KERNEL(WIDTH) copy_words(Matrix<const u32> x, Matrix<u32> out) { copy_elements(x, out); }
