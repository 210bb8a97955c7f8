// Split-K: the sum over the inputs is cut into 8 strands, each computed by 32 invocations, one per output.
struct Strand { lane: u32, index: u32, k_begin: u32, k_end: u32 }

// The invocation's strand: its inputs are 8 * k_begin to 8 * k_end.
fn strand_of(id: u32) -> Strand {
  let index = id / 32u;
  return Strand(id % 32u, index, 4u * (index * p.segments / 8u), 4u * ((index + 1u) * p.segments / 8u));
}

// Index of row `row` in a strand's sums.
fn sum_at(row: u32, strand: u32, lane: u32) -> u32 { return (row * 8u + strand) * 32u + lane; }
