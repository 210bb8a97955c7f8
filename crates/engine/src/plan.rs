//! [`build`]: from the scheduler's batch to the step that a device runs. The only place where the two meet.

use tallow_core::{Span, Step};

use crate::scheduler::{Batch, Wanted};

/// Step that computes a batch.
pub fn build(batch: &Batch, page_len: usize) -> Step {
    // Journey, stop 4: the plan. What is constant for the step is computed here, once.
    let mut step = Step { page_len, ..Step::default() };
    for part in &batch.parts {
        let first = step.tokens.len() as u32;
        let rows = part.tokens.len();
        step.tokens.extend(&part.tokens);
        let pages = part.blocks.iter().map(|b| b.0).collect();
        step.spans.push(Span { rows, start: part.start, pages });
        let end = first + rows as u32;
        step.outputs.extend(match part.logits {
            Wanted::None => end..end,
            Wanted::Last => end - 1..end,
            Wanted::All { .. } => first..end,
        });
    }
    step
}
