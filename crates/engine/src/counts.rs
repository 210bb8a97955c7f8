//! Counts of steps, and a histogram of their sizes ([`StepSizes`]).

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of [`StepSizes::BOUNDS`].
const BOUNDS: usize = 13;

/// Counts of steps.
#[derive(Debug, Default)]
pub struct StepCounts {
    /// Steps run.
    pub run: AtomicU64,
    /// Failed steps. A failed step of several items is rerun one item at a time.
    pub failed: AtomicU64,
    /// Steps that were launched before the tokens that they compute were read.
    pub ahead: AtomicU64,
    /// Tokens computed for requests that ended while the device computed them.
    pub wasted: AtomicU64,
}

/// Histogram of tokens per step.
#[derive(Debug, Default)]
pub struct StepSizes {
    counts: [AtomicU64; BOUNDS + 1],
    tokens: AtomicU64,
}

impl StepSizes {
    /// Upper bounds of the buckets, inclusive; one more bucket is for larger steps.
    pub const BOUNDS: [u32; BOUNDS] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

    /// Counts a step.
    pub fn add(&self, tokens: usize) {
        let at = Self::BOUNDS.partition_point(|bound| (*bound as usize) < tokens);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Steps in each bucket: up to its bound and above the one before; the last is above all bounds.
    pub fn counts(&self) -> [u64; BOUNDS + 1] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Tokens of all steps.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_counted_at_the_first_bound_that_holds_it() {
        let sizes = StepSizes::default();
        [1, 2, 8, 9, 16384, 16385].into_iter().for_each(|tokens| sizes.add(tokens));
        assert_eq!(sizes.counts(), [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sizes.tokens(), 1 + 2 + 8 + 9 + 16384 + 16385);
    }
}
