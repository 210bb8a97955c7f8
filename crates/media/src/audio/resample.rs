//! [`Resampler`]: sample rate conversion by windowed-sinc interpolation.
//!
//! Each output sample is a sum of the input samples around its time, weighted by a windowed sinc: a low-pass filter
//! that removes what is above half of the lower rate and would alias. As both rates are integers, the output samples
//! fall on few different phases between the input samples (160 for 44100 to 16000), and each phase has a row of weights
//! in a table. If a pair of rates has too many phases, the sums of two neighbouring rows are interpolated linearly.

use std::collections::VecDeque;
use std::f64::consts::PI;

/// Zero crossings of the sinc on each side.
const ZEROS: usize = 24;
/// Rows per zero crossing of the sinc, where two rows are interpolated.
const FINE: f64 = 512.0;
/// Cutoff frequency as a fraction of half the lower rate.
const KEPT: f64 = 0.945;
/// Maximum weights of a table with a row for each phase.
const MOST_WEIGHTS: u64 = 1 << 17;
/// Products that are summed in parallel.
const LANES: usize = 8;

/// Converts from one sample rate to another, incrementally.
#[derive(Debug)]
pub(super) struct Resampler {
    /// Input and output rate, divided by their greatest common divisor.
    from: u64,
    to: u64,
    /// Phases (rows of the table) per input sample.
    rows: u64,
    /// Weights of the input samples around an output sample: [rows + 1, taps]
    table: Vec<f32>,
    taps: usize,
    /// Input samples on each side that have a weight.
    reach: usize,
    /// Input samples that are still needed.
    held: Vec<f32>,
    /// Index in `held` of the first tap of the next output sample, and that sample's phase in units of 1/`to` input
    /// samples.
    at: usize,
    between: u64,
}

impl Resampler {
    pub(super) fn new(from: u32, to: u32) -> Resampler {
        let cut = KEPT * (f64::from(to) / f64::from(from)).min(1.0);
        let common = u64::from(divisor(from, to));
        let (from, to) = (u64::from(from) / common, u64::from(to) / common);
        let reach = (ZEROS as f64 / cut).ceil() as usize;
        let taps = 2 * reach + 1;
        let exact = to.saturating_mul(taps as u64) <= MOST_WEIGHTS;
        let rows = if exact { to } else { (FINE * cut).ceil() as u64 };
        let row = |row: u64| {
            let between = row as f64 / rows as f64;
            (0..taps).map(move |tap| weight(cut, tap as f64 - reach as f64 - between))
        };
        let table = if from == to { Vec::new() } else { (0..=rows).flat_map(row).collect() };
        // Silence before the first sample.
        let held = if from == to { Vec::new() } else { vec![0.0; reach] };
        Resampler { from, to, rows, table, taps, reach, held, at: 0, between: 0 }
    }

    /// Takes input samples and emits the output samples whose taps are all available.
    pub(super) fn push(&mut self, samples: impl Iterator<Item = f32>, out: &mut VecDeque<f32>) {
        if self.from == self.to {
            return out.extend(samples);
        }
        self.held.extend(samples);
        self.give(out);
        // Drops the samples that no later output needs.
        let gone = self.at.min(self.held.len());
        self.held.drain(..gone);
        self.at -= gone;
    }

    /// Emits the last output samples, with silence after the end.
    pub(super) fn finish(&mut self, out: &mut VecDeque<f32>) {
        if self.from != self.to {
            self.held.extend(std::iter::repeat_n(0.0, self.reach));
            self.give(out);
        }
    }

    fn give(&mut self, out: &mut VecDeque<f32>) {
        while let Some(old) = self.held.get(self.at..self.at + self.taps) {
            let place = self.between * self.rows;
            let (row, rest) = ((place / self.to) as usize, place % self.to);
            let at = |row: usize| sum(old, &self.table[row * self.taps..(row + 1) * self.taps]);
            let new = match rest {
                0 => at(row),
                rest => {
                    let (a, b) = (at(row), at(row + 1));
                    a + (rest as f64 / self.to as f64) as f32 * (b - a)
                }
            };
            out.push_back(new);
            self.between += self.from;
            self.at += (self.between / self.to) as usize;
            self.between %= self.to;
        }
    }
}

/// The weight of an input sample `distance` input samples away: a sinc under a Blackman window.
fn weight(cut: f64, distance: f64) -> f32 {
    let x = distance * cut;
    if x.abs() >= ZEROS as f64 {
        return 0.0;
    }
    let sinc = if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
    let at = PI * x / ZEROS as f64;
    (cut * sinc * (0.42 + 0.5 * at.cos() + 0.08 * (2.0 * at).cos())) as f32
}

fn sum(old: &[f32], weights: &[f32]) -> f32 {
    let (olds, rest) = old.as_chunks::<LANES>();
    let (weights, last) = weights.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (old, weights) in olds.iter().zip(weights) {
        sums.iter_mut().zip(old).zip(weights).for_each(|((sum, x), weight)| *sum += x * weight);
    }
    sums.iter().sum::<f32>() + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}

/// The greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(old: &[f32], rate: u32, piece: usize) -> Vec<f32> {
        let (mut resampler, mut new) = (Resampler::new(rate, 16000), VecDeque::new());
        old.chunks(piece).for_each(|piece| resampler.push(piece.iter().copied(), &mut new));
        resampler.finish(&mut new);
        new.into()
    }

    fn resampled(rate: u32, hertz: f64, piece: usize) -> Vec<f32> {
        let old: Vec<f32> =
            (0..rate).map(|n| (2.0 * PI * hertz * f64::from(n) / f64::from(rate)).sin() as f32).collect();
        through(&old, rate, piece)
    }

    #[test]
    fn tones_stay_what_they_are_and_what_is_too_high_goes() {
        for rate in [8000, 11025, 16000, 22050, 44100, 48000, 44101] {
            let new = resampled(rate, 440.0, 1000);
            assert_eq!(new.len(), 16000, "{rate}");
            let want = |n: usize| (2.0 * PI * 440.0 * n as f64 / 16000.0).sin() as f32;
            let far = (500..15500).map(|n| (new[n] - want(n)).abs()).fold(0.0, f32::max);
            assert!(far < 2e-4, "{rate}: {far}");
            assert_eq!(new, resampled(rate, 440.0, 77), "{rate}");
        }
        let high = resampled(44100, 9000.0, 512);
        assert!(high[500..15500].iter().all(|x| x.abs() < 1e-3));
    }

    /// The same filter as a plain sum in f64, with the sinc computed anew for each weight.
    fn slowly(old: &[f32], rate: u32) -> Vec<f64> {
        let cut = KEPT * (16000.0 / f64::from(rate)).min(1.0);
        let new = |n: usize| {
            let at = n as f64 * f64::from(rate) / 16000.0;
            let reach = ZEROS as f64 / cut;
            let around = (at - reach).ceil().max(0.0) as usize..old.len().min((at + reach) as usize + 1);
            around.map(|i| f64::from(old[i]) * f64::from(weight(cut, i as f64 - at))).sum()
        };
        (0..(old.len() * 16000).div_ceil(rate as usize)).map(new).collect()
    }

    #[test]
    fn noise_becomes_what_a_plain_sum_gives_at_any_rate() {
        let mut x = 1u32;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let old: Vec<f32> = (0..6000).map(|_| next()).collect();
        for rate in [1000, 8000, 11025, 15999, 16001, 22050, 44100, 44101, 48000, 96000, 192_000, 767_999] {
            let (new, want) = (through(&old, rate, 501), slowly(&old, rate));
            assert_eq!(new.len(), want.len(), "{rate}");
            let far = new.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-5, "{rate}: {far}");
        }
    }

    #[test]
    fn tables_are_small_at_any_rate() {
        for rate in (1000..768_000).step_by(997).chain([44100, 44101, 767_999]) {
            let table = Resampler::new(rate, 16000).table.len();
            assert!(table <= (1 << 17) + 4096, "{rate}: {table}");
        }
    }
}
