// Attention over a cache of 16 or 8 bits by tensor cores: queries and weights are rounded to 16 bits, f16 for 8-bit codes, which
// are widened to that; sums are f32.
//
// A warp has 32 positions of a unit, from scores to sums. The fragments of `mma` that it gets scores in are those in which it gives
// weights, and what is a fragment of keys or values is loaded as it lies: the elements of a head may come in any order if those of
// the query do too, and so may the columns of a result. So of a key a lane has runs of eight elements, and of a value too, all in
// 16 bytes each. A sum over elements of the head is in their order, 32 at a time; one over positions is, for a warp's 32, in theirs,
// and then warp by warp. What a row does not see is exactly 0.
#pragma once
#include "attention.cuh"

// Positions of a warp; elements of a head that are multiplied at a time; columns of the result that are.
static constexpr u32 OF_WARP = 32, DEPTH = 32, COLUMNS = 64;
static constexpr u32 WARPS = WIDTH / 32;
static_assert(WARPS * OF_WARP == UNIT, "a thread finds a position of its warp");
// Elements of a head at most, and of a query in shared memory: so many that lanes of two rows read from all banks.
static constexpr u32 MOST_DIM = 576, QUERY = MOST_DIM + 32;
// Columns whose sums lie in shared memory at a time, of eight in turn four, and those of a row, padded.
static constexpr u32 HALF = COLUMNS / 2, SUMS = HALF + 4;

// Numbers of 16 bits, two a word.
struct alignas(16) Eight {
  u32 at[4];
};
struct alignas(8) Codes {
  u32 at[2];
};

template <u32 TYPE> constexpr bool is_coded() { return TYPE == I8 || TYPE == F8; }

// Two numbers, rounded.
template <u32 TYPE> inline u32 rounded(float x, float y) {
  u32 both;
  if constexpr (TYPE == BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  }
  return both;
}

// c += a * b, of 16 rows and 8 positions or columns.
template <u32 TYPE> inline void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (TYPE == BF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Two codes of four as f16. Sign, exponent and mantissa of an F8, placed in an f16, are the value over 256, the ratio of the two
// biases, also where it is subnormal.
template <u32 TYPE> inline u32 widened(u32 codes, u32 pair) {
  if constexpr (TYPE == F8) {
    u32 high = __byte_perm(codes, 0, pair ? 0x3424 : 0x1404);
    return (high & 0x80008000) | (high >> 1 & 0x3f803f80);
  } else {
    return rounded<F16>((float)(i8)(codes >> 16 * pair), (float)(i8)(codes >> (16 * pair + 8)));
  }
}
// What is to be multiplied with a scale.
template <u32 TYPE> constexpr float unit_of() { return TYPE == F8 ? 256.0f : 1.0f; }

// Eight elements from `first` on, of which there are `count`; 0 for the others. `is_whole` says that 8 from a multiple of 8 on are
// aligned to their size.
template <u32 TYPE> inline Eight load_eight(const u8* at, u64 first, u32 count, bool is_whole) {
  Eight x = {};
  if constexpr (is_coded<TYPE>()) {
    Codes codes = {};
    if (is_whole && count >= 8) {
      codes = *(const Codes*)(at + first);
    } else {
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        if (i < count) codes.at[i / 4] |= (u32)at[first + i] << 8 * (i % 4);
      }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) x.at[i] = widened<TYPE>(codes.at[i / 2], i % 2);
  } else {
    const u16* from = (const u16*)at + first;
    if (is_whole && count >= 8) return *(const Eight*)from;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      if (i < count) x.at[i / 2] |= (u32)from[i] << 16 * (i % 2);
    }
  }
  return x;
}

// Elements from `first` on of a position, at a place.
template <u32 TYPE> inline Eight load_place(const u8* at, u64 place, u32 first, u32 dim, bool is_whole) {
  bool is_there = place != NOWHERE && first < dim;
  return load_eight<TYPE>(at, place + first, is_there ? dim - first : 0, is_whole);
}

// True if eight elements of each position lie where they can be loaded at once.
template <u32 TYPE> inline bool is_whole(Matrix<const u8> cache, Layout layout) {
  u64 size = is_coded<TYPE>() ? 8 : 16;
  return layout.dim % 8 == 0 && cache.stride % 8 == 0 && (u64)cache.at % size == 0;
}

// The power of two at or below a magnitude, and one over it, so far as both are floats.
struct Power {
  float of, over;
};
inline Power power_of(u32 magnitude) {
  // What is not finite is not moved.
  if (magnitude >= 0x7f800000) return {1.0f, 1.0f};
  u32 exponent = min(max(magnitude >> 23, 1), 253);
  return {float_of(exponent << 23), float_of((254 - exponent) << 23)};
}

// Brings the rows' queries, of 1 to 2 at the largest; `units` has what they are to be multiplied with, with the scale.
template <u32 TYPE> inline void load_queries(const Block& b, u16* queries, float* units) {
  u32 lane = threadIdx.x % 32, depth = (b.op.layout.dim + DEPTH - 1) / DEPTH * DEPTH;
  for (u32 r = threadIdx.x / 32; r < ROWS; r += WARPS) {
    u32 cols = r < b.rows ? b.op.layout.dim : 0, most = 0;
    const float* query = r < b.rows ? b.query(r) : b.op.q.at;
    for (u32 i = lane; i < cols; i += 32) most = max(most, bits_of(query[i]) & 0x7fffffff);
    Power power = power_of(largest_of<32>(most));
    for (u32 i = 2 * lane; i < depth; i += 64) {
      float x = i < cols ? query[i] : 0.0f, y = i + 1 < cols ? query[i + 1] : 0.0f;
      *(u32*)(queries + r * QUERY + i) = rounded<TYPE>(x * power.over, y * power.over);
    }
    if (lane == 0) units[r] = power.of * b.op.scale;
  }
}

inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

template <u32 TYPE> inline void attend_by_mma(const Operands& op) {
  __shared__ __align__(16) u16 queries[ROWS * QUERY];
  __shared__ __align__(16) float sums[WARPS * ROWS * SUMS];
  __shared__ u64 key_places[UNIT], value_places[UNIT];
  __shared__ float key_scales[UNIT], value_scales[UNIT];
  // Of each row: what queries are to be multiplied with, and sums; and of each warp's positions the largest score, the sum of
  // weights, and the largest weight times scale.
  __shared__ float units_of_queries[ROWS], units_of_sums[ROWS];
  __shared__ float most[WARPS][ROWS], totals[WARPS][ROWS], largest[WARPS][ROWS];
  __shared__ Seen seen;
  static_assert(ROWS * MERGED * sizeof(Merge) <= sizeof(sums), "there is room to merge");
  Tile keys = {key_places, key_scales}, values = {value_places, value_scales};

  Block b = {op};
  if (!find_block(b)) return;
  begin_rows(b, seen);
  load_queries<TYPE>(b, queries, units_of_queries);
  bool whole_keys = is_whole<TYPE>(op.keys, op.layout), whole_values = is_whole<TYPE>(op.values, op.layout);
  // A lane's part of what `mma` takes and gives: rows `group` and 8 more; positions or columns `group`, or `pair` and the next.
  u32 warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4, pair = 2 * quad;
  __syncthreads();

  for (u32 unit = b.unit; unit <= b.last; unit++) {
    u32 from = unit * UNIT, first = warp * OF_WARP;
    // What is seen of the unit by any row, and the warps that have some of it.
    u32 low = max(b.begin, from) - from, high = min(b.end, from + UNIT) - from;
    u32 first_warp = low / OF_WARP, last_warp = (high - 1) / OF_WARP;
    bool is_used = warp >= first_warp && warp <= last_warp;
    __syncwarp();
    keys.find(op.keys, op.layout, b.pages(), b.head(), from + threadIdx.x, b.begin, b.end);
    values.find(op.values, op.layout, b.pages(), b.head(), from + threadIdx.x, b.begin, b.end);
    __syncwarp();

    // Scores of four times eight positions, which become weights.
    float scores[4][4] = {};
    if (is_used) {
      u64 places[4];
#pragma unroll
      for (u32 j = 0; j < 4; j++) places[j] = key_places[first + 8 * j + group];
      for (u32 depth = 0; depth < op.layout.dim; depth += DEPTH) {
        u32 element = depth + 8 * quad;
        Eight x[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = load_place<TYPE>(op.keys.at, places[j], element, op.layout.dim, whole_keys);
        Eight upper = *(const Eight*)(queries + group * QUERY + element);
        Eight lower = *(const Eight*)(queries + (group + 8) * QUERY + element);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
#pragma unroll
          for (u32 i = 0; i < 4; i += 2) {
            mma<TYPE>(scores[j], upper.at[i], lower.at[i], upper.at[i + 1], lower.at[i + 1], x[j].at[i], x[j].at[i + 1]);
          }
        }
      }
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        u32 r = group + 8 * h;
        float unit_of_query = units_of_queries[r], largest_score = MASKED;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
          float& score = scores[i / 2][2 * h + i % 2];
          u32 p = first + i / 2 * 8 + pair + i % 2, position = from + p;
          float x = score * unit_of_query;
          if (is_coded<TYPE>()) x *= key_scales[p] * unit_of<TYPE>();
          x = score_of(b, r, position, x);
          score = seen.sees(r, position) ? x : MASKED;
          largest_score = fmaxf(largest_score, score);
        }
        largest_score = quad_max(largest_score);
        if (quad == 0) most[warp][r] = largest_score;
      }
    }
    __syncthreads();

    if (is_used) {
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        u32 r = group + 8 * h;
        float most_of_unit = MASKED, total = 0.0f, largest_weight = 0.0f;
        for (u32 w = first_warp; w <= last_warp; w++) most_of_unit = fmaxf(most_of_unit, most[w][r]);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
          float& weight = scores[i / 2][2 * h + i % 2];
          bool is_seen = weight != MASKED;
          weight = is_seen ? weight_of(weight - most_of_unit) : 0.0f;
          total += weight;
          if (is_coded<TYPE>()) {
            // A scale may be NaN, but not for those who do not see it.
            if (is_seen) weight *= value_scales[first + i / 2 * 8 + pair + i % 2];
            largest_weight = fmaxf(largest_weight, weight);
          }
        }
        total = quad_sum(total);
        if (is_coded<TYPE>()) largest_weight = quad_max(largest_weight);
        if (quad == 0) {
          totals[warp][r] = total;
          if (is_coded<TYPE>()) largest[warp][r] = largest_weight;
        }
      }
    }
    __syncthreads();

    if (threadIdx.x < b.rows && seen.any(threadIdx.x, unit)) {
      u32 r = threadIdx.x;
      Softmax softmax = {MASKED, 0.0f};
      for (u32 w = first_warp; w <= last_warp; w++) {
        softmax.most = fmaxf(softmax.most, most[w][r]);
        softmax.sum += totals[w][r];
      }
      seen.add(r, softmax);
    }
    // Weights, and those times scales so that the largest is from 1 to 2.
    u32 weights[4][2] = {};
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      float factor = 1.0f;
      if (is_coded<TYPE>()) {
        u32 r = group + 8 * h;
        float largest_weight = 0.0f;
        for (u32 w = first_warp; w <= last_warp; w++) largest_weight = fmaxf(largest_weight, largest[w][r]);
        Power power = power_of(bits_of(largest_weight));
        factor = power.over;
        if (warp == 0 && quad == 0) units_of_sums[r] = power.of * unit_of<TYPE>();
      }
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        float x = scores[j][2 * h], y = scores[j][2 * h + 1];
        weights[j][h] = is_coded<TYPE>() ? rounded<TYPE>(x * factor, y * factor) : rounded<TYPE>(x, y);
      }
    }

    for (u32 c0 = 0; c0 < op.layout.dim; c0 += COLUMNS) {
      // Of each eight columns in a row one each.
      float parts[8][4] = {};
      if (is_used) {
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
          Eight x[4];
#pragma unroll
          for (u32 i = 0; i < 4; i++) {
            u64 place = value_places[first + 16 * s + i / 2 * 8 + pair + i % 2];
            x[i] = load_place<TYPE>(op.values.at, place, c0 + 8 * group, op.layout.dim, whole_values);
          }
#pragma unroll
          for (u32 i = 0; i < 8; i++) {
            u32 which = i % 2 ? 0x7632 : 0x5410;
            u32 b0 = __byte_perm(x[0].at[i / 2], x[1].at[i / 2], which);
            u32 b1 = __byte_perm(x[2].at[i / 2], x[3].at[i / 2], which);
            mma<TYPE>(parts[i], weights[2 * s][0], weights[2 * s][1], weights[2 * s + 1][0], weights[2 * s + 1][1], b0, b1);
          }
        }
      }
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        __syncthreads();
        if (is_used) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) {
            float* to = sums + (warp * ROWS + group + i / 2 * 8) * SUMS + (pair + i % 2) * 4;
            *(Four*)to = {parts[4 * half][i], parts[4 * half + 1][i], parts[4 * half + 2][i], parts[4 * half + 3][i]};
          }
        }
        __syncthreads();
        // A thread has the same elements in all units.
        for (u32 i = threadIdx.x; i < b.rows * HALF; i += WIDTH) {
          u32 r = i / HALF, column = i % HALF, c = c0 + column / 4 * 8 + 4 * half + column % 4;
          if (c >= op.layout.dim || !seen.any(r, unit)) continue;
          // Beginning with 0, no sum is -0, to which warps without anything would make a difference.
          float sum = 0.0f;
          for (u32 w = first_warp; w <= last_warp; w++) sum += sums[(w * ROWS + r) * SUMS + column];
          if (is_coded<TYPE>()) sum *= units_of_sums[r];
          store_sum(b, seen, unit, r, c, sum);
        }
      }
    }
  }
  merge_units(b, seen, (Merge*)sums);
}
