// Reads the weights of a kernel's parts. `eight_N(base, step, group, lane, k8)` returns the weights from 8 * k8 up to,
// but not including, 8 * k8 + 8 of row 32 * group + lane of part N. If the part is packed, `base` is the weight's first
// group in the block and `step` the units per row; if row-major, they are the tensor's offset and stride.
#include "bits.wgsl"
#for N in 0..PARTS
#if PACKED_#{N}
#include "formats/#{FORMAT_#{N}}.wgsl"

override UNIT_WORDS_#{N}: u32;
override UNIT_EIGHTS_#{N}: u32;
fn eight_#{N}(base: u32, step: u32, group: u32, lane: u32, k8: u32) -> Eight {
  let at = ((base + group) * step + k8 / UNIT_EIGHTS_#{N}) * 32u * UNIT_WORDS_#{N} + lane;
  return unpack_#{N}(at, k8 % UNIT_EIGHTS_#{N});
}
#else
#include "weights_rows.wgsl"
#endif
#endfor
