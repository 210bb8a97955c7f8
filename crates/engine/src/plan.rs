//! [`build`] and [`build_cross`]: from the scheduler's batch to the steps that a device runs. The only place where the
//! two meet.

use tallow_core::{Span, StateRows, Step};
use tallow_models::blocks::cross_attention::{CrossSpan, looking};

use crate::scheduler::{Batch, BatchPart, LogitsRows};

/// Step that computes a batch.
pub fn build(batch: &Batch, page_len: usize) -> Step {
    // Journey, stop 4: the plan. What is constant for the step is computed here, once.
    let mut step = Step { page_len, ..Step::default() };
    for part in &batch.parts {
        let first = step.tokens.len() as u32;
        let rows = part.tokens.len();
        step.tokens.extend(&part.tokens);
        let (mut from, mut at) = (part.state.map(|rows| rows.from), 0);
        // One span, or several, so that the states in between stay.
        let snapshots = part.snapshots.iter().map(|(after, row)| (*after, Some(row.0)));
        for (end, to) in snapshots.chain([(rows, part.state.map(|rows| rows.to))]) {
            step.spans.push(Span { rows: end - at, start: part.start + at, pages: part.blocks.clone() });
            step.swa_pages.extend(part.swa_blocks.clone());
            step.states.extend(from.zip(to).map(|(from, to)| StateRows { from, to }));
            (from, at) = (to, end);
        }
        let end = first + rows as u32;
        step.outputs.extend(match part.logits {
            LogitsRows::None => end..end,
            LogitsRows::Last => end - 1 - part.drafted as u32..end,
            LogitsRows::All { .. } => first..end,
        });
    }
    step
}

/// Step of a batch for cross-attention; `None` if the model has no encoder.
pub fn build_cross(batch: &Batch, page_len: usize) -> Option<Step> {
    let span = |part: &BatchPart| {
        let cross = part.cross.as_ref()?;
        let (rows, pages) = (part.tokens.len(), cross.blocks.clone());
        Some(CrossSpan { rows, read: cross.tokens, pages })
    };
    let spans: Vec<CrossSpan> = batch.parts.iter().filter_map(span).collect();
    (!spans.is_empty()).then(|| looking(&spans, page_len))
}
