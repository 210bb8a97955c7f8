use super::oracle::{Normed, Product, activate, gated as held};
use super::{Bench, Bounded, CoreResult, Host, Outcome, Random, ensure, text};
use crate::ops::{
    Activate, Epilogue, Ffn, Head, Linear, LinearHeads, LinearMany, Lora, Moe, Normalize, PermuteCols,
};
use crate::{
    Activation, Backend, Expert, Format, LinearWeight, LinearWeights, Norm, NormKind, RoutingWeightOn,
    Tensor, compose,
};

cases!(linear_many linear_heads ffn moe moe_alone head act_order trace);

/// A random RMSNorm: its weight on the host, and the norm on the device.
pub(super) fn norm<B: Backend>(t: &Bench<'_, B>, width: usize) -> Result<(Host, Norm<B>), String> {
    let weight = Host::random(21, 1, width);
    let by = Norm { kind: NormKind::Rms, weight: t.up(&weight)?, bias: None, eps: 1e-5 };
    Ok((weight, by))
}

pub(super) fn normed(x: &Host, weight: &Host) -> Host {
    let norm = Normed { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
    let row = |r| norm.row(&x.row(r).iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    Host { data: (0..x.rows).flat_map(row).map(|y| y as f32).collect(), ..*x }
}

fn product(x: &Host, w: &Host) -> Bounded {
    Product { x, w, bias: None, scale: 1.0, softcap: None, residual: None }.get()
}

fn values(b: &Bounded) -> Host {
    Host { data: b.data.iter().map(|(x, _)| *x as f32).collect(), rows: b.rows, cols: b.cols }
}

/// Replaces bounds by those for chained ops, relative to the largest element.
fn chained<B: Backend>(t: &Bench<'_, B>, b: Bounded) -> Bounded {
    let most = b.data.iter().fold(0f64, |m, (x, _)| m.max(x.abs()));
    Bounded { data: b.data.iter().map(|(x, _)| (*x, t.suite.chain * most + 1e-5)).collect(), ..b }
}

fn linear_many<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for rows in [1, 3, 18] {
        let x = Host::random(1, rows, 256);
        let (weight, by_norm) = norm(t, 256)?;
        let parts = [(Format::Q4K, 40), (Format::F32, 7), (Format::Q6K, 33)];
        let made = parts.map(|(format, n)| t.weight(n as u64, format, n, 256));
        let mut linears = Vec::new();
        let mut hosts = Vec::new();
        for m in made {
            let (weight, host) = m?;
            linears.push(LinearWeights::new(weight, None));
            hosts.push(host);
        }
        for norm in [Some(&by_norm), None] {
            let input = if norm.is_some() { normed(&x, &weight) } else { x.clone() };
            let pairs = parts.iter().zip(&hosts);
            let wants: Vec<Bounded> =
                pairs.map(|((format, _), w)| product(&t.rounded(*format, &input), w)).collect();
            let want = Bounded::by_rows(rows, 80, |r| {
                wants.iter().flat_map(|w| w.data[r * w.cols..][..w.cols].to_vec()).collect()
            });
            let xs = t.strided(&x)?;
            let op = || LinearMany { x: &xs, norm, weights: &linears };
            let got = t.b.run(op()).map_err(text)?;
            t.near((rows, norm.is_some()), &got, &chained(t, want))?;
            t.like_default((rows, "default"), &got, compose::linear_many(t.b, &op()))?;
        }
    }
    Ok(())
}

/// Columns of a head that its layer multiplies, and those that are copied.
const HEAD_COLUMNS: [(std::ops::Range<usize>, std::ops::Range<usize>); 3] =
    [(0..64, 64..70), (6..70, 0..0), (3..67, 67..70)];

fn linear_heads<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (heads, outputs, head_dim) = (3, 37, 70);
    for (format, rows) in
        [(Format::Q8_0, 1), (Format::Q4_0, 5), (Format::F16, 3), (Format::BF16, 19), (Format::F32, 0)]
    {
        for (inputs, copied) in HEAD_COLUMNS {
            let x = Host::random(1, rows, heads * head_dim);
            let (mut weights, mut wants) = (Vec::new(), Vec::new());
            for head in 0..heads {
                let (weight, host) = t.weight(2 + head as u64, format, outputs, inputs.len())?;
                weights.push(LinearWeights::new(weight, None));
                let at = head * head_dim + inputs.start..head * head_dim + inputs.end;
                let data = (0..rows).flat_map(|r| x.row(r)[at.clone()].to_vec()).collect();
                let part = Host { data, rows, cols: inputs.len() };
                wants.push(product(&t.rounded(format, &part), &host));
            }
            let want = Bounded::by_rows(rows, heads * (copied.len() + outputs), |r| {
                let head = |h: usize| {
                    let at = h * head_dim;
                    let same =
                        x.row(r)[at + copied.start..at + copied.end].iter().map(|x| (f64::from(*x), 0.0));
                    same.chain(wants[h].data[r * outputs..][..outputs].iter().copied())
                };
                (0..heads).flat_map(head).collect()
            });
            let xs = t.strided(&x)?;
            let op = || LinearHeads {
                x: &xs,
                head_dim,
                inputs: inputs.clone(),
                copied: copied.clone(),
                weights: &weights,
            };
            let got = t.b.run(op()).map_err(text)?;
            t.near((format, rows, inputs.start), &got, &want)?;
            t.like_default((format, rows, "default"), &got, compose::linear_heads(t.b, &op()))?;
        }
    }
    Ok(())
}

fn ffn<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let mixed = [Format::Q8_0, Format::F16];
    for (rows, act, ups, scale) in [
        (1, Activation::Silu, &mixed[..], 1.0),
        (5, Activation::GeluTanh, &mixed, 0.5),
        (19, Activation::Gelu, &mixed[..1], 1.0),
        (4, Activation::Clamped, &mixed, 1.0),
    ] {
        ffn_of(t, rows, 96, act, ups, scale)?;
    }
    Activation::ALL.into_iter().try_for_each(|act| ffn_of(t, 2, 96, act, &mixed, 1.0))?;
    t.suite.formats.iter().try_for_each(|format| ffn_of(t, 2, 256, Activation::Silu, &[*format; 2], 1.0))
}

/// A block with weights of one or two formats before the activation.
fn ffn_of<B: Backend>(
    t: &Bench<'_, B>,
    rows: usize,
    dim: usize,
    act: Activation,
    formats: &[Format],
    scale: f32,
) -> Outcome {
    let (x, residual) = (Host::random(1, rows, dim), Host::random(2, rows, dim));
    let (weight, by_norm) = norm(t, dim)?;
    let input = normed(&x, &weight);
    let (mut ups, mut products) = (Vec::new(), Vec::new());
    for (format, seed) in formats.iter().zip(3..) {
        let (weight, host) = t.weight(seed, *format, 64, dim)?;
        ups.push(LinearWeights::new(weight, None));
        products.push(product(&t.rounded(*format, &input), &host));
    }
    let (down, down_host) = t.weight(5, Format::Q4_0, dim, 64)?;
    let down = LinearWeights::new(down, None);
    let activated = products[0].data.iter().enumerate().map(|(i, (gate, _))| {
        let up = products.get(1).map_or(1.0, |up| held(act, up.data[i].0));
        (activate(act, *gate) * up) as f32
    });
    let activated = Host { data: activated.collect(), rows, cols: 64 };
    let want = Product {
        x: &t.rounded(Format::Q4_0, &activated),
        w: &down_host,
        bias: None,
        scale,
        softcap: None,
        residual: Some(&residual),
    };
    let (xs, rs) = (t.strided(&x)?, t.up(&residual)?);
    let epilogue = Epilogue { scale, ..Epilogue::add_to(&rs) };
    let op = || Ffn { x: &xs, norm: Some(&by_norm), up: &ups, act, down: &down, epilogue, adapters: &[] };
    let got = t.b.run(op()).map_err(text)?;
    t.near((rows, formats, act), &got, &chained(t, want.get()))?;
    t.like_default((rows, formats, act, "default"), &got, compose::ffn(t.b, &op()))
}

/// Experts with weights of mixed formats, and the dequantized gate, up and down of each.
struct Mixture<B: Backend> {
    experts: Vec<Expert<B>>,
    hosts: Vec<[Host; 3]>,
}

impl<B: Backend> Mixture<B> {
    /// One whole chunk of 256 inputs, and part of another.
    const DIM: usize = 288;
    const WIDTH: usize = 64;

    fn new(t: &Bench<'_, B>, count: usize, biased: bool) -> Result<Mixture<B>, String> {
        let (mut experts, mut hosts) = (Vec::new(), Vec::new());
        for e in 0..count as u64 {
            let (gate, gate_host) = t.weight(10 * e, Format::Q8_0, Self::WIDTH, Self::DIM)?;
            let (up, up_host) = t.weight(10 * e + 1, Format::F16, Self::WIDTH, Self::DIM)?;
            let (down, down_host) = t.weight(10 * e + 2, Format::Q4_0, Self::DIM, Self::WIDTH)?;
            let bias = |seed: u64, n: usize| {
                let bias = biased.then(|| t.up(&Host::random(10 * e + seed, 1, n)));
                bias.transpose()
            };
            experts.push(Expert {
                up: vec![
                    LinearWeights::new(gate, bias(3, Self::WIDTH)?),
                    LinearWeights::new(up, bias(4, Self::WIDTH)?),
                ],
                down: LinearWeights::new(down, bias(5, Self::DIM)?),
            });
            hosts.push([gate_host, up_host, down_host]);
        }
        Ok(Mixture { experts, hosts })
    }

    /// The oracle's output of expert `e` for some rows, without biases.
    fn expert(&self, t: &Bench<'_, B>, e: usize, x: &Host, act: Activation) -> Bounded {
        let [gate, up, down] = &self.hosts[e];
        let (g, u) = (product(&t.rounded(Format::Q8_0, x), gate), product(&t.rounded(Format::F16, x), up));
        let activated =
            g.data.iter().zip(&u.data).map(|((g, _), (u, _))| (activate(act, *g) * held(act, *u)) as f32);
        let activated =
            t.rounded(Format::Q4_0, &Host { data: activated.collect(), rows: x.rows, cols: Self::WIDTH });
        product(&activated, down)
    }
}

/// Random routing weights: none for the last expert, and none at all for row 0.
fn weights(rows: usize, experts: usize) -> Host {
    let mut rng = Random(5);
    let mut weights = Host { data: vec![0.0; rows * experts], rows, cols: experts };
    for r in 1..rows {
        for _ in 0..3 {
            weights.row_mut(r)[rng.below(experts - 1)] = rng.signed();
        }
    }
    weights
}

fn moe<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let dim = Mixture::<B>::DIM;
    // With many rows some experts get more rows than any tile holds.
    for (rows, count, act, scale, weight_on) in [
        (1, 3, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (7, 5, Activation::GeluTanh, 0.5, RoutingWeightOn::Output),
        (70, 4, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (0, 2, Activation::Silu, 1.0, RoutingWeightOn::Output),
        (5, 3, Activation::Clamped, 1.0, RoutingWeightOn::Output),
        (1, 3, Activation::Silu, 1.0, RoutingWeightOn::Input),
        (21, 4, Activation::Silu, 0.5, RoutingWeightOn::Input),
        (0, 2, Activation::Silu, 1.0, RoutingWeightOn::Input),
    ] {
        let (x, residual) = (Host::random(1, rows, dim), Host::random(2, rows, dim));
        let mixture = Mixture::new(t, count, false)?;
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
        let op = || Moe { x: &xs, routing_weights: &ws, weight_on, experts: &mixture.experts, act, epilogue };
        let got = t.b.run(op()).map_err(text)?;
        t.near((rows, count, act, weight_on), &got, &chained(t, want))?;
        t.like_default((rows, count, act, "default"), &got, compose::moe(t.b, &op()))?;
    }
    let mixture = Mixture::new(t, 3, true)?;
    let (x, weights) = (t.up(&Host::random(1, 9, Mixture::<B>::DIM))?, t.up(&weights(9, 3))?);
    let op = |weight_on| Moe {
        x: &x,
        routing_weights: &weights,
        weight_on,
        experts: &mixture.experts,
        act: Activation::Silu,
        epilogue: Epilogue::NONE,
    };
    let got = t.b.run(op(RoutingWeightOn::Output)).map_err(text)?;
    t.like_default("biases", &got, compose::moe(t.b, &op(RoutingWeightOn::Output)))?;
    let refused = t.b.run(op(RoutingWeightOn::Input));
    ensure(refused.is_err(), || format!("biases of experts that take weighted inputs gave {refused:?}"))
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
            let (act, epilogue, experts) = (Activation::Silu, Epilogue::NONE, &mixture.experts);
            t.b.run(Moe { x: &x, routing_weights: &weights, weight_on, experts, act, epilogue }).map_err(text)
        };
        let all = run(0..rows)?;
        for part in [0..1, 1..2, 77..78, 3..8, 40..90, 100..140] {
            t.same(&part, &run(part.clone())?, &all.row_range(part.clone()))?;
        }
    }
    Ok(())
}

fn head<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let x = Host::random(1, 9, 64);
    let (weight, by_norm) = norm(t, 64)?;
    let (table, host) = t.weight(3, Format::Q8_0, 301, 64)?;
    let by = LinearWeights::new(table, None);
    for rows in [vec![], vec![8], vec![0, 8, 3]] {
        let picked =
            Host { data: rows.iter().flat_map(|r| x.row(*r).to_vec()).collect(), rows: rows.len(), cols: 64 };
        let input = t.rounded(Format::Q8_0, &normed(&picked, &weight));
        let want =
            Product { x: &input, w: &host, bias: None, scale: 0.25, softcap: Some(2.0), residual: None };
        let at: Vec<u32> = rows.iter().map(|r| *r as u32).collect();
        let (xs, at) = (t.up(&x)?, t.ids(&at)?);
        let epilogue = Epilogue { scale: 0.25, softcap: Some(2.0), residual: None };
        let op = || Head { x: &xs, rows: &at, norm: &by_norm, weights: &by, epilogue };
        let got = t.b.run(op()).map_err(text)?;
        t.near(&rows, &got, &chained(t, want.get()))?;
        t.like_default((&rows, "default"), &got, compose::head(t.b, &op()))?;
    }
    // Logits do not depend on which other rows are computed.
    let xs = t.up(&x)?;
    let logits = |at: &[u32]| {
        let at = t.ids(at)?;
        t.b.run(Head { x: &xs, rows: &at, norm: &by_norm, weights: &by, epilogue: Epilogue::NONE })
            .map_err(text)
    };
    t.same("alone", &logits(&[3])?, &logits(&[0, 3, 8])?.row_range(1..2))
}

/// Act-order: in every op with linear layers, layers with act-order match plain layers on permuted inputs.
fn act_order<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (rows, dim, width) = (5, 96, 64);
    let order = |n: usize| (0..n as u32).map(|i| (i * 29 + 11) % n as u32).collect::<Vec<_>>();
    let (at, at_down) = (t.ids(&order(dim))?, t.ids(&order(width))?);
    let layer = |seed: u64, rows: usize, cols: usize, order: Option<&Tensor<B>>| {
        let (weight, _) = t.weight(seed, Format::Q8_0, rows, cols)?;
        let bias = t.up(&Host::random(seed, 1, rows))?;
        let weight = LinearWeight::new(weight, order.cloned());
        Ok::<_, String>(LinearWeights { weight, bias: Some(bias), lora_target: None })
    };
    let block = |order: Option<&Tensor<B>>, of_down: Option<&Tensor<B>>| {
        let up = vec![layer(1, width, dim, order)?, layer(2, width, dim, order)?];
        Ok::<_, String>(Expert { up, down: layer(3, dim, width, of_down)? })
    };
    let x = t.up(&Host::random(5, rows, dim))?;
    let picked = t.b.run(PermuteCols { x: &x, indices: &at }).map_err(text)?;
    let (plain, epilogue) = (block(None, None)?, Epilogue::NONE);
    let other = block(Some(&at), None)?;
    let same = |what: &str, got: CoreResult<Tensor<B>>, want: CoreResult<Tensor<B>>| {
        t.like_default(what, &got.map_err(text)?, want)
    };

    let linear = |x, weights| t.b.run(Linear { x, weights, epilogue });
    same("linear", linear(&x, &other.up[0]), linear(&picked, &plain.up[0]))?;
    let many = |x, weights| t.b.run(LinearMany { x, norm: None, weights });
    same("linear_many", many(&x, &other.up), many(&picked, &plain.up))?;
    let lora = t.b.run(Lora { x: &x, norm: None, weights: &other.up, epilogue, adapters: &[] });
    same("lora", lora, many(&picked, &plain.up))?;
    let act = Activation::Silu;
    let ffn = |x, e: &Expert<B>| {
        t.b.run(Ffn { x, norm: None, up: &e.up, act, down: &e.down, epilogue, adapters: &[] })
    };
    same("ffn", ffn(&x, &other), ffn(&picked, &plain))?;

    let activated =
        t.b.run(Activate { gate: &many(&x, &plain.up[..1]).map_err(text)?, up: None, act }).map_err(text)?;
    let permuted = t.b.run(PermuteCols { x: &activated, indices: &at_down }).map_err(text)?;
    let by_down = block(None, Some(&at_down))?;
    let ungated = |e: &Expert<B>| {
        t.b.run(Ffn { x: &x, norm: None, up: &e.up[..1], act, down: &e.down, epilogue, adapters: &[] })
    };
    same("down", ungated(&by_down), linear(&permuted, &plain.down))?;

    let weights = t.up(&Host::random(6, rows, 1).map(f32::abs))?;
    let moe = |x, e| {
        t.b.run(Moe {
            x,
            routing_weights: &weights,
            weight_on: RoutingWeightOn::Output,
            experts: std::slice::from_ref(e),
            act,
            epilogue,
        })
    };
    same("moe", moe(&x, &other), moe(&picked, &plain))?;
    let (_, by_norm) = norm(t, dim)?;
    let normed = t.b.run(Normalize { x: &x, norm: &by_norm, residual: None }).map_err(text)?;
    let (at_rows, rows) = (t.ids(&[3, 0])?, [3, 0].map(|r| normed.row_range(r..r + 1)));
    let head =
        t.b.run(Head { x: &x, rows: &at_rows, norm: &by_norm, weights: &other.up[0], epilogue })
            .map_err(text)?;
    for (i, row) in rows.iter().enumerate() {
        let want = linear(row, &other.up[0]);
        t.like_default(("head", i), &head.row_range(i..i + 1), want)?;
    }
    Ok(())
}

/// Launched ops are recorded in the trace, and the ops they are composed of one level deeper.
fn trace<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let x = t.up(&values(&product(&Host::random(1, 2, 32), &Host::random(2, 32, 32))))?;
    let (weight, _) = t.weight(3, Format::Q8_0, 8, 32)?;
    let by = [LinearWeights::new(weight, None)];
    t.b.trace().start();
    t.b.run(LinearMany { x: &x, norm: None, weights: &by }).map_err(text)?;
    let log = t.b.trace().stop();
    let top: Vec<&str> = log.iter().filter(|l| l.depth == 0).map(|l| l.op).collect();
    ensure(top == ["linear_many"], || format!("the trace is {log:?}"))?;
    ensure(t.b.trace().stop().is_empty(), || "a stopped trace goes on".into())
}
