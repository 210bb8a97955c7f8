// Calls `element` for each row and column: a grid-stride loop.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  for (var i = g.x; i < p.rows * p.cols; i += n.x * 256u) { element(i / p.cols, i % p.cols); }
}
