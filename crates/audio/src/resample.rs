//! [`Resampler`]: the same sound with another number of samples a second.
//!
//! Each new sample is a sum of the old ones around its time, weighted by a sinc under a window: what is above half of the
//! lower rate is left out, for it would come back as something else.

use std::collections::VecDeque;
use std::f64::consts::PI;

/// Zeros of the sinc to each side.
const ZEROS: usize = 24;
/// Places of the table from one zero to the next; what lies between is between them.
const FINE: usize = 512;
/// The share of what the lower rate can hold that is kept.
const KEPT: f64 = 0.945;

/// From one rate to another, piece by piece.
#[derive(Debug)]
pub(crate) struct Resampler {
    from: u64,
    to: u64,
    /// The weights from the middle outwards.
    table: Vec<f32>,
    /// How fast the weights are gone through: places of the table for each old sample.
    speed: f64,
    /// Old samples to each side that have a weight.
    reach: usize,
    /// Old samples that are still needed, and the place of the first.
    held: Vec<f32>,
    first: u64,
    /// The place of the next new sample.
    next: u64,
}

impl Resampler {
    pub(crate) fn new(from: u32, to: u32) -> Resampler {
        let cut = KEPT * (f64::from(to) / f64::from(from)).min(1.0);
        let weight = |i: usize| {
            let x = i as f64 / FINE as f64;
            let sinc = if i == 0 { 1.0 } else { (PI * x).sin() / (PI * x) };
            let at = PI * x / ZEROS as f64;
            // Blackman's window.
            (cut * sinc * (0.42 + 0.5 * at.cos() + 0.08 * (2.0 * at).cos())) as f32
        };
        let mut table: Vec<f32> = (0..=ZEROS * FINE).map(weight).collect();
        // Past the last is nothing.
        table.extend([0.0; 2]);
        let reach = if from == to { 0 } else { (ZEROS as f64 / cut).ceil() as usize };
        let (from, to) = (u64::from(from), u64::from(to));
        Resampler { from, to, table, speed: cut * FINE as f64, reach, held: Vec::new(), first: 0, next: 0 }
    }

    /// Takes old samples and gives the new ones for which all is there.
    pub(crate) fn push(&mut self, samples: impl Iterator<Item = f32>, out: &mut VecDeque<f32>) {
        self.held.extend(samples);
        let end = (self.first + self.held.len() as u64).saturating_sub(self.reach as u64);
        self.give(end, out);
        // What no later sample looks at is let go.
        let oldest = (self.next * self.from / self.to).saturating_sub(self.reach as u64);
        let gone = (oldest.saturating_sub(self.first) as usize).min(self.held.len());
        self.held.drain(..gone);
        self.first += gone as u64;
    }

    /// Gives the last new samples.
    pub(crate) fn finish(&mut self, out: &mut VecDeque<f32>) {
        self.give(self.first + self.held.len() as u64, out);
    }

    /// The new samples whose time is before that of an old one.
    fn give(&mut self, end: u64, out: &mut VecDeque<f32>) {
        while self.next * self.from < end * self.to {
            let (at, between) = (self.next * self.from / self.to, self.next * self.from % self.to);
            out.push_back(self.sum(at, between as f64 / self.to as f64));
            self.next += 1;
        }
    }

    /// The sum around a time: an old sample's, and how far on to the next.
    fn sum(&self, at: u64, between: f64) -> f32 {
        let held = |i: u64| i.checked_sub(self.first).and_then(|i| self.held.get(i as usize)).copied();
        if self.reach == 0 {
            return held(at).unwrap_or(0.0);
        }
        let weight = |distance: f64| {
            let place = distance * self.speed;
            let (i, share) = (place as usize, place.fract() as f32);
            match self.table.get(i..i + 2) {
                Some(&[a, b]) => a + share * (b - a),
                _ => 0.0,
            }
        };
        let before = (0..=self.reach as u64)
            .filter_map(|k| Some(held(at.checked_sub(k)?)? * weight(k as f64 + between)));
        let behind =
            (1..=self.reach as u64 + 1).filter_map(|k| Some(held(at + k)? * weight(k as f64 - between)));
        before.sum::<f32>() + behind.sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resampled(rate: u32, hertz: f64, piece: usize) -> Vec<f32> {
        let old: Vec<f32> =
            (0..rate).map(|n| (2.0 * PI * hertz * f64::from(n) / f64::from(rate)).sin() as f32).collect();
        let (mut resampler, mut new) = (Resampler::new(rate, 16000), VecDeque::new());
        old.chunks(piece).for_each(|piece| resampler.push(piece.iter().copied(), &mut new));
        resampler.finish(&mut new);
        new.into()
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
}
