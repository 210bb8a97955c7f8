const THREADS = COLUMNS * PARTS;
// Gated delta rule: some columns of a head's state matrix S [KEY, VALUE], S <- alpha S + beta k (v - alpha S^T k)^T.
// Each invocation owns some elements of one column.
var<workgroup> s: array<f32, KEY * COLUMNS>;
var<workgroup> q: array<f32, KEY>;
var<workgroup> k: array<f32, KEY>;
var<workgroup> sums: array<f32, THREADS>;

// Sum over the parts of a column, in order.
fn together(x: f32, id: u32) -> f32 {
  workgroupBarrier();
  sums[id] = x;
  workgroupBarrier();
  var sum = 0.0;
  for (var i = id % COLUMNS; i < THREADS; i += COLUMNS) { sum = sum + sums[i]; }
  return sum;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let head = wg.y;
  let span = wg.z;
  let mine = id % COLUMNS;
  let part = id / COLUMNS;
  let column = wg.x * COLUMNS + mine;
  let there = column < VALUE;
  let begin = plan[p.starts_at + span];
  let end = plan[p.starts_at + span + 1u];
  let begins = plan[p.lens_at + span] == end - begin;
  let place = p.matrices_at + head * KEY * VALUE + column;
  let old = place + plan[p.states_at + span] * p.matrices_stride;
  let next = place + plan[p.states_at + p.spans + span] * p.matrices_stride;
  for (var i = part; i < KEY; i += PARTS) {
    var x = 0.0;
    if (there && !begins) { x = matrices[old + i * VALUE]; }
    s[i * COLUMNS + mine] = x;
  }
  let key = KEY_HEAD * KEY;
  let rate_of = rate[p.rate_at + head];
  let bias_of = bias[p.bias_at + head];
  for (var t = begin; t < end; t++) {
    workgroupBarrier();
    let row = p.qk_at + t * p.qk_stride + key;
    for (var i = id; i < KEY; i += THREADS) {
      q[i] = qk[row + i];
      k[i] = qk[row + KEY_HEADS * KEY + i];
    }
    workgroupBarrier();
    let said = p.gates_at + t * p.gates_stride + head;
    let written = 1.0 / (1.0 + exp(min(-gates[said], 80.0)));
    let x = gates[said + HEADS] + bias_of;
    let kept = exp(max(-rate_of * (max(x, 0.0) + log(1.0 + exp(-abs(x)))), -80.0));
    var value = 0.0;
    if (there) { value = v[p.v_at + t * p.v_stride + head * VALUE + column]; }
    var found = 0.0;
    for (var i = part; i < KEY; i += PARTS) { found = fma(k[i], s[i * COLUMNS + mine], found); }
    let more = written * (value - kept * together(found, id));
    var given = 0.0;
    for (var i = part; i < KEY; i += PARTS) {
      let y = fma(k[i], more, kept * s[i * COLUMNS + mine]);
      s[i * COLUMNS + mine] = y;
      given = fma(q[i], y, given);
    }
    let y = together(given, id) * p.scale;
    if (there && part == 0u) { out[p.out_at + t * p.out_stride + head * VALUE + column] = y; }
  }
  if (there) {
    for (var i = part; i < KEY; i += PARTS) { matrices[next + i * VALUE] = s[i * COLUMNS + mine]; }
  }
}
