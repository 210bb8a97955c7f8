use super::blocks::{chained, product};
use super::oracle::{activate, gated as held};
use super::{Bench, Bounded, Host, Outcome, Random, ensure, text};
use crate::ops::{Epilogue, Moe};
use crate::{Activation, Backend, Expert, Format, LinearWeights, RoutingWeightOn, Stack, compose};

cases!(moe moe_alone);

/// Experts with weights of mixed formats, and the dequantized gate, up and down of each.
struct Mixture<B: Backend> {
    experts: Vec<Expert<B>>,
    hosts: Vec<[Host; 3]>,
    formats: [Format; 3],
}

/// Formats of gate, up and down.
const MIXED: [Format; 3] = [Format::Q8_0, Format::F16, Format::Q4_0];

impl<B: Backend> Mixture<B> {
    /// One whole chunk of 256 inputs, and part of another.
    const DIM: usize = 288;
    const WIDTH: usize = 64;

    fn new(t: &Bench<'_, B>, count: usize, biased: bool) -> Result<Mixture<B>, String> {
        Mixture::of(t, count, (Self::DIM, Self::WIDTH), MIXED, biased)
    }

    fn of(
        t: &Bench<'_, B>,
        count: usize,
        (dim, width): (usize, usize),
        formats: [Format; 3],
        biased: bool,
    ) -> Result<Mixture<B>, String> {
        let (mut experts, mut hosts) = (Vec::new(), Vec::new());
        let [mut gates, mut ups, mut downs] = [(); 3].map(|()| Stack::new(count));
        let biases = |seed: u64, n: usize| biased.then(|| t.up(&Host::random(seed, count, n))).transpose();
        let biases = [biases(3, width)?, biases(4, width)?, biases(5, dim)?];
        for e in 0..count {
            let seed = 10 * e as u64;
            let (gate, gate_host) = t.stacked_weight(seed, formats[0], (width, dim), &mut gates)?;
            let (up, up_host) = t.stacked_weight(seed + 1, formats[1], (width, dim), &mut ups)?;
            let (down, down_host) = t.stacked_weight(seed + 2, formats[2], (dim, width), &mut downs)?;
            let bias = |i: usize| biases[i].as_ref().map(|all| all.row_range(e..e + 1));
            experts.push(Expert {
                up: vec![LinearWeights::new(gate, bias(0)), LinearWeights::new(up, bias(1))],
                down: LinearWeights::new(down, bias(2)),
            });
            hosts.push([gate_host, up_host, down_host]);
        }
        Ok(Mixture { experts, hosts, formats })
    }

    /// The oracle's output of expert `e` for some rows, without biases.
    fn expert(&self, t: &Bench<'_, B>, e: usize, x: &Host, act: Activation) -> Bounded {
        let ([gate, up, down], formats) = (&self.hosts[e], &self.formats);
        let (g, u) = (product(&t.rounded(formats[0], x), gate), product(&t.rounded(formats[1], x), up));
        let activated =
            g.data.iter().zip(&u.data).map(|((g, _), (u, _))| (activate(act, *g) * held(act, *u)) as f32);
        let activated = Host { data: activated.collect(), rows: x.rows, cols: gate.rows };
        product(&t.rounded(formats[2], &activated), down)
    }
}

/// Experts of a row in these cases, at most.
const TOP_K: usize = 3;

/// Random routing weights: none for the last expert, and none at all for row 0. Row 1 goes through one expert only.
fn weights(rows: usize, experts: usize) -> Host {
    let mut rng = Random(5);
    let mut weights = Host { data: vec![0.0; rows * experts], rows, cols: experts };
    for r in 1..rows {
        for _ in 0..if r == 1 { 1 } else { TOP_K } {
            weights.row_mut(r)[rng.below(experts - 1)] = rng.signed();
        }
    }
    weights
}

fn moe<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    // With many rows some experts get more rows than any tile holds.
    for (rows, count, act, scale, weight_on) in [
        (1, 3, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (2, 3, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (7, 5, Activation::GeluTanh, 0.5, RoutingWeightOn::Output),
        (70, 4, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (20, 300, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (0, 2, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (5, 3, Activation::Clamped, 1.0, RoutingWeightOn::Output),
        (1, 3, Activation::Silu, 1.0, RoutingWeightOn::Input),
        (21, 4, Activation::Silu, 0.5, RoutingWeightOn::Input),
        (0, 2, Activation::Silu, 1.0, RoutingWeightOn::Input),
    ] {
        let mixture = match count {
            300 => Mixture::of(t, count, (32, 32), MIXED, false)?,
            _ => Mixture::new(t, count, false)?,
        };
        moe_of(t, rows, &mixture, act, scale, weight_on)?;
    }
    for format in t.suite.formats {
        let formats = [*format, *format, Format::Q8_0];
        let mixture =
            Mixture::of(t, 3, (33usize.next_multiple_of(format.block_weights()), 32), formats, false)?;
        for rows in [3, 9] {
            moe_of(t, rows, &mixture, Activation::Silu, 1.0, RoutingWeightOn::Output)?;
        }
    }
    moe_with_biases(t)?;
    moe_of_fused_weights(t)
}

fn moe_of<B: Backend>(
    t: &Bench<'_, B>,
    rows: usize,
    mixture: &Mixture<B>,
    act: Activation,
    scale: f32,
    weight_on: RoutingWeightOn,
) -> Outcome {
    let (count, dim) = (mixture.experts.len(), mixture.hosts[0][2].rows);
    let (x, residual) = (Host::random(1, rows, dim), Host::random(2, rows, dim));
    let weights = weights(rows, count);
    let by_result = weight_on == RoutingWeightOn::Output;
    let input = |e: usize| {
        let mut x = x.clone();
        for r in (0..rows).filter(|_| !by_result) {
            x.row_mut(r).iter_mut().for_each(|x| *x *= weights.row(r)[e]);
        }
        x
    };
    let each: Vec<Bounded> = (0..count).map(|e| mixture.expert(t, e, &input(e), act)).collect();
    let want = Bounded::by_rows(rows, dim, |r| {
        let sum = |c: usize| -> f64 {
            let by = |e: usize| if by_result { f64::from(weights.row(r)[e]) } else { 1.0 };
            let term = |e: usize| each[e].data[r * dim + c].0 * by(e);
            (0..count).map(term).sum::<f64>() * f64::from(scale) + f64::from(residual.row(r)[c])
        };
        (0..dim).map(|c| (sum(c), 0.0)).collect()
    });
    let (xs, rs, ws) = (t.strided(&x)?, t.up(&residual)?, t.strided(&weights)?);
    let epilogue = Epilogue { scale, ..Epilogue::add_to(&rs) };
    let (top_k, experts) = (TOP_K.min(count), &mixture.experts);
    let op = || Moe { x: &xs, routing_weights: &ws, top_k, weight_on, experts, act, epilogue };
    let got = t.b.run(op()).map_err(text)?;
    let what = (rows, count, mixture.formats, act, weight_on);
    t.near(what, &got, &chained(t, want))?;
    t.like_default((what, "default"), &got, compose::moe(t.b, &op()))
}

fn moe_with_biases<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let mixture = Mixture::new(t, 3, true)?;
    for rows in [3, 9] {
        let (x, weights) = (t.up(&Host::random(1, rows, Mixture::<B>::DIM))?, t.up(&weights(rows, 3))?);
        let op = |weight_on| Moe {
            x: &x,
            routing_weights: &weights,
            top_k: TOP_K,
            weight_on,
            experts: &mixture.experts,
            act: Activation::Silu,
            epilogue: Epilogue::NONE,
        };
        let got = t.b.run(op(RoutingWeightOn::Output)).map_err(text)?;
        t.like_default((rows, "biases"), &got, compose::moe(t.b, &op(RoutingWeightOn::Output)))?;
        let refused = t.b.run(op(RoutingWeightOn::Input));
        ensure(refused.is_err(), || format!("biases of experts that take weighted inputs gave {refused:?}"))?;
    }
    Ok(())
}

/// Gate and up in one weight, and experts without a gate; of widths that are whole groups of rows, and odd ones.
fn moe_of_fused_weights<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (count, dim) = (3, 65);
    for (width, outputs) in [(32, 64), (33, 66), (33, 33)] {
        let (mut ups, mut downs) = (Stack::new(count), Stack::new(count));
        let mut experts = Vec::new();
        for e in 0..count as u64 {
            let (up, _) = t.stacked_weight(10 * e, Format::F16, (outputs, dim), &mut ups)?;
            let (down, _) = t.stacked_weight(10 * e + 1, Format::BF16, (dim, width), &mut downs)?;
            let up = vec![LinearWeights::new(up, None)];
            experts.push(Expert { up, down: LinearWeights::new(down, None) });
        }
        for rows in [2, 12] {
            let (xs, ws) = (t.up(&Host::random(1, rows, dim))?, t.up(&weights(rows, count))?);
            let op = || Moe {
                x: &xs,
                routing_weights: &ws,
                top_k: TOP_K,
                weight_on: RoutingWeightOn::Output,
                experts: &experts,
                act: Activation::Gelu,
                epilogue: Epilogue { softcap: Some(2.0), ..Epilogue::NONE },
            };
            let got = t.b.run(op()).map_err(text)?;
            t.like_default((width, outputs, rows), &got, compose::moe(t.b, &op()))?;
        }
    }
    Ok(())
}

/// A row's result does not depend on how many other rows its experts process.
fn moe_alone<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let rows = 140;
    let (x, taken) = (Host::random(1, rows, Mixture::<B>::DIM), weights(rows, 4));
    let mixture = Mixture::new(t, 4, false)?;
    let (xs, ws) = (t.up(&x)?, t.up(&taken)?);
    for weight_on in [RoutingWeightOn::Output, RoutingWeightOn::Input] {
        let run = |rows: std::ops::Range<usize>| {
            let (x, weights) = (xs.row_range(rows.clone()), ws.row_range(rows));
            let op = Moe {
                x: &x,
                routing_weights: &weights,
                top_k: TOP_K,
                weight_on,
                experts: &mixture.experts,
                act: Activation::Silu,
                epilogue: Epilogue::NONE,
            };
            t.b.run(op).map_err(text)
        };
        let all = run(0..rows)?;
        for part in [0..1, 1..2, 2..3, 77..78, 3..8, 5..14, 40..90, 100..140] {
            t.same(&part, &run(part.clone())?, &all.row_range(part.clone()))?;
        }
    }
    Ok(())
}
