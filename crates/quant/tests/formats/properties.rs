//! Properties that hold for every format, any bytes and any weights.

use proptest::collection::vec;
use proptest::prelude::*;
use tallow_quant::{Format, SizeError, pack, unpack};

use super::{packed, unpacked};

/// Bit patterns with all NaNs replaced by one: which NaN arithmetic produces is up to the processor.
fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| if w.is_nan() { f32::NAN.to_bits() } else { w.to_bits() }).collect()
}

/// The lossy formats.
fn quantised() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| !f.is_plain())
}

/// Weights for the largest block, of many distributions and any scale.
fn weights() -> impl Strategy<Value = Vec<f32>> {
    let unit = || vec(-1f32..1.0, 256);
    let shapes = prop_oneof![
        // Like a trained tensor: a sum of three uniforms.
        (unit(), unit(), unit()).prop_map(|(a, b, c)| (0..256).map(|i| a[i] + b[i] + c[i]).collect()),
        unit(),
        (-1f32..1.0).prop_map(|x| vec![x; 256]),
        // A few outliers among small weights.
        (unit(), vec(0usize..256, 1..6), 1e-4f32..0.1).prop_map(|(x, large, small)| {
            (0..256).map(|i| if large.contains(&i) { x[i] } else { small * x[i] }).collect()
        }),
        // Sub-blocks of different magnitude.
        (unit(), vec(1e-4f32..1.0, 16)).prop_map(|(x, size)| (0..256).map(|i| x[i] * size[i / 16]).collect()),
        // Many zeros.
        unit().prop_map(|x| x.iter().map(|x| if *x < 0.5 { 0.0 } else { x - 0.75 }).collect()),
        // Few distinct values.
        vec(prop::sample::select(vec![-1f32, -0.25, 0.0, 0.5, 0.75]), 256),
        Just(vec![0.0; 256]),
        vec(any::<f32>().prop_filter("finite", |x| x.is_finite()), 256),
    ];
    let scales =
        prop_oneof![8 => (-6f32..6.0).prop_map(|e| 10f32.powf(e)), 1 => Just(1e-40), 1 => Just(1e32)];
    let scaled = |(x, s): (Vec<f32>, f32)| x.iter().map(|x| (x * s).clamp(f32::MIN, f32::MAX)).collect();
    (shapes, scales).prop_map(scaled)
}

/// Largest error of a weight that is in range, relative to the block's largest weight: one and a half to two times the
/// largest seen in about a hundred million weights of each format. Packing minimises the squared error, so a single
/// weight may be off by more than half a step.
fn tolerance(format: Format) -> f32 {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => 0.0,
        Format::Q4_0 => 0.28,
        Format::Q4_1 => 0.24,
        Format::Q5_0 => 0.15,
        Format::Q5_1 => 0.15,
        Format::Q8_0 => 0.015,
        Format::Q2K => 0.85,
        Format::Q3K => 0.5,
        Format::Q4K => 0.24,
        Format::Q5K => 0.13,
        Format::Q6K => 0.05,
        Format::Q8K => 0.01,
        Format::IQ4NL => 0.25,
        Format::IQ4XS => 0.25,
        Format::MXFP4 | Format::NVFP4 => 0.35,
        Format::F8 => 0.1,
        Format::U4G32 | Format::U4G64 | Format::U4G128 => 0.4,
        Format::IQ1S | Format::IQ1M => 1.4,
        Format::IQ2XXS | Format::IQ2XS | Format::IQ3XXS => 1.4,
        Format::IQ2S | Format::IQ3S => 1.0,
        // The scale is the mean of the larger magnitudes, or of all.
        Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 | Format::Q2_0 => 1.0,
    }
}

/// The largest magnitude that the largest scale can represent, in both directions.
fn reach(format: Format) -> f32 {
    let codes = match format {
        Format::Q4_0 | Format::U4G32 | Format::U4G64 | Format::U4G128 => 7.0,
        Format::Q5_0 => 15.0,
        Format::Q8_0 => 127.0,
        Format::IQ4NL => 113.0,
        Format::Q4_1 | Format::Q5_1 => 1.0,
        Format::Q2K => 15.0,
        Format::Q4K | Format::Q5K => 63.0,
        Format::Q3K => 31.0 * 3.0,
        Format::Q6K => 127.0 * 31.0,
        Format::IQ4XS => 31.0 * 113.0,
        Format::IQ1S | Format::IQ1M => 15.0 * 7.0 / 8.0,
        Format::IQ2XXS | Format::IQ2XS | Format::IQ2S => 31.0 * 43.0 / 8.0,
        Format::IQ3XXS => 31.0 * 62.0 / 4.0,
        Format::IQ3S => 31.0 * 15.0,
        Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 | Format::Q2_0 => 1.0,
        Format::NVFP4 => return 448.0 * 6.0,
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8K | Format::MXFP4 | Format::F8 => {
            return f32::INFINITY;
        }
    };
    65504.0 * codes
}

fn check_block(format: Format, weights: &[f32]) {
    let got = unpacked(format, &packed(format, weights));
    let largest = weights.iter().fold(0f32, |largest, w| largest.max(w.abs()));
    // Scales are f16, whose smallest step limits the precision of tiny weights; a code is up to 127 of them.
    let smallest_step = match format {
        Format::NVFP4 => 2f32.powi(-10),
        _ if reach(format).is_finite() => 64.0 * 2f32.powi(-24),
        _ => f32::MIN_POSITIVE,
    };
    let bound = tolerance(format) * largest + smallest_step + (largest - reach(format)).max(0.0);
    for (got, want) in got.iter().zip(weights) {
        assert!(got.is_finite(), "{format}: {want} became {got}");
        let off = (f64::from(*got) - f64::from(*want)).abs();
        assert!(off <= f64::from(bound), "{format}: {want} became {got}, largest {largest}");
        let has_zero = !matches!(
            format,
            Format::Q1_0
                | Format::Q4_1
                | Format::Q5_1
                | Format::Q2K
                | Format::Q4K
                | Format::Q5K
                | Format::IQ1S
                | Format::IQ1M
                | Format::IQ2XXS
                | Format::IQ2XS
                | Format::IQ2S
                | Format::IQ3XXS
                | Format::IQ3S
                | Format::IQ4NL
                | Format::IQ4XS
        );
        assert!(!has_zero || *want != 0.0 || *got == 0.0, "{format}: zero became {got}");
        assert!(largest > 0.0 || got.to_bits() == 0, "{format}: zeros became {got}");
    }
}

proptest! {
    #[test]
    fn packing_stays_within_bounds(weights in weights()) {
        for format in quantised() {
            weights.chunks(format.block_weights()).for_each(|block| check_block(format, block));
        }
    }

    #[test]
    fn what_is_not_finite_counts_as_zero_or_as_the_largest(
        weights in weights(),
        odd in vec((0usize..256, any::<bool>(), any::<bool>()), 1..8),
    ) {
        let (mut given, mut meant) = (weights.clone(), weights);
        for (at, nan, negative) in odd {
            let (of, becomes) = if nan { (f32::NAN, 0.0) } else { (f32::INFINITY, f32::MAX) };
            (given[at], meant[at]) = if negative { (-of, -becomes) } else { (of, becomes) };
        }
        for format in quantised() {
            let got = packed(format, &given);
            prop_assert_eq!(&got, &packed(format, &meant), "{}", format);
            prop_assert!(unpacked(format, &got).iter().all(|w| w.is_finite()), "{}", format);
        }
    }

    /// Also shows that `unpack` never panics, and that bytes need no alignment.
    #[test]
    fn blocks_do_not_depend_on_each_other(bytes in vec(any::<u8>(), 1 + 3 * 292), weights in weights()) {
        for format in Format::ALL {
            let (block, size) = (format.block_bytes(), format.block_weights());
            let row = &bytes[1..1 + 3 * block];
            let each: Vec<f32> = row.chunks(block).flat_map(|b| unpacked(format, b)).collect();
            prop_assert_eq!(bits(&unpacked(format, row)), bits(&each), "{}", format);

            let row = [&weights[..size], &vec![1.0; size], &weights[256 - size..]].concat();
            let each: Vec<u8> = row.chunks(size).flat_map(|b| packed(format, b)).collect();
            prop_assert_eq!(packed(format, &row), each, "{}", format);
        }
    }

    /// Including random scales that are NaN, infinite or huge: bitwise the same values for every instruction set.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn vector_code_gives_the_same_bits(bytes in vec(any::<u8>(), 5 * 292)) {
        for format in Format::ALL {
            let row = &bytes[..5 * format.block_bytes()];
            let want = unpacked(format, row);
            for unpack in x86::wrappers() {
                let mut got = vec![0.0; want.len()];
                unpack(format, row, &mut got).unwrap();
                prop_assert_eq!(bits(&got), bits(&want), "{}", format);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use tallow_quant::{Format, SizeError, unpack_as, with_block};

    #[target_feature(enable = "avx2,fma,f16c")]
    fn with_avx2(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
        with_block!(format, B => unpack_as::<B>(bytes, out))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn with_avx512(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
        with_block!(format, B => unpack_as::<B>(bytes, out))
    }

    pub(super) type Unpack = fn(Format, &[u8], &mut [f32]) -> Result<(), SizeError>;

    pub(super) fn wrappers() -> Vec<Unpack> {
        let mut found: Vec<Unpack> = Vec::new();
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if avx2 {
            // SAFETY: the CPU supports the features: checked in the condition above.
            found.push(|format, bytes, out| unsafe { with_avx2(format, bytes, out) });
        }
        if avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the CPU supports the features: checked in the condition above.
            found.push(|format, bytes, out| unsafe { with_avx512(format, bytes, out) });
        }
        found
    }
}

#[test]
fn sizes_must_agree() {
    for format in Format::ALL {
        let (block, size) = (format.block_bytes(), format.block_weights());
        for (bytes, weights) in [
            (block - 1, size),
            (block + 1, size),
            (block, 2 * size),
            (2 * block, size),
            (0, size),
            (block, 0),
        ] {
            let want = Err(SizeError { format, bytes, weights });
            assert_eq!(unpack(format, &vec![0; bytes], &mut vec![0.0; weights]), want);
            assert_eq!(pack(format, &vec![0.0; weights], &mut vec![0; bytes]), want);
        }
        assert_eq!(unpack(format, &[], &mut []), Ok(()));
        assert_eq!(pack(format, &[], &mut []), Ok(()));
    }
}

#[test]
fn size_errors_say_what_would_fit() {
    let message = |bytes, weights| SizeError { format: Format::Q4K, bytes, weights }.to_string();
    assert_eq!(message(5, 512), "512 weights in Q4_K are 288 bytes, not 5");
    assert_eq!(message(144, 100), "100 weights are not whole blocks of Q4_K, which are 256");
}

/// An imatrix reduces the errors of important weights at the cost of the rest.
#[test]
fn what_counts_is_kept_more_exactly() {
    use Format::*;
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1 << 24) as f32
    };
    let weights: Vec<f32> = (0..4096).map(|_| random() + random() + random() - 1.5).collect();
    let counts: Vec<f32> = (0..4096).map(|i| if i % 7 == 0 { 50.0 } else { 1.0 }).collect();
    let whole = [Q2K, Q3K, Q4K, Q5K, Q4_0, Q4_1, Q5_0, IQ4NL, IQ4XS, TQ2_0, MXFP4, Q1_0, Q2_0];
    let own = [U4G32, U4G64, U4G128];
    let of_books = [IQ1S, IQ1M, IQ2XXS, IQ2XS, IQ2S, IQ3XXS, IQ3S];
    for format in whole.into_iter().chain(own).chain(of_books) {
        let mut bytes = vec![0; format.row_bytes(weights.len()).unwrap()];
        let mut error = |care: &[f32]| {
            tallow_quant::pack_with(format, &weights, care, &mut bytes).unwrap();
            let mut back = vec![0.0; weights.len()];
            unpack(format, &bytes, &mut back).unwrap();
            let squares = weights.iter().zip(&back).map(|(a, b)| (a - b).powi(2));
            squares.zip(&counts).map(|(e, count)| e * count).sum::<f32>()
        };
        let (with, without) = (error(&counts), error(&vec![1.0; weights.len()]));
        assert!(with < 0.99 * without, "{format}: {with} and {without}");
        // Only the ratios of importance matter, and a row of zero importance is packed as without an imatrix.
        let more: Vec<f32> = counts.iter().map(|c| 1024.0 * c).collect();
        assert_eq!(error(&more), with, "{format}");
        assert_eq!(error(&vec![0.0; weights.len()]), without, "{format}");
    }
}
