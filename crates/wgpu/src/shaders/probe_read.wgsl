// Reads all of `x`, four words per invocation at a time; the writes are negligible.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  var sum = vec4<u32>(0u);
  for (var i = g.x; i < p.count; i += n.x * 256u) { sum += x[i]; }
  // Never true, which a compiler cannot know.
  if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u) { out[0] = sum.z + sum.w; }
}
