use std::collections::BTreeMap;
use std::rc::Rc;

use super::blocks::{norm, normed};
use super::oracle::Product;
use super::{Bench, Bounded, Host, Outcome, text};
use crate::ops::{Epilogue, Ffn, Linear, LinearMany, Lora};
use crate::{Activation, Adapter, Backend, Format, LinearWeights, LoraPair, LoraRows, LoraTarget, compose};

cases!(lora);

/// Input columns of the layers.
const INPUTS: usize = 288;
/// The layers: format and outputs. The last has no LoRA target.
const LAYERS: [(Format, usize); 4] =
    [(Format::Q8_0, 40), (Format::F32, 7), (Format::Q8_0, 65), (Format::F16, 9)];

/// An adapter on the device, and its dequantized `a` and `b` by target on the host.
struct Made<B: Backend> {
    adapter: Rc<Adapter<B>>,
    parts: BTreeMap<LoraTarget, [Host; 2]>,
    format: Format,
    scale: f32,
}

/// A random adapter of a rank for some of the layers.
fn made<B: Backend>(
    t: &Bench<'_, B>,
    rank: usize,
    format: Format,
    layers: &[u32],
) -> Result<Made<B>, String> {
    let (mut parts, mut hosts, scale) = (BTreeMap::new(), BTreeMap::new(), 0.75);
    for &i in layers {
        let outputs = LAYERS[i as usize].1;
        let (down, down_host) = t.weight(rank as u64 + u64::from(i), format, rank, INPUTS)?;
        let (up, up_host) = t.weight(50 + rank as u64 + u64::from(i), format, outputs, rank)?;
        parts.insert(LoraTarget(i), LoraPair { a: Rc::new(down), b: up, scale });
        hosts.insert(LoraTarget(i), [down_host, up_host]);
    }
    Ok(Made { adapter: Rc::new(Adapter::new(parts)), parts: hosts, format, scale })
}

fn layers<B: Backend>(t: &Bench<'_, B>) -> Result<(Vec<LinearWeights<B>>, Vec<Host>), String> {
    let (mut layers, mut hosts) = (Vec::new(), Vec::new());
    for (i, (format, outputs)) in LAYERS.into_iter().enumerate() {
        let (weight, host) = t.weight(i as u64, format, outputs, INPUTS)?;
        let lora_target = (i + 1 < LAYERS.len()).then_some(LoraTarget(i as u32));
        layers.push(LinearWeights { lora_target, ..LinearWeights::new(weight, None) });
        hosts.push(host);
    }
    Ok((layers, hosts))
}

/// The oracle's result: the layers' products plus the LoRA delta of each row.
fn expected<B: Backend>(
    t: &Bench<'_, B>,
    x: &Host,
    hosts: &[Host],
    runs: &[(std::ops::Range<usize>, &Made<B>, f32)],
) -> Bounded {
    let product = |x: &Host, w: &Host, scale: f32| {
        Product { x, w, bias: None, scale, softcap: None, residual: None }.get()
    };
    let layers = LAYERS.into_iter().zip(hosts).enumerate();
    let each: Vec<Bounded> = layers
        .map(|(i, ((format, _), w))| {
            let mut y = product(&t.rounded(format, x), w, 1.0);
            for (rows, made, scale) in runs {
                let Some([down, up]) = made.parts.get(&LoraTarget(i as u32)) else { continue };
                // The scale comes first, as for the device: it may change how bf16 rounds.
                let narrow = product(&t.rounded(made.format, x), down, scale * made.scale);
                let data = narrow.data.iter().map(|(x, _)| *x as f32).collect();
                let narrow = Host { data, rows: x.rows, cols: down.rows };
                let more = product(&t.rounded(made.format, &narrow), up, 1.0);
                let ours = rows.start * up.rows..rows.end * up.rows;
                let pairs = y.data[ours.clone()].iter_mut().zip(&more.data[ours]);
                pairs.for_each(|(y, more)| *y = (y.0 + more.0, y.1 + 8.0 * more.1));
            }
            y
        })
        .collect();
    Bounded::by_rows(x.rows, LAYERS.iter().map(|l| l.1).sum(), |r| {
        each.iter().flat_map(|y| y.data[r * y.cols..][..y.cols].to_vec()).collect()
    })
}

/// Ranks of a whole block and of part of one, and LoRA in a feed-forward block.
fn lora<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    [16, 32].into_iter().try_for_each(|rank| together(t, rank))?;
    block(t)
}

/// Rows with several adapters and with none in one batch match the oracle; each row is bit-identical to running alone.
fn together<B: Backend>(t: &Bench<'_, B>, rank: usize) -> Outcome {
    let (layers, hosts) = layers(t)?;
    let all = [
        made(t, 3, Format::F16, &[0, 1, 2])?,
        made(t, rank, Format::Q8_0, &[0, 2])?,
        made(t, 70, Format::BF16, &[1])?,
    ];
    let (weight, by_norm) = norm(t, INPUTS)?;
    for ends in [[0, 1, 1, 1], [1, 2, 2, 3], [0, 4, 5, 13], [3, 40, 41, 61], [0, 0, 0, 0]] {
        let rows = ends[3];
        let x = Host::random(1, rows, INPUTS);
        let runs = [
            (ends[0]..ends[1], &all[0], 1.0f32),
            (ends[1]..ends[2], &all[1], 0.5),
            (ends[2]..ends[3].saturating_sub(1).max(ends[2]), &all[2], -2.0),
        ];
        let adapted =
            runs.clone().map(|(rows, made, scale)| LoraRows { rows, adapter: made.adapter.clone(), scale });
        for norm in [Some(&by_norm), None] {
            let input = if norm.is_some() { normed(&x, &weight) } else { x.clone() };
            let (xs, epilogue) = (t.strided(&x)?, Epilogue::NONE);
            let op = || Lora { x: &xs, norm, weights: &layers, epilogue, adapters: &adapted };
            let got = t.b.run(op()).map_err(text)?;
            let mut want = expected(t, &input, &hosts, &runs);
            // A norm adds one more rounding.
            let most = want.data.iter().fold(0f64, |m, (x, _)| m.max(x.abs()));
            want.data.iter_mut().for_each(|(_, bound)| *bound += t.suite.chain * most + 1e-5);
            t.near((ends, norm.is_some()), &got, &want)?;
            t.like_default((ends, "default"), &got, compose::lora(t.b, &op()))?;
            let plain = t.b.run(LinearMany { x: &xs, norm, weights: &layers }).map_err(text)?;
            for r in 0..rows {
                let own = |a: &LoraRows<B>| {
                    Some(LoraRows { rows: 0..1, ..a.clone() }).filter(|_| a.rows.contains(&r))
                };
                let own: Vec<_> = adapted.iter().filter_map(own).collect();
                let row = xs.row_range(r..r + 1);
                let alone =
                    t.b.run(Lora { x: &row, norm, weights: &layers, epilogue, adapters: &own })
                        .map_err(text)?;
                t.same((ends, r, "alone"), &got.row_range(r..r + 1), &alone)?;
                if own.is_empty() {
                    t.same((ends, r, "without"), &got.row_range(r..r + 1), &plain.row_range(r..r + 1))?;
                }
            }
        }
    }
    with_epilogue(t, &layers, &all[0])
}

/// A single layer with an epilogue, whose scale applies to the LoRA delta too.
fn with_epilogue<B: Backend>(t: &Bench<'_, B>, layers: &[LinearWeights<B>], made: &Made<B>) -> Outcome {
    let (x, residual) = (t.up(&Host::random(1, 6, INPUTS))?, Host::random(2, 6, LAYERS[0].1));
    let (to, with) = (t.up(&residual)?, [LoraRows { rows: 2..5, adapter: made.adapter.clone(), scale: 0.5 }]);
    let (weights, epilogue) = (&layers[..1], Epilogue { scale: 0.25, ..Epilogue::add_to(&to) });
    let op = || Lora { x: &x, norm: None, weights, epilogue, adapters: &with };
    let got = t.b.run(op()).map_err(text)?;
    t.like_default("epilogue", &got, compose::lora(t.b, &op()))?;
    let plain = t.b.run(Linear { x: &x, weights: &weights[0], epilogue }).map_err(text)?;
    t.same("rows without", &got.row_range(0..2), &plain.row_range(0..2))?;
    let bare =
        t.b.run(Lora { x: &x, norm: None, weights, epilogue: Epilogue::NONE, adapters: &with })
            .map_err(text)?;
    let (bare, residual): (Vec<f32>, _) = (t.down(&bare)?, &residual.data);
    let data = bare.iter().zip(residual).map(|(y, r)| (0.25 * f64::from(*y) + f64::from(*r), 1e-4)).collect();
    t.near("epilogue", &got, &Bounded { data, rows: 6, cols: LAYERS[0].1 })
}

/// A feed-forward block with LoRA deltas before and after the activation.
fn block<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (mut parts, mut layers) = (BTreeMap::new(), Vec::new());
    for (i, (outputs, inputs)) in [(64, 96), (64, 96), (96, 64)].into_iter().enumerate() {
        let (site, seed) = (LoraTarget(i as u32), 10 * i as u64);
        let (down, _) = t.weight(seed, Format::Q8_0, 16, inputs)?;
        let (up, _) = t.weight(seed + 1, Format::F16, outputs, 16)?;
        parts.insert(site, LoraPair { a: Rc::new(down), b: up, scale: 0.5 });
        let (weight, _) = t.weight(seed + 2, Format::Q8_0, outputs, inputs)?;
        layers.push(LinearWeights { lora_target: Some(site), ..LinearWeights::new(weight, None) });
    }
    let adapter = Rc::new(Adapter::new(parts));
    let (up, down) = (&layers[..2], &layers[2]);
    for rows in [1, 7, 70] {
        let x = t.up(&Host::random(1, rows, 96))?;
        let first = rows / 3;
        let with = [LoraRows { rows: first..rows, adapter: adapter.clone(), scale: 0.75 }];
        let epilogue = Epilogue::add_to(&x);
        let op = |adapters| Ffn { x: &x, norm: None, up, act: Activation::Silu, down, epilogue, adapters };
        let got = t.b.run(op(&with)).map_err(text)?;
        t.like_default((rows, "block"), &got, compose::ffn(t.b, &op(&with)))?;
        let plain = t.b.run(op(&[])).map_err(text)?;
        t.same((rows, "without"), &got.row_range(0..first), &plain.row_range(0..first))?;
        let (row, own) = (x.row_range(rows - 1..rows), [LoraRows { rows: 0..1, ..with[0].clone() }]);
        let (x, epilogue, adapters) = (&row, Epilogue::add_to(&row), &own[..]);
        let alone =
            t.b.run(Ffn { x, norm: None, up, act: Activation::Silu, down, epilogue, adapters })
                .map_err(text)?;
        t.same((rows, "alone"), &got.row_range(rows - 1..rows), &alone)?;
        let (got, plain): (Vec<f32>, Vec<f32>) = (t.down(&alone)?, t.down(&plain.row_range(rows - 1..rows))?);
        if t.suite.values && got == plain {
            return Err(format!("block of {rows} rows: nothing is added"));
        }
    }
    Ok(())
}
