//! Whether weights are prefetched: each thread tries which is faster, while it multiplies.
//!
//! Some processors read weights half as fast again with [`prefetch_strided`](crate::gemm::prefetch_strided). On others the
//! hardware prefetches as well by itself, and a prefetch of what is in the L2 cache already costs as much as a read.
//! It depends on the threads that share the memory, on the type of the weights and on where they lie, too. No instruction set
//! tells, and a run at load would have to be of memory that the caches do not hold. So it is tried with the weights themselves,
//! in windows that take turns, from time to time. Results do not depend on it.

use std::time::{Duration, Instant};

use crate::pack::PackedKind;

/// Whether a kernel prefetches the weights that it will read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Prefetch {
    /// In the order of [`prefetch_strided`](crate::gemm::prefetch_strided), and the next lines into the nearest cache.
    #[default]
    Strided,
    /// The hardware alone.
    None,
}

impl Prefetch {
    pub(crate) const WAYS: [Prefetch; 2] = [Prefetch::Strided, Prefetch::None];
}

/// Fewest bytes of a product whose time is taken.
const LEAST: usize = 8 << 10;
/// Bytes whose time is one sample.
const WINDOW: usize = 512 << 10;
/// Bytes before each sample, in its way: what the sample before has prefetched, in each of several weights that take turns.
const BEFORE: usize = 256 << 10;
/// Samples of each way.
const SAMPLES: usize = 11;
/// Bytes before the first trial: the first weights are not mapped yet.
const FIRST: usize = 4 << 20;
/// Bytes between two trials, of which each takes about 17 MB.
const BETWEEN: usize = 2 << 30;
/// Part of the time that another way must take for it to be preferred: as fast is no reason to change.
const FASTER: f64 = 0.97;

/// A thread's choices.
#[derive(Default)]
pub(crate) struct PrefetchChoices {
    /// By kind of weights, and rows.
    trials: Vec<[Option<Box<Trial>>; PrefetchChoices::ROWS]>,
}

impl PrefetchChoices {
    /// Most rows of input for which it is tried. With more, multiplying takes longer than reading; with three and four, too, where there
    /// are few registers, and there both ways are the same.
    pub(crate) const ROWS: usize = 4;

    /// Runs a product of `bytes` bytes of weights with so many rows, and tells it whether to prefetch.
    #[inline]
    pub(crate) fn run(
        &mut self,
        kind: PackedKind,
        rows: usize,
        bytes: usize,
        product: impl FnOnce(Prefetch),
    ) {
        if rows > PrefetchChoices::ROWS || bytes < LEAST {
            return product(Prefetch::Strided);
        }
        let kind = kind as usize;
        if kind >= self.trials.len() {
            self.trials.resize_with(kind + 1, Default::default);
        }
        let trial = self.trials[kind][rows.max(1) - 1].get_or_insert_default();
        if trial.left > 0 {
            trial.left = trial.left.saturating_sub(bytes);
            return product(trial.best);
        }
        if trial.before > 0 {
            trial.before = trial.before.saturating_sub(bytes);
            return product(trial.tried());
        }
        let began = Instant::now();
        product(trial.tried());
        trial.took(bytes, began.elapsed());
    }
}

/// Which is faster for one kind of weights.
struct Trial {
    best: Prefetch,
    /// Bytes until it is tried again; 0 while it is.
    left: usize,
    /// Bytes until a sample begins.
    before: usize,
    /// Of the sample that is taken.
    bytes: usize,
    time: Duration,
    /// Nanoseconds a byte, of each way in turn.
    samples: Vec<f64>,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial {
            best: Prefetch::Strided,
            left: FIRST,
            before: BEFORE,
            bytes: 0,
            time: Duration::ZERO,
            samples: Vec::new(),
        }
    }
}

impl Trial {
    /// The way of the sample that is taken.
    fn tried(&self) -> Prefetch {
        Prefetch::WAYS[self.samples.len() % 2]
    }

    /// Counts a product that was computed in the way that is tried. Chooses when there are enough of both.
    fn took(&mut self, bytes: usize, time: Duration) {
        self.bytes += bytes;
        self.time += time;
        if self.bytes < WINDOW {
            return;
        }
        self.samples.push(self.time.as_nanos() as f64 / self.bytes as f64);
        (self.before, self.bytes, self.time) = (BEFORE, 0, Duration::ZERO);
        if self.samples.len() == 2 * SAMPLES {
            let [strided, none] = [0, 1].map(|way| median(self.samples.iter().skip(way).step_by(2)));
            self.best = match self.best {
                Prefetch::Strided if none < FASTER * strided => Prefetch::None,
                Prefetch::None if strided < FASTER * none => Prefetch::Strided,
                best => best,
            };
            self.samples.clear();
            self.left = BETWEEN;
        }
    }
}

/// The one in the middle: a thread that lost its core took long for a sample.
fn median<'a>(samples: impl Iterator<Item = &'a f64>) -> f64 {
    let mut samples: Vec<f64> = samples.copied().collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial in which a byte takes so many picoseconds with prefetching, and without.
    fn tried(trial: &mut Trial, times: [u64; 2]) -> Prefetch {
        trial.left = 0;
        while trial.left == 0 {
            let way = trial.tried() as usize;
            // Every seventh takes ten times as long.
            let late = if trial.samples.len() % 7 == 3 { 10 } else { 1 };
            trial.took(WINDOW / 2, Duration::from_nanos(times[way] * late * WINDOW as u64 / 2000));
        }
        trial.best
    }

    #[test]
    fn the_faster_way_is_chosen() {
        let mut trial = Trial::default();
        assert_eq!(tried(&mut trial, [50, 40]), Prefetch::None);
        // A tie changes nothing.
        assert_eq!(tried(&mut trial, [40, 40]), Prefetch::None);
        assert_eq!(tried(&mut trial, [40, 60]), Prefetch::Strided);
        assert_eq!(tried(&mut trial, [40, 40]), Prefetch::Strided);
    }

    #[test]
    fn trials_take_turns_and_are_rare() {
        let mut choices = PrefetchChoices::default();
        let mut ways = [0; 2];
        let mut products = |choices: &mut PrefetchChoices, bytes: usize| {
            let before = ways;
            for _ in 0..bytes / LEAST {
                choices.run(PackedKind::EightF16, 1, LEAST, |way| ways[way as usize] += LEAST);
            }
            [0, 1].map(|way| ways[way] - before[way])
        };
        assert_eq!(products(&mut choices, FIRST), [FIRST, 0]);
        let each = SAMPLES * (BEFORE + WINDOW);
        assert_eq!(products(&mut choices, 2 * each), [each; 2]);
        let [strided, none] = products(&mut choices, BETWEEN);
        assert!(strided == 0 || none == 0, "{strided}, {none}");
        // What is too small to be timed, or has many rows, is not tried.
        choices.run(PackedKind::EightF16, 1, LEAST - 1, |way| assert_eq!(way, Prefetch::Strided));
        choices.run(PackedKind::EightF16, PrefetchChoices::ROWS + 1, WINDOW, |way| {
            assert_eq!(way, Prefetch::Strided)
        });
    }
}
