var<workgroup> queries: array<f32, ROWS * DIM>;
var<workgroup> weights: array<f32, ROWS * TILE>;
// Online softmax of the segment: the running maximum, the sum of weights, and the factor that rescales earlier sums
// when the maximum grows.
var<workgroup> most: array<f32, ROWS>;
var<workgroup> sums: array<f32, ROWS>;
var<workgroup> fade: array<f32, ROWS>;
// Merged softmax of all segments so far, and the factors that merge the next one.
var<workgroup> whole_most: array<f32, ROWS>;
var<workgroup> whole_sums: array<f32, ROWS>;
var<workgroup> by: array<vec2<f32>, ROWS>;
var<workgroup> tile_pages: array<u32, TILE>;

//FUNCTIONS//
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
  let begin = seen_from(start + row / GROUP);
  let end = seen_to(start + (min(row + ROWS, rows) - 1u) / GROUP, len);
  var segment = begin / SEGMENT;
  var segment_end = (end + SEGMENT - 1u) / SEGMENT;
  if (SPREAD) {
    if (wg.z < segment || wg.z >= segment_end) { return; }
    segment = wg.z;
    segment_end = wg.z + 1u;
  }
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
    whole_most[id] = NONE;
    whole_sums[id] = 0.0;
  }
  // The invocation's elements of the result: some columns of some rows.
  let column = select(id % DIM, id, DIM > 128u);
  let first = select(id / DIM, 0u, DIM > 128u);
//BEGIN//
  for (; segment < segment_end; segment++) {
    let to = min(end, (segment + 1u) * SEGMENT);
    if (id < ROWS) {
      most[id] = NONE;
      sums[id] = 0.0;
    }
//RESET//
    for (var tile = max(begin, segment * SEGMENT) / TILE * TILE; tile < to; tile += TILE) {
      workgroupBarrier();
      if (id < TILE) {
        tile_pages[id] = plan[p.pages_at + span * p.pages_stride + min(tile + id, len - 1u) / LEN];
      }
      for (var i = id; i < ROWS * TILE; i += 128u) {
        let r = i / TILE;
        let at = start + (row + r) / GROUP;
        let position = tile + i % TILE;
        var score = NONE;
        if (row + r < rows && position >= seen_from(at) && position < seen_to(at, len)) {
          let page = plan[p.pages_at + span * p.pages_stride + position / LEN];
          var k_at = wg.y * (DIM / PACK) * LEN + position % LEN;
          var sum = 0.0;
          for (var e = r * DIM; e < r * DIM + DIM; e += PACK) {
            let k = unpacked(k_get(page, k_at));
            sum = fma(queries[e], k.x, sum);
            if (PACK >= 2u) { sum = fma(queries[e + 1u], k.y, sum); }
            if (PACK == 4u) { sum = fma(queries[e + 3u], k.w, fma(queries[e + 2u], k.z, sum)); }
            k_at += LEN;
          }
          score = sum * p.scale * k_by(page, wg.y * LEN + position % LEN);
          score += lean(wg.y * GROUP + (row + r) % GROUP, at, position);
          if (p.cap > 0.0) { score = p.cap * tanh(clamp(score / p.cap, -20.0, 20.0)); }
        }
        weights[i] = score;
      }
      workgroupBarrier();
      if (id < ROWS) {
        var m = most[id];
        for (var j = 0u; j < TILE; j++) { m = max(m, weights[id * TILE + j]); }
        fade[id] = power(most[id] - m);
        most[id] = m;
      }
      workgroupBarrier();
      for (var i = id; i < ROWS * TILE; i += 128u) {
        let score = weights[i];
        weights[i] = select(power(score - most[i / TILE]), 0.0, score == NONE);
      }
      workgroupBarrier();
      if (id < ROWS) {
        var sum = 0.0;
        for (var j = 0u; j < TILE; j++) { sum = sum + weights[id * TILE + j]; }
        sums[id] = fma(sums[id], fade[id], sum);
      }
//FADE//
      for (var j = max(begin, tile) - tile; j < min(TILE, to - tile); j++) {
        let page = tile_pages[j];
        let at = (wg.y * LEN + (tile + j) % LEN) * (DIM / PACK);
        let times = v_by(page, wg.y * LEN + (tile + j) % LEN);
//LOAD//
//ADD//
      }
    }
    workgroupBarrier();
    if (!SPREAD && id < ROWS) {
      by[id] = shares(whole_most[id], most[id]);
      whole_sums[id] = merged(whole_sums[id], sums[id], by[id]);
      whole_most[id] = max(whole_most[id], most[id]);
    }
    workgroupBarrier();
//LAST//
  }
//FINISH//
}
