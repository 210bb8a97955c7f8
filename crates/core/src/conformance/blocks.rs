use super::oracle::{Normed, Product, activate, gated as held};
use super::{Bench, Bounded, CoreResult, Host, Outcome, ensure, text};
use crate::ops::{
    Activate, Epilogue, Ffn, Head, Linear, LinearHeads, LinearMany, Lora, Moe, Normalize, PermuteCols,
};
use crate::{
    Activation, Backend, Expert, Format, LinearWeight, LinearWeights, Norm, NormKind, RoutingWeightOn, Stack,
    Tensor, compose,
};

cases!(linear_many linear_heads ffn head act_order trace);

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

pub(super) fn product(x: &Host, w: &Host) -> Bounded {
    Product { x, w, bias: None, scale: 1.0, softcap: None, residual: None }.get()
}

fn values(b: &Bounded) -> Host {
    Host { data: b.data.iter().map(|(x, _)| *x as f32).collect(), rows: b.rows, cols: b.cols }
}

/// Replaces bounds by those for chained ops, relative to the largest element.
pub(super) fn chained<B: Backend>(t: &Bench<'_, B>, b: Bounded) -> Bounded {
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
    // Heads that lie side by side, and heads of which each has memory of its own.
    for (format, rows, stacked) in [
        (Format::Q8_0, 1, true),
        (Format::Q4_0, 5, true),
        (Format::Q8_0, 2, false),
        (Format::F16, 3, true),
        (Format::BF16, 19, true),
        (Format::Q4_0, 70, false),
        (Format::F32, 0, true),
    ] {
        for columns in HEAD_COLUMNS {
            linear_heads_of(t, format, (rows, 37, 70), columns, stacked)?;
        }
    }
    // Columns that can be read four at a time, in every format.
    let columns = |inputs: usize| (4..4 + inputs, 0..4);
    t.suite.formats.iter().try_for_each(|format| {
        let inputs = format.block_weights().max(64);
        [1, 17]
            .into_iter()
            .try_for_each(|rows| linear_heads_of(t, *format, (rows, 33, inputs + 8), columns(inputs), true))
    })
}

fn linear_heads_of<B: Backend>(
    t: &Bench<'_, B>,
    format: Format,
    (rows, outputs, head_dim): (usize, usize, usize),
    (inputs, copied): (std::ops::Range<usize>, std::ops::Range<usize>),
    stacked: bool,
) -> Outcome {
    let heads = 3;
    let x = Host::random(1, rows, heads * head_dim);
    let (mut weights, mut wants, mut stack) = (Vec::new(), Vec::new(), Stack::new(heads));
    for head in 0..heads {
        let (seed, shape) = (2 + head as u64, (outputs, inputs.len()));
        let (weight, host) = match stacked {
            true => t.stacked_weight(seed, format, shape, &mut stack)?,
            false => t.weight(seed, format, shape.0, shape.1)?,
        };
        weights.push(LinearWeights::new(weight, None));
        let at = head * head_dim + inputs.start..head * head_dim + inputs.end;
        let data = (0..rows).flat_map(|r| x.row(r)[at.clone()].to_vec()).collect();
        let part = Host { data, rows, cols: inputs.len() };
        wants.push(product(&t.rounded(format, &part), &host));
    }
    let want = Bounded::by_rows(rows, heads * (copied.len() + outputs), |r| {
        let head = |h: usize| {
            let at = h * head_dim;
            let same = x.row(r)[at + copied.start..at + copied.end].iter().map(|x| (f64::from(*x), 0.0));
            same.chain(wants[h].data[r * outputs..][..outputs].iter().copied())
        };
        (0..heads).flat_map(head).collect()
    });
    for xs in [t.strided(&x)?, t.up(&x)?] {
        let op = || LinearHeads {
            x: &xs,
            head_dim,
            inputs: inputs.clone(),
            copied: copied.clone(),
            weights: &weights,
        };
        let got = t.b.run(op()).map_err(text)?;
        t.near((format, rows, inputs.start, stacked), &got, &want)?;
        t.like_default((format, rows, "default"), &got, compose::linear_heads(t.b, &op()))?;
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
    ffn_of(t, 3, 1056, Activation::Silu, &mixed, 1.0)?;
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
            top_k: 1,
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
