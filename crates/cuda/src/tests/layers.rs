//! Linear layers that one launch computes have the bits of those computed one by one, and take as few launches as they should.

use tallow_core::ops::{Activate, Epilogue, Ffn, Head, IndexMode, IndexRows, Linear, LinearMany, Normalize};
use tallow_core::{
    Activation, Arithmetic, Backend, Format, LinearWeights, Memory, Norm, NormKind, Result, Tensor,
};
use tallow_ptx::mock::{self, Machine};

use super::open;
use super::products::{Case, floats, same};
use crate::Cuda;

/// Rows that kernels for few take, and rows that others do.
pub(super) const ROWS: [usize; 5] = [1, 3, 8, 9, 40];
/// Inputs of layers side by side: two chunks and a part of one, where a format allows.
const INPUTS: usize = 544;

pub(super) fn both() -> [Cuda; 2] {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    [b.clone(), b.with(Arithmetic::Exact)]
}

/// Numbers between -1 and 1 on the device, in a view that begins anywhere.
pub(super) fn tensor(b: &Cuda, seed: u32, rows: usize, cols: usize) -> Tensor<Cuda> {
    b.upload(&floats(seed, rows * (cols + 3)), rows, cols + 3).unwrap().col_range(1..cols + 1)
}

pub(super) fn got(result: Result<Tensor<Cuda>>, b: &Cuda) -> Vec<f32> {
    let t = result.unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()));
    b.download::<f32>(&t).unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()))
}

/// No norm, and one of each kind.
pub(super) fn norms(b: &Cuda, width: usize) -> [Option<Norm<Cuda>>; 3] {
    let row = |seed| b.upload(&floats(seed, width), 1, width).unwrap();
    let rms = Norm { kind: NormKind::Rms, weight: row(71), bias: None, eps: 1e-5 };
    let layer = Norm { kind: NormKind::Layer, weight: row(72), bias: Some(row(73)), eps: 1e-5 };
    [None, Some(rms), Some(layer)]
}

pub(super) fn layer(
    b: &Cuda,
    format: Format,
    outputs: usize,
    inputs: usize,
    has_bias: bool,
) -> LinearWeights<Cuda> {
    let bias = has_bias.then(|| b.upload(&floats(outputs as u32, outputs), 1, outputs).unwrap());
    LinearWeights { bias, ..Case::of_numbers(format, outputs, inputs).layer(b) }
}

pub(super) fn normed(b: &Cuda, x: &Tensor<Cuda>, norm: Option<&Norm<Cuda>>) -> Tensor<Cuda> {
    norm.map_or(x.clone(), |norm| b.run(Normalize { x, norm, residual: None }).unwrap())
}

/// Layers side by side, one by one: the norm, and each as if it were alone.
pub(super) fn one_by_one(
    b: &Cuda,
    x: &Tensor<Cuda>,
    norm: Option<&Norm<Cuda>>,
    layers: &[LinearWeights<Cuda>],
) -> Vec<f32> {
    let x = normed(b, x, norm);
    let linear = |weights| got(b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE }), b);
    let parts: Vec<(usize, Vec<f32>)> = layers.iter().map(|l| (l.weight.rows(), linear(l))).collect();
    let row = |r| parts.iter().flat_map(move |(cols, part)| part[r * cols..(r + 1) * cols].to_vec());
    (0..x.rows()).flat_map(row).collect()
}

/// Launches of what is done.
pub(super) fn launches(b: &Cuda, run: impl FnOnce()) -> usize {
    let before = b.counts().launches;
    run();
    b.counts().launches - before
}

#[test]
fn layers_side_by_side_have_the_bits_of_each_alone() {
    use Format::{BF16, F8, F16, F32, IQ4XS, Q4_0, Q4K, Q6K, Q8_0};
    for b in both() {
        for formats in [
            &[Q4K; 3][..],
            &[Q4_0; 5],
            &[Q8_0, F32, Q8_0, BF16, F32],
            &[Q6K],
            &[F8, IQ4XS, F8],
            &[F16, BF16, F16],
        ] {
            let inputs = INPUTS.next_multiple_of(formats.iter().map(|f| f.block_weights()).max().unwrap());
            let each = formats.iter().zip(0..);
            let layers: Vec<_> = each.map(|(f, i)| layer(&b, *f, 17 + 16 * i, inputs, i % 2 == 1)).collect();
            for norm in &norms(&b, inputs) {
                let x = tensor(&b, 1, 40, inputs);
                let mut first = Vec::new();
                for rows in ROWS {
                    mock::seed(rows as u64);
                    let (x, norm) = (x.row_range(0..rows), norm.as_ref());
                    let fused = got(b.run(LinearMany { x: &x, norm, weights: &layers }), &b);
                    let what = || format!("{formats:?}, {rows} rows, {:?}", norm.map(|norm| norm.kind));
                    same(&fused, &one_by_one(&b, &x, norm, &layers), what);
                    // Rows have the bits that they have alone.
                    let known = first.len().min(fused.len());
                    same(&fused[..known], &first[..known], what);
                    first = fused;
                }
            }
        }
    }
}

#[test]
fn blocks_have_the_bits_of_their_layers() {
    use Format::{BF16, F8, F16, F32, Q4K, Q5_1, Q8_0};
    let (dim, width) = (256 + 32, 64);
    for b in both() {
        // A gate and up of one weight or two, up alone, and what takes more than one launch.
        for (formats, up) in [
            (&[Q8_0, Q8_0][..], &[width, width][..]),
            (&[Q5_1], &[2 * width]),
            (&[Q8_0], &[width]),
            (&[Q8_0, Q8_0], &[20, width - 20]),
            (&[BF16, BF16], &[width, width]),
            (&[F32], &[2 * width]),
            (&[F32], &[width]),
            (&[F16, BF16], &[width, width]),
            (&[F8], &[2 * width]),
            (&[Q8_0, BF16], &[width, width]),
            (&[Q8_0, Q5_1], &[20, width - 20]),
        ] {
            let shapes = formats.iter().zip(up).zip(0..);
            let up: Vec<_> = shapes.map(|((f, n), i)| layer(&b, *f, *n, dim, i == 0)).collect();
            for (act, norm) in Activation::ALL.iter().zip(norms(&b, dim).iter().cycle()) {
                check_block(&b, &up, &layer(&b, formats[0], dim, width, true), *act, norm.as_ref());
            }
        }
        // Halves of a weight that begin within a panel; and a width of several chunks.
        let up = [layer(&b, Q8_0, 80, 64, true)];
        check_block(&b, &up, &layer(&b, F32, 64, 40, true), Activation::Silu, None);
        let up = [layer(&b, Q4K, 544, 256, true), layer(&b, Q4K, 544, 256, false)];
        check_block(&b, &up, &layer(&b, Q8_0, 256, 544, true), Activation::Silu, norms(&b, 256)[1].as_ref());
    }
}

pub(super) fn check_block(
    b: &Cuda,
    up: &[LinearWeights<Cuda>],
    down: &LinearWeights<Cuda>,
    act: Activation,
    norm: Option<&Norm<Cuda>>,
) {
    let (dim, width) = (down.weight.rows(), down.weight.cols());
    let (all, residuals) = (tensor(b, 1, 40, dim), tensor(b, 2, 40, dim));
    for rows in [1, 8, 9] {
        mock::seed(rows as u64);
        let (x, residual) = (all.row_range(0..rows), residuals.row_range(0..rows));
        let epilogue = Epilogue { scale: 0.5, ..Epilogue::add_to(&residual) };
        let fused = got(b.run(Ffn { x: &x, norm, up, act, down, epilogue, adapters: &[] }), b);
        let joint = one_by_one(b, &x, norm, up);
        let joint = b.upload(&joint, rows, joint.len() / rows).unwrap();
        let gate = joint.col_range(0..width);
        let up = (joint.cols() > width).then(|| joint.col_range(width..2 * width));
        let activated = b.run(Activate { gate: &gate, up: up.as_ref(), act }).unwrap();
        let want = got(b.run(Linear { x: &activated, weights: down, epilogue }), b);
        same(&fused, &want, || format!("{act:?}, {rows} rows of {dim}, width {width}"));
    }
}

#[test]
fn heads_have_the_bits_of_their_layer() {
    for b in both() {
        for format in [Format::Q6K, Format::Q8_0, Format::BF16] {
            let weights = &layer(&b, format, 75, 512, false);
            let x = tensor(&b, 1, 50, 512);
            let norms = norms(&b, 512);
            let cases = norms.iter().flatten().flat_map(|norm| ROWS.map(|rows| (norm, rows)));
            for (norm, rows) in cases {
                mock::seed(rows as u64);
                // The first is past the end.
                let rows: Vec<u32> = (0..rows as u32).map(|i| 50 - 7 * i % 50).collect();
                let rows = &b.upload_row(&rows).unwrap();
                let epilogue = Epilogue { scale: 0.5, softcap: Some(3.0), residual: None };
                let fused = got(b.run(Head { x: &x, rows, norm, weights, epilogue }), &b);
                let picked = b.run(IndexRows { x: &x, indices: rows, mode: IndexMode::Gather }).unwrap();
                let picked = normed(&b, &picked, Some(norm));
                let want = got(b.run(Linear { x: &picked, weights, epilogue }), &b);
                same(&fused, &want, || format!("{format}, {} rows", rows.cols()));
            }
        }
    }
}

/// CTAs have several panels where there are many, and the last has fewer.
#[test]
fn layers_of_many_outputs_have_the_bits_of_parts_of_them() {
    let [b, _] = both();
    let (outputs, inputs) = (16 * 2053 + 5, 64);
    let x = tensor(&b, 1, 2, inputs);
    let case = Case::of_numbers(Format::Q8_0, outputs, inputs);
    let all = got(b.run(Linear { x: &x, weights: &case.layer(&b), epilogue: Epilogue::NONE }), &b);
    let part = Case::of_numbers(Format::Q8_0, outputs, inputs).rows(32_000..outputs).layer(&b);
    let part = got(b.run(Linear { x: &x, weights: &part, epilogue: Epilogue::NONE }), &b);
    for (all, part) in all.chunks_exact(outputs).zip(part.chunks_exact(outputs - 32_000)) {
        same(&all[32_000..], part, || "of many outputs".into());
    }
    let up = [case.layer(&b), case.layer(&b)];
    let down = layer(&b, Format::F32, inputs, outputs, false);
    check_block(&b, &up, &down, Activation::Silu, None);
}

/// As few launches as a decode step should take, and few more for many rows.
#[test]
fn layers_take_as_few_launches_as_they_should() {
    let [fast, exact] = both();
    for (b, format) in [(&fast, Format::Q4K), (&fast, Format::BF16), (&exact, Format::Q8_0)] {
        let is_rounded = b.arithmetic == Arithmetic::Fast;
        let layers = [1, 2, 3].map(|i| layer(b, format, 32 * i, 256, true));
        let gate_and_up = [layer(b, format, 256, 256, false), layer(b, format, 256, 256, false)];
        let both = layer(b, format, 512, 256, false);
        let [_, norm, _] = &norms(b, 256);
        let all = tensor(b, 1, 40, 256);
        for rows in [1, 2, 7, 8, 9, 40] {
            let x = &all.row_range(0..rows);
            let [of_many, of_linear, of_ffn, of_head] = match (rows <= 8, is_rounded) {
                (true, _) => [1, 1, 2, 1],
                (false, true) => [2, 2, 4, 2],
                (false, false) => [2, 1, 3, 3],
            };
            let many = LinearMany { x, norm: norm.as_ref(), weights: &layers };
            let count = launches(b, || _ = b.run(many).unwrap());
            assert_eq!(count, of_many, "linear_many of {rows} rows");
            let linear = Linear { x, weights: &both, epilogue: Epilogue::NONE };
            let count = launches(b, || _ = b.run(linear).unwrap());
            assert_eq!(count, of_linear, "linear of {rows} rows");
            for up in [&gate_and_up[..], std::slice::from_ref(&both), &gate_and_up[..1]] {
                let (norm, down, epilogue) = (norm.as_ref(), &gate_and_up[0], Epilogue::add_to(x));
                let ffn = Ffn { x, norm, up, act: Activation::Silu, down, epilogue, adapters: &[] };
                let count = launches(b, || _ = b.run(ffn).unwrap());
                assert_eq!(count, of_ffn, "ffn of {rows} rows");
            }
            let at = &b.upload_row(&(0..rows as u32).collect::<Vec<_>>()).unwrap();
            let norm = norm.as_ref().unwrap();
            let head = Head { x, rows: at, norm, weights: &both, epilogue: Epilogue::NONE };
            let count = launches(b, || _ = b.run(head).unwrap());
            assert_eq!(count, of_head, "head of {rows} rows");
        }
    }
}
