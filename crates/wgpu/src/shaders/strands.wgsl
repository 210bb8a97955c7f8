// Split-K: the sum over the inputs is cut into strands of whole segments. The 256 invocations of a workgroup compute LANES
// outputs, AT_ONCE strands of each at once, in ROUNDS rounds.
override AT_ONCE: u32;
override LANES: u32 = 256u / AT_ONCE;

struct Strand { k_begin: u32, k_end: u32 }

// The inputs of a strand are 8 * k_begin to 8 * k_end.
fn strand(index: u32) -> Strand {
  return Strand(4u * (index * p.segments / p.strands), 4u * ((index + 1u) * p.segments / p.strands));
}

// Index of a strand's sum, of those computed at once.
fn sum_at(row: u32, strand: u32, lane: u32) -> u32 { return (row * AT_ONCE + strand) * LANES + lane; }
