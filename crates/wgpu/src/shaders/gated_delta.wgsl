// Gated delta rule: some columns of a head's state matrix S [KEY_DIM, VALUE_DIM],
// S <- alpha S + beta k (v - alpha S^T k)^T, y = S^T q. Each invocation owns some elements of one column. The spans of a sequence
// are computed by the workgroups of the first one.
#include "sequences.wgsl"

override KEY_DIM: u32;
override VALUE_DIM: u32;
override KEY_HEADS: u32;
override VALUE_HEADS: u32;
// Columns per workgroup, and invocations per column.
override COLUMNS: u32;
override PARTS: u32;
override THREADS: u32 = COLUMNS * PARTS;

var<workgroup> s: array<f32, KEY_DIM * COLUMNS>;
var<workgroup> q: array<f32, KEY_DIM>;
var<workgroup> k: array<f32, KEY_DIM>;
var<workgroup> partials: array<f32, THREADS>;

// Sum over the parts of a column, in order.
fn column_sum(x: f32, id: u32) -> f32 {
  workgroupBarrier();
  partials[id] = x;
  workgroupBarrier();
  var sum = 0.0;
  for (var i = id % COLUMNS; i < THREADS; i += COLUMNS) { sum = sum + partials[i]; }
  return sum;
}

fn key_head(head: u32) -> u32 {
#if SHARING == grouped
  return head / (VALUE_HEADS / KEY_HEADS);
#else
  return head % KEY_HEADS;
#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let head = wg.y;
  if (continues(wg.z)) { return; }
  let local = id % COLUMNS;
  let part = id / COLUMNS;
  let column = wg.x * COLUMNS + local;
  let exists = column < VALUE_DIM;
  let begins = begins_at(wg.z);
  let place = p.matrices_at + head * KEY_DIM * VALUE_DIM + column;
  let old = place + plan[p.states_at + wg.z] * p.matrices_stride;
  for (var i = part; i < KEY_DIM; i += PARTS) {
    var x = 0.0;
    if (exists && !begins) { x = matrices[old + i * VALUE_DIM]; }
    s[i * COLUMNS + local] = x;
  }
  let key = key_head(head) * KEY_DIM;
  let rate_of = rate[p.rate_at + head];
  let bias_of = bias[p.bias_at + head];
  var span = wg.z;
  loop {
    for (var t = plan[p.starts_at + span]; t < plan[p.starts_at + span + 1u]; t++) {
      workgroupBarrier();
      let row = p.qk_at + t * p.qk_stride + key;
      for (var i = id; i < KEY_DIM; i += THREADS) {
        q[i] = qk[row + i];
        k[i] = qk[row + KEY_HEADS * KEY_DIM + i];
      }
      workgroupBarrier();
      let gate = p.gates_at + t * p.gates_stride + head;
      let beta = 1.0 / (1.0 + exp(min(-gates[gate], 80.0)));
      let x = gates[gate + VALUE_HEADS] + bias_of;
      let alpha = exp(max(-rate_of * (max(x, 0.0) + log(1.0 + exp(-abs(x)))), -80.0));
      var value = 0.0;
      if (exists) { value = v[p.v_at + t * p.v_stride + head * VALUE_DIM + column]; }
      var recalled = 0.0;
      for (var i = part; i < KEY_DIM; i += PARTS) { recalled = fma(k[i], s[i * COLUMNS + local], recalled); }
      let delta = beta * (value - alpha * column_sum(recalled, id));
      var sum = 0.0;
      for (var i = part; i < KEY_DIM; i += PARTS) {
        let y = fma(k[i], delta, alpha * s[i * COLUMNS + local]);
        s[i * COLUMNS + local] = y;
        sum = fma(q[i], y, sum);
      }
      let y = column_sum(sum, id) * p.scale;
      if (exists && part == 0u) { out[p.out_at + t * p.out_stride + head * VALUE_DIM + column] = y; }
    }
    let next = place + plan[p.states_at + p.spans + span] * p.matrices_stride;
    if (exists) {
      for (var i = part; i < KEY_DIM; i += PARTS) { matrices[next + i * VALUE_DIM] = s[i * COLUMNS + local]; }
    }
    span++;
    if (span == p.spans || !continues(span)) { break; }
  }
}
