//! [`decode_budget`]: the token budget of steps while sequences decode, calibrated by timing steps on this machine.
//!
//! Decoding sequences wait for whole steps, including the prefill in them. The results do not depend on how many tokens
//! a step has, so the budget may depend on the machine's speed.

use std::time::{Duration, Instant};

use tallow_core::{Backend, Error};

use crate::runner::Runner;
use crate::scheduler::{
    Batch, BatchPart, DecodeBudget, DraftCosts, DraftModelCost, Limits, LogitsRows, SeqId, StepCost,
};

/// Time that a step with decoding sequences may take in any case: at sixteen tokens a second an answer still reads
/// fluently.
pub const STEP: Duration = Duration::from_millis(60);
/// Minimum budget: with fewer tokens, reading the weights dominates a step and prefill makes little progress.
pub const LEAST: usize = 16;
/// Step sizes that are timed, in tokens, each twice: the first step touches its memory for the first time (page
/// faults), and another process may get in between. A size is skipped if its estimated time exceeds what is left of
/// `ALL`.
const SIZES: [usize; 3] = [8, 32, 128];
const ROUNDS: u32 = 2;
const ALL: Duration = Duration::from_millis(500);
/// Maximum start position of the timed tokens: later positions attend to more tokens and take longer.
const DEEP: usize = 512;

/// Most tokens of a step whose cost must be known for drafts.
const FEW: usize = 4;
/// Times that each step is timed for drafts: the first time touches memory, or compiles kernels.
const DRAFT_ROUNDS: usize = 2;

/// Tokens in a step, and how long it took.
pub type Timing = (usize, Duration);

/// Budget of steps, by the line through the two largest of `timings`, smallest first: any may take [`STEP`], and have
/// [`LEAST`] tokens, but no more than `most`.
pub fn decode_budget(timings: &[Timing], most: usize) -> DecodeBudget {
    let (before, (tokens, took)) = match timings {
        [] => return DecodeBudget::of_tokens(most),
        [only] => ((0, Duration::ZERO), *only),
        [.., before, last] => (*before, *last),
    };
    let each = (took.as_secs_f64() - before.1.as_secs_f64()) / tokens.saturating_sub(before.0).max(1) as f64;
    // A larger step that took no longer means no limit.
    if each <= 0.0 {
        return DecodeBudget::of_tokens(most);
    }
    // Float-to-int casts saturate.
    let in_time = |time: f64| (tokens as f64 + (time - took.as_secs_f64()) / each) as usize;
    // The fixed cost of a step is what the line says of a step without tokens.
    let fixed = (took.as_secs_f64() / each - tokens as f64).round() as usize;
    DecodeBudget { least: in_time(STEP.as_secs_f64()).max(LEAST).min(most), fixed: fixed.min(most) }
}

/// Times steps in the middle of a prompt, on an unused cache, for about half a second at most; longer only if the
/// smallest step takes longer. A device that compiles kernels on first use runs each once before.
pub fn time<B: Backend>(
    runner: &Runner<B>,
    limits: &Limits,
    page_len: usize,
    compiles_kernels: bool,
) -> Result<Vec<Timing>, Error> {
    let start = (limits.context / 2).min(DEEP);
    let most = limits.budget.min(limits.context - start);
    let mut all = Duration::ZERO;
    let mut timings: Vec<Timing> = Vec::new();
    for tokens in SIZES.into_iter().filter(|tokens| *tokens <= most) {
        let mut least: Option<Duration> = None;
        for _ in 0..ROUNDS {
            let smaller = timings.last().map_or(Duration::ZERO, |(n, took)| *took * (tokens / n) as u32);
            if all + least.unwrap_or(smaller) > ALL {
                break;
            }
            if compiles_kernels && least.is_none() {
                time_step(runner, start, tokens, LogitsRows::Last, page_len)?;
            }
            let took = time_step(runner, start, tokens, LogitsRows::Last, page_len)?;
            all += took;
            least = Some(least.map_or(took, |least| least.min(took)));
        }
        let Some(least) = least else { break };
        timings.push((tokens, least));
    }
    Ok(timings)
}

/// Computes a step of one sequence on the first pages of an unused cache, and returns how long it took.
pub fn time_step<B: Backend>(
    runner: &Runner<B>,
    start: usize,
    tokens: usize,
    logits: LogitsRows,
    page_len: usize,
) -> Result<Duration, Error> {
    let batch = Batch { parts: vec![part(runner, start, tokens, logits, page_len)] };
    let now = Instant::now();
    runner.logits(&batch)?;
    runner.backend().sync()?;
    Ok(now.elapsed())
}

/// Costs of drafts: by the least times of a few steps on an unused cache. `None` if steps are too small for
/// drafts.
pub fn draft_costs<B: Backend>(
    runner: &Runner<B>,
    limits: &Limits,
    page_len: usize,
) -> Result<Option<DraftCosts>, Error> {
    let start = (limits.context / 4).min(DEEP / 4);
    let most = limits.decode_budget.of(limits.slots).min(limits.context - start);
    // Few rows of logits: each takes as many bytes as the vocabulary has.
    let rows = (2 * limits.slots).max(FEW);
    let step = step_cost(most.min(rows), |tokens| {
        time_step(runner, start, tokens, LogitsRows::All { last: true }, page_len)
    })?;
    let Some(step) = step else { return Ok(None) };
    let Some(context) = runner.draft_context() else {
        return Ok(Some(DraftCosts::new(step, None)));
    };
    let mtp = runner.has_mtp();
    let guess = step_cost(most.min(context.saturating_sub(start)), |tokens| {
        let batch = Batch { parts: vec![part(runner, start, tokens, LogitsRows::Last, page_len)] };
        if mtp {
            // It reads the model's hidden states.
            runner.logits(&batch)?;
            runner.backend().sync()?;
        }
        let now = Instant::now();
        runner.guess(&batch)?;
        Ok(now.elapsed())
    })?;
    Ok(Some(DraftCosts::new(step, guess.map(|step| DraftModelCost { step, context, mtp }))))
}

/// Costs of steps of up to `most` tokens. Those of up to four tokens are timed however long they take, others for
/// half a second at most. `None` if no step has more than one token.
fn step_cost(
    most: usize,
    time: impl Fn(usize) -> Result<Duration, Error>,
) -> Result<Option<StepCost>, Error> {
    let sizes = StepCost::SIZES.into_iter().filter(|size| *size <= most);
    let mut least: Vec<Duration> = Vec::new();
    let begun = Instant::now();
    for round in 0..DRAFT_ROUNDS {
        for (i, tokens) in sizes.clone().enumerate() {
            if begun.elapsed() > ALL && (round > 0 || tokens > FEW) {
                break;
            }
            let took = time(tokens)?;
            match least.get_mut(i) {
                Some(least) => *least = took.min(*least),
                None => least.push(took),
            }
        }
    }
    Ok(StepCost::measured(&least))
}

/// A part of one sequence on the first pages of an unused cache.
fn part<B: Backend>(
    runner: &Runner<B>,
    start: usize,
    tokens: usize,
    logits: LogitsRows,
    page_len: usize,
) -> BatchPart {
    let pages = (start + tokens).div_ceil(page_len);
    let (blocks, swa_blocks) = ((0..pages as u32).collect(), runner.swa_blocks_of(pages));
    let state = runner.states_of(0, 0);
    BatchPart { start, swa_blocks, state, ..BatchPart::new(SeqId(0), vec![0; tokens], blocks, logits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(timings: &[(usize, u64)]) -> Vec<Timing> {
        timings.iter().map(|(tokens, ms)| (*tokens, Duration::from_millis(*ms))).collect()
    }

    /// If step time is linear in tokens, a step takes what is allowed, and one token more would take it or longer.
    #[test]
    fn a_step_takes_what_it_should() {
        for (fixed, each) in [(0, 1), (20, 1), (8, 2), (24, 2)] {
            let timings = ms(&[8, 32, 128].map(|n| (n, fixed + each * n as u64)));
            for timed in [&timings[..2], &timings[..]] {
                let budget = decode_budget(timed, 1 << 20);
                for decoding in [1, 2, 8, 40] {
                    let takes = |tokens: usize| fixed + each * tokens as u64;
                    let (chosen, may_take) = (budget.of(decoding), 60.max(takes(decoding) * 7 / 4));
                    assert!(takes(chosen) <= may_take, "{fixed} {each}: {chosen} beside {decoding}");
                    assert!(takes(chosen + 1) >= may_take, "{fixed} {each}: {chosen} beside {decoding}");
                }
            }
        }
    }

    #[test]
    fn there_are_bounds() {
        let tokens = DecodeBudget::of_tokens;
        // Too slow for any size: with one timing, and with several.
        assert_eq!(decode_budget(&ms(&[(8, 3000)]), 256), tokens(LEAST));
        assert_eq!(decode_budget(&ms(&[(8, 100), (32, 400)]), 256), tokens(LEAST));
        // Fast: the whole step budget.
        assert_eq!(decode_budget(&ms(&[(8, 2), (32, 3), (128, 6)]), 256).least, 256);
        // A larger step that took no longer, and no timings at all.
        assert_eq!(decode_budget(&ms(&[(8, 20), (32, 10)]), 256), tokens(256));
        assert_eq!(decode_budget(&ms(&[(8, 300), (32, 300)]), 256), tokens(256));
        assert_eq!(decode_budget(&[], 256), tokens(256));
        // The step budget itself is the upper bound.
        assert_eq!(decode_budget(&ms(&[(8, 3000)]), 8), tokens(8));
        // A single timing is extrapolated proportionally.
        assert_eq!(decode_budget(&ms(&[(8, 16)]), 256), tokens(30));
        // Reading the weights takes as long as computing 192 tokens.
        let slow_memory = decode_budget(&ms(&[(8, 200), (32, 224)]), 512);
        assert_eq!(slow_memory, DecodeBudget { least: LEAST, fixed: 192 });
        assert_eq!((slow_memory.of(1), slow_memory.of(8)), (145, 158));
    }
}
