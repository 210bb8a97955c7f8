//! [`LogMel`]: log-mel spectrogram of audio samples.
//!
//! Every 10 ms the power spectrum of a 25 ms window is summed into mel bands, and its logarithm taken. All formulas are
//! those that the models were trained with (Whisper).

use std::f64::consts::PI;

use crate::audio;
use crate::fft::Spectrum;

/// Samples per second.
const RATE: usize = audio::RATE as usize;

/// Samples per window.
const LONG: usize = 400;
/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Frequency bins.
const BINS: usize = LONG / 2 + 1;

/// Computes log-mel frames, with precomputed filters and window.
#[derive(Debug, Clone)]
pub struct LogMel {
    bands: usize,
    /// Per band: its first bin, and its weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    spectrum: Spectrum,
}

impl LogMel {
    /// Makes one for `bands` mel bands.
    pub fn new(bands: usize) -> LogMel {
        let angle = |n: usize| 2.0 * PI * n as f64 / LONG as f64;
        let window = (0..LONG).map(|n| 0.5 - 0.5 * angle(n).cos()).collect();
        let filters = filters(bands).into_iter().map(|all| {
            let first = all.iter().position(|w| *w != 0.0).unwrap_or(0);
            let last = all.iter().rposition(|w| *w != 0.0).map_or(first, |last| last + 1);
            (first, all[first..last].to_vec())
        });
        LogMel { bands, filters: filters.collect(), window, spectrum: Spectrum::new(LONG) }
    }

    /// Log-mel of `frames` frames: [frames, bands]. Missing samples are silence.
    pub fn frames(&self, samples: &[f32], frames: usize) -> Vec<f32> {
        let len = frames * HOP;
        let samples = &samples[..samples.len().min(len)];
        let at = |i: isize| {
            // Reflection padding at both ends.
            let i = i.unsigned_abs();
            let i = if i < len { i } else { (2 * len).saturating_sub(2 + i) };
            samples.get(i).copied().map_or(0.0, f64::from)
        };
        let mut logs = Vec::with_capacity(frames * self.bands);
        let mut strengths = vec![0.0; BINS];
        let mut scratch = self.spectrum.scratch();
        let mut cut = vec![0.0; LONG];
        for frame in 0..frames {
            let first = (frame * HOP) as isize - (LONG / 2) as isize;
            cut.iter_mut()
                .zip(&self.window)
                .enumerate()
                .for_each(|(n, (x, w))| *x = w * at(first + n as isize));
            self.spectrum.powers(&cut, &mut scratch, &mut strengths);
            logs.extend(self.filters.iter().map(|(first, weights)| {
                let terms = weights.iter().zip(&strengths[*first..]);
                terms.map(|(w, x)| w * x).sum::<f64>().max(1e-10).log10()
            }));
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.into_iter().map(|x| ((x.max(most - 8.0) + 4.0) / 4.0) as f32).collect()
    }
}

/// Mel scale to Hz (Slaney): linear up to 1000 Hz, logarithmic above.
fn hertz(mel: f64) -> f64 {
    let (per_mel, corner) = (200.0 / 3.0, 15.0);
    if mel < corner { mel * per_mel } else { 1000.0 * ((mel - corner) * 6.4f64.ln() / 27.0).exp() }
}

/// Triangular mel filters, normalized by area (Slaney): [bands, BINS]
pub fn filters(bands: usize) -> Vec<Vec<f64>> {
    let top = 15.0 + (RATE as f64 / 2.0 / 1000.0).ln() * 27.0 / 6.4f64.ln();
    let corner = |i: usize| hertz(top * i as f64 / (bands + 1) as f64);
    let band = |i: usize| {
        let [low, middle, high] = [corner(i), corner(i + 1), corner(i + 2)];
        let weight = move |bin: usize| {
            let hertz = bin as f64 * RATE as f64 / LONG as f64;
            let (rise, fall) = ((hertz - low) / (middle - low), (high - hertz) / (high - middle));
            rise.min(fall).max(0.0) * 2.0 / (high - low)
        };
        (0..BINS).map(weight).collect()
    };
    (0..bands).map(band).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_its_band_and_silence_is_even() {
        let mel = LogMel::new(80);
        let tone: Vec<f32> =
            (0..RATE).map(|n| (2.0 * PI * 1000.0 * n as f64 / RATE as f64).sin() as f32).collect();
        let frames = mel.frames(&tone, 100);
        let frame = &frames[50 * 80..51 * 80];
        let loudest = (0..80).max_by(|a, b| frame[*a].total_cmp(&frame[*b])).unwrap();
        let at = hertz((15.0 + 8.0f64.ln() * 27.0 / 6.4f64.ln()) * (loudest + 1) as f64 / 81.0);
        assert!((at - 1000.0).abs() < 50.0, "{at}");
        let silence = mel.frames(&[], 10);
        assert!(silence.len() == 800 && silence.iter().all(|x| *x == silence[0]));
    }
}
