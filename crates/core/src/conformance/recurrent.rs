//! Ops with recurrent state: results must not depend on how sequences are cut into steps.

use std::ops::Range;

use super::oracle::{self, EPS, activate};
use super::{Bench, Bounded, Host, Outcome, text};
use crate::ops::{CausalConv, GatedDelta};
use crate::{
    Activation, Backend, Decay, DeltaHeads, Sharing, Span, StateRows, Step, StepPlan, Tensor, compose,
};

cases!(causal_conv gated_delta);

/// Sequence index and the range of its tokens.
type Part = (usize, Range<usize>);

/// Sequence lengths. The steps below cut them awkwardly, mix different sequences, and include empty parts and several of a
/// sequence.
const LENS: [usize; 3] = [11, 1, 6];

/// Most parts of a sequence in all steps, plus one.
const ROWS: usize = 8;

fn steps() -> Vec<Vec<Part>> {
    vec![
        vec![(0, 0..1), (2, 0..1), (2, 1..4)],
        vec![(2, 4..5), (0, 1..3), (1, 0..1)],
        vec![(0, 3..3), (2, 5..6)],
        vec![(0, 3..4), (0, 4..4), (0, 4..9), (0, 9..11)],
    ]
}

/// Each sequence alone, in one step.
fn alone() -> Vec<Vec<Part>> {
    LENS.iter().enumerate().map(|(i, n)| vec![(i, 0..*n)]).collect()
}

/// The plan of a step. `turns` counts the parts of each sequence so far. The state rows of a sequence are not adjacent.
fn plan<B: Backend>(t: &Bench<'_, B>, parts: &[Part], turns: &mut [usize]) -> Result<StepPlan<B>, String> {
    let span = |(_, rows): &Part| Span { rows: rows.len(), start: rows.start, pages: vec![0].into() };
    let spans: Vec<Span> = parts.iter().map(span).collect();
    let state = |(i, _): &Part| {
        let (from, to) = (turns[*i] * LENS.len() + i, (turns[*i] + 1) * LENS.len() + i);
        turns[*i] += 1;
        StateRows { from: from as u32, to: to as u32 }
    };
    let states = parts.iter().map(state).collect();
    let tokens = vec![0; spans.iter().map(|s| s.rows).sum()];
    let step = Step { tokens, spans, states, page_len: 64, ..Step::default() };
    StepPlan::new(t.b, step).map_err(text)
}

/// Gathers the rows that a step computes.
fn gather(from: &[Host], parts: &[Part]) -> Host {
    let cols = from[0].cols;
    let rows = parts.iter().flat_map(|(i, rows)| rows.clone().map(|r| from[*i].row(r)));
    let data: Vec<f32> = rows.flatten().copied().collect();
    Host { rows: parts.iter().map(|(_, rows)| rows.len()).sum(), data, cols }
}

/// Runs the op under test on the device for some parts and their plan.
type Run<'a, B> = &'a dyn Fn(&[Part], &StepPlan<B>) -> Result<Tensor<B>, String>;

/// Compares each sequence computed alone with the oracle, and the results in steps with those, bit for bit.
fn check<B: Backend>(
    t: &Bench<'_, B>,
    what: &dyn std::fmt::Debug,
    want: &[Bounded],
    run: Run<'_, B>,
) -> Outcome {
    let mut at_once = Vec::new();
    for parts in alone() {
        let y = run(&parts, &plan(t, &parts, &mut [0; LENS.len()])?)?;
        let i = parts[0].0;
        let expected = Bounded { data: want[i].data.clone(), ..want[i] };
        t.near((what, "alone", i), &y, &expected)?;
        at_once.push(y);
    }
    let mut turns = [0; LENS.len()];
    for (n, parts) in steps().iter().enumerate() {
        let y = run(parts, &plan(t, parts, &mut turns)?)?;
        let mut first = 0;
        for (i, rows) in parts {
            let part = y.row_range(first..first + rows.len());
            t.same((what, n, i, rows), &part, &at_once[*i].row_range(rows.clone()))?;
            first += rows.len();
        }
    }
    // From the state that a part in the middle of the last step has left.
    let parts = [(0, 9..11)];
    let y = run(&parts, &plan(t, &parts, &mut [ROWS - 2, 0, 0])?)?;
    t.same((what, "a state between parts"), &y, &at_once[0].row_range(9..11))
}

/// State memory filled with garbage that must not be read.
fn states<B: Backend>(t: &Bench<'_, B>, cols: usize) -> Result<Tensor<B>, String> {
    t.up(&Host::random(77, ROWS * LENS.len(), cols).map(|x| 1e3 * x))
}

fn causal_conv<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (kernel, cols) in [(4, 64), (2, 1), (3, 37), (5, 130), (16, 8)].into_iter().take(t.suite.sizes) {
        let by = Host::random(3, kernel, cols);
        let xs: Vec<Host> = (0..).zip(LENS).map(|(i, n)| Host::random(50 + i, n, cols)).collect();
        let want = |x: &Host| {
            Bounded::by_rows(x.rows, cols, |r| {
                let one = |c: usize| {
                    let seen = (0..kernel).filter(|j| r + j + 1 >= kernel);
                    let terms =
                        seen.map(|j| f64::from(by.row(j)[c]) * f64::from(x.row(r + j + 1 - kernel)[c]));
                    let (sum, size) = terms.fold((0.0, 0.0), |(y, s), t: f64| (y + t, s + t.abs()));
                    (activate(Activation::Silu, sum), EPS * size * (4.0 + kernel as f64) + 4e-6)
                };
                (0..cols).map(one).collect()
            })
        };
        let want: Vec<Bounded> = xs.iter().map(want).collect();
        let weights = t.strided(&by)?;
        let (window, other) = (states(t, (kernel - 1) * cols)?, states(t, (kernel - 1) * cols)?);
        check(t, &(kernel, cols), &want, &|parts, plan| {
            let x = t.strided(&gather(&xs, parts))?;
            let op = |window| CausalConv { x: &x, weight: &weights, window, plan };
            let y = t.b.run(op(&window)).map_err(text)?;
            t.like_default((kernel, cols, parts), &y, compose::causal_conv(t.b, &op(&other)))?;
            Ok(y)
        })?;
    }
    Ok(())
}

fn gated_delta<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let heads =
        |keys, values, key_dim, value_dim, sharing| DeltaHeads { keys, values, key_dim, value_dim, sharing };
    for heads in [
        heads(2, 4, 8, 8, Sharing::Grouped),
        heads(2, 6, 12, 20, Sharing::RoundRobin),
        heads(1, 2, 128, 40, Sharing::Grouped),
        heads(1, 1, 1, 1, Sharing::RoundRobin),
        heads(3, 3, 5, 17, Sharing::Grouped),
        heads(1, 1, 256, 16, Sharing::RoundRobin),
        heads(1, 3, 33, 65, Sharing::Grouped),
        heads(2, 4, 128, 128, Sharing::RoundRobin),
    ]
    .into_iter()
    .take(t.suite.sizes)
    {
        // Keys and queries of about unit length.
        let short = 1.7 / (heads.key_dim as f32).sqrt();
        let make = |salt: u64, cols: usize| -> Vec<Host> {
            (0..).zip(LENS).map(|(i, n)| Host::random(salt + 7 * i, n, cols)).collect()
        };
        let qk: Vec<Host> =
            make(100, 2 * heads.key_cols()).into_iter().map(|h| h.map(|x| short * x)).collect();
        let v = make(200, heads.value_cols());
        let gates: Vec<Host> = make(300, 2 * heads.values).into_iter().map(|h| h.map(|x| 6.0 * x)).collect();
        let rate = Host::random(4, 1, heads.values).map(|x| 1.0 + x);
        let bias = Host::random(5, 1, heads.values);
        let want: Vec<Bounded> = (0..LENS.len())
            .map(|i| {
                let kept = |r: usize, h: usize| {
                    oracle::decay(gates[i].row(r)[heads.values + h], rate.data[h], bias.data[h])
                };
                oracle::gated_delta(heads, [&qk[i], &v[i], &gates[i]], kept)
            })
            .collect();
        let by = Decay { rate: t.up(&rate)?, bias: t.up(&bias)? };
        let matrices = states(t, heads.state_len())?;
        check(t, &heads, &want, &|parts, plan| {
            let [qk, v, gates] = [&qk, &v, &gates].map(|of| t.strided(&gather(of, parts)));
            let (qk, v, gates) = (qk?, v?, gates?);
            let (states, decay) = (&matrices, &by);
            t.b.run(GatedDelta { qk: &qk, v: &v, gates: &gates, heads, decay, states, plan }).map_err(text)
        })?;
    }
    Ok(())
}
