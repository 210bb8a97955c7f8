//! Image resizing bit-exact with Pillow: models were trained on its output, including its rounding.
//!
//! Each output pixel is a weighted mean of the input pixels near its position. When downscaling, the filter support
//! grows with the scale (antialiasing). The horizontal pass runs first and rounds to bytes, then the vertical one;
//! weights are fixed-point.

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

/// Filter weights for resizing `from` pixels to `to`.
fn means(filter: Filter, from: usize, to: usize) -> Vec<Mean> {
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
    (0..to).map(mean).collect()
}

/// Fixed-point sum to a byte, clamped.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Initial value of sums, for rounding.
const HALF: i32 = 1 << (BITS - 1);

impl Picture {
    /// The image resized to `width` x `height`.
    pub fn resized(self, filter: Filter, width: usize, height: usize) -> Picture {
        let wide = if width == self.width { self } else { self.widened(filter, width) };
        if height == wide.height { wide } else { wide.heightened(filter, height) }
    }

    fn widened(&self, filter: Filter, width: usize) -> Picture {
        let means = means(filter, self.width, width);
        let mut bytes = Vec::with_capacity(3 * width * self.height);
        for row in self.bytes.chunks_exact((3 * self.width).max(1)) {
            for mean in &means {
                let mut sums = [HALF; 3];
                for (pixel, weight) in row[3 * mean.first..].chunks_exact(3).zip(&mean.weights) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += i32::from(*x) * weight);
                }
                bytes.extend(sums.map(byte));
            }
        }
        Picture { width, height: self.height, bytes }
    }

    fn heightened(&self, filter: Filter, height: usize) -> Picture {
        let stride = 3 * self.width;
        let mut bytes = Vec::with_capacity(stride * height);
        let mut sums = vec![HALF; stride];
        for mean in means(filter, self.height, height) {
            sums.fill(HALF);
            for (row, weight) in
                self.bytes[stride * mean.first..].chunks_exact(stride.max(1)).zip(&mean.weights)
            {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += i32::from(*x) * weight);
            }
            bytes.extend(sums.iter().map(|sum| byte(*sum)));
        }
        Picture { width: self.width, height, bytes }
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

    #[test]
    fn one_colour_stays_one_colour() {
        for (filter, (width, height)) in
            ALL.into_iter().flat_map(|f| [(1, 1), (3, 90), (64, 5)].map(|s| (f, s)))
        {
            let made = grey(17, 29, |_, _| 200).resized(filter, width, height);
            assert_eq!(made, grey(width, height, |_, _| 200), "{filter:?}");
        }
    }

    #[test]
    fn what_has_the_size_already_stays_as_it_is() {
        let picture = grey(7, 5, |x, y| (x * 31 + y * 7) as u8);
        assert_eq!(picture.clone().resized(Filter::Lanczos, 7, 5), picture);
    }

    /// Computed by hand, for two pixels 0 and 255, and for four.
    #[test]
    fn means_are_those_of_the_formulas() {
        let row = |filter, from: &[u8], to: usize| {
            let made = grey(from.len(), 1, |x, _| from[x]).resized(filter, to, 1);
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
            let made = picture.clone().resized(filter, width, height);
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
