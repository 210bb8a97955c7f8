//! LoRA deltas of a step have the bits of those computed one by one, and take two launches however many there are.

use std::collections::BTreeMap;
use std::rc::Rc;

use tallow_core::ops::{Epilogue, Ffn, LinearMany, Lora};
use tallow_core::{
    Activation, Adapter, Backend, Format, LinearWeights, LoraPair, LoraRows, LoraTarget, Norm, Tensor,
    Weight, compose,
};
use tallow_ptx::mock;

use super::layers::{both, got, launches, layer, norms, tensor};
use super::products::{Case, same};
use crate::Cuda;

/// Inputs and outputs of the layers: parts of a segment, of a strand and of a CTA.
const INPUTS: usize = 288;
const OUTPUTS: [usize; 3] = [40, 7, 65];

/// Layers of one form, each a target.
fn targets(b: &Cuda, inputs: usize, outputs: &[usize]) -> Vec<LinearWeights<Cuda>> {
    let layers = outputs.iter().zip(0..);
    let target = |(outputs, i): (&usize, u32)| LinearWeights {
        lora_target: Some(LoraTarget(i)),
        ..layer(b, Format::Q8_0, *outputs, inputs, i == 0)
    };
    layers.map(target).collect()
}

/// An adapter of a rank for some layers, of which the first and the last share `a`.
fn adapter(b: &Cuda, format: Format, rank: usize, layers: &[LinearWeights<Cuda>]) -> Rc<Adapter<Cuda>> {
    let weight = |format, outputs, inputs| -> Weight<Cuda> {
        Case::of_numbers(format, outputs, inputs).layer(b).weight.in_order().unwrap().clone()
    };
    let a = |inputs| Rc::new(weight(format, rank, inputs));
    let shared = a(layers[0].weight.cols());
    let mut pairs = BTreeMap::new();
    for (i, layer) in layers.iter().enumerate() {
        let (outputs, inputs) = (layer.weight.rows(), layer.weight.cols());
        let is_shared = (i == 0 || i + 1 == layers.len()) && inputs == layers[0].weight.cols();
        let a = if is_shared { shared.clone() } else { a(inputs) };
        let b = weight(Format::F16, outputs, rank);
        pairs.insert(layer.lora_target.unwrap(), LoraPair { a, b, scale: 0.75 });
    }
    Rc::new(Adapter::new(pairs))
}

/// Rows with adapters, of as many rows as each number says. Between the first and the second is a row without.
fn runs(adapters: &[Rc<Adapter<Cuda>>], lens: &[usize]) -> Vec<LoraRows<Cuda>> {
    let mut at = 0;
    let run = |(i, (adapter, len)): (usize, (&Rc<Adapter<Cuda>>, &usize))| {
        let rows = at..at + len;
        at += len + usize::from(i == 0);
        LoraRows { rows, adapter: adapter.clone(), scale: 0.5 + i as f32 }
    };
    adapters.iter().cycle().zip(lens).enumerate().map(run).collect()
}

fn of<'a>(
    x: &'a Tensor<Cuda>,
    norm: Option<&'a Norm<Cuda>>,
    weights: &'a [LinearWeights<Cuda>],
    adapters: &'a [LoraRows<Cuda>],
) -> Lora<'a, Cuda> {
    Lora { x, norm, weights, epilogue: Epilogue::NONE, adapters }
}

#[test]
fn deltas_have_the_bits_of_each_alone() {
    for (b, is_exact) in both().iter().zip([false, true]) {
        let layers = targets(b, INPUTS, &OUTPUTS);
        let (some, rest) = (adapter(b, Format::F32, 3, &layers), adapter(b, Format::BF16, 70, &layers));
        let adapters = [some, adapter(b, Format::Q8_0, 32, &layers[1..]), rest];
        let all = tensor(b, 1, 40, INPUTS);
        for norm in &norms(b, INPUTS) {
            for (seed, lens) in [&[1][..], &[1, 1, 1, 1], &[3, 9, 17], &[0, 8, 2]].into_iter().enumerate() {
                mock::seed(seed as u64);
                let (adapters, rows) = (runs(&adapters, lens), lens.iter().sum::<usize>() + 2);
                let (x, norm) = (&all.row_range(0..rows), norm.as_ref());
                let what = || format!("{lens:?}, {:?}", norm.map(|norm| norm.kind));
                let fused = got(b.run(of(x, norm, &layers, &adapters)), b);
                // Exact products have one order of summing, in whatever kernel.
                if is_exact {
                    same(&fused, &got(compose::lora(b, &of(x, norm, &layers, &adapters)), b), what);
                }
                let plain = got(b.run(LinearMany { x, norm, weights: &layers }), b);
                let (fused, plain) = (fused.chunks_exact(112), plain.chunks_exact(112));
                for (r, (fused, plain)) in fused.zip(plain).enumerate() {
                    let own = adapters.iter().filter(|a| a.rows.contains(&r));
                    let own: Vec<_> = own.map(|a| LoraRows { rows: 0..1, ..a.clone() }).collect();
                    let alone = b.run(of(&x.row_range(r..r + 1), norm, &layers, &own));
                    same(fused, &got(alone, b), what);
                    assert_eq!(own.is_empty(), fused == plain, "row {r} of {}", what());
                }
            }
        }
    }
}

#[test]
fn a_site_takes_two_launches_more() {
    let [b, _] = &both();
    let layers = targets(b, INPUTS, &OUTPUTS);
    let adapters = [3, 8, 40].map(|rank| adapter(b, Format::F16, rank, &layers));
    let mut block = targets(b, 64, &[96, 96]);
    block.push(LinearWeights { lora_target: Some(LoraTarget(2)), ..layer(b, Format::Q8_0, 64, 96, false) });
    let of_block = [3, 8, 40].map(|rank| adapter(b, Format::F16, rank, &block));
    let (x, x_of_block) = (tensor(b, 1, 40, INPUTS), tensor(b, 1, 40, 64));
    let [_, norm, _] = &norms(b, INPUTS);
    let epilogue = Epilogue::NONE;
    for lens in [&[1][..], &[1; 7], &[2, 2, 3], &[9, 20]] {
        let rows = lens.iter().sum::<usize>() + 1;
        let (x, norm) = (&x.row_range(0..rows), norm.as_ref());
        let plain = launches(b, || _ = b.run(LinearMany { x, norm, weights: &layers }).unwrap());
        let adapters = &runs(&adapters, lens)[..];
        let lora = || Lora { x, norm, weights: &layers, epilogue, adapters };
        assert_eq!(launches(b, || _ = b.run(lora()).unwrap()), plain + 2, "{lens:?}");
        // Up, its deltas, activation, down, its deltas.
        let (x, adapters) = (&x_of_block.row_range(0..rows), &runs(&of_block, lens)[..]);
        let (up, down, act) = (&block[..2], &block[2], Activation::Silu);
        let ffn = || Ffn { x, norm: None, up, act, down, epilogue, adapters };
        let layer = if rows <= 8 { 1 } else { 2 };
        assert_eq!(launches(b, || _ = b.run(ffn()).unwrap()), 2 * (layer + 2) + 1, "{lens:?}");
        let written = mock::calls("cuMemcpyHtoDAsync_v2");
        b.run(lora()).unwrap();
        assert_eq!(mock::calls("cuMemcpyHtoDAsync_v2"), written, "a table is written once");
    }
}
