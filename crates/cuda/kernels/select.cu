// Top-k, and the softmax mass outside of it. A CTA does a row.
#include "sort_key.cuh"

// Threads, and how many elements a CTA sorts at once.
static constexpr u32 SELECTORS = 1024, MOST_SORTED = 1024;

// The value of a digit of eight bits, and how many elements share it.
struct Digit {
  u32 value, above, here;
};

// The digit of the element at `rank`, counted from 1 and from the largest digit, of `counts` elements with each digit; and how many
// have a larger one. One warp finds it for all threads, which must come here.
inline Digit digit_at(const u32* counts, u32 rank) {
  __shared__ Digit found;
  if (threadIdx.x < 32) {
    // Each lane has eight digits, the first lane the largest.
    u32 first = 8 * (31 - threadIdx.x), own = 0;
    for (u32 i = 0; i < 8; i++) own += counts[first + i];
    u32 above = own;
    for (u32 d = 1; d < 32; d *= 2) {
      u32 other = __shfl_up_sync(~0u, above, d);
      if (threadIdx.x >= d) above += other;
    }
    above -= own;
    for (u32 i = 8; i > 0; i--) {
      u32 here = counts[first + i - 1];
      if (above < rank && above + here >= rank) found = {first + i - 1, above, here};
      above += here;
    }
  }
  __syncthreads();
  return found;
}

// The k largest elements of a row, largest first. A radix select finds the last of up to MOST_SORTED of them, eight bits a pass,
// first of the value and then of the column, and what comes up to there is sorted (bitonic sort); if there are more, those that
// follow come next.
KERNEL(SELECTORS) topk(Matrix<const float> x, Matrix<float> values, Matrix<u32> ids, u32 k) {
  __shared__ u64 chosen[MOST_SORTED];
  __shared__ u32 counts[256], filled;
  const float* row = x.row(blockIdx.x);
  // All that come before, by their last one.
  u64 bound = ~0ull;
  for (u32 done = 0; done < k; done += MOST_SORTED) {
    u32 wanted = k - done < MOST_SORTED ? k - done : MOST_SORTED, rank = wanted;
    // What is known of the last one: these bits of it.
    u64 last = 0, known = 0;
    for (u32 bits = 64; bits > 0;) {
      bits -= 8;
      if (threadIdx.x < 256) counts[threadIdx.x] = 0;
      __syncthreads();
      for (u32 c = threadIdx.x; c < x.cols; c += SELECTORS) {
        u64 here = place_of(sort_key(row[c]), c);
        if (here < bound && (here & known) == last) atomicAdd(&counts[here >> bits & 255], 1u);
      }
      __syncthreads();
      Digit digit = digit_at(counts, rank);
      last |= (u64)digit.value << bits;
      known |= (u64)255 << bits;
      rank -= digit.above;
      // All that share these bits are among them.
      if (rank == digit.here) break;
    }
    u32 size = 1;
    while (size < wanted) size *= 2;
    if (threadIdx.x == 0) filled = 0;
    if (threadIdx.x < size) chosen[threadIdx.x] = 0;
    __syncthreads();
    for (u32 c = threadIdx.x; c < x.cols; c += SELECTORS) {
      u64 here = place_of(sort_key(row[c]), c);
      if (here < bound && here >= last) chosen[atomicAdd(&filled, 1u)] = here;
    }
    __syncthreads();
    for (u32 run = 2; run <= size; run *= 2) {
      for (u32 apart = run / 2; apart > 0; apart /= 2) {
        if (threadIdx.x < size / 2) {
          u32 low = 2 * apart * (threadIdx.x / apart) + threadIdx.x % apart;
          u64 a = chosen[low], b = chosen[low + apart];
          if ((low & run) == 0 ? a < b : a > b) {
            chosen[low] = b;
            chosen[low + apart] = a;
          }
        }
        __syncthreads();
      }
    }
    if (threadIdx.x < wanted) {
      u32 column = column_of(chosen[threadIdx.x]);
      values.row(blockIdx.x)[done + threadIdx.x] = row[column];
      ids.row(blockIdx.x)[done + threadIdx.x] = column;
    }
    bound = chosen[wanted - 1];
    __syncthreads();
  }
}

// The sum of exp((x - max) / temperature) over the elements that come after the last of the top k, for one of the row's
// temperatures. NaN if an element is.
KERNEL(SELECTORS) tail_sum(Matrix<const float> x, Matrix<const float> values, Matrix<const u32> ids,
                           Matrix<const float> temperatures, Matrix<float> out) {
  u32 r = blockIdx.x, k = values.cols;
  const float* row = x.row(r);
  float most = values.row(r)[0], temperature = temperatures.row(r)[blockIdx.y], sum = 0.0f;
  u64 last = place_of(sort_key(values.row(r)[k - 1]), ids.row(r)[k - 1]);
  for (u32 c = threadIdx.x; c < x.cols; c += SELECTORS) {
    u32 key = sort_key(row[c]);
    if (key == 0) sum = row[c];
    if (place_of(key, c) < last) sum += exp_of((row[c] - most) / temperature);
  }
  sum = cta_sum<SELECTORS>(sum);
  if (threadIdx.x == 0) out.row(r)[blockIdx.y] = sum;
}
