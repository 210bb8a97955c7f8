// MoE router. One workgroup per token: scores of the logits, then the best groups (group-limited routing), then the top
// experts one after another.

#include "sort_key.wgsl"

var<workgroup> scores: array<f32, 1024>;
// Sort key of each expert; 0 if it is masked or already taken.
var<workgroup> keys: array<u32, 1024>;
var<workgroup> groups: array<u32, 1024>;
var<workgroup> found: array<Found, 256>;
var<workgroup> sums: array<f32, 256>;
// One bit per expert.
var<workgroup> taken: array<u32, 32>;

const OPEN = 0xffffffffu;

// Score that experts are selected by.
fn choice_score(c: u32) -> f32 {
#if BIAS
  return scores[c] + bias[p.bias_at + c];
#else
  return scores[c];
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = p.logits_at + wg.x * p.logits_stride;
  if (p.scores == 1u) {
    var most = -3.4e38;
    for (var c = id; c < p.cols; c += 256u) { most = max(most, logits[row + c]); }
    sums[id] = most;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
      if (id < half) { sums[id] = max(sums[id], sums[id + half]); }
      workgroupBarrier();
    }
    most = sums[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var c = id; c < p.cols; c += 256u) {
      scores[c] = exp(logits[row + c] - most);
      sum += scores[c];
    }
    sums[id] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
      if (id < half) { sums[id] += sums[id + half]; }
      workgroupBarrier();
    }
    for (var c = id; c < p.cols; c += 256u) { scores[c] /= sums[0]; }
  } else if (p.scores == 2u) {
    for (var c = id; c < p.cols; c += 256u) { scores[c] = logits[row + c]; }
  } else {
    for (var c = id; c < p.cols; c += 256u) { scores[c] = 1.0 / (1.0 + exp(min(-logits[row + c], 80.0))); }
  }
  for (var c = id; c < p.cols; c += 256u) { keys[c] = key(choice_score(c)); }
  if (id < 32u) { taken[id] = 0u; }
  workgroupBarrier();

  if (p.groups > 0u) {
    let each = p.cols / p.groups;
    for (var g = id; g < p.groups; g += 256u) {
      var sum = 0.0;
      var last = Found(OPEN, 0u);
      for (var n = 0u; n < p.best; n++) {
        var best = Found(0u, OPEN);
        for (var c = g * each; c < (g + 1u) * each; c++) {
          let here = Found(keys[c], c);
          if (before(last, here) && before(here, best)) { best = here; }
        }
        sum += choice_score(min(best.column, p.cols - 1u));
        last = best;
      }
      groups[g] = key(sum);
    }
    workgroupBarrier();
    if (id == 0u) {
      for (var n = 0u; n < p.groups_used; n++) {
        var best = Found(0u, OPEN);
        for (var g = 0u; g < p.groups; g++) {
          let here = Found(groups[g], g);
          if (groups[g] != OPEN && before(here, best)) { best = here; }
        }
        if (best.column < p.groups) { groups[best.column] = OPEN; }
      }
    }
    workgroupBarrier();
    for (var c = id; c < p.cols; c += 256u) {
      if (groups[c / each] != OPEN) { keys[c] = 0u; }
    }
    workgroupBarrier();
  }

  var sum = 0.0;
  for (var n = 0u; n < p.used; n++) {
    var best = Found(0u, OPEN);
    for (var c = id; c < p.cols; c += 256u) {
      let here = Found(keys[c], c);
      if (before(here, best)) { best = here; }
    }
    found[id] = best;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
      if (id < half && before(found[id + half], found[id])) { found[id] = found[id + half]; }
      workgroupBarrier();
    }
    let c = found[0].column;
    if (p.scores == 2u) {
      // SparseMixer: softmax over the remaining experts within the threshold of the best, itself included.
      let most = scores[c];
      var near = 0.0;
      for (var i = id; i < p.cols; i += 256u) {
        let x = scores[i];
        if (keys[i] != 0u && most - x <= p.near * max(abs(x), most)) { near += exp(x - most); }
      }
      sums[id] = near;
      workgroupBarrier();
      for (var half = 128u; half > 0u; half /= 2u) {
        if (id < half) { sums[id] += sums[id + half]; }
        workgroupBarrier();
      }
      if (id == 0u) { scores[c] = 1.0 / sums[0]; }
      workgroupBarrier();
    }
    sum += scores[c];
    if (id == 0u) {
      keys[c] = 0u;
      taken[c / 32u] |= 1u << (c % 32u);
    }
    workgroupBarrier();
  }
  let scale = select(p.scale, p.scale / sum, p.to_one == 1u);
  for (var c = id; c < p.cols; c += 256u) {
    let mine = (taken[c / 32u] >> (c % 32u)) & 1u;
    out[p.out_at + wg.x * p.out_stride + c] = select(0.0, scores[c] * scale, mine == 1u);
  }
}
