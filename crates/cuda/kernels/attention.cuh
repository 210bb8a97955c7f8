// What kernels of attention share: the rows of a CTA and what they see, softmaxes, and how units are merged.
//
// The positions of a sequence are cut into units, at multiples of their length. Each unit has a softmax of its own, and units are
// merged in order: so a token's result depends neither on the other tokens of the step nor on how much a CTA does. A CTA computes
// some query rows of one KV head: tokens times the query heads that share it (GQA). It takes the units of its rows one after
// another and merges each into `out`; or, where that would be few CTAs, it computes one unit, and the last CTA to finish merges.
#pragma once
#include "cache.cuh"

// So many CTAs share a multiprocessor. Left to itself, the compiler may spill registers for one more.
#define ATTENTION(CTAS) extern "C" __global__ void __launch_bounds__(WIDTH, CTAS)

// Query rows of a CTA.
static constexpr u32 ROWS = 16;
// Positions of a unit: each thread finds one.
static constexpr u32 UNIT = WIDTH;
// Units that the last CTA merges at a time.
static constexpr u32 MERGED = 64;

// In place of the score of a position that a row does not see; less than any other.
static constexpr float MASKED = -3.0e38f;
static constexpr u64 NOWHERE = ~0ull;

// How far tokens see.
struct Sight {
  u32 window, chunk, is_causal;

  // The positions that a token at `at` of a sequence of `len` sees.
  u32 begin(u32 at) const { return max(at >= window ? at - window + 1 : 0, at - at % chunk); }
  u32 end(u32 at, u32 len) const { return is_causal ? at + 1 : at + min(window, len - at); }
};

// Softmax of some positions: the largest score, and the sum of weights, which are relative to it.
struct Softmax {
  float most, sum;
};

// What multiplies sums relative to two softmaxes so that they are relative to both.
struct Factors {
  float before, more;
};

inline Factors factors_of(float before, float more) {
  float most = fmaxf(before, more);
  return {exp_of(before - most), exp_of(more - most)};
}

inline float merged(float before, float more, Factors by) { return fmaf(more, by.more, before * by.before); }

inline Softmax merged(Softmax before, Softmax more, Factors by) {
  return {fmaxf(before.most, more.most), merged(before.sum, more.sum, by)};
}

// A unit's softmax of a row, and what merges it with those before.
struct Merge {
  Softmax own;
  Factors by;
};

// Divides by the sum of weights, with the head's attention sink if there are any.
inline float normalized(float x, Softmax all, const float* sinks, u32 head) {
  if (!sinks) return x / all.sum;
  Factors by = factors_of(all.most, sinks[head]);
  return x * by.before / fmaf(all.sum, by.before, by.more);
}

// The exponential, of NaN too.
inline float weight_of(float x) { return x == x ? exp_of(x) : x; }

// One of two halves of the cache, of a KV head: where each position of the unit is, and its scale.
struct Tile {
  u64* places;
  float* scales;

  // Each thread finds a position, of those from `begin` to `end`.
  void find(Matrix<const u8> cache, Layout layout, const u32* pages, u32 head, u32 position, u32 begin, u32 end) const {
    u64 place = NOWHERE;
    float scale = 1.0f;
    if (position >= begin && position < end) {
      u64 page = (u64)pages[position / layout.page_len] * cache.stride;
      u32 slot = position % layout.page_len;
      place = page + layout.element(head, slot);
      if (layout.is_coded()) scale = load_scale(cache.at + page + layout.scale(head, slot));
    }
    places[threadIdx.x] = place;
    scales[threadIdx.x] = scale;
  }
};

// The span that a block of query rows is of, which becomes its number within the span. A warp looks at 32 spans at a time.
inline u32 span_of_block(u32& block, const u32* starts, u32 spans, u32 group) {
  u32 lane = threadIdx.x % 32;
  for (u32 first = 0;; first += 32) {
    u32 span = first + lane;
    u32 own = span < spans ? ((starts[span + 1] - starts[span]) * group + ROWS - 1) / ROWS : 0, sum = own;
    for (u32 d = 1; d < 32; d *= 2) {
      u32 before = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += before;
    }
    u32 found = __popc(__ballot_sync(~0u, sum <= block));
    if (found < 32) {
      block -= __shfl_sync(~0u, sum - own, found);
      return first + found;
    }
    block -= __shfl_sync(~0u, sum, 31);
  }
}

// What a launch is given. Without `parts` a CTA has all units of its rows; otherwise one, and `parts` has room for what each row has
// of each unit: [dim] sums, the largest score, the sum of weights. `arrivals` counts the CTAs of the same rows that are done, and is
// left zero.
struct Operands {
  Matrix<const float> q;
  Matrix<const u8> keys, values;
  Layout layout;
  const u32 *starts, *lens;
  Matrix<const u32> pages;
  u32 spans;
  Sight sight;
  u32 group;
  float scale, cap;
  Matrix<const float> bias;
  const float* sinks;
  Matrix<float> out;
  float* parts;
  u32* arrivals;
};

// What a CTA knows of its rows, in shared memory: the positions that each sees; the softmax of all its units so far and of this
// one; and what merges the two.
struct Seen {
  u32 begins[ROWS], ends[ROWS];
  Softmax all[ROWS], own[ROWS];
  Factors factors[ROWS];
  bool is_last;

  bool sees(u32 r, u32 position) const { return position >= begins[r] && position < ends[r]; }
  bool any(u32 r, u32 unit) const { return begins[r] < (unit + 1) * UNIT && ends[r] > unit * UNIT; }

  // A unit's softmax of a row that sees any of it.
  void add(u32 r, Softmax softmax) {
    Factors by = factors_of(all[r].most, softmax.most);
    factors[r] = by;
    all[r] = merged(all[r], softmax, by);
    own[r] = softmax;
  }
};

// The query rows of a CTA, of a sequence, and the units that it computes. What is known without is not kept: registers are few.
struct Block {
  const Operands& op;
  u32 span, first_token, start, len, first, rows;
  // What any of the rows sees; of the units of that, those that are this CTA's, and whether it merges with others.
  u32 begin, end, unit, last;
  bool is_part;

  const u32* pages() const { return op.pages.row(span); }
  u32 head() const { return blockIdx.y; }
  u32 first_unit() const { return begin / UNIT; }
  u32 last_unit() const { return (end - 1) / UNIT; }
  u32 token_of(u32 r) const { return first_token + (first + r) / op.group; }
  u32 head_of(u32 r) const { return head() * op.group + (first + r) % op.group; }
  u32 position_of(u32 r) const { return start + (first + r) / op.group; }
  const float* query(u32 r) const { return op.q.row(token_of(r)) + (u64)head_of(r) * op.layout.dim; }
  float* result(u32 r) const { return op.out.row(token_of(r)) + (u64)head_of(r) * op.layout.dim; }
  float* part(u32 r, u32 unit) const {
    u64 row = (u64)token_of(r) * op.layout.heads * op.group + head_of(r);
    return op.parts + (row * gridDim.z + unit) * (op.layout.dim + 2);
  }
};

// False if the CTA has nothing to do.
inline bool find_block(Block& b) {
  const Operands& op = b.op;
  u32 block = blockIdx.x;
  b.span = span_of_block(block, op.starts, op.spans, op.group);
  b.first_token = op.starts[b.span];
  u32 tokens = op.starts[b.span + 1] - b.first_token;
  b.len = op.lens[b.span];
  b.start = b.len - tokens;
  b.first = block * ROWS;
  b.rows = min(tokens * op.group - b.first, ROWS);
  b.begin = op.sight.begin(b.position_of(0));
  b.end = op.sight.end(b.position_of(b.rows - 1), b.len);
  b.unit = b.first_unit();
  b.last = b.last_unit();
  b.is_part = false;
  if (op.parts) {
    if (blockIdx.z < b.unit || blockIdx.z > b.last) return false;
    // Of a short sequence there is one, and nothing to merge.
    b.is_part = b.unit != b.last;
    b.unit = b.last = blockIdx.z;
  }
  return true;
}

// Before the first unit; who reads it waits at a barrier.
inline void begin_rows(const Block& b, Seen& seen) {
  if (threadIdx.x >= ROWS) return;
  u32 r = threadIdx.x;
  seen.begins[r] = r < b.rows ? b.op.sight.begin(b.position_of(r)) : 0;
  seen.ends[r] = r < b.rows ? b.op.sight.end(b.position_of(r), b.len) : 0;
  seen.all[r] = {MASKED, 0.0f};
}

// A score, from the scaled product of a query with a key.
inline float score_of(const Block& b, u32 r, u32 position, float score) {
  const Operands& op = b.op;
  if (op.bias.at) {
    u32 reach = op.bias.cols / 2, at = b.position_of(r);
    u32 offset = min(max(position + reach, at) - at, 2 * reach);
    score += op.bias.row(b.head_of(r))[offset];
  }
  if (op.cap > 0.0f && score == score) score = op.cap * tanh_of(score / op.cap);
  return score;
}

// Of a unit that row `r` sees any of, the sum of column `c`. The same thread has it in all units.
inline void store_sum(const Block& b, const Seen& seen, u32 unit, u32 r, u32 c, float sum) {
  if (b.is_part) {
    float* part = b.part(r, unit);
    part[c] = sum;
    if (c == 0) {
      part[b.op.layout.dim] = seen.own[r].most;
      part[b.op.layout.dim + 1] = seen.own[r].sum;
    }
    return;
  }
  float* to = b.result(r) + c;
  float so_far = merged(unit == seen.begins[r] / UNIT ? 0.0f : *to, sum, seen.factors[r]);
  *to = unit == (seen.ends[r] - 1) / UNIT ? normalized(so_far, seen.all[r], b.op.sinks, b.head_of(r)) : so_far;
}

// The last of the CTAs of these rows merges their units, in order, with room for ROWS * MERGED of `merges`.
inline void merge_units(const Block& b, Seen& seen, Merge* merges) {
  if (!b.is_part) return;
  u32 dim = b.op.layout.dim, first_unit = b.first_unit(), last_unit = b.last_unit();
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 others = last_unit - first_unit;
    seen.is_last = atomicInc(b.op.arrivals + blockIdx.y * gridDim.x + blockIdx.x, others) == others;
  }
  __syncthreads();
  if (!seen.is_last) return;
  __threadfence();
  if (threadIdx.x < ROWS) seen.all[threadIdx.x] = {MASKED, 0.0f};
  for (u32 from = first_unit; from <= last_unit; from += MERGED) {
    u32 count = min(last_unit + 1 - from, MERGED);
    __syncthreads();
    for (u32 i = threadIdx.x; i < b.rows * count; i += WIDTH) {
      u32 r = i / count, u = i % count;
      const float* softmax = b.part(r, from + u) + dim;
      merges[r * MERGED + u].own = seen.any(r, from + u) ? Softmax{softmax[0], softmax[1]} : Softmax{MASKED, 0.0f};
    }
    __syncthreads();
    // The largest score before a unit does not depend on an order, so that all factors are computed at once.
    for (u32 i = threadIdx.x; i < b.rows * count; i += WIDTH) {
      u32 r = i / count, u = i % count;
      Merge* row = merges + r * MERGED;
      float most = seen.all[r].most;
      for (u32 before = 0; before < u; before++) most = fmaxf(most, row[before].own.most);
      row[u].by = factors_of(most, row[u].own.most);
    }
    __syncthreads();
    if (threadIdx.x < b.rows) {
      u32 r = threadIdx.x;
      const Merge* row = merges + r * MERGED;
      for (u32 u = 0; u < count; u++) {
        if (seen.any(r, from + u)) seen.all[r] = merged(seen.all[r], row[u].own, row[u].by);
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < b.rows * dim; i += WIDTH) {
      u32 r = i / dim, c = i % dim;
      u32 low = max(seen.begins[r] / UNIT, from), until = min((seen.ends[r] - 1) / UNIT + 1, from + count);
      float* to = b.result(r) + c;
      float sum = from == first_unit ? 0.0f : *to;
      for (u32 u = low; u < until; u++) sum = merged(sum, b.part(r, u)[c], merges[r * MERGED + u - from].by);
      *to = from + count > last_unit ? normalized(sum, seen.all[r], b.op.sinks, b.head_of(r)) : sum;
    }
  }
}
