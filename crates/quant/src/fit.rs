//! Choice of scales and codes: what all quantizing formats share in `pack`.
//!
//! Every fit seeks the least sum of squared errors. Scales are searched over a few candidates, each followed by the
//! least-squares scale for its codes. Codes are always chosen last, against the scale as it is stored.

mod affine;
mod book;
mod scale;
mod ternary;

pub(crate) use affine::{fit_affine_block, fit_affine_super};
pub(crate) use book::{Book, Signed, fit_books};
pub(crate) use scale::{fit_block, fit_super, fit_zero_point};
pub(crate) use ternary::{fit_signs, fit_ternary};

/// The values of the codes, before they are scaled.
pub(crate) trait Grid {
    /// The largest magnitude.
    fn reach(&self) -> f32;

    /// The grid's value nearest to `x`.
    fn nearest(&self, x: f32) -> f32;

    /// The code of that value.
    fn code(&self, x: f32) -> u8;
}

/// The integers from `LO` to `HI`; the code of `LO` is 0.
pub(crate) struct Ints<const LO: i32, const HI: i32>;

impl<const LO: i32, const HI: i32> Grid for Ints<LO, HI> {
    #[inline(always)]
    fn reach(&self) -> f32 {
        if -LO > HI { -LO as f32 } else { HI as f32 }
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        round(x.clamp(LO as f32, HI as f32))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        (self.nearest(x) - LO as f32) as u8
    }
}

/// The index of the value nearest to `x`, and that value. Uses comparisons, which vectorize.
#[inline(always)]
pub(crate) fn closest(ascending: &[i8], x: f32) -> (u8, f32) {
    let mut closest = (0, f32::from(ascending[0]));
    for pair in ascending.windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        let passed = x > (low + high) / 2.0;
        closest.0 += u8::from(passed);
        closest.1 += if passed { high - low } else { 0.0 };
    }
    closest
}

/// Rounds `x` to the nearest integer, for `x` well below 2^22: the sum with `SHIFT` has no bits left for a fraction.
/// This vectorizes on every processor, which `round_ties_even` does not.
#[inline(always)]
fn round(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The weights with NaN as zero and infinities as the largest float.
pub(crate) fn finite<const N: usize>(weights: &[f32; N]) -> [f32; N] {
    each(weights, |w| if w.is_nan() { 0.0 } else { w.clamp(f32::MIN, f32::MAX) })
}

/// `f` of each element. `array::map` does not vectorize.
#[inline(always)]
fn each<const N: usize, T: Copy + Default>(x: &[f32; N], f: impl Fn(f32) -> T) -> [T; N] {
    let mut y = [T::default(); N];
    for i in 0..N {
        y[i] = f(x[i]);
    }
    y
}

/// Sum of squares weighted by `care`, added in an order that vectorizes.
#[inline(always)]
fn squared<const N: usize>(x: &[f32; N], care: &[f32; N]) -> f32 {
    let mut lanes = [0.0; 8];
    for (x, care) in x.as_chunks::<8>().0.iter().zip(care.as_chunks::<8>().0) {
        for i in 0..8 {
            lanes[i] += care[i] * x[i] * x[i];
        }
    }
    lanes.iter().sum()
}

/// Weights divided by the largest magnitude among them, so that no square overflows or underflows.
pub(crate) struct Unit<const N: usize> {
    /// The weights, between -1 and 1.
    pub(crate) x: [f32; N],
    /// The largest magnitude, by which they were divided.
    pub(crate) size: f32,
    /// Importance of each weight's error, up to 1.
    care: [f32; N],
}

impl<const N: usize> Unit<N> {
    /// Part `part` of a block's weights.
    pub(crate) fn part<const ALL: usize>(weights: &[f32; ALL], care: &[f32; ALL], part: usize) -> Unit<N> {
        let of = |all: &[f32; ALL]| std::array::from_fn(|i| all[part * N + i]);
        Unit::new(&of(weights), &of(care))
    }

    /// If no error has importance, all have the same.
    pub(crate) fn new(weights: &[f32; N], care: &[f32; N]) -> Unit<N> {
        let most = care.iter().fold(0.0f32, |most, c| most.max(*c));
        let care = match most.is_normal() {
            true => each(care, |c| (c / most).max(0.0)),
            false => [1.0; N],
        };
        let size = weights.iter().fold(0.0, |size: f32, w| size.max(w.abs()));
        // In f64, where the inverse of a subnormal f32 is finite.
        let inverse = if size > 0.0 { 1.0 / f64::from(size) } else { 0.0 };
        Unit { x: each(weights, |w| (f64::from(w) * inverse) as f32), size, care }
    }

    /// A scale of the weights converted to a scale of `x`, and its inverse.
    #[inline(always)]
    fn step(&self, d: f32) -> (f32, f32) {
        if d == 0.0 || self.size == 0.0 {
            return (0.0, 0.0);
        }
        let step = f64::from(d) / f64::from(self.size);
        (step as f32, (1.0 / step) as f32)
    }

    /// The weighted squared error with scale `d`.
    #[inline(always)]
    pub(crate) fn error(&self, d: f32, grid: &impl Grid) -> f32 {
        let (step, inverse) = self.step(d);
        let errors = each(&self.x, |x| x - step * grid.nearest(x * inverse));
        squared(&errors, &self.care)
    }

    /// The codes with scale `d`.
    #[inline(always)]
    pub(crate) fn codes(&self, d: f32, grid: &impl Grid) -> [u8; N] {
        let (_, inverse) = self.step(d);
        each(&self.x, |x| grid.code(x * inverse))
    }

    /// The scale with the least squared error among those searched.
    pub(crate) fn best_scale(&self, grid: &impl Grid) -> f32 {
        scale::search(&self.x, &self.care, grid) * self.size
    }
}
