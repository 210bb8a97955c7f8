// Attention over the paged KV cache (flash attention). A workgroup computes ROWS query rows of one KV head: tokens times
// the GROUP query heads that share it. If SPREAD, segments of positions are spread over workgroups (flash decoding), and
// their partial results merged by attend_merge.wgsl; the sinks are then applied there.
#include "kv_load.wgsl"
#include "online_softmax.wgsl"

// Query heads, and those that share a KV head (GQA).
override QUERY_HEADS: u32;
override GROUP: u32;
override ROWS: u32;
// Rows computed at once, each by the invocations of its columns.
override ROWS_AT_ONCE: u32;
// Positions per tile, and per segment.
override TILE: u32;
override SEGMENT: u32;
#if KEYS_AS_VALUES
// Words of each key of a tile that are in workgroup memory at a time.
override CHUNK: u32;
#endif

var<workgroup> queries: array<f32, ROWS * DIM>;
var<workgroup> weights: array<f32, ROWS * TILE>;
// Softmax of the segment: the running maximum, the sum of weights, and the factor that rescales earlier sums when the
// maximum grows.
var<workgroup> max_score: array<f32, ROWS>;
var<workgroup> sums: array<f32, ROWS>;
var<workgroup> rescale: array<f32, ROWS>;
// Merged softmax of all segments so far, and the factors that merge the next one.
var<workgroup> total_max: array<f32, ROWS>;
var<workgroup> total_sums: array<f32, ROWS>;
var<workgroup> factors: array<vec2<f32>, ROWS>;
// Of some positions of a tile each: the largest score, and then the sum of weights.
const LANES = 8u;
var<workgroup> partial: array<f32, ROWS * LANES>;
var<workgroup> tile_pages: array<u32, TILE>;
#if KEYS_AS_VALUES
// Words of each of the tile's keys. Rows have one word more, which spreads them over memory banks.
var<workgroup> keys: array<u32, TILE * (CHUNK + 1u)>;
#endif

// Relative position bias of a query head's score of `position`, for a query at position `at`.
fn position_bias(query_head: u32, at: u32, position: u32) -> f32 {
#if BIAS
  let column = min(max(position + p.reach, at) - at, 2u * p.reach);
  return bias[p.bias_at + query_head * p.bias_stride + column];
#else
  return 0.0;
#endif
}

// Stores an element: of the result, or of the segment's partial result, which is [DIM] sums, the maximum and the sum of
// weights.
fn store(r: u32, row: u32, rows: u32, first_token: u32, kv_head: u32, column: u32, segment: u32, x: f32) {
  if (r >= ROWS || row + r >= rows || column >= DIM) { return; }
  let token = first_token + (row + r) / GROUP;
  let query_head = kv_head * GROUP + (row + r) % GROUP;
#if SPREAD
  let at = p.parts_at + (token * QUERY_HEADS + query_head) * p.parts_stride + segment * (DIM + 2u);
  parts[at + column] = x;
  if (column == 0u) {
    parts[at + DIM] = max_score[r];
    parts[at + DIM + 1u] = sums[r];
  }
#else
  let at = p.out_at + token * p.out_stride + query_head * DIM + column;
  out[at] = normalize(x, total_max[r], total_sums[r], query_head);
#endif
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  // Find the sequence of the workgroup's rows.
  var block = wg.x;
  var span = 0u;
  for (; span + 1u < p.spans; span++) {
    let tokens = plan[p.starts_at + span + 1u] - plan[p.starts_at + span];
    let blocks = (tokens * GROUP + ROWS - 1u) / ROWS;
    if (block < blocks) { break; }
    block -= blocks;
  }
  let first_token = plan[p.starts_at + span];
  let tokens = plan[p.starts_at + span + 1u] - first_token;
  let len = plan[p.lens_at + span];
  let start = len - tokens;
  let row = block * ROWS;
  let rows = tokens * GROUP;
  // Positions visible to any of the rows.
  let begin = visible_begin(start + row / GROUP);
  let end = visible_end(start + (min(row + ROWS, rows) - 1u) / GROUP, len);
  var segment = begin / SEGMENT;
  var segment_end = (end + SEGMENT - 1u) / SEGMENT;
#if SPREAD
  if (wg.z < segment || wg.z >= segment_end) { return; }
  segment = wg.z;
  segment_end = wg.z + 1u;
#endif
  for (var i = id; i < ROWS * DIM; i += 128u) {
    let r = row + i / DIM;
    var x = 0.0;
    if (r < rows) {
      let column = (wg.y * GROUP + r % GROUP) * DIM + i % DIM;
      x = q[p.q_at + (first_token + r / GROUP) * p.q_stride + column];
    }
    queries[i] = x;
  }
  if (id < ROWS) {
    total_max[id] = MASKED;
    total_sums[id] = 0.0;
  }
  // The invocation's elements of the result: column 128 * C + column of row first + R * ROWS_AT_ONCE.
  let column = select(id % DIM, id, DIM > 128u);
  let first = select(id / DIM, 0u, DIM > 128u);
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
  var o_#{R}_#{C} = 0.0;
  var total_#{R}_#{C} = 0.0;
#endfor
#endfor
  for (; segment < segment_end; segment++) {
    let segment_to = min(end, (segment + 1u) * SEGMENT);
    if (id < ROWS) {
      max_score[id] = MASKED;
      sums[id] = 0.0;
    }
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
    o_#{R}_#{C} = 0.0;
#endfor
#endfor
    for (var tile = max(begin, segment * SEGMENT) / TILE * TILE; tile < segment_to; tile += TILE) {
      workgroupBarrier();
      if (id < TILE) {
        tile_pages[id] = plan[p.pages_at + span * p.pages_stride + min(tile + id, len - 1u) / PAGE_LEN];
      }
#if KEYS_AS_VALUES
      // Neighbouring invocations read neighbouring words of a key, which lies by elements; then each takes its own position's.
      // The products without scale wait in `weights`, each for the invocation that has summed it.
#for S in 0..SCORES_EACH
      var sum_#{S} = 0.0;
#endfor
      for (var word = 0u; word < DIM / PACK; word += CHUNK) {
        workgroupBarrier();
        for (var i = id; i < TILE * CHUNK; i += 128u) {
          let j = i / CHUNK;
          let w = word + i % CHUNK;
          if (w < DIM / PACK && tile + j < segment_to) {
            keys[j * (CHUNK + 1u) + i % CHUNK] = k_load(tile_pages[j], key_at(wg.y, w, (tile + j) % PAGE_LEN));
          }
        }
        workgroupBarrier();
        let words = min(CHUNK, DIM / PACK - word);
#for S in 0..SCORES_EACH
        if (id + #{S}u * 128u < ROWS * TILE) {
          let i = id + #{S}u * 128u;
          var e = i / TILE * DIM + word * PACK;
          for (var w = 0u; w < words; w++) {
            let k = unpack_kv(keys[i % TILE * (CHUNK + 1u) + w]);
            sum_#{S} = fma(queries[e], k.x, sum_#{S});
            if (PACK >= 2u) { sum_#{S} = fma(queries[e + 1u], k.y, sum_#{S}); }
            if (PACK == 4u) { sum_#{S} = fma(queries[e + 3u], k.w, fma(queries[e + 2u], k.z, sum_#{S})); }
            e += PACK;
          }
        }
#endfor
      }
#for S in 0..SCORES_EACH
      if (id + #{S}u * 128u < ROWS * TILE) { weights[id + #{S}u * 128u] = sum_#{S}; }
#endfor
#endif
      for (var i = id; i < ROWS * TILE; i += 128u) {
        let r = i / TILE;
        let at = start + (row + r) / GROUP;
        let position = tile + i % TILE;
        var score = MASKED;
        if (row + r < rows && position >= visible_begin(at) && position < visible_end(at, len)) {
          let page = plan[p.pages_at + span * p.pages_stride + position / PAGE_LEN];
#if KEYS_AS_VALUES
          let sum = weights[i];
#else
          var k_at = key_at(wg.y, 0u, position % PAGE_LEN);
          var sum = 0.0;
          for (var e = r * DIM; e < r * DIM + DIM; e += PACK) {
            let k = unpack_kv(k_load(page, k_at));
            sum = fma(queries[e], k.x, sum);
            if (PACK >= 2u) { sum = fma(queries[e + 1u], k.y, sum); }
            if (PACK == 4u) { sum = fma(queries[e + 3u], k.w, fma(queries[e + 2u], k.z, sum)); }
            k_at += PAGE_LEN;
          }
#endif
          score = sum * p.scale * k_scale(page, wg.y * PAGE_LEN + position % PAGE_LEN);
          score += position_bias(wg.y * GROUP + (row + r) % GROUP, at, position);
          if (p.cap > 0.0) { score = p.cap * tanh(clamp(score / p.cap, -20.0, 20.0)); }
        }
        weights[i] = score;
      }
      workgroupBarrier();
      for (var i = id; i < ROWS * LANES; i += 128u) {
        var m = MASKED;
        for (var j = 0u; j < TILE / LANES; j++) { m = max(m, weights[i * (TILE / LANES) + j]); }
        partial[i] = m;
      }
      workgroupBarrier();
      if (id < ROWS) {
        var m = max_score[id];
        for (var j = 0u; j < LANES; j++) { m = max(m, partial[id * LANES + j]); }
        rescale[id] = softmax_exp(max_score[id] - m);
        max_score[id] = m;
      }
      workgroupBarrier();
      for (var i = id; i < ROWS * TILE; i += 128u) {
        let score = weights[i];
        weights[i] = select(softmax_exp(score - max_score[i / TILE]), 0.0, score == MASKED);
      }
      workgroupBarrier();
      for (var i = id; i < ROWS * LANES; i += 128u) {
        var sum = 0.0;
        for (var j = 0u; j < TILE / LANES; j++) { sum = sum + weights[i * (TILE / LANES) + j]; }
        partial[i] = sum;
      }
      workgroupBarrier();
      if (id < ROWS) {
        var sum = 0.0;
        for (var j = 0u; j < LANES; j++) { sum = sum + partial[id * LANES + j]; }
        sums[id] = fma(sums[id], rescale[id], sum);
      }
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
      o_#{R}_#{C} = o_#{R}_#{C} * rescale[min(first + #{R}u * ROWS_AT_ONCE, ROWS - 1u)];
#endfor
#endfor
      for (var j = max(begin, tile) - tile; j < min(TILE, segment_to - tile); j++) {
        let page = tile_pages[j];
        let at = (wg.y * PAGE_LEN + (tile + j) % PAGE_LEN) * (DIM / PACK);
        let scale = v_scale(page, wg.y * PAGE_LEN + (tile + j) % PAGE_LEN);
#for C in 0..COLUMNS_EACH
        let e_#{C} = min(#{C}u * 128u + column, DIM - 1u);
        let v_#{C} = scale * unpack_kv(v_load(page, at + e_#{C} / PACK))[e_#{C} % PACK];
#endfor
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
        o_#{R}_#{C} = fma(weights[min(first + #{R}u * ROWS_AT_ONCE, ROWS - 1u) * TILE + j], v_#{C}, o_#{R}_#{C});
#endfor
#endfor
      }
    }
    workgroupBarrier();
#if SPREAD == 0
    if (id < ROWS) {
      factors[id] = merge_factors(total_max[id], max_score[id]);
      total_sums[id] = merge(total_sums[id], sums[id], factors[id]);
      total_max[id] = max(total_max[id], max_score[id]);
    }
#endif
    workgroupBarrier();
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
#if SPREAD
    store(first + #{R}u * ROWS_AT_ONCE, row, rows, first_token, wg.y, #{C}u * 128u + column, segment, o_#{R}_#{C});
#else
    total_#{R}_#{C} = merge(total_#{R}_#{C}, o_#{R}_#{C}, factors[min(first + #{R}u * ROWS_AT_ONCE, ROWS - 1u)]);
#endif
#endfor
#endfor
  }
#if SPREAD == 0
#for R in 0..ROWS_EACH
#for C in 0..COLUMNS_EACH
  store(first + #{R}u * ROWS_AT_ONCE, row, rows, first_token, wg.y, #{C}u * 128u + column, 0u, total_#{R}_#{C});
#endfor
#endfor
#endif
}
