// MoE router.
#include "sort_key.cuh"

// As in `MAX_EXPERTS`.
static constexpr u32 MAX_EXPERTS = 1024;

enum Scores { SOFTMAX, SIGMOID, SPARSE_MIXER };

// Groups of experts, how many of them are used, and how many experts of each count. There may be none.
struct Groups {
  u32 count, used, best;
};

// Routing weights of a token, 0 for all but the selected experts: scores of the logits, then the best groups (group-limited
// routing), then the best experts of these, one after another.
KERNEL(WIDTH) route(Matrix<const float> logits, const float* bias, Matrix<float> out, Groups groups, u32 scores_are, float near,
                    u32 top_k, u32 to_one, float scale) {
  __shared__ float scores[MAX_EXPERTS];
  // What experts are selected by; that of one which may not be, or already is, is 0.
  __shared__ u32 keys[MAX_EXPERTS], group_keys[MAX_EXPERTS];
  __shared__ u8 is_taken[MAX_EXPERTS];
  const float* row = logits.row(blockIdx.x);
  u32 experts = logits.cols;
  if (scores_are == SOFTMAX) {
    float most = row[0], sum = 0.0f;
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) most = fmaxf(most, row[c]);
    most = cta_max<WIDTH>(most);
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) {
      scores[c] = exp_of(row[c] - most);
      sum += scores[c];
    }
    sum = cta_sum<WIDTH>(sum);
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) scores[c] /= sum;
  } else {
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) scores[c] = scores_are == SIGMOID ? sigmoid_of(row[c]) : row[c];
  }
  for (u32 c = threadIdx.x; c < experts; c += WIDTH) {
    keys[c] = sort_key(bias ? scores[c] + bias[c] : scores[c]);
    is_taken[c] = 0;
  }
  __syncthreads();

  if (groups.count > 0) {
    u32 each = experts / groups.count;
    for (u32 g = threadIdx.x; g < groups.count; g += WIDTH) {
      float sum = 0.0f;
      u64 last = ~0ull;
      for (u32 n = 0; n < groups.best; n++) {
        u64 best = 0;
        for (u32 c = g * each; c < (g + 1) * each; c++) {
          u64 here = place_of(keys[c], c);
          if (here < last) best = first_of(best, here);
        }
        u32 c = column_of(best);
        sum += bias ? scores[c] + bias[c] : scores[c];
        last = best;
      }
      group_keys[g] = sort_key(sum);
    }
    // An expert stays if fewer groups than are used come before its own.
    __syncthreads();
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) {
      u32 own = c / each, before = 0;
      for (u32 g = 0; g < groups.count; g++) before += place_of(group_keys[g], g) > place_of(group_keys[own], own);
      if (before >= groups.used) keys[c] = 0;
    }
  }

  float all = 0.0f;
  for (u32 n = 0; n < top_k; n++) {
    u64 best = 0;
    for (u32 c = threadIdx.x; c < experts; c += WIDTH) best = first_of(best, place_of(keys[c], c));
    u32 chosen = column_of(cta_first<WIDTH>(best));
    float score = scores[chosen];
    if (scores_are == SPARSE_MIXER) {
      // Softmax over the experts left that are near the best, itself included.
      float sum = 0.0f;
      for (u32 c = threadIdx.x; c < experts; c += WIDTH) {
        float x = scores[c];
        if (!is_taken[c] && score - x <= near * fmaxf(fabsf(x), score)) sum += exp_of(x - score);
      }
      score = 1.0f / cta_sum<WIDTH>(sum);
    }
    all += score;
    __syncthreads();
    if (threadIdx.x == 0) {
      keys[chosen] = 0;
      is_taken[chosen] = 1;
      scores[chosen] = score;
    }
    __syncthreads();
  }
  float factor = to_one ? scale / all : scale;
  for (u32 c = threadIdx.x; c < experts; c += WIDTH) out.row(blockIdx.x)[c] = is_taken[c] ? scores[c] * factor : 0.0f;
}
