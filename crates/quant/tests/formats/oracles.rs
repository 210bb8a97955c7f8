//! Formats without reference blocks, against independent definitions.

use half::{bf16, f16};
use proptest::prelude::*;
use tallow_quant::Format;

use super::{packed, unpacked};

#[test]
fn every_half_is_what_the_half_crate_says() {
    for bits in 0..=u16::MAX {
        let bytes = bits.to_le_bytes();
        for (format, want) in
            [(Format::F16, f16::from_bits(bits).to_f32()), (Format::BF16, bf16::from_bits(bits).to_f32())]
        {
            let got = unpacked(format, &bytes)[0];
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{format} {bits:#06x}: {got} is not {want}");
            if !want.is_nan() {
                assert_eq!(packed(format, &[want]), bytes, "{format} {bits:#06x}");
            }
        }
    }
}

#[test]
fn a_bf16_keeps_its_nan() {
    assert_eq!(unpacked(Format::BF16, &[0x81, 0xff])[0].to_bits(), 0xff81_0000);
}

#[test]
fn plain_formats_keep_what_is_not_finite() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        let there_and_back = |x: f32| unpacked(format, &packed(format, &[x]))[0];
        assert_eq!(there_and_back(f32::INFINITY), f32::INFINITY);
        assert_eq!(there_and_back(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(there_and_back(f32::NAN).is_nan());
    }
    assert_eq!(unpacked(Format::F16, &packed(Format::F16, &[65520.0]))[0], f32::INFINITY);
}

/// Every code of F8_E4M3 as in the OCP 8-bit floating point specification, except for its two NaN codes.
#[test]
fn f8_is_the_specifications() {
    let value = |code: u8| {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude =
            if exponent == 0 { fraction / 512.0 } else { (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7) };
        if code < 128 { magnitude } else { -magnitude }
    };
    for d in [1.0f32, 0.0123, -3.5e-4, 1e30] {
        for code in 0..=255u8 {
            let block = [&d.to_le_bytes()[..], &[code; 32]].concat();
            let weights = unpacked(Format::F8, &block);
            let want = (f64::from(d) * value(code)) as f32;
            assert!(weights.iter().all(|w| *w == want), "{d} {code}: {weights:?}, not {want}");
        }
    }
}

/// Every zero point with every code, at every place of a block: the words of eight codes that they are, one by one.
#[test]
fn u4_is_a_scale_times_what_a_code_is_above_the_zero_point() {
    for (format, group) in [(Format::U4G32, 32), (Format::U4G64, 64), (Format::U4G128, 128)] {
        for d in [1.0f32, 0.012_3, -3.5e-4, 65504.0].map(f16::from_f32) {
            for (zero, turn) in (0..=255u8).flat_map(|zero| (0..16).map(move |turn| (zero, turn))) {
                let code = |i: usize| (i + i / 16 + turn) as u32 % 16;
                let bytes = d.to_le_bytes();
                let mut block = vec![bytes[0], bytes[1], zero, turn as u8];
                for word in 0..group / 8 {
                    let place = |j: usize| 8 * (j % 4) + 4 * (j / 4);
                    let word: u32 = (0..8).map(|j| code(8 * word + j) << place(j)).sum();
                    block.extend(word.to_le_bytes());
                }
                let weights = unpacked(format, &block);
                let want = |i: usize| f64::from(d.to_f32()) * (f64::from(code(i)) - f64::from(zero));
                assert!(
                    (0..group).all(|i| f64::from(weights[i]) == want(i)),
                    "{format} {d} {zero}: {weights:?}"
                );
            }
        }
    }
}

/// An FP4 (E2M1) value, as in the OCP microscaling formats specification.
fn fp4(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 1 & 3), f64::from(code & 1));
    let magnitude =
        if exponent == 0 { fraction / 2.0 } else { (1.0 + fraction / 2.0) * 2f64.powi(exponent - 1) };
    if code < 8 { magnitude } else { -magnitude }
}

/// Every exponent and code of MXFP4 as in the OCP microscaling formats specification, except for exponent 255, which
/// files treat like the others.
#[test]
fn mxfp4_is_the_specifications() {
    for e in 0..=255u8 {
        for code in 0..16 {
            let mut block = [code | (15 - code) << 4; 17];
            block[0] = e;
            let weights = unpacked(Format::MXFP4, &block);
            let want = |code| (fp4(code) * 2f64.powi(i32::from(e) - 127)) as f32;
            assert!(weights[..16].iter().all(|w| *w == want(code)), "{e} {code}: {weights:?}");
            assert!(weights[16..].iter().all(|w| *w == want(15 - code)), "{e} {code}: {weights:?}");
        }
    }
}

/// Every scale and code of NVFP4. Scales are E4M3 of the OCP 8-bit floating point specification, whose sign bit files
/// do not use; its one NaN is read as zero.
#[test]
fn nvfp4_is_the_specifications() {
    for scale in 0..=255u8 {
        let (exponent, fraction) = (i32::from(scale >> 3 & 15), f64::from(scale & 7) / 8.0);
        let e4m3 = match exponent {
            0 => fraction * 2f64.powi(-6),
            _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
        };
        let e4m3 = if scale == 127 { 0.0 } else { e4m3 };
        for code in 0..16 {
            let mut block = [0; 36];
            block[2] = scale;
            block[4 + 16..4 + 24].fill(code | (15 - code) << 4);
            let weights = unpacked(Format::NVFP4, &block);
            let want = |code| (fp4(code) * e4m3) as f32;
            assert!(weights[32..40].iter().all(|w| *w == want(code)), "{scale} {code}: {weights:?}");
            assert!(weights[40..48].iter().all(|w| *w == want(15 - code)), "{scale} {code}: {weights:?}");
            assert!(weights[..32].iter().chain(&weights[48..]).all(|w| *w == 0.0), "{scale} {code}");
        }
    }
}

proptest! {
    /// TQ1_0 and TQ2_0 differ in storage only.
    #[test]
    fn tq1_0_is_tq2_0(weights in prop::collection::vec(-3f32..3.0, 256)) {
        let [one, two] = [Format::TQ1_0, Format::TQ2_0].map(|f| unpacked(f, &packed(f, &weights)));
        prop_assert!(one.iter().any(|w| *w != 0.0));
        prop_assert_eq!(one, two);
    }

    /// A Q8_K block is eight Q8_0 blocks with the same scale.
    #[test]
    fn q8_k_is_q8_0_with_one_scale(d in any::<u16>(), codes in prop::collection::vec(any::<u8>(), 256)) {
        prop_assume!(!f16::from_bits(d).is_nan());
        let mut one = f16::from_bits(d).to_f32().to_le_bytes().to_vec();
        one.extend(&codes);
        one.extend([0xa5; 32]);
        let eight: Vec<u8> = codes.chunks(32).flat_map(|c| [&d.to_le_bytes(), c].concat()).collect();
        let bits = |weights: Vec<f32>| -> Vec<u32> {
            weights.iter().map(|w| if w.is_nan() { f32::NAN.to_bits() } else { w.to_bits() }).collect()
        };
        prop_assert_eq!(bits(unpacked(Format::Q8K, &one)), bits(unpacked(Format::Q8_0, &eight)));
    }

    #[test]
    fn q8_k_holds_the_sums_of_its_codes(weights in prop::collection::vec(-3f32..3.0, 256)) {
        let block = packed(Format::Q8K, &weights);
        for sub in 0..16 {
            let sum: i16 = block[4 + 16 * sub..20 + 16 * sub].iter().map(|&q| i16::from(q as i8)).sum();
            let at = 260 + 2 * sub;
            prop_assert_eq!([block[at], block[at + 1]], sum.to_le_bytes());
        }
    }

    #[test]
    fn f32_keeps_every_bit(bits in any::<u32>()) {
        let bytes = bits.to_le_bytes();
        prop_assert_eq!(unpacked(Format::F32, &bytes)[0].to_bits(), bits);
        prop_assert_eq!(packed(Format::F32, &[f32::from_bits(bits)]), bytes);
    }

    /// Round to nearest, ties to even.
    #[test]
    fn halves_are_the_nearest(bits in any::<u32>(), exponent in 100u32..143) {
        for (format, x) in [
            (Format::BF16, f32::from_bits(bits)),
            (Format::F16, f32::from_bits(bits & 0x807f_ffff | exponent << 23)),
            // Often exactly halfway between two.
            (Format::F16, f32::from_bits(bits & 0x807f_f000 | exponent << 23)),
            (Format::BF16, f32::from_bits(bits & 0xffff_8000)),
        ] {
            let largest = if format == Format::F16 { 65504.0 } else { 3e38 };
            if x.is_nan() || x.abs() > largest {
                continue;
            }
            let got = u16::from_le_bytes(packed(format, &[x]).try_into().unwrap());
            let off = |bits: u16| (f64::from(unpacked(format, &bits.to_le_bytes())[0]) - f64::from(x)).abs();
            let magnitude = got & 0x7fff;
            for near in [magnitude.saturating_sub(1), magnitude + 1].map(|m| m | got & 0x8000) {
                prop_assert!(off(got) <= off(near), "{format} {x}: {got:#06x} is farther than {near:#06x}");
                prop_assert!(off(got) < off(near) || got % 2 == 0 || near == got, "{format} {x}: {got:#06x} is odd");
            }
        }
    }
}
