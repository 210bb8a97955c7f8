// True if a sequence begins with span `s`.
fn begins_at(s: u32) -> bool {
  return plan[p.lens_at + s] == plan[p.starts_at + s + 1u] - plan[p.starts_at + s];
}

// True if span `s` goes on where the one before it ends, and reads the state that that one writes.
fn continues(s: u32) -> bool {
  if (s == 0u || begins_at(s)) { return false; }
  return plan[p.states_at + s] == plan[p.states_at + p.spans + s - 1u];
}
