//! Fits of a scale alone.

use std::ops::RangeInclusive;

use super::{Grid, Unit, round};
use crate::F16;

/// Candidate positions of the largest weight, relative to the grid's reach. Above 1 it is clipped in favour of the
/// others.
const TRIED: [f32; 16] =
    [0.80, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0, 1.025, 1.05, 1.075, 1.1, 1.15, 1.2, 1.25];

/// The best scale for weights between -1 and 1.
pub(super) fn search<const N: usize, G: Grid>(x: &[f32; N], care: &[f32; N], grid: &G) -> f32 {
    // The grid may reach farther on one side, so the scale may be negative.
    let mut best = (0.0, 0.0);
    for sign in [-1.0, 1.0] {
        let inverse = TRIED.map(|tried| sign * tried * grid.reach());
        // All candidates side by side: one vector.
        let (mut common, mut square) = ([0.0; 16], [0.0; 16]);
        for (x, care) in x.iter().zip(care) {
            for i in 0..16 {
                let q = grid.nearest(x * inverse[i]);
                common[i] += care * x * q;
                square[i] += care * q * q;
            }
        }
        for (common, square) in common.into_iter().zip(square) {
            // Reduction of the squared error against a scale of zero.
            let gain = common * common / square;
            if gain > best.0 {
                best = (gain, common / square);
            }
        }
    }
    best.1
}

/// A scale and its codes for a block that has one scale.
pub(crate) fn fit_block<const N: usize>(
    weights: &[f32; N],
    care: &[f32; N],
    grid: &impl Grid,
) -> (F16, [u8; N]) {
    let unit = Unit::new(weights, care);
    let [below, above] = F16::around(unit.best_scale(grid));
    let better = unit.error(above.get(), grid) < unit.error(below.get(), grid);
    let d = if better { above } else { below };
    (d, unit.codes(d.get(), grid))
}

/// The codes 0 to 15, less a zero point.
struct FromZeroPoint(u8);

impl Grid for FromZeroPoint {
    #[inline(always)]
    fn reach(&self) -> f32 {
        f32::from(self.0.max(15 - self.0))
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        let zero = f32::from(self.0);
        round(x.clamp(-zero, 15.0 - zero))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        (self.nearest(x) + f32::from(self.0)) as u8
    }
}

/// A scale, a zero point that is a code, and the codes of a block that has one of each.
pub(crate) fn fit_zero_point<const N: usize>(weights: &[f32; N], care: &[f32; N]) -> (F16, u8, [u8; N]) {
    let unit = Unit::new(weights, care);
    let mut best = (f32::INFINITY, F16([0; 2]), 0);
    for zero in 0..16 {
        let grid = FromZeroPoint(zero);
        for d in F16::around(unit.best_scale(&grid)) {
            let error = unit.error(d.get(), &grid);
            if error < best.0 {
                best = (error, d, zero);
            }
        }
    }
    let (_, d, zero) = best;
    (d, zero, unit.codes(d.get(), &FromZeroPoint(zero)))
}

/// A super-block whose `SUBS` parts have scales that are multiples of `d`.
pub(crate) struct SuperFit<const SUBS: usize> {
    pub(crate) d: F16,
    pub(crate) scales: [i16; SUBS],
    pub(crate) codes: [u8; 256],
}

/// Fits `SUBS` parts of `LEN` weights each, with scales in `range`.
pub(crate) fn fit_super<const SUBS: usize, const LEN: usize, G: Grid>(
    weights: &[f32; 256],
    care: &[f32; 256],
    grid: &G,
    range: RangeInclusive<i16>,
) -> SuperFit<SUBS> {
    let parts: [Unit<LEN>; SUBS] = std::array::from_fn(|sub| Unit::part(weights, care, sub));
    let ideal: [f32; SUBS] = std::array::from_fn(|sub| parts[sub].best_scale(grid));
    let largest = ideal.iter().fold(0.0f32, |largest, s| if s.abs() > largest.abs() { *s } else { largest });
    // The range reaches farther below zero. Rounding `d` up keeps the largest scale in reach. Adding zero makes
    // a negative zero positive.
    let [_, d] = F16::around(largest / f32::from(*range.start()) + 0.0);
    let step = d.get();
    let mut fit = SuperFit { d, scales: [0; SUBS], codes: [0; 256] };
    for (sub, unit) in parts.iter().enumerate() {
        let near = if step == 0.0 { 0.0 } else { ideal[sub] / step };
        let near = near.round().clamp(f32::from(*range.start()), f32::from(*range.end())) as i16;
        let mut best = (f32::INFINITY, 0);
        for other in [0, -1, 1] {
            let scale = (near + other).clamp(*range.start(), *range.end());
            let error = unit.error(step * f32::from(scale), grid);
            if error < best.0 {
                best = (error, scale);
            }
        }
        fit.scales[sub] = best.1;
        let codes = unit.codes(step * f32::from(best.1), grid);
        fit.codes[sub * LEN..(sub + 1) * LEN].copy_from_slice(&codes);
    }
    fit
}
