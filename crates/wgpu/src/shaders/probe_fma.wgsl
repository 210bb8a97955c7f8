// Fused multiply-adds in eight chains of `vec4`, so that independent chains hide latency.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let by = vec4<f32>(f32(g.x & 7u) * 1e-7 + 1.0);
  var a = by; var b = by * 2.0; var c = by * 3.0; var d = by * 4.0;
  var e = by * 5.0; var f = by * 6.0; var h = by * 7.0; var k = by * 8.0;
  for (var i = 0u; i < p.rounds; i++) {
    a = fma(a, by, b); b = fma(b, by, c); c = fma(c, by, d); d = fma(d, by, e);
    e = fma(e, by, f); f = fma(f, by, h); h = fma(h, by, k); k = fma(k, by, by);
  }
  let sum = a + b + c + d + e + f + h + k;
  if (sum.x == 0.5) { out[0] = bitcast<u32>(sum.y); }
}
