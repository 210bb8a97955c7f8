//! Layers whose columns come in another order (act-order) have the bits of others over a permuted input, and take as many
//! launches.

use tallow_core::ops::{Epilogue, Ffn, Head, IndexMode, IndexRows, Linear, LinearMany, PermuteCols};
use tallow_core::{Activation, Backend, Format, LinearWeight, LinearWeights, Memory, Tensor};
use tallow_ptx::mock;

use super::layers::{ROWS, both, check_block, got, launches, layer, normed, norms, one_by_one, tensor};
use super::products::same;
use crate::Cuda;

const FORMATS: [Format; 4] = [Format::Q4_0, Format::Q4K, Format::BF16, Format::F32];
/// A chunk and a part of one, where a format allows.
const INPUTS: usize = 288;

/// All columns, each once.
fn order(b: &Cuda, step: usize, columns: usize) -> Tensor<Cuda> {
    let order: Vec<u32> = (0..columns).map(|i| ((i * step + 11) % columns) as u32).collect();
    b.upload_row(&order).unwrap()
}

/// A layer whose columns multiply the inputs in this order.
fn ordered(layer: LinearWeights<Cuda>, order: &Tensor<Cuda>) -> LinearWeights<Cuda> {
    let weight = LinearWeight::new(layer.weight.in_order().unwrap().clone(), Some(order.clone()));
    LinearWeights { weight, ..layer }
}

fn inputs(format: Format) -> usize {
    INPUTS.next_multiple_of(format.block_weights())
}

#[test]
fn a_layer_has_the_bits_of_one_over_permuted_input() {
    for (b, format) in both().iter().flat_map(|b| FORMATS.map(|format| (b, format))) {
        let inputs = inputs(format);
        let plain = layer(b, format, 75, inputs, true);
        let all = tensor(b, 1, 40, inputs);
        let past_the_end = (0..inputs as u32).map(|i| i ^ u32::from(i % 7 == 0) << 20).collect::<Vec<_>>();
        for order in [order(b, 29, inputs), b.upload_row(&past_the_end).unwrap()] {
            let weights = &ordered(plain.clone(), &order);
            for rows in ROWS {
                mock::seed(rows as u64);
                let x = &all.row_range(0..rows);
                let epilogue = Epilogue { scale: 0.5, ..Epilogue::NONE };
                let fused = got(b.run(Linear { x, weights, epilogue }), b);
                let x = &b.run(PermuteCols { x, indices: &order }).unwrap();
                let want = got(b.run(Linear { x, weights: &plain, epilogue }), b);
                same(&fused, &want, || format!("{format}, {rows} rows"));
            }
        }
    }
}

#[test]
fn layers_have_the_bits_of_each_alone() {
    for b in &both() {
        for format in FORMATS {
            let inputs = inputs(format);
            let [some, others] = [29, 31].map(|step| order(b, step, inputs));
            // The first two share a launch, and so do the last and the third.
            let layers = [(17, Some(&some)), (40, Some(&some)), (33, None), (9, Some(&others)), (16, None)];
            let layers = layers.map(|(outputs, order)| {
                let layer = layer(b, format, outputs, inputs, outputs % 2 == 1);
                order.map_or(layer.clone(), |order| ordered(layer, order))
            });
            let all = tensor(b, 1, 40, inputs);
            for (norm, rows) in norms(b, inputs).iter().flat_map(|norm| [1, 8, 9].map(|rows| (norm, rows))) {
                mock::seed(rows as u64);
                let (x, norm) = (&all.row_range(0..rows), norm.as_ref());
                let what = || format!("{format}, {rows} rows, {:?}", norm.map(|norm| norm.kind));
                let fused = got(b.run(LinearMany { x, norm, weights: &layers }), b);
                same(&fused, &one_by_one(b, x, norm, &layers), what);
                let Some(norm) = norm else { continue };
                let at = &b.upload_row(&(0..rows as u32).map(|r| (r * 7) % 41).collect::<Vec<_>>()).unwrap();
                let (weights, epilogue) = (&layers[0], Epilogue::NONE);
                let head = got(b.run(Head { x: &all, rows: at, norm, weights, epilogue }), b);
                let picked = b.run(IndexRows { x: &all, indices: at, mode: IndexMode::Gather }).unwrap();
                let x = &normed(b, &picked, Some(norm));
                same(&head, &got(b.run(Linear { x, weights, epilogue }), b), what);
            }
        }
    }
}

#[test]
fn blocks_have_the_bits_of_their_layers() {
    let (dim, width) = (256 + 32, 64);
    for b in &both() {
        let [of_dim, of_width, others] = [dim, width, dim].map(|columns| order(b, 29, columns));
        let make = |outputs, inputs| layer(b, Format::Q8_0, outputs, inputs, true);
        let up = |order| ordered(make(width, dim), order);
        let down = || make(dim, width);
        let [_, norm, _] = &norms(b, dim);
        for (up, down) in [
            (&[up(&of_dim), up(&of_dim)][..], ordered(down(), &of_width)),
            (&[ordered(make(2 * width, dim), &of_dim)], down()),
            (&[up(&of_dim)], ordered(down(), &of_width)),
            (&[up(&of_dim), up(&others)], down()),
            (&[up(&of_dim), make(width, dim)], ordered(down(), &of_width)),
        ] {
            check_block(b, up, &down, Activation::Silu, norm.as_ref());
        }
    }
}

#[test]
fn layers_take_the_launches_of_those_in_order() {
    let [fast, exact] = &both();
    // No file has 16-bit weights in another order: their input is rounded before.
    use Format::{F32, Q4_0, Q8_0, Q8K, U4G128};
    let of_fast = [Q4_0, U4G128, Q8_0, Q8K, F32].map(|format| (fast, format));
    for (b, format) in of_fast.into_iter().chain([(exact, Q8_0)]) {
        let order = &order(b, 29, 256);
        let plain = [1, 1, 2].map(|i| layer(b, format, 256 * i, 256, true));
        let layers = plain.clone().map(|layer| ordered(layer, order));
        let ([_, norm, _], all) = (&norms(b, 256), tensor(b, 1, 40, 256));
        let act = Activation::Silu;
        for rows in [1, 8, 9, 40] {
            let x = &all.row_range(0..rows);
            let at = &b.upload_row(&(0..rows as u32).collect::<Vec<_>>()).unwrap();
            let counts = |layers: &[LinearWeights<Cuda>]| {
                let (norm, weights, epilogue) = (norm.as_ref(), &layers[0], Epilogue::NONE);
                let ffn = Ffn { x, norm, up: &layers[..2], act, down: weights, epilogue, adapters: &[] };
                let head = Head { x, rows: at, norm: norm.unwrap(), weights, epilogue };
                [
                    launches(b, || _ = b.run(Linear { x, weights, epilogue }).unwrap()),
                    launches(b, || _ = b.run(LinearMany { x, norm, weights: layers }).unwrap()),
                    launches(b, || _ = b.run(ffn).unwrap()),
                    launches(b, || _ = b.run(head).unwrap()),
                ]
            };
            assert_eq!(counts(&layers), counts(&plain), "{format}, {rows} rows");
        }
    }
}
