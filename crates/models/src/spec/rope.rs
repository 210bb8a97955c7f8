//! RoPE: from a model's settings to the cosine and sine table that devices read.

use std::f64::consts::TAU;

use tallow_core::{Backend, Result, RopePairs, RopeTable};

/// A RoPE variant, as a model's settings describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// The base of the frequencies.
    pub theta: f64,
    /// Elements of a head that are rotated; rounded up if odd.
    pub dim: usize,
    /// The elements that form a pair.
    pub pairs: RopePairs,
    /// Context extension.
    pub scaling: Scaling,
}

/// RoPE scaling: how rotations are stretched to contexts longer than in training.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// Linear: all positions are divided.
    Linear {
        /// Divisor of the positions.
        factor: f64,
    },
    /// Dynamic NTK: the base grows with the context that the table is built for, once that exceeds the original one.
    Dynamic {
        /// Growth of the base with the context.
        factor: f64,
        /// The original context.
        original: usize,
    },
    /// Llama 3: low frequencies are divided, high ones kept, those between interpolated by wavelength.
    Llama3 {
        /// Low frequencies are divided by this.
        factor: f64,
        /// Wavelengths longer than `original / low` are low frequencies.
        low: f64,
        /// Wavelengths shorter than `original / high` are high frequencies.
        high: f64,
        /// The original context.
        original: usize,
    },
    /// YaRN: as `Llama3`, but interpolated by index, and attention is sharpened.
    Yarn(Yarn),
    /// LongRoPE (Phi-3): a divisor per frequency, one set for the original context, one for longer ones.
    Long {
        /// Factors for contexts up to the original one.
        short: Vec<f64>,
        /// Factors for longer contexts.
        long: Vec<f64>,
        /// The original context.
        original: usize,
        /// Multiplies cosines and sines: up to the original context, and past it.
        attention: [f64; 2],
    },
    /// A divisor per frequency (`rope_freqs`).
    Factors(Vec<f64>),
    /// No rotation, only temperature scaling by position (Llama 4): `1 + scale * ln(1 + (position + early) / original)`,
    /// the quotient rounded down.
    Temperature {
        /// Multiplies the logarithm.
        scale: f64,
        /// The original context.
        original: usize,
        /// Added to positions.
        early: usize,
    },
}

/// Settings of [`Scaling::Yarn`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Low frequencies are divided by this.
    pub factor: f64,
    /// The original context.
    pub original: usize,
    /// Rotations over the original context above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided.
    pub beta_slow: f64,
    /// True if the ends of the interpolation are rounded to whole indices.
    pub truncate: bool,
    /// Multiplies cosines and sines.
    pub attention: f64,
}

impl RopeSpec {
    /// The frequency of each pair in radians per position, and the factor of cosines and sines, for contexts of
    /// `context` positions.
    pub fn frequencies(&self, context: usize) -> (Vec<f64>, f64) {
        let plain =
            |theta: f64| (0..self.width() / 2).map(move |i| theta.powf(-2.0 * i as f64 / self.dim as f64));
        match &self.scaling {
            Scaling::None => (plain(self.theta).collect(), 1.0),
            Scaling::Linear { factor } => (plain(self.theta).map(|f| f / factor).collect(), 1.0),
            Scaling::Dynamic { factor, original } => {
                let stretch = factor * context.max(*original) as f64 / *original as f64 - (factor - 1.0);
                let theta = self.theta * stretch.powf(self.dim as f64 / (self.dim as f64 - 2.0));
                (plain(theta).collect(), 1.0)
            }
            Scaling::Llama3 { factor, low, high, original } => {
                let original = *original as f64;
                let scaled = |f: f64| {
                    let wavelength = TAU / f;
                    if wavelength > original / low {
                        return f / factor;
                    }
                    if wavelength < original / high {
                        return f;
                    }
                    let keep = (original / wavelength - low) / (high - low);
                    (1.0 - keep) * f / factor + keep * f
                };
                (plain(self.theta).map(scaled).collect(), 1.0)
            }
            Scaling::Yarn(yarn) => (self.yarn(yarn, plain(self.theta)), yarn.attention),
            Scaling::Long { short, long, original, attention } => {
                let [of_short, of_long] = *attention;
                let (by, attention) = if context > *original { (long, of_long) } else { (short, of_short) };
                (plain(self.theta).zip(by).map(|(f, by)| f / by).collect(), attention)
            }
            Scaling::Factors(by) => (plain(self.theta).zip(by).map(|(f, by)| f / by).collect(), 1.0),
            Scaling::Temperature { .. } => (vec![0.0; self.width() / 2], 1.0),
        }
    }

    /// Dynamic NTK: the longest context that it is meant for, and the original one.
    pub fn dynamic(&self) -> Option<(usize, usize)> {
        match self.scaling {
            // Float to integer casts saturate.
            Scaling::Dynamic { factor, original } => Some(((original as f64 * factor) as usize, original)),
            _ => None,
        }
    }

    /// Longest sequence whose angles do not depend on its length; `None` if that holds for all.
    pub fn fixed(&self) -> Option<usize> {
        match self.scaling {
            Scaling::Dynamic { original, .. } | Scaling::Long { original, .. } => Some(original),
            _ => None,
        }
    }

    fn yarn(&self, yarn: &Yarn, plain: impl Iterator<Item = f64>) -> Vec<f64> {
        let dim = self.dim as f64;
        // The (fractional) index of the frequency with `turns` rotations over the original context.
        let index = |turns: f64| dim * (yarn.original as f64 / (turns * TAU)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (index(yarn.beta_fast), index(yarn.beta_slow));
        if yarn.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let mut high = high.min(dim - 1.0);
        if low == high {
            high += 0.001;
        }
        let scaled = |(i, f): (usize, f64)| {
            let divide = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / yarn.factor * divide + f * (1.0 - divide)
        };
        plain.enumerate().map(scaled).collect()
    }

    /// Rotated elements of a head: `dim` rounded up to an even number.
    fn width(&self) -> usize {
        self.dim.next_multiple_of(2)
    }

    /// Floats in the table of `context` positions.
    pub fn table_len(&self, context: usize) -> usize {
        context * self.width()
    }

    /// Temperature of one position: a further factor of its cosines and sines.
    fn temperature(&self, position: usize) -> f64 {
        match self.scaling {
            Scaling::Temperature { scale, original, early } => {
                1.0 + scale * ((1 + (position + early) / original) as f64).ln()
            }
            _ => 1.0,
        }
    }

    /// Builds the table of `context` positions: a row of cosines, then sines.
    pub fn build<B: Backend>(&self, b: &B, context: usize) -> Result<RopeTable<B>> {
        let (frequencies, attention) = self.frequencies(context);
        let mut table = Vec::with_capacity(self.table_len(context));
        for position in 0..context {
            let attention = attention * self.temperature(position);
            let angles = frequencies.iter().map(|f| position as f64 * f);
            table.extend(angles.clone().map(|a| (a.cos() * attention) as f32));
            table.extend(angles.map(|a| (a.sin() * attention) as f32));
        }
        Ok(RopeTable { table: b.upload(&table, context, self.width())?, pairs: self.pairs })
    }
}
