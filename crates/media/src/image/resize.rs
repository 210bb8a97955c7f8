//! Image resizing bit-exact with Pillow: models were trained on its output, including its rounding.
//!
//! Each output pixel is a weighted mean of the input pixels near its position. When downscaling, the filter support
//! grows with the scale (antialiasing). The horizontal pass runs first and rounds to bytes, then the vertical one;
//! weights are fixed-point.

use std::ops::Range;

/// RGB image, row-major, channels interleaved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Three bytes per pixel.
    pub bytes: Vec<u8>,
}

/// Resampling filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Box filter: constant within ±1/2.
    Box,
    /// Triangle filter.
    Bilinear,
    /// Hamming-windowed sinc.
    Hamming,
    /// Cubic filter with a = -1/2.
    Bicubic,
    /// Lanczos filter with three lobes.
    Lanczos,
}

impl Filter {
    /// Support radius: zero beyond it.
    fn reach(self) -> f64 {
        match self {
            Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let size = x.abs();
        match self {
            Filter::Box if x > -0.5 && x <= 0.5 => 1.0,
            Filter::Bilinear if size < 1.0 => 1.0 - size,
            Filter::Hamming if size < 1.0 => wave(size) * (0.54 + 0.46 * (size * std::f64::consts::PI).cos()),
            Filter::Bicubic if size < 1.0 => (1.5 * size - 2.5) * size * size + 1.0,
            Filter::Bicubic if size < 2.0 => ((-0.5 * size + 2.5) * size - 4.0) * size + 2.0,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => wave(x) * wave(x / 3.0),
            _ => 0.0,
        }
    }
}

/// `sin(πx) / πx`
fn wave(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// Fractional bits of weights: 32 minus 8 for the bytes and 2 for overshoot.
const BITS: u32 = 32 - 8 - 2;

/// Input pixels of an output pixel: the first one, and the weights from there on.
struct Mean {
    first: usize,
    weights: Vec<i32>,
}

/// Filter weights of the output pixels `part`, of resizing `from` pixels to `to`.
fn means(filter: Filter, from: usize, to: usize, part: Range<usize>) -> Vec<Mean> {
    if from == to {
        // Weights of exactly one, without the filters' rounding.
        return part.map(|first| Mean { first, weights: vec![1 << BITS] }).collect();
    }
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let reach = filter.reach() * stretch;
    let mean = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        // The support is rounded to pixel boundaries at half pixels; negative values become 0.
        let first = (centre - reach + 0.5) as usize;
        let end = ((centre + reach + 0.5) as usize).min(from);
        let weight = |at: usize| filter.weight((at as f64 - centre + 0.5) * (1.0 / stretch));
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let whole = |w: f64| {
            let w = if sum == 0.0 { w } else { w / sum } * f64::from(1u32 << BITS);
            // Rounds half away from zero.
            (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
        };
        Mean { first, weights: weights.into_iter().map(whole).collect() }
    };
    part.map(mean).collect()
}

/// Fixed-point sum to a byte, clamped.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Initial value of sums, for rounding.
const HALF: i32 = 1 << (BITS - 1);

/// How one axis of an image is resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resize {
    /// Pixels of the resized image.
    pub to: usize,
    /// Those of them that are wanted. Only they are computed.
    pub part: Range<usize>,
}

impl Picture {
    /// The wanted part of the resized image. `None` if the image between the two passes would have more than `most`
    /// pixels.
    pub fn resized(&self, filter: Filter, across: Resize, down: Resize, most: usize) -> Option<Picture> {
        let across = means(filter, self.width, across.to, across.part);
        let down = means(filter, self.height, down.to, down.part);
        let first = down.iter().map(|mean| mean.first).min()?;
        let end = down.iter().map(|mean| mean.first + mean.weights.len()).max()?;
        if (end - first).max(down.len()).saturating_mul(across.len()) > most {
            return None;
        }
        Some(self.widened(&across, first..end).heightened(&down, first))
    }

    /// The horizontal pass, over some rows.
    fn widened(&self, means: &[Mean], rows: Range<usize>) -> Picture {
        let (stride, height) = (3 * self.width, rows.len());
        let mut bytes = Vec::with_capacity(3 * means.len() * height);
        for row in self.bytes[stride * rows.start..stride * rows.end].chunks_exact(stride.max(1)) {
            for mean in means {
                let mut sums = [HALF; 3];
                for (pixel, weight) in row[3 * mean.first..].chunks_exact(3).zip(&mean.weights) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += i32::from(*x) * weight);
                }
                bytes.extend(sums.map(byte));
            }
        }
        Picture { width: means.len(), height, bytes }
    }

    /// The vertical pass over an image that begins at row `first` of the one that the weights are for.
    fn heightened(&self, means: &[Mean], first: usize) -> Picture {
        let stride = 3 * self.width;
        let mut bytes = Vec::with_capacity(stride * means.len());
        let mut sums = vec![HALF; stride];
        for mean in means {
            sums.fill(HALF);
            for (row, weight) in
                self.bytes[stride * (mean.first - first)..].chunks_exact(stride.max(1)).zip(&mean.weights)
            {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += i32::from(*x) * weight);
            }
            bytes.extend(sums.iter().map(|sum| byte(*sum)));
        }
        Picture { width: self.width, height: means.len(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Filter; 5] =
        [Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos];

    fn grey(width: usize, height: usize, of: impl Fn(usize, usize) -> u8) -> Picture {
        let bytes =
            (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).flat_map(|(x, y)| [of(x, y); 3]);
        Picture { width, height, bytes: bytes.collect() }
    }

    /// All of the resized image.
    fn resized(picture: &Picture, filter: Filter, width: usize, height: usize) -> Picture {
        let all = |to| Resize { to, part: 0..to };
        picture.resized(filter, all(width), all(height), usize::MAX).unwrap()
    }

    #[test]
    fn one_colour_stays_one_colour() {
        for (filter, (width, height)) in
            ALL.into_iter().flat_map(|f| [(1, 1), (3, 90), (64, 5)].map(|s| (f, s)))
        {
            let made = resized(&grey(17, 29, |_, _| 200), filter, width, height);
            assert_eq!(made, grey(width, height, |_, _| 200), "{filter:?}");
        }
    }

    #[test]
    fn what_has_the_size_already_stays_as_it_is() {
        let picture = grey(7, 5, |x, y| (x * 31 + y * 7) as u8);
        assert_eq!(resized(&picture, Filter::Lanczos, 7, 5), picture);
    }

    #[test]
    fn a_part_is_that_of_the_whole() {
        let picture = grey(37, 23, |x, y| ((x * 89 + y * 57) % 256) as u8);
        for (filter, (width, height)) in
            ALL.into_iter().flat_map(|f| [(11, 9), (90, 61), (37, 8), (90, 23)].map(|s| (f, s)))
        {
            let whole = resized(&picture, filter, width, height);
            for (across, down) in [(0..1, 0..1), (3..11, 2..8), (width - 1..width, height - 3..height)] {
                let want: Vec<u8> = down
                    .clone()
                    .flat_map(|y| whole.bytes[3 * y * width..][3 * across.start..3 * across.end].to_vec())
                    .collect();
                let want = Picture { width: across.len(), height: down.len(), bytes: want };
                let (across, down) = (Resize { to: width, part: across }, Resize { to: height, part: down });
                let made = picture.resized(filter, across, down, usize::MAX);
                assert_eq!(made, Some(want), "{filter:?}, {width} x {height}");
            }
        }
    }

    #[test]
    fn the_image_between_the_passes_has_a_limit() {
        let picture = grey(3, 100, |_, _| 7);
        // The rows of one row's mean are all that is needed: 8 of them, and 40 columns.
        let made = |most| {
            let (across, down) = (Resize { to: 40, part: 0..40 }, Resize { to: 25, part: 12..13 });
            picture.resized(Filter::Bilinear, across, down, most)
        };
        assert_eq!(made(8 * 40), Some(grey(40, 1, |_, _| 7)));
        assert_eq!(made(8 * 40 - 1), None);
    }

    /// Computed by hand, for two pixels 0 and 255, and for four.
    #[test]
    fn means_are_those_of_the_formulas() {
        let row = |filter, from: &[u8], to: usize| {
            let made = resized(&grey(from.len(), 1, |x, _| from[x]), filter, to, 1);
            made.bytes.iter().step_by(3).copied().collect::<Vec<_>>()
        };
        assert_eq!(row(Filter::Box, &[0, 255], 1), [128]);
        assert_eq!(row(Filter::Box, &[10, 20, 30, 50], 2), [15, 40]);
        assert_eq!(row(Filter::Bilinear, &[0, 255], 4), [0, 64, 191, 255]);
        // A pixel at distance 1/4 has weight 111/128, at 3/4 29/128: 255 * 29 / 140 is 52.8. Pixels outside have no
        // weight.
        assert_eq!(row(Filter::Bicubic, &[0, 255], 4)[1..3], [53, 202]);
        // Overshoot is clamped.
        assert_eq!(row(Filter::Bicubic, &[0, 0, 255, 255], 8)[1..3], [0, 0]);
    }

    /// Every output is within rounding error of the filter computed in floating point.
    #[test]
    fn rounding_is_all_that_is_between_this_and_real_numbers() {
        let picture = grey(37, 23, |x, y| ((x * 89 + y * 57) % 256) as u8);
        for (filter, (width, height)) in
            ALL.into_iter().flat_map(|f| [(11, 23), (90, 23), (37, 8), (37, 61)].map(|s| (f, s)))
        {
            let made = resized(&picture, filter, width, height);
            let across = width != 37;
            let (from, to) = if across { (37, width) } else { (23, height) };
            let scale = from as f64 / to as f64;
            for i in 0..to {
                let weight =
                    |at: usize| filter.weight((at as f64 + 0.5 - (i as f64 + 0.5) * scale) / scale.max(1.0));
                let all: f64 = (0..from).map(weight).sum();
                let pixel = |p: &Picture, at: usize| {
                    f64::from(p.bytes[3 * if across { 4 * p.width + at } else { at * p.width + 4 }])
                };
                let want: f64 = (0..from).map(|at| weight(at) * pixel(&picture, at)).sum::<f64>() / all;
                let got = pixel(&made, i);
                assert!((got - want.clamp(0.0, 255.0)).abs() < 0.51, "{filter:?} {i}: {got}, not {want}");
            }
        }
    }
}
