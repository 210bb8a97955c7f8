//! Experts and heads have the bits of the same layers alone, whatever else is computed beside them, in as few launches as they
//! should.

use tallow_core::ops::{Eltwise, EltwiseOp, Epilogue, Ffn, Linear, LinearHeads, Moe};
use tallow_core::{
    Activation, Arithmetic, Backend, Expert, Format, HostWeight, LinearWeight, LinearWeights, Memory,
    RoutingWeightOn, Stack, Tensor,
};
use tallow_ptx::mock::{self, Machine};

use super::open;
use super::products::{floats, same};
use crate::Cuda;

/// Formats whose weights are planes of each kind, and floats of 8, 16 and 32 bits.
const FORMATS: [Format; 9] = [
    Format::Q4K,
    Format::Q6K,
    Format::Q8_0,
    Format::MXFP4,
    Format::Q4_1,
    Format::F8,
    Format::F16,
    Format::BF16,
    Format::F32,
];

fn device() -> Cuda {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    b
}

/// A layer of a stack.
fn layer(
    b: &Cuda,
    seed: u32,
    format: Format,
    (rows, cols): (usize, usize),
    stack: &mut Stack<Cuda>,
) -> LinearWeights<Cuda> {
    let numbers = floats(seed, rows * cols);
    let width = HostWeight::row_bytes(format, cols).unwrap();
    let mut bytes = vec![0; rows * width];
    for (numbers, bytes) in numbers.chunks_exact(cols).zip(bytes.chunks_exact_mut(width)) {
        tallow_quant::pack(format, numbers, bytes).unwrap();
    }
    let weight = HostWeight::new(format, rows, cols, &bytes);
    LinearWeights::new(b.prepare_stacked(weight, stack).unwrap(), None)
}

/// Experts whose layers have these formats: one of the layer up alone, or of gate and up, and that of down.
fn experts(
    b: &Cuda,
    count: usize,
    (dim, width): (usize, usize),
    up: &[Format],
    down: Format,
) -> Vec<Expert<Cuda>> {
    let mut stacks: Vec<Stack<Cuda>> = (0..=up.len()).map(|_| Stack::new(count)).collect();
    let expert = |e: u32| {
        let up = up.iter().zip(&mut stacks[1..]).enumerate();
        let up = up
            .map(|(i, (format, stack))| layer(b, 10 * e + i as u32, *format, (width, dim), stack))
            .collect();
        Expert { up, down: layer(b, 10 * e + 5, down, (dim, width), &mut stacks[0]) }
    };
    (0..count as u32).map(expert).collect()
}

/// Routing weights: of `top_k` experts a row, the first of which is chosen by all, and the last by none.
fn routing(rows: usize, experts: usize, top_k: usize) -> Vec<f32> {
    let numbers = floats(77, rows * experts);
    let mut weights = vec![0.0; rows * experts];
    for (r, weights) in weights.chunks_exact_mut(experts).enumerate() {
        weights[0] = numbers[r * experts];
        let others = experts - 2;
        for i in 0..(top_k - 1).min(others) {
            let e = 1 + (r * r + i) % others;
            weights[e] = numbers[r * experts + e];
        }
    }
    weights
}

fn moe(
    b: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[f32],
    top_k: usize,
    on: RoutingWeightOn,
    experts: &[Expert<Cuda>],
) -> Vec<f32> {
    let op = Moe {
        x,
        routing_weights: &b.upload(weights, x.rows(), experts.len()).unwrap(),
        top_k,
        weight_on: on,
        experts,
        act: Activation::Clamped,
        epilogue: Epilogue::NONE,
    };
    let y = b.run(op).unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()));
    b.download(&y).unwrap()
}

/// The ops that `moe` stands for: each expert for all rows, added up in order where a row chose it.
fn each_alone(
    b: &Cuda,
    x: &Tensor<Cuda>,
    weights: &[f32],
    on: RoutingWeightOn,
    experts: &[Expert<Cuda>],
) -> Vec<f32> {
    let (rows, count, dim) = (x.rows(), experts.len(), x.cols());
    let mut sums = vec![0f32; rows * dim];
    for (e, Expert { up, down }) in experts.iter().enumerate() {
        let of_rows: Vec<f32> = weights.iter().skip(e).step_by(count).copied().collect();
        let weighted = match on {
            RoutingWeightOn::Output => x.clone(),
            RoutingWeightOn::Input => {
                let by = b.upload(&of_rows, rows, 1).unwrap();
                b.run(Eltwise { x, op: EltwiseOp::Mul(&by) }).unwrap()
            }
        };
        let (act, epilogue) = (Activation::Clamped, Epilogue::NONE);
        let y = b.run(Ffn { x: &weighted, norm: None, up, act, down, epilogue, adapters: &[] }).unwrap();
        let y = b.download::<f32>(&y).unwrap();
        for ((sums, y), weight) in sums.chunks_exact_mut(dim).zip(y.chunks_exact(dim)).zip(&of_rows) {
            let by = if on == RoutingWeightOn::Output { *weight } else { 1.0 };
            if *weight != 0.0 {
                sums.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * by);
            }
        }
    }
    sums
}

fn check(b: &Cuda, experts: &[Expert<Cuda>], dim: usize, cases: &[(usize, usize)], what: &str) {
    for &(rows, top_k) in cases {
        mock::seed((rows + top_k) as u64);
        let x = b.upload(&floats(rows as u32, rows * dim), rows, dim).unwrap();
        let weights = routing(rows, experts.len(), top_k);
        let has_biases = experts[0].down.bias.is_some();
        for on in [RoutingWeightOn::Output, RoutingWeightOn::Input] {
            if has_biases && on == RoutingWeightOn::Input {
                continue;
            }
            let got = moe(b, &x, &weights, top_k, on, experts);
            let want = each_alone(b, &x, &weights, on, experts);
            same(&got, &want, || format!("{what}, {rows} rows, {top_k} experts each, weighted {on:?}"));
        }
    }
}

#[test]
fn experts_have_the_bits_of_their_layers() {
    let b = device();
    for format in FORMATS {
        let experts = experts(&b, 6, (256, 256), &[format; 2], format);
        check(&b, &experts, 256, &[(1, 1), (3, 4), (8, 3), (9, 2)], format.name());
        // Tiles of 32 rows, several of which an expert has in one case.
        let rows = if format == Format::Q4K { 100 } else { 20 };
        check(&b, &experts, 256, &[(rows, 4)], format.name());
    }
}

/// In f32, with one row and with several, and tiles of more rows than a CTA has.
#[test]
fn exact_experts_have_the_bits_of_their_layers() {
    let b = device().with(Arithmetic::Exact);
    for format in [Format::Q4K, Format::F16, Format::F32] {
        let experts = experts(&b, 4, (256, 256), &[format; 2], format);
        check(&b, &experts, 256, &[(1, 2), (5, 1), (60, 3)], format.name());
    }
}

/// Gate and up of formats that one kernel does not multiply at a time, up alone, widths that are no whole panels or chunks, more
/// inputs than are kept at a time, and biases.
#[test]
fn experts_of_all_shapes_have_the_bits_of_their_layers() {
    let b = device();
    let cases = [(2, 2), (40, 3)];
    let mixed = experts(&b, 5, (320, 96), &[Format::Q8_0, Format::F16], Format::Q4_0);
    check(&b, &mixed, 320, &cases, "mixed formats");
    let plain = experts(&b, 5, (96, 2336), &[Format::Q5_1], Format::Q5_0);
    check(&b, &plain, 96, &cases, "without gates");
    let odd = experts(&b, 5, (40, 33), &[Format::F32; 2], Format::F32);
    check(&b, &odd, 40, &cases, "odd shapes");
    let odd = experts(&b, 5, (70, 33), &[Format::F16, Format::BF16], Format::F16);
    check(&b, &odd, 70, &cases, "odd shapes of 16 bits");
    let long = experts(&b, 5, (96, 1200), &[Format::BF16; 2], Format::F16);
    check(&b, &long, 96, &cases, "many segments");
    let mut biased = experts(&b, 5, (96, 64), &[Format::MXFP4; 2], Format::MXFP4);
    let biases = [64, 64, 96].map(|cols| b.upload(&floats(8, 5 * cols), 5, cols).unwrap());
    for (e, expert) in biased.iter_mut().enumerate() {
        let layers = expert.up.iter_mut().chain([&mut expert.down]);
        layers.zip(&biases).for_each(|(layer, all)| layer.bias = Some(all.row_range(e..e + 1)));
    }
    check(&b, &biased, 96, &cases, "biases");
}

/// Gate and up in one weight: the same as in two.
#[test]
fn joint_layers_are_taken_apart() {
    let b = device();
    let (dim, width, rows) = (256, 48, 4);
    for format in [Format::Q4K, Format::F8, Format::BF16, Format::F32] {
        let mut stacks = [Stack::new(3), Stack::new(3)];
        let expert = |e: u32| {
            let up = vec![layer(&b, e, format, (2 * width, dim), &mut stacks[0])];
            Expert { up, down: layer(&b, 10 + e, Format::F32, (dim, width), &mut stacks[1]) }
        };
        let experts: Vec<_> = (0..3).map(expert).collect();
        check(&b, &experts, dim, &[(rows, 2)], format.name());
        let x = b.upload(&floats(1, rows * dim), rows, dim).unwrap();
        let before = b.counts().launches;
        moe(&b, &x, &routing(rows, 3, 2), 2, RoutingWeightOn::Output, &experts);
        assert_eq!(b.counts().launches, before + 4, "{format}");
    }
}

/// Each of the heads as a layer alone, and the columns in front of it.
#[test]
fn heads_have_the_bits_of_their_layers() {
    let b = device();
    let (heads, head_dim, inputs, copied) = (5, 290, 3..259, 259..290);
    for b in [b.clone(), b.with(Arithmetic::Exact)] {
        for format in Format::ALL {
            let rows: &[usize] = if FORMATS.contains(&format) { &[1, 3, 8, 9, 40] } else { &[1, 9] };
            let mut stack = Stack::new(heads);
            let weights: Vec<_> =
                (0..heads as u32).map(|h| layer(&b, h, format, (83, 256), &mut stack)).collect();
            for &rows in rows {
                mock::seed(rows as u64);
                let x =
                    b.upload(&floats(rows as u32, rows * heads * head_dim), rows, heads * head_dim).unwrap();
                let (inputs, copied) = (inputs.clone(), copied.clone());
                let op = LinearHeads {
                    x: &x,
                    head_dim,
                    inputs: inputs.clone(),
                    copied: copied.clone(),
                    weights: &weights,
                };
                let before = b.counts().launches;
                let got = b.run(op).unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()));
                assert_eq!(b.counts().launches, before + 1);
                let out_dim = copied.len() + 83;
                for (h, weights) in weights.iter().enumerate() {
                    let x = |columns: &std::ops::Range<usize>| {
                        x.col_range(h * head_dim + columns.start..h * head_dim + columns.end)
                    };
                    let got = |columns: std::ops::Range<usize>| {
                        let at = h * out_dim;
                        b.download::<f32>(&got.col_range(at + columns.start..at + columns.end)).unwrap()
                    };
                    let want = b.run(Linear { x: &x(&inputs), weights, epilogue: Epilogue::NONE }).unwrap();
                    let what = || format!("{format}, head {h} of {rows} rows");
                    same(&got(copied.len()..out_dim), &b.download::<f32>(&want).unwrap(), what);
                    same(&got(0..copied.len()), &b.download::<f32>(&x(&copied)).unwrap(), what);
                }
            }
        }
    }
}

/// Orders of the inputs of six experts, with a column past the end here and there.
fn orders(b: &Cuda, seed: u32, cols: u32) -> Tensor<Cuda> {
    let column = |i: u32| if i % 97 == 96 { 1 << 20 } else { (i % cols * 29 + i / cols * 7 + seed) % cols };
    b.upload_row(&(0..6 * cols).map(column).collect::<Vec<_>>()).unwrap()
}

fn put_in_order<'a>(layers: impl Iterator<Item = &'a mut LinearWeights<Cuda>>, orders: &Tensor<Cuda>) {
    for (e, layer) in layers.enumerate() {
        let (weight, cols) = (layer.weight.in_order().unwrap().clone(), layer.weight.cols());
        layer.weight = LinearWeight::new(weight, Some(orders.col_range(e * cols..(e + 1) * cols)));
    }
}

/// Layers that take their inputs in orders of their own (act-order), which costs a launch, or share one order.
#[test]
fn experts_take_inputs_in_their_orders() {
    let fast = device();
    let exact = fast.clone().with(Arithmetic::Exact);
    for (b, format) in [(&fast, Format::Q4_0), (&fast, Format::BF16), (&exact, Format::Q4_0)] {
        let [gates, others] = &[1, 2].map(|seed| orders(b, seed, 288));
        let downs = &orders(b, 3, 320);
        for (up, down, more) in [
            (&[Some(gates), Some(gates)][..], Some(downs), 2),
            // The products of gate and up take a launch each.
            (&[Some(gates), Some(others)], None, 3),
            (&[None, Some(gates)], Some(downs), 3),
            (&[Some(gates)], None, 1),
        ] {
            let mut experts = experts(b, 6, (288, 320), &vec![format; up.len()], format);
            for (i, orders) in up.iter().enumerate().filter_map(|(i, orders)| Some((i, (*orders)?))) {
                put_in_order(experts.iter_mut().map(|expert| &mut expert.up[i]), orders);
            }
            if let Some(orders) = down {
                put_in_order(experts.iter_mut().map(|expert| &mut expert.down), orders);
            }
            let what = format!("{format}, {} layers in front, {more} launches more", up.len());
            check(b, &experts, 288, &[(1, 3), (9, 2), (40, 3)], &what);
            let x = b.upload(&floats(1, 3 * 288), 3, 288).unwrap();
            let before = b.counts().launches;
            moe(b, &x, &routing(3, 6, 2), 2, RoutingWeightOn::Output, &experts);
            assert_eq!(b.counts().launches, before + 4 + more, "{what}");
        }
    }
}

/// At decode: the lists, gate and up, down, the sum.
#[test]
fn a_mixture_takes_few_launches() {
    let b = device();
    for (up, most) in [(&[Format::Q4K; 2][..], 4), (&[Format::Q4K, Format::BF16], 5), (&[Format::MXFP4], 4)] {
        let experts = experts(&b, 6, (256, 256), up, Format::Q6K);
        for rows in 1..=8 {
            let x = b.upload(&floats(1, rows * 256), rows, 256).unwrap();
            let weights = routing(rows, 6, 3);
            let before = b.counts().launches;
            moe(&b, &x, &weights, 3, RoutingWeightOn::Output, &experts);
            assert_eq!(b.counts().launches, before + most, "{up:?}, {rows} rows");
        }
    }
}

/// Rows with more weights than they may have, and with such as are no numbers.
#[test]
fn routing_weights_that_should_not_be_do_no_harm() {
    let b = device();
    let experts = experts(&b, 6, (64, 32), &[Format::Q8_0; 2], Format::Q8_0);
    for rows in [2, 50] {
        let x = b.upload(&floats(1, rows * 64), rows, 64).unwrap();
        let mut weights = routing(rows, 6, 2);
        let want = moe(&b, &x, &weights, 2, RoutingWeightOn::Output, &experts);
        weights[6..12].fill(1.0);
        let got = moe(&b, &x, &weights, 2, RoutingWeightOn::Output, &experts);
        same(&got[..64], &want[..64], || "the row before".into());
        same(&got[128..], &want[128..], || "the rows after".into());
        weights[6..12].fill(0.0);
        weights[9] = f32::NAN;
        let got = moe(&b, &x, &weights, 2, RoutingWeightOn::Output, &experts);
        assert!(got[64..128].iter().all(|y| y.is_nan()));
        same(&got[..64], &want[..64], || "the row before".into());
    }
}

/// A weight of another format or shape than a stack has memory of its own, and so has one too many.
#[test]
fn stacks_take_what_they_have_room_for() {
    let b = device();
    let mut stack = Stack::new(3);
    let shape = (20, 256);
    let layers = [
        layer(&b, 0, Format::Q4K, shape, &mut stack),
        layer(&b, 1, Format::Q4K, shape, &mut stack),
        layer(&b, 2, Format::F32, shape, &mut stack),
        layer(&b, 3, Format::Q4K, (36, 256), &mut stack),
        layer(&b, 4, Format::Q4K, shape, &mut stack),
        layer(&b, 5, Format::Q4K, shape, &mut stack),
    ];
    assert_eq!(stack.used, 3);
    let x = b.upload(&floats(1, 256), 1, 256).unwrap();
    for (i, stacked) in layers.iter().enumerate() {
        let (format, shape) = match i {
            2 => (Format::F32, shape),
            3 => (Format::Q4K, (36, 256)),
            _ => (Format::Q4K, shape),
        };
        let alone = layer(&b, i as u32, format, shape, &mut Stack::new(0));
        let product = |weights| {
            let y = b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE }).unwrap();
            b.download::<f32>(&y).unwrap()
        };
        same(&product(stacked), &product(&alone), || format!("weight {i}"));
    }
}
