//! Fits of a scale and a minimum.

use super::{Unit, each, round, squared};
use crate::F16;

/// Candidate ratios of the weights' range to the range that the codes span. Above 1 the largest weight is clipped.
const TRIED: [f32; 16] =
    [0.80, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0, 1.025, 1.05, 1.075, 1.1, 1.15, 1.2, 1.25];

/// A scale and a minimum.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

impl<const N: usize> Unit<N> {
    /// The squared error with the codes 0 to `MAX` along `line`, which is in units of the weights.
    #[inline(always)]
    fn line_error<const MAX: i32>(&self, line: Line) -> f32 {
        let (step, inverse) = self.step(line.scale);
        let (min, _) = self.step(line.min);
        let errors = each(&self.x, |x| x - min - step * code::<MAX>(x - min, inverse));
        squared(&errors, &self.care)
    }

    /// The codes along `line`.
    #[inline(always)]
    fn line_codes<const MAX: i32>(&self, line: Line) -> [u8; N] {
        let (_, inverse) = self.step(line.scale);
        let (min, _) = self.step(line.min);
        each(&self.x, |x| code::<MAX>(x - min, inverse) as u8)
    }

    /// The line with the least squared error among those searched; its minimum at most `highest`, which is a fraction
    /// of the largest magnitude.
    fn best_line<const MAX: i32>(&self, highest: f32) -> Line {
        let low = self.x.iter().fold(highest, |low, &x| low.min(x));
        // Sums lose the least precision when `x` starts at zero.
        let line = search::<N, MAX>(&each(&self.x, |x| x - low), &self.care, highest - low);
        Line { scale: line.scale * self.size, min: (line.min + low) * self.size }
    }
}

/// The code nearest to `x`, which is relative to the minimum.
#[inline(always)]
fn code<const MAX: i32>(x: f32, inverse: f32) -> f32 {
    round((x * inverse).clamp(0.0, MAX as f32))
}

/// The best line for weights that are not negative.
fn search<const N: usize, const MAX: i32>(x: &[f32; N], care: &[f32; N], highest: f32) -> Line {
    let high = x.iter().fold(0.0f32, |high, &x| high.max(x));
    // Each weight is counted `care` times.
    let (count, sum) = (care.iter().sum::<f32>(), x.iter().zip(care).map(|(x, care)| care * x).sum::<f32>());
    let flat = Line { scale: 0.0, min: (sum / count).min(highest) };
    if high == 0.0 {
        return flat;
    }
    let inverse = TRIED.map(|tried| tried * MAX as f32 / high);
    // All candidates side by side: one vector.
    let (mut codes, mut squares, mut common) = ([0.0; 16], [0.0; 16], [0.0; 16]);
    for (x, care) in x.iter().zip(care) {
        for i in 0..16 {
            let q = code::<MAX>(*x, inverse[i]);
            codes[i] += care * q;
            squares[i] += care * q * q;
            common[i] += care * x * q;
        }
    }
    let mut best = (flat.min * (2.0 * sum - count * flat.min), flat);
    for ((codes, squares), common) in codes.into_iter().zip(squares).zip(common) {
        // Least squares, with the minimum held at `highest` if it would lie above or if all codes are equal.
        let spread = count * squares - codes * codes;
        let (mut scale, mut min) = ((common - highest * codes) / squares, highest);
        if spread > 0.0 && squares * sum - codes * common <= highest * spread {
            scale = (count * common - sum * codes) / spread;
            min = (squares * sum - codes * common) / spread;
        }
        // Reduction of the squared error against zeros.
        let twice = scale * (common - min * codes) + min * sum;
        let gain = 2.0 * twice - scale * scale * squares - count * min * min;
        if gain > best.0 && scale > 0.0 {
            best = (gain, Line { scale, min });
        }
    }
    best.1
}

/// A scale, a minimum and codes for a block that has one of each.
pub(crate) fn fit_affine_block<const MAX: i32>(
    weights: &[f32; 32],
    care: &[f32; 32],
) -> (F16, F16, [u8; 32]) {
    let unit = Unit::new(weights, care);
    let ideal = unit.best_line::<MAX>(1.0);
    let mut best = (f32::INFINITY, F16([0; 2]), F16([0; 2]));
    for d in F16::around(ideal.scale) {
        for m in F16::around(ideal.min) {
            let error = unit.line_error::<MAX>(Line { scale: d.get(), min: m.get() });
            if error < best.0 {
                best = (error, d, m);
            }
        }
    }
    let (_, d, m) = best;
    (d, m, unit.line_codes::<MAX>(Line { scale: d.get(), min: m.get() }))
}

/// A super-block whose `SUBS` parts have scales that are multiples of `d` and minimums that are multiples of `dmin`.
pub(crate) struct AffineSuperFit<const SUBS: usize> {
    pub(crate) d: F16,
    pub(crate) dmin: F16,
    pub(crate) scales: [u8; SUBS],
    pub(crate) mins: [u8; SUBS],
    pub(crate) codes: [u8; 256],
}

/// Fits `SUBS` parts of `LEN` weights each, with codes up to `MAX`, scales and minimums up to `TOP`.
pub(crate) fn fit_affine_super<const SUBS: usize, const LEN: usize, const MAX: i32, const TOP: i32>(
    weights: &[f32; 256],
    care: &[f32; 256],
) -> AffineSuperFit<SUBS> {
    let parts: [Unit<LEN>; SUBS] = std::array::from_fn(|sub| Unit::part(weights, care, sub));
    let ideal: [Line; SUBS] = std::array::from_fn(|sub| parts[sub].best_line::<MAX>(0.0));
    let largest = ideal.iter().fold((0.0f32, 0.0f32), |(s, m), line| (s.max(line.scale), m.max(-line.min)));
    // Rounding up keeps the largest in reach.
    let [_, d] = F16::around(largest.0 / TOP as f32);
    let [_, dmin] = F16::around(largest.1 / TOP as f32);
    let mut fit = AffineSuperFit { d, dmin, scales: [0; SUBS], mins: [0; SUBS], codes: [0; 256] };
    let near = |x: f32, step: F16| {
        if step.get() == 0.0 { 0 } else { (x / step.get()).round().min(TOP as f32) as i32 }
    };
    for (sub, unit) in parts.iter().enumerate() {
        let (scale, min) = (near(ideal[sub].scale, d), near(-ideal[sub].min, dmin));
        let line =
            |scale: i32, min: i32| Line { scale: d.get() * scale as f32, min: -dmin.get() * min as f32 };
        let mut best = (f32::INFINITY, 0, 0);
        for other_scale in [0, -1, 1] {
            for other_min in [0, -1, 1] {
                let (scale, min) = ((scale + other_scale).clamp(0, TOP), (min + other_min).clamp(0, TOP));
                let error = unit.line_error::<MAX>(line(scale, min));
                if error < best.0 {
                    best = (error, scale, min);
                }
            }
        }
        let (_, scale, min) = best;
        (fit.scales[sub], fit.mins[sub]) = (scale as u8, min as u8);
        let codes = unit.line_codes::<MAX>(line(scale, min));
        fit.codes[sub * LEN..(sub + 1) * LEN].copy_from_slice(&codes);
    }
    fit
}
