//! [`beside`]: how many tokens a step may have while answers are under way, by what steps take on this machine.
//!
//! Whoever reads an answer waits for whole steps, whatever else they have in them. The results of a step do not depend on
//! how many tokens it has, so the machine may choose.

use std::time::{Duration, Instant};

use tallow_core::{Backend, Error};

use crate::block_pool::BlockId;
use crate::runner::Runner;
use crate::scheduler::{Batch, BatchPart, Limits, SeqId, SlotId, Wanted};

/// What a step with answers in it should take at most: five tokens a second are as fast as people read.
pub const STEP: Duration = Duration::from_millis(200);
/// The fewest tokens that are worth a step: with fewer, reading the weights is most of it, and prompts hardly get on.
pub const LEAST: usize = 32;
/// Sizes of steps that are timed. The first step finds memory that nobody has touched, so its size is timed again. Each is
/// done only if it fits what is left of the time for all.
const SIZES: [usize; 4] = [8, 8, 32, 128];
const ALL: Duration = Duration::from_millis(500);
/// Where in a prompt they are, at most: later tokens look back on more, and take longer.
const DEEP: usize = 2048;

/// How many tokens a step had, and how long it took.
pub type Timing = (usize, Duration);

/// The tokens of a step that takes [`STEP`], judging by some that were timed, smallest first; within what makes sense
/// and `most`.
pub fn decode_budget(timings: &[Timing], most: usize) -> usize {
    let (before, (tokens, took)) = match timings {
        [] => return most,
        [only] => ((0, Duration::ZERO), *only),
        [.., before, last] => (*before, *last),
    };
    let each = (took.as_secs_f64() - before.1.as_secs_f64()) / tokens.saturating_sub(before.0).max(1) as f64;
    let more = (STEP.as_secs_f64() - took.as_secs_f64()) / each;
    // A larger step that took no longer says that there is no limit.
    let fit = if each > 0.0 { tokens as f64 + more } else { f64::INFINITY };
    // A cast stops at the ends of what there is.
    (fit as usize).max(LEAST).min(most)
}

/// Times steps in the midst of a prompt, on a cache that nobody uses yet, for half a second at most: longer only where the
/// smallest takes longer.
pub fn time<B: Backend>(runner: &Runner<B>, limits: &Limits, page_len: usize) -> Result<Vec<Timing>, Error> {
    let start = (limits.context / 2).min(DEEP);
    let most = limits.budget.min(limits.context - start);
    let begun = Instant::now();
    let mut timings: Vec<Timing> = Vec::new();
    for tokens in SIZES.into_iter().filter(|tokens| *tokens <= most) {
        let next = timings.last().map_or(Duration::ZERO, |(n, took)| *took * (tokens / n) as u32);
        if begun.elapsed() + next > ALL {
            break;
        }
        let blocks = (0..(start + tokens).div_ceil(page_len) as u32).map(BlockId).collect();
        let (id, slot, logits) = (SeqId(0), SlotId(0), Wanted::Last);
        let part = BatchPart { id, tokens: vec![0; tokens], start, blocks, slot, logits, lora: None };
        let now = Instant::now();
        runner.logits(&Batch { parts: vec![part] })?;
        runner.backend().sync()?;
        let took = now.elapsed();
        timings.retain(|(before, _)| *before != tokens);
        timings.push((tokens, took));
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(timings: &[(usize, u64)]) -> Vec<Timing> {
        timings.iter().map(|(tokens, ms)| (*tokens, Duration::from_millis(*ms))).collect()
    }

    /// Where a step takes a fixed time and one for each token, what is chosen takes 200 ms.
    #[test]
    fn a_step_takes_what_it_should() {
        for (fixed, each) in [(0, 1), (20, 1), (8, 2), (40, 4)] {
            let timings = ms(&[8, 32, 128].map(|n| (n, fixed + each * n as u64)));
            for timed in [&timings[..2], &timings[..]] {
                let chosen = decode_budget(timed, 1 << 20) as u64;
                assert!((200 - each..=200).contains(&(fixed + each * chosen)), "{fixed} {each}: {chosen}");
            }
        }
    }

    #[test]
    fn there_are_bounds() {
        // Too slow for anything: with one timing, and with more.
        assert_eq!(decode_budget(&ms(&[(8, 3000)]), 256), LEAST);
        assert_eq!(decode_budget(&ms(&[(8, 100), (32, 400)]), 256), LEAST);
        // Fast: at once all that a step may have.
        assert_eq!(decode_budget(&ms(&[(8, 2), (32, 3), (128, 6)]), 256), 256);
        // A larger step that took no longer, and nothing that was timed.
        assert_eq!(decode_budget(&ms(&[(8, 20), (32, 10)]), 256), 256);
        assert_eq!(decode_budget(&ms(&[(8, 300), (32, 300)]), 256), 256);
        assert_eq!(decode_budget(&[], 256), 256);
        // What a step may have at all comes first.
        assert_eq!(decode_budget(&ms(&[(8, 3000)]), 16), 16);
        // One alone is taken in proportion.
        assert_eq!(decode_budget(&ms(&[(8, 20)]), 256), 80);
    }
}
