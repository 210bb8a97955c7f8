//! Fits of two or three levels.

use super::{Ints, Unit};
use crate::F16;

/// Scale of weights of which only the signs are kept: their mean magnitude.
pub(crate) fn fit_signs<const N: usize>(weights: &[f32; N], care: &[f32; N]) -> F16 {
    let unit = Unit::new(weights, care);
    let each = || unit.x.iter().zip(&unit.care);
    let mean =
        each().map(|(x, care)| care * x.abs()).sum::<f32>() / each().map(|(_, care)| care).sum::<f32>();
    let scale = f64::from(mean) * f64::from(unit.size);
    F16::nearest(scale.min(65504.0) as f32)
}

/// A scale for the levels -1, 0 and 1, and the code of each weight: 0 for -1.
pub(crate) fn fit_ternary<const N: usize>(weights: &[f32; N], care: &[f32; N]) -> (F16, [u8; N]) {
    let unit = Unit::new(weights, care);
    let mut sizes: [(f32, f32); N] = std::array::from_fn(|i| (unit.x[i].abs(), unit.care[i]));
    sizes.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    // With the largest few magnitudes as ones, the best scale is their mean.
    let (mut sum, mut count, mut best) = (0.0, 0.0, (0.0, 0.0));
    for (size, care) in sizes {
        sum += care * size;
        count += care;
        if sum * sum / count > best.0 {
            best = (sum * sum / count, sum / count);
        }
    }
    let scale = (f64::from(best.1) * f64::from(unit.size)) as f32;
    let errors = F16::around(scale).map(|d| (unit.error(d.get(), &Ints::<-1, 1>), d));
    let [below, above] = errors;
    let (_, d) = if above.0 < below.0 { above } else { below };
    (d, unit.codes(d.get(), &Ints::<-1, 1>))
}
