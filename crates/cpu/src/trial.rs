//! [`Trial`]: which of two ways to compute the same is faster, tried with the work itself.
//!
//! It depends on the processor, on the threads that share the memory, on the type of the weights and on where they lie. No
//! instruction set tells, and a run at load would have to be of memory that the caches do not hold. So each thread tries both, in
//! windows that take turns, from time to time. Results do not depend on it.

use std::time::{Duration, Instant};

/// Fewest bytes of a product whose time is taken.
pub(crate) const LEAST: usize = 8 << 10;
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

/// Two ways to compute the same.
pub(crate) trait Way: Copy + PartialEq + 'static {
    const WAYS: [Self; 2];
}

/// Which way is faster for one kind of products.
pub(crate) struct Trial<W> {
    best: W,
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

impl<W: Way> Trial<W> {
    /// One that has this for the best way until the first trial.
    pub(crate) fn new(best: W) -> Trial<W> {
        Trial { best, left: FIRST, before: BEFORE, bytes: 0, time: Duration::ZERO, samples: Vec::new() }
    }

    /// Runs a product of `bytes` bytes of weights, and tells it the way.
    #[inline]
    pub(crate) fn run(&mut self, bytes: usize, product: impl FnOnce(W)) {
        if self.left > 0 {
            self.left = self.left.saturating_sub(bytes);
            return product(self.best);
        }
        if self.before > 0 {
            self.before = self.before.saturating_sub(bytes);
            return product(self.tried());
        }
        let began = Instant::now();
        product(self.tried());
        self.took(bytes, began.elapsed());
    }

    /// The way of the sample that is taken.
    fn tried(&self) -> W {
        W::WAYS[self.samples.len() % 2]
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
            let times = [0, 1].map(|way| median(self.samples.iter().skip(way).step_by(2)));
            let other = usize::from(self.best == W::WAYS[0]);
            if times[other] < FASTER * times[1 - other] {
                self.best = W::WAYS[other];
            }
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

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Two {
        First,
        Second,
    }

    impl Way for Two {
        const WAYS: [Two; 2] = [Two::First, Two::Second];
    }

    /// A trial in which a byte takes so many picoseconds in each way.
    fn tried(trial: &mut Trial<Two>, times: [u64; 2]) -> Two {
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
        let mut trial = Trial::new(Two::First);
        assert_eq!(tried(&mut trial, [50, 40]), Two::Second);
        // A tie changes nothing.
        assert_eq!(tried(&mut trial, [40, 40]), Two::Second);
        assert_eq!(tried(&mut trial, [40, 60]), Two::First);
        assert_eq!(tried(&mut trial, [40, 40]), Two::First);
    }

    #[test]
    fn trials_take_turns_and_are_rare() {
        let mut trial = Trial::new(Two::First);
        let mut ways = [0; 2];
        let mut products = |bytes: usize| {
            let before = ways;
            for _ in 0..bytes / LEAST {
                trial.run(LEAST, |way| ways[way as usize] += LEAST);
            }
            [0, 1].map(|way| ways[way] - before[way])
        };
        assert_eq!(products(FIRST), [FIRST, 0]);
        let each = SAMPLES * (BEFORE + WINDOW);
        assert_eq!(products(2 * each), [each; 2]);
        let [first, second] = products(BETWEEN);
        assert!(first == 0 || second == 0, "{first}, {second}");
    }
}
