// Attention over the paged KV cache, in f32.
#include "attention.cuh"

// Query rows of a thread.
static constexpr u32 ROWS_EACH = 4;
// Positions of a thread when it computes scores.
static constexpr u32 EACH = 4;
// Elements of queries and keys that are in shared memory at a time. Those of the keys are a line for all positions, padded, since
// neighbouring threads write to neighbouring lines.
static constexpr u32 DEPTH = 16, LINE = UNIT + 4;
// Of the values, columns that are in shared memory at a time: a power of two, as few as a head has; and how many numbers in all.
static constexpr u32 FEWEST_COLUMNS = 16, MOST_COLUMNS = 64, TILE = 4096;
// What a CTA sees of a unit is whole runs of so many positions.
static constexpr u32 RUN = 16;
// Weights of a position: those of all rows, padded likewise.
static constexpr u32 WEIGHTS = ROWS + 4;

// Four elements from `first` on of the position at place `p` of the unit, where there are so many; 0 of one that was not found.
inline float4 load_position(const Tile& found, Matrix<const u8> cache, u32 type, u32 p, u32 first, u32 count) {
  u64 place = found.places[p];
  if (place == NOWHERE) return {0.0f, 0.0f, 0.0f, 0.0f};
  float4 x = load_elements(type, cache.at, place + first, count);
  float scale = found.scales[p];
  return {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
}

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

ATTENTION(3) attend(Operands op) {
  __shared__ __align__(16) float tile[DEPTH * LINE];
  __shared__ __align__(16) float weights[UNIT * WEIGHTS];
  __shared__ __align__(16) float queries[DEPTH * ROWS];
  __shared__ u64 places[UNIT];
  __shared__ float scales[UNIT];
  __shared__ Seen seen;
  static_assert(TILE <= DEPTH * LINE && UNIT * ROWS <= TILE, "a tile holds values, and their sums in strands");
  static_assert(UNIT / FEWEST_COLUMNS <= RUN, "a run begins with the first strand");
  Tile found = {places, scales};

  Block b = {op};
  if (!find_block(b)) return;
  begin_rows(b, seen);
  Layout layout = op.layout;

  // Of the result, columns that are computed at a time, in fours. Sums over positions are in strands, each of every so many'th
  // position, so that there is a part for each thread.
  u32 columns = FEWEST_COLUMNS;
  while (columns < MOST_COLUMNS && columns < layout.dim) columns *= 2;
  u32 fours = columns / 4, strands = UNIT / columns, tile_positions = TILE / columns;
  // A thread's part: four rows; of the scores, four positions; of the result, four columns of a strand.
  u32 lane = threadIdx.x % 32, quarter = threadIdx.x % 64, row = threadIdx.x / 64 * ROWS_EACH;
  u32 four = quarter * EACH, strand = quarter / fours, column = quarter % fours * 4;
  bool is_used = row < b.rows;
  // The elements that it brings of queries and of keys.
  u32 query_row = threadIdx.x / DEPTH, query_column = threadIdx.x % DEPTH, key_column = threadIdx.x % (DEPTH / 4) * 4;
  const float* query = op.q.at;
  if (query_row < b.rows) query = b.query(query_row);

  for (u32 unit = b.unit; unit <= b.last; unit++) {
    u32 from = unit * UNIT;
    // What is seen of the unit by any row.
    u32 low = (max(b.begin, from) - from) / RUN * RUN, high = (min(b.end, from + UNIT) - from + RUN - 1) / RUN * RUN;
    __syncthreads();
    found.find(op.keys, layout, b.pages(), b.head(), from + threadIdx.x, b.begin, b.end);
    float scores[4][4] = {};
    for (u32 depth = 0; depth < layout.dim; depth += DEPTH) {
      u32 width = min(layout.dim - depth, DEPTH);
      __syncthreads();
      bool is_there = query_row < b.rows && query_column < width;
      queries[query_column * ROWS + query_row] = is_there ? query[depth + query_column] : 0.0f;
      for (u32 p = low + threadIdx.x / (DEPTH / 4); key_column < width && p < high; p += WIDTH / (DEPTH / 4)) {
        float4 x = load_position(found, op.keys, layout.type, p, depth + key_column, width - key_column);
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
          float score = score_of(b, row + i, position, scores[i][j] * op.scale);
          of_rows[i] = seen.sees(row + i, position) ? score : MASKED;
        }
        store_four(weights + (four + j) * WEIGHTS + row, of_rows);
      }
    }
    __syncthreads();

    // The unit's softmax: a warp has two of its four rows, a lane every 32nd position.
    found.find(op.values, layout, b.pages(), b.head(), from + threadIdx.x, b.begin, b.end);
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
      if (lane == 0 && seen.any(r, unit)) seen.add(r, softmax);
    }

    for (u32 c0 = 0; c0 < layout.dim; c0 += columns) {
      u32 width = min(layout.dim - c0, columns);
      float sums[4][4] = {};
      for (u32 t = low / tile_positions * tile_positions; t < high; t += tile_positions) {
        u32 next = max(low, t), until = min(high, t + tile_positions);
        __syncthreads();
        for (u32 p = next + threadIdx.x / fours; column < width && p < until; p += WIDTH / fours) {
          float4 x = load_position(found, op.values, layout.type, p, c0 + column, width - column);
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
      for (u32 i = threadIdx.x; i < b.rows * columns; i += WIDTH) {
        u32 r = i / columns, c = i % columns;
        if (c >= width || !seen.any(r, unit)) continue;
        // Beginning with 0, no sum is -0, to which weights of 0 would make a difference.
        float sum = 0.0f;
        for (u32 s = 0; s < strands; s++) sum += tile[(s * ROWS + r) * columns + c];
        store_sum(b, seen, unit, r, c0 + c, sum);
      }
    }
  }
  static_assert(ROWS * MERGED * sizeof(Merge) <= sizeof(weights), "there is room to merge");
  merge_units(b, seen, (Merge*)weights);
}
