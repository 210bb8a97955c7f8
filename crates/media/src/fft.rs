//! [`Spectrum`]: power spectrum of a few hundred real samples by a mixed-radix FFT.
//!
//! Pairs of real samples are packed into complex numbers, so a transform of half the length suffices; it is a Stockham
//! FFT (self-sorting) with radices 5, 4 and 2. Computed in f64: the result equals a direct sum up to rounding.

use std::f64::consts::PI;

/// Complex number [re, im].
type Complex = [f64; 2];

/// FFT plan for a fixed number of samples, with precomputed twiddle factors.
#[derive(Debug, Clone)]
pub(super) struct Spectrum {
    steps: Vec<Step>,
    /// Twiddle factors exp(-2πik / len) of the final split: [len / 2]
    twiddles: Vec<Complex>,
}

/// An FFT stage: butterflies of one radix.
#[derive(Debug, Clone)]
struct Step {
    radix: usize,
    /// Adjacent elements with the same twiddle factors.
    stride: usize,
    /// Twiddle factors of each butterfly: [groups, radix]
    twiddles: Vec<Complex>,
}

/// Scratch buffers of a transform.
#[derive(Debug, Clone)]
pub(super) struct Scratch {
    from: Vec<Complex>,
    to: Vec<Complex>,
}

impl Spectrum {
    /// Plan for `len` samples; `len / 2` must be a product of 5s, 4s and 2s.
    pub(super) fn new(len: usize) -> Spectrum {
        let (mut steps, mut left, mut stride) = (Vec::new(), len / 2, 1);
        for radix in [5, 4, 2] {
            while left.is_multiple_of(radix) {
                let twiddle = |p: usize| (0..radix).map(move |k| twiddle((p * k) as f64 / left as f64));
                let twiddles = (0..left / radix).flat_map(twiddle).collect();
                steps.push(Step { radix, stride, twiddles });
                (left, stride) = (left / radix, stride * radix);
            }
        }
        debug_assert!(left == 1 && len.is_multiple_of(2), "{len} samples have no such transform");
        Spectrum { steps, twiddles: (0..len / 2).map(|k| twiddle(k as f64 / len as f64)).collect() }
    }

    /// Scratch for [`Self::powers`].
    pub(super) fn scratch(&self) -> Scratch {
        let empty = vec![[0.0; 2]; self.twiddles.len()];
        Scratch { from: empty.clone(), to: empty }
    }

    /// Power at each frequency from 0 to Nyquist: `len / 2 + 1` values.
    pub(super) fn powers(&self, samples: &[f64], scratch: &mut Scratch, powers: &mut [f64]) {
        let Scratch { from, to } = scratch;
        from.iter_mut().zip(samples.as_chunks::<2>().0).for_each(|(a, b)| *a = *b);
        for step in &self.steps {
            match step.radix {
                5 => step.run::<5>(from, to, five),
                4 => step.run::<4>(from, to, four),
                _ => step.run::<2>(from, to, |[a, b]| [add(a, b), sub(a, b)]),
            }
            std::mem::swap(from, to);
        }
        // Separates the even and odd samples' spectra of the packed transform by its symmetry.
        let half = from.len();
        for (k, twiddle) in self.twiddles.iter().enumerate() {
            let (a, b) = (from[k], from[(half - k) % half]);
            let (even, odd) = ([a[0] + b[0], a[1] - b[1]], [a[1] + b[1], b[0] - a[0]]);
            let odd = mul(odd, *twiddle);
            let (re, im) = (0.5 * (even[0] + odd[0]), 0.5 * (even[1] + odd[1]));
            powers[k] = re * re + im * im;
        }
        powers[half] = (from[0][0] - from[0][1]).powi(2);
    }
}

impl Step {
    fn run<const R: usize>(
        &self,
        from: &[Complex],
        to: &mut [Complex],
        butterfly: impl Fn([Complex; R]) -> [Complex; R],
    ) {
        let (stride, apart) = (self.stride, from.len() / R);
        let groups = to.chunks_exact_mut(stride * R).zip(self.twiddles.as_chunks::<R>().0);
        for (group, (to, twiddles)) in groups.enumerate() {
            for i in 0..stride {
                let at = group * stride + i;
                let all = butterfly(std::array::from_fn(|j| from[at + j * apart]));
                for (k, (number, twiddle)) in all.into_iter().zip(twiddles).enumerate() {
                    to[k * stride + i] = mul(number, *twiddle);
                }
            }
        }
    }
}

/// exp(-2πi share).
fn twiddle(share: f64) -> Complex {
    let angle = -2.0 * PI * share;
    [angle.cos(), angle.sin()]
}

fn add(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn sub(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

fn mul(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// Multiplied by -i.
fn quarter(a: Complex) -> Complex {
    [a[1], -a[0]]
}

fn four([a, b, c, d]: [Complex; 4]) -> [Complex; 4] {
    let (even, odd) = ((add(a, c), sub(a, c)), (add(b, d), quarter(sub(b, d))));
    [add(even.0, odd.0), add(even.1, odd.1), sub(even.0, odd.0), sub(even.1, odd.1)]
}

fn five([a, b, c, d, e]: [Complex; 5]) -> [Complex; 5] {
    // cos and sin of 2π/5 and 4π/5.
    const C1: f64 = 0.309_016_994_374_947_45;
    const C2: f64 = -0.809_016_994_374_947_5;
    const S1: f64 = 0.951_056_516_295_153_5;
    const S2: f64 = 0.587_785_252_292_473_1;
    let mix = |x: Complex, p: f64, y: Complex, q: f64| [x[0] * p + y[0] * q, x[1] * p + y[1] * q];
    let (be, cd) = (add(b, e), add(c, d));
    let (one, two) = (add(a, mix(be, C1, cd, C2)), add(a, mix(be, C2, cd, C1)));
    let (b_e, c_d) = (sub(b, e), sub(c, d));
    let (first, second) = (quarter(mix(b_e, S1, c_d, S2)), quarter(mix(b_e, S2, c_d, -S1)));
    [add(a, add(be, cd)), add(one, first), add(two, second), sub(two, second), sub(one, first)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_plain_sums() {
        for len in [4, 8, 10, 20, 40, 160, 400, 512] {
            let samples: Vec<f64> =
                (0..len).map(|n| ((n * n * 7 + 3 * n) % 101) as f64 / 50.0 - 1.0).collect();
            let spectrum = Spectrum::new(len);
            let (mut scratch, mut powers) = (spectrum.scratch(), vec![0.0; len / 2 + 1]);
            // Scratch may be reused.
            for _ in 0..2 {
                spectrum.powers(&samples, &mut scratch, &mut powers);
            }
            for (k, power) in powers.iter().enumerate() {
                let terms = samples.iter().enumerate().map(|(n, x)| {
                    let [cos, sin] = twiddle((n * k % len) as f64 / len as f64);
                    [x * cos, x * sin]
                });
                let [re, im] = terms.fold([0.0; 2], add);
                let want = re * re + im * im;
                assert!((power - want).abs() <= 1e-11 * want.max(1.0), "{len}, {k}: {power} and not {want}");
            }
        }
    }
}
