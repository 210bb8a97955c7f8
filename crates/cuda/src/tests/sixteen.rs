//! Products of weights that are floats of 16 or 8 bits in [`Arithmetic::Fast`](tallow_core::Arithmetic::Fast): an oracle in `f64` of
//! input that is rounded to 16 bits, and the bits of a row alone in any number of rows.

use half::{bf16, f16};
use tallow_core::ops::{Epilogue, Ffn, Linear, LinearMany};
use tallow_core::{Activation, Backend, Format, LinearWeights, Memory, Norm, NormKind, Tensor};
use tallow_ptx::mock::{self, Machine};

use super::open;
use super::products::{Case, floats, same};
use crate::Cuda;

pub(super) const FORMATS: [Format; 3] = [Format::F16, Format::BF16, Format::F8];
/// Inputs that share a factor in f16.
const SEGMENT: usize = 64;

fn device() -> Cuda {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    b
}

fn down(b: &Cuda, y: tallow_core::Result<Tensor<Cuda>>) -> Vec<f32> {
    let y = y.unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()));
    b.download(&y).unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()))
}

fn product(b: &Cuda, layer: &LinearWeights<Cuda>, x: &[f32]) -> Vec<f32> {
    let cols = layer.weight.cols();
    let x = b.upload(x, x.len() / cols, cols).unwrap();
    down(b, b.run(Linear { x: &x, weights: layer, epilogue: Epilogue::NONE }))
}

/// A row of x as the kernels round it.
pub(super) fn rounded(format: Format, row: &[f32]) -> Vec<f32> {
    if format != Format::F16 {
        return row.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    }
    let of_segment = |x: &[f32]| {
        let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let by = f64::from(141 - (most.to_bits() >> 23).max(15) as i32).exp2();
        let round = |x: &f32| (f16::from_f32((f64::from(*x) * by) as f32).to_f64() / by) as f32;
        x.iter().map(round).collect::<Vec<_>>()
    };
    row.chunks(SEGMENT).flat_map(of_segment).collect()
}

/// Compares products with those in `f64`.
fn check(b: &Cuda, format: Format, (outputs, inputs): (usize, usize), x: &[f32]) {
    let case = Case::of_numbers(format, outputs, inputs);
    let weights = case.numbers();
    let got = product(b, &case.layer(b), x);
    for (r, row) in x.chunks_exact(inputs).enumerate() {
        let row = rounded(format, row);
        for o in 0..outputs {
            let products = row.iter().zip(&weights[o * inputs..]).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let got = f64::from(got[r * outputs + o]);
            assert!(
                (got - sum).abs() <= 1e-6 * size,
                "{format} [{outputs}, {inputs}] at {r}, {o}: {got} for {sum}"
            );
        }
    }
}

#[test]
fn products_are_those_of_rounded_input() {
    let b = device();
    for format in FORMATS {
        for inputs in [1, 40, 96, 289, 640, 1056] {
            let inputs = inputs / format.block_weights() * format.block_weights();
            for rows in [1, 9, 33].into_iter().filter(|_| inputs > 0) {
                mock::seed(rows as u64);
                check(&b, format, (50, inputs), &floats(rows as u32, rows * inputs));
            }
        }
    }
}

/// Rows of other magnitudes than f16 has, in one and the same segment and in several.
#[test]
fn no_magnitude_is_too_large_or_too_small() {
    let b = device();
    for format in FORMATS {
        for by in [1e30f32, 1e5, 1e-20, 1e-30] {
            let mut x = floats(3, 2 * 320);
            x.iter_mut().for_each(|x| *x *= by);
            x[320..384].iter_mut().for_each(|x| *x *= 1e-6);
            check(&b, format, (20, 320), &x);
        }
        let layer = Case::of_numbers(format, 20, 320).layer(&b);
        let mut x = floats(3, 3 * 320);
        x[320..640].fill(0.0);
        x[700] = f32::INFINITY;
        let y = product(&b, &layer, &x);
        assert!(y[20..40].iter().all(|y| *y == 0.0) && y[40..].iter().all(|y| !y.is_finite()));
        assert!(y[..20].iter().all(|y| y.is_finite()));
    }
}

#[test]
fn a_row_alone_has_the_bits_of_the_row_in_a_batch() {
    let b = device();
    for format in FORMATS {
        for inputs in [96, 672] {
            let layer = Case::of_numbers(format, 37, inputs).layer(&b);
            let x = floats(5, 70 * inputs);
            let alone: Vec<f32> = x.chunks_exact(inputs).flat_map(|x| product(&b, &layer, x)).collect();
            for rows in [3, 8, 9, 16, 17, 32, 33, 64, 70] {
                mock::seed(rows as u64);
                let got = product(&b, &layer, &x[..rows * inputs]);
                same(&got, &alone[..rows * 37], || format!("{format}, {rows} rows of {inputs}"));
            }
        }
    }
}

/// Enough outputs for tiles of 64 rows: side by side behind a norm, and a block's gate and up.
#[test]
fn tiles_have_the_bits_of_few_rows() {
    let b = device();
    for (format, inputs) in [(Format::F16, 200), (Format::BF16, 72), (Format::BF16, 584), (Format::F8, 352)] {
        let (rows, width) = (130, 1400);
        let all = b.upload(&floats(7, rows * inputs), rows, inputs).unwrap();
        let weight = b.upload(&floats(8, inputs), 1, inputs).unwrap();
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
        let bias = b.upload(&floats(9, width), 1, width).unwrap();
        let layer = |outputs| Case::of_numbers(format, outputs, inputs).layer(&b);
        let layers = [layer(width), layer(20), LinearWeights { bias: Some(bias), ..layer(width) }];
        let down_layer = Case::of_numbers(Format::Q8_0, 32, 1408).layer(&b);
        let up = [layer(1408), layer(1408)];
        let many = |x: &Tensor<Cuda>| down(&b, b.run(LinearMany { x, norm: Some(&norm), weights: &layers }));
        let block = |x: &Tensor<Cuda>| {
            let (act, epilogue) = (Activation::Silu, Epilogue::NONE);
            let ffn = Ffn { x, norm: Some(&norm), up: &up, act, down: &down_layer, epilogue, adapters: &[] };
            down(&b, b.run(ffn))
        };
        mock::seed(inputs as u64);
        let (sides, blocks) = (many(&all), block(&all));
        for first in [0, 61, 122] {
            let some = all.row_range(first..first + 8);
            let what = || format!("{format} of {inputs}, rows from {first} on");
            same(&sides[first * (2 * width + 20)..][..8 * (2 * width + 20)], &many(&some), what);
            same(&blocks[first * 32..][..8 * 32], &block(&some), what);
        }
    }
}
