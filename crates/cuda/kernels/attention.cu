// Attention over the paged KV cache, in f32.
//
// The positions of a sequence are cut into units, at multiples of their length. Each unit has a softmax of its own, and units are
// merged in order: so a token's result depends neither on the other tokens of the step nor on how much a CTA does. A CTA computes
// some query rows of one KV head: tokens times the query heads that share it (GQA). It takes the units of its rows one after
// another and merges each into `out`; or, where that would be few CTAs, it computes one unit, and the last CTA to finish merges.
#include "cache.cuh"

// Query rows of a CTA, and of a thread.
static constexpr u32 ROWS = 16, ROWS_EACH = 4;
// Positions of a unit, and of a thread when it computes scores.
static constexpr u32 UNIT = WIDTH, EACH = 4;
// Elements of queries and keys that are in shared memory at a time. Those of the keys are a line for all positions, padded, since
// neighbouring threads write to neighbouring lines.
static constexpr u32 DEPTH = 16, LINE = UNIT + 4;
// Of the values, columns that are in shared memory at a time: a power of two, as few as a head has; and how many numbers in all.
static constexpr u32 FEWEST_COLUMNS = 16, MOST_COLUMNS = 64, TILE = 4096;
// What a CTA sees of a unit is whole runs of so many positions.
static constexpr u32 RUN = 16;
// Weights of a position: those of all rows, padded likewise.
static constexpr u32 WEIGHTS = ROWS + 4;
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

  // Four elements from `first` on of the position at place `p` of the unit, where there are so many; 0 of one that was not found.
  float4 load(Matrix<const u8> cache, u32 type, u32 p, u32 first, u32 count) const {
    u64 place = places[p];
    if (place == NOWHERE) return {0.0f, 0.0f, 0.0f, 0.0f};
    float4 x = load_elements(type, cache.at, place + first, count);
    float scale = scales[p];
    return {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
  }
};

inline float4 load_four(const float* at) { return *(const float4*)at; }
inline void store_four(float* at, float4 x) { *(float4*)at = x; }
inline void store_four(float* at, const float (&x)[4]) { *(float4*)at = {x[0], x[1], x[2], x[3]}; }

// Adds the products of four numbers with four others.
inline void add_products(float (&sums)[4][4], float4 a, float4 b) {
  float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
  }
}

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

// Without `parts` a CTA has all units of its rows; otherwise one, and `parts` has room for what each row has of each unit: [dim]
// sums, the largest score, the sum of weights. `arrivals` counts the CTAs of the same rows that are done, and is left zero.
KERNEL(WIDTH) attend(Matrix<const float> q, Matrix<const u8> keys, Matrix<const u8> values, Layout layout, const u32* starts,
                     const u32* lens, Matrix<const u32> pages, u32 spans, Sight sight, u32 group, float scale, float cap,
                     Matrix<const float> bias, const float* sinks, Matrix<float> out, float* parts, u32* arrivals) {
  __shared__ __align__(16) float tile[DEPTH * LINE];
  __shared__ __align__(16) float weights[UNIT * WEIGHTS];
  __shared__ __align__(16) float queries[DEPTH * ROWS];
  __shared__ u64 places[UNIT];
  __shared__ float scales[UNIT];
  // The positions that each row sees; of all its units so far and of this one the softmax; and what merges the two.
  __shared__ u32 begins[ROWS], ends[ROWS];
  __shared__ Softmax all[ROWS], own[ROWS];
  __shared__ Factors factors[ROWS];
  __shared__ bool is_last;
  static_assert(TILE <= DEPTH * LINE && UNIT * ROWS <= TILE, "a tile holds values, and their sums in strands");
  static_assert(UNIT / FEWEST_COLUMNS <= RUN, "a run begins with the first strand");
  Tile found = {places, scales};

  // The sequence of the CTA's rows, and their place in it.
  u32 block = blockIdx.x, span = span_of_block(block, starts, spans, group);
  u32 first_token = starts[span], tokens = starts[span + 1] - first_token, len = lens[span], start = len - tokens;
  u32 head = blockIdx.y, heads = layout.heads * group, first = block * ROWS, rows = min(tokens * group - first, ROWS);
  u32 begin = sight.begin(start + first / group), end = sight.end(start + (first + rows - 1) / group, len);
  u32 first_unit = begin / UNIT, last_unit = (end - 1) / UNIT, unit = first_unit, last = last_unit;
  if (parts) {
    if (blockIdx.z < unit || blockIdx.z > last) return;
    // Of a short sequence there is one, and nothing to merge.
    if (unit == last) parts = nullptr;
    unit = last = blockIdx.z;
  }
  auto token_of = [&](u32 r) { return first_token + (first + r) / group; };
  auto head_of = [&](u32 r) { return head * group + (first + r) % group; };
  auto part_of = [&](u32 r, u32 unit) {
    return parts + (((u64)token_of(r) * heads + head_of(r)) * gridDim.z + unit) * (layout.dim + 2);
  };
  const u32* table = pages.row(span);
  if (threadIdx.x < ROWS) {
    u32 r = threadIdx.x, at = start + (first + r) / group;
    begins[r] = r < rows ? sight.begin(at) : 0;
    ends[r] = r < rows ? sight.end(at, len) : 0;
    all[r] = {MASKED, 0.0f};
  }

  // Of the result, columns that are computed at a time, in fours. Sums over positions are in strands, each of every so many'th
  // position, so that there is a part for each thread.
  u32 columns = FEWEST_COLUMNS;
  while (columns < MOST_COLUMNS && columns < layout.dim) columns *= 2;
  u32 fours = columns / 4, strands = UNIT / columns, tile_positions = TILE / columns;
  // A thread's part: four rows; of the scores, four positions; of the result, four columns of a strand.
  u32 lane = threadIdx.x % 32, quarter = threadIdx.x % 64, row = threadIdx.x / 64 * ROWS_EACH;
  u32 four = quarter * EACH, strand = quarter / fours, column = quarter % fours * 4;
  bool is_used = row < rows;
  u32 row_begins[ROWS_EACH], row_ends[ROWS_EACH];
#pragma unroll
  for (u32 i = 0; i < ROWS_EACH; i++) {
    u32 at = start + (first + row + i) / group;
    row_begins[i] = row + i < rows ? sight.begin(at) : 0;
    row_ends[i] = row + i < rows ? sight.end(at, len) : 0;
  }
  // The elements that it brings of queries and of keys.
  u32 query_row = threadIdx.x / DEPTH, query_column = threadIdx.x % DEPTH, key_column = threadIdx.x % (DEPTH / 4) * 4;
  const float* query = q.at;
  if (query_row < rows) {
    u32 r = first + query_row;
    query = q.row(first_token + r / group) + (u64)(head * group + r % group) * layout.dim;
  }

  for (; unit <= last; unit++) {
    u32 from = unit * UNIT;
    // What is seen of the unit by any row.
    u32 low = (max(begin, from) - from) / RUN * RUN, high = (min(end, from + UNIT) - from + RUN - 1) / RUN * RUN;
    __syncthreads();
    found.find(keys, layout, table, head, from + threadIdx.x, begin, end);
    float scores[4][4] = {};
    for (u32 depth = 0; depth < layout.dim; depth += DEPTH) {
      u32 width = min(layout.dim - depth, DEPTH);
      __syncthreads();
      bool is_there = query_row < rows && query_column < width;
      queries[query_column * ROWS + query_row] = is_there ? query[depth + query_column] : 0.0f;
      for (u32 p = low + threadIdx.x / (DEPTH / 4); key_column < width && p < high; p += WIDTH / (DEPTH / 4)) {
        float4 x = found.load(keys, layout.type, p, depth + key_column, width - key_column);
        float* to = tile + key_column * LINE + p;
        to[0] = x.x;
        to[LINE] = x.y;
        to[2 * LINE] = x.z;
        to[3 * LINE] = x.w;
      }
      __syncthreads();
      if (is_used && four >= low && four < high) {
        for (u32 d = 0; d < width; d += 4) {
#pragma unroll
          for (u32 i = d; i < d + 4; i++) {
            add_products(scores, load_four(queries + i * ROWS + row), load_four(tile + i * LINE + four));
          }
        }
      }
    }
    if (is_used) {
#pragma unroll
      for (u32 j = 0; j < EACH; j++) {
        u32 position = from + four + j;
        float of_rows[ROWS_EACH];
#pragma unroll
        for (u32 i = 0; i < ROWS_EACH; i++) {
          u32 r = first + row + i;
          float score = scores[i][j] * scale;
          if (bias.at) {
            u32 reach = bias.cols / 2, at = start + r / group;
            u32 offset = min(max(position + reach, at) - at, 2 * reach);
            score += bias.row(head * group + r % group)[offset];
          }
          if (cap > 0.0f && score == score) score = cap * tanh_of(score / cap);
          of_rows[i] = position >= row_begins[i] && position < row_ends[i] ? score : MASKED;
        }
        store_four(weights + (four + j) * WEIGHTS + row, of_rows);
      }
    }
    __syncthreads();

    // The unit's softmax: a warp has two of its four rows, a lane every 32nd position.
    found.find(values, layout, table, head, from + threadIdx.x, begin, end);
    u32 own_row = row + quarter / 32 * 2;
    for (u32 r = own_row; is_used && r < own_row + 2; r++) {
      float own_weights[UNIT / 32];
      Softmax softmax = {MASKED, 0.0f};
#pragma unroll
      for (u32 i = 0; i < UNIT / 32; i++) {
        own_weights[i] = weights[(lane + 32 * i) * WEIGHTS + r];
        softmax.most = fmaxf(softmax.most, own_weights[i]);
      }
      softmax.most = warp_max(softmax.most);
#pragma unroll
      for (u32 i = 0; i < UNIT / 32; i++) {
        float weight = own_weights[i] == MASKED ? 0.0f : weight_of(own_weights[i] - softmax.most);
        weights[(lane + 32 * i) * WEIGHTS + r] = weight;
        softmax.sum += weight;
      }
      softmax.sum = warp_sum(softmax.sum);
      if (lane == 0 && begins[r] < from + UNIT && ends[r] > from) {
        Factors by = factors_of(all[r].most, softmax.most);
        factors[r] = by;
        all[r] = merged(all[r], softmax, by);
        own[r] = softmax;
      }
    }

    for (u32 c0 = 0; c0 < layout.dim; c0 += columns) {
      u32 width = min(layout.dim - c0, columns);
      float sums[4][4] = {};
      for (u32 t = low / tile_positions * tile_positions; t < high; t += tile_positions) {
        u32 next = max(low, t), until = min(high, t + tile_positions);
        __syncthreads();
        for (u32 p = next + threadIdx.x / fours; column < width && p < until; p += WIDTH / fours) {
          float4 x = found.load(values, layout.type, p, c0 + column, width - column);
          store_four(tile + (p - t) * columns + column, x);
        }
        __syncthreads();
        if (is_used && column < width) {
          const float *w = weights + (next + strand) * WEIGHTS + row, *v = tile + (next + strand - t) * columns + column;
          const float* end_of_tile = tile + (until - t) * columns;
          for (; v < end_of_tile; v += UNIT, w += strands * WEIGHTS) add_products(sums, load_four(w), load_four(v));
        }
      }
      __syncthreads();
      if (is_used && column < width) {
#pragma unroll
        for (u32 i = 0; i < ROWS_EACH; i++) store_four(tile + (strand * ROWS + row + i) * columns + column, sums[i]);
      }
      __syncthreads();
      // A thread has the same elements in all units.
      for (u32 i = threadIdx.x; i < rows * columns; i += WIDTH) {
        u32 r = i / columns, c = i % columns;
        if (c >= width || begins[r] >= from + UNIT || ends[r] <= from) continue;
        // Beginning with 0, no sum is -0, to which weights of 0 would make a difference.
        float sum = 0.0f;
        for (u32 s = 0; s < strands; s++) sum += tile[(s * ROWS + r) * columns + c];
        if (parts) {
          float* part = part_of(r, unit);
          part[c0 + c] = sum;
          if (c0 + c == 0) {
            part[layout.dim] = own[r].most;
            part[layout.dim + 1] = own[r].sum;
          }
          continue;
        }
        float* to = out.row(token_of(r)) + (u64)head_of(r) * layout.dim + c0 + c;
        float so_far = merged(unit == begins[r] / UNIT ? 0.0f : *to, sum, factors[r]);
        *to = unit == (ends[r] - 1) / UNIT ? normalized(so_far, all[r], sinks, head_of(r)) : so_far;
      }
    }
  }
  if (!parts) return;

  // The last of the CTAs of these rows merges their units, in order.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 others = last_unit - first_unit;
    is_last = atomicInc(arrivals + blockIdx.y * gridDim.x + blockIdx.x, others) == others;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  Merge* merges = (Merge*)weights;
  static_assert(ROWS * MERGED * sizeof(Merge) <= sizeof(weights), "there is room to merge");
  if (threadIdx.x < ROWS) all[threadIdx.x] = {MASKED, 0.0f};
  for (u32 from = first_unit; from <= last_unit; from += MERGED) {
    u32 count = min(last_unit + 1 - from, MERGED);
    auto is_seen = [&](u32 r, u32 unit) { return begins[r] < (unit + 1) * UNIT && ends[r] > unit * UNIT; };
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * count; i += WIDTH) {
      u32 r = i / count, u = i % count;
      const float* softmax = part_of(r, from + u) + layout.dim;
      merges[r * MERGED + u].own = is_seen(r, from + u) ? Softmax{softmax[0], softmax[1]} : Softmax{MASKED, 0.0f};
    }
    __syncthreads();
    // The largest score before a unit does not depend on an order, so that all factors are computed at once.
    for (u32 i = threadIdx.x; i < rows * count; i += WIDTH) {
      u32 r = i / count, u = i % count;
      Merge* row = merges + r * MERGED;
      float most = all[r].most;
      for (u32 before = 0; before < u; before++) most = fmaxf(most, row[before].own.most);
      row[u].by = factors_of(most, row[u].own.most);
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      u32 r = threadIdx.x;
      const Merge* row = merges + r * MERGED;
      for (u32 u = 0; u < count; u++) {
        if (is_seen(r, from + u)) all[r] = merged(all[r], row[u].own, row[u].by);
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * layout.dim; i += WIDTH) {
      u32 r = i / layout.dim, c = i % layout.dim;
      u32 low = max(begins[r] / UNIT, from), until = min((ends[r] - 1) / UNIT + 1, from + count);
      float* to = out.row(token_of(r)) + (u64)head_of(r) * layout.dim + c;
      float sum = from == first_unit ? 0.0f : *to;
      for (u32 u = low; u < until; u++) sum = merged(sum, part_of(r, u)[c], merges[r * MERGED + u - from].by);
      *to = from + count > last_unit ? normalized(sum, all[r], sinks, head_of(r)) : sum;
    }
  }
}
