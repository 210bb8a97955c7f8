//! Quantization of floats to 8-bit codes. Plain code, which the compiler vectorizes where the instruction set is
//! enabled.

use crate::simd::F8;

/// Largest magnitude; NaN or infinite if any element is.
#[inline(always)]
pub(crate) fn magnitude(x: &[f32], most: &mut f32) {
    // Bits of magnitudes order like their values, and NaN is above all.
    *most = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
}

/// Scale of codes up to `reach` for values up to `most`, and the factor from values to codes.
#[inline(always)]
pub(crate) fn scale_of(most: f32, reach: f32) -> (f32, f32) {
    let by = reach / most;
    // If `most` is so small that this overflows, all codes are zero. NaN and infinities give a NaN scale.
    match by.is_finite() {
        true if most.is_finite() => (most / reach, by),
        _ => (if most.is_finite() { 0.0 } else { f32::NAN }, 0.0),
    }
}

/// Rounds `x * by` to the nearest integer from -127 to 127, ties to even.
#[inline(always)]
pub(crate) fn to_i8(x: &[f32], by: f32, out: &mut [i8]) {
    // Adding 1.5 * 2^23 rounds to an integer, in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    out.iter_mut().zip(x).for_each(|(out, x)| *out = (x * by + SHIFT).to_bits() as i8);
}

/// Rounds `x * by` to the nearest f8 (e4m3), ties to even.
#[inline(always)]
pub(crate) fn to_f8(x: &[f32], by: f32, out: &mut [F8]) {
    // Below 2⁻⁶, the smallest normal e4m3, values are multiples of the smallest subnormal.
    const NORMAL: u32 = (1.0f32 / 64.0).to_bits();
    const SMALLEST: f32 = 1.0 / 512.0;
    // Adding this rounds to a multiple of the smallest subnormal, in the lowest bits.
    const SHIFT: f32 = 12_582_912.0 * SMALLEST;
    const MOST: u32 = 0x7e;
    out.iter_mut().zip(x).for_each(|(out, x)| {
        let bits = (x * by).to_bits();
        let (size, sign) = (bits & 0x7fff_ffff, bits >> 24 & 0x80);
        // Keeps three mantissa bits and rebases the exponent.
        let normal = (size.wrapping_add(0x7_ffff + (size >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
        let small = (f32::from_bits(size) + SHIFT).to_bits() & 0xff;
        let code = if size < NORMAL { small } else { normal.min(MOST) };
        *out = F8((code | sign) as u8);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(code: F8) -> f32 {
        code.half().to_f32() * F8::OF_HALF
    }

    fn all() -> impl Iterator<Item = F8> {
        (0..=0xff).map(F8).filter(|code| code.0 & 0x7f != 0x7f)
    }

    /// By definition: sign, exponent minus 7, mantissa; no implicit one if the exponent is zero.
    fn defined(code: F8) -> f64 {
        let (exponent, digits) = (i32::from(code.0 >> 3 & 15), f64::from(code.0 & 7));
        let size = match exponent {
            0 => digits / 8.0 * 2f64.powi(-6),
            e => (1.0 + digits / 8.0) * 2f64.powi(e - 7),
        };
        if code.0 & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn codes_stand_for_what_they_should() {
        assert!(all().all(|code| f64::from(value(code)) == defined(code)));
        assert_eq!(all().map(value).fold(0.0, f32::max), 448.0);
    }

    #[test]
    fn the_nearest_code_is_taken_and_the_even_one_of_two() {
        let mut x: Vec<f32> = (-4480..=4480).map(|i| i as f32 / 10.0).collect();
        // All codes, the midpoints between neighbours, and the floats next to those.
        let mut values: Vec<f32> = all().map(value).collect();
        values.sort_by(f32::total_cmp);
        for pair in values.windows(2) {
            let half = (pair[0] + pair[1]) / 2.0;
            x.extend([pair[0], half, half.next_up(), half.next_down(), half / 64.0, half / 63.0]);
        }
        x.extend([1e-30, -1e-30, 2e-3, 448.0, -448.0, 460.0, 1e9]);
        let mut codes = vec![F8(0); x.len()];
        to_f8(&x, 1.0, &mut codes);
        for (x, code) in x.iter().zip(codes) {
            let far = |code: F8| (defined(code) - f64::from(x.clamp(-448.0, 448.0))).abs();
            let least = all().map(far).fold(f64::INFINITY, f64::min);
            let ties = all().filter(|c| far(*c) == least && c.0 & 0x7f != 0).count();
            assert!(far(code) == least && (ties < 2 || code.0 & 1 == 0), "{x} became {code:?}");
        }
    }

    #[test]
    fn whole_numbers_are_the_nearest() {
        let x: Vec<f32> = (-1270..=1270).map(|i| i as f32 / 20.0).collect();
        let mut codes = vec![0; x.len()];
        to_i8(&x, 2.0, &mut codes);
        assert!(x.iter().zip(codes).all(|(x, code)| f32::from(code) == (2.0 * x).round_ties_even()));
    }

    #[test]
    fn what_is_not_finite_shows() {
        let most = |x: &[f32]| {
            let mut most = 0.0;
            magnitude(x, &mut most);
            most
        };
        assert_eq!(most(&[]), 0.0);
        assert_eq!(most(&[0.5, -3.0, 2.0]), 3.0);
        assert!(most(&[1.0, f32::NAN, f32::INFINITY]).is_nan());
        assert_eq!(most(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
    }
}
