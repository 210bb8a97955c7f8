//! Weights that one op reads together: heads and experts.

use tallow_core::ops::{Epilogue, LinearHeads, Moe};
use tallow_core::{
    Activation, Backend, Expert, Format, HostWeight, LinearWeights, Memory, RoutingWeightOn, Stack,
};

use super::{found, numbers};
use crate::Wgpu;

const DIM: usize = 64;
const WIDTH: usize = 32;
const EXPERTS: usize = 6;

/// The weights of a stack, of which `values` makes those of one.
fn stack(
    b: &Wgpu,
    format: Format,
    (count, rows, cols): (usize, usize, usize),
    values: impl Fn(usize) -> Vec<f32>,
) -> Vec<LinearWeights<Wgpu>> {
    let mut stack = Stack::new(count);
    let weight = |i| {
        let mut bytes = vec![0; format.row_bytes(cols).unwrap() * rows];
        tallow_quant::pack(format, &values(i), &mut bytes).unwrap();
        let weight = HostWeight::new(format, rows, cols, &bytes);
        LinearWeights::new(b.prepare_stacked(weight, &mut stack).unwrap(), None)
    };
    (0..count).map(weight).collect()
}

/// Experts; the weights of those that `is_nan` are NaN.
fn experts(b: &Wgpu, format: Format, is_nan: impl Fn(usize) -> bool) -> Vec<Expert<Wgpu>> {
    let values = |seed: u32| {
        let is_nan = &is_nan;
        move |e: usize| match is_nan(e) {
            true => vec![f32::NAN; DIM * WIDTH],
            false => numbers(seed + 10 * e as u32, DIM * WIDTH),
        }
    };
    let gates = stack(b, format, (EXPERTS, WIDTH, DIM), values(1));
    let ups = stack(b, format, (EXPERTS, WIDTH, DIM), values(2));
    let downs = stack(b, format, (EXPERTS, DIM, WIDTH), values(3));
    let expert = |((gate, up), down)| Expert { up: vec![gate, up], down };
    gates.into_iter().zip(ups).zip(downs).map(expert).collect()
}

/// The result for rows that go through experts 1 and 4, and the dispatches that it took.
fn moe(b: &Wgpu, experts: &[Expert<Wgpu>], rows: usize, weight_on: RoutingWeightOn) -> (Vec<f32>, usize) {
    let x = b.upload(&numbers(5, rows * DIM), rows, DIM).unwrap();
    let mut weights = vec![0.0; rows * EXPERTS];
    for (row, to) in weights.chunks_exact_mut(EXPERTS).enumerate() {
        // One row goes through both, the next through one of them.
        to[1] = if row % 3 == 1 { 0.0 } else { 0.75 };
        to[4] = if row % 3 == 2 { 0.0 } else { -0.5 };
    }
    let routing_weights = b.upload(&weights, rows, EXPERTS).unwrap();
    let before = b.counts().dispatches;
    let y = b.run(Moe {
        x: &x,
        routing_weights: &routing_weights,
        top_k: 2,
        weight_on,
        experts,
        act: Activation::Silu,
        epilogue: Epilogue::NONE,
    });
    let y = y.unwrap();
    let dispatches = b.counts().dispatches - before;
    (b.download::<f32>(&y).unwrap(), dispatches)
}

/// A token reads the weights of its own experts: with NaN in all others the result is the same, and the dispatches do not
/// depend on how many there are.
#[test]
fn experts_that_no_row_chose_are_not_read() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let (whole, few) = (experts(&b, Format::F32, |_| false), experts(&b, Format::F32, |e| e != 1 && e != 4));
    for weight_on in [RoutingWeightOn::Output, RoutingWeightOn::Input] {
        for (rows, dispatches) in [(1, 4), (3, 4), (8, 4), (9, 5), (40, 5)] {
            let (want, got) = (moe(&b, &whole, rows, weight_on), moe(&b, &few, rows, weight_on));
            assert!(want.0.iter().all(|y| y.is_finite()), "{rows} rows");
            assert!(got == want, "{rows} rows");
            assert_eq!(got.1, dispatches, "{rows} rows");
        }
    }
}

/// A stack larger than a binding is split into blocks of whole weights, with the same results bit for bit.
#[test]
fn stacks_larger_than_a_binding() {
    let Some(found) = found() else { return };
    let (whole, cut) = (Wgpu::open(&found).unwrap(), Wgpu::within(&found, 10 << 10).unwrap());
    let run = |b: &Wgpu| {
        let experts = experts(b, Format::Q8_0, |_| false);
        let (mut out, mut dispatches) = (Vec::new(), Vec::new());
        for rows in [1, 20] {
            let (y, count) = moe(b, &experts, rows, RoutingWeightOn::Output);
            out.extend(y);
            dispatches.push(count);
        }
        let heads = stack(b, Format::Q8_0, (5, 40, 64), |head| numbers(7 + head as u32, 40 * 64));
        for rows in [2, 6] {
            let x = b.upload(&numbers(6, rows * 5 * 72), rows, 5 * 72).unwrap();
            let before = b.counts().dispatches;
            let op = LinearHeads { x: &x, head_dim: 72, inputs: 8..72, copied: 0..8, weights: &heads };
            let y = b.run(op).unwrap();
            dispatches.push(b.counts().dispatches - before);
            out.extend(b.download::<f32>(&y).unwrap());
        }
        (out, dispatches)
    };
    let ((a, one), (b, several)) = (run(&whole), run(&cut));
    assert!(a == b);
    assert_eq!(one, [4, 5, 1, 1]);
    // Three blocks of two heads, and of experts two or more; rows that would not fit into a binding in several turns.
    println!("{several:?}");
    assert!(several.iter().zip(&one).all(|(several, one)| several > one), "{several:?}");
}
