use super::oracle::{self, EPS, Normed, Routed};
use super::{Bench, Bounded, Host, Outcome, Random, ensure, text};
use crate::ops::{
    Activate, Eltwise, EltwiseOp, IndexMode, IndexRows, Normalize, PermuteCols, Rope, Route,
    TAIL_ELEMENT_ERROR, TAIL_SUM_ERROR, TailSum, TopK, TopKOut,
};
use crate::{Activation, Backend, Groups, Norm, NormKind, RopePairs, RopeTable, Routing, Scores, Tensor};

cases!(normalize rope activate eltwise index_rows permute_cols route topk tail_sum);

fn normalize<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (rows, width, groups) in
        [(1, 1, 1), (2, 3, 1), (3, 12, 4), (5, 63, 1), (4, 64, 2), (2, 65, 3), (1, 1030, 1), (0, 8, 1)]
    {
        let x = Host::random(1, rows, width * groups).map(|x| 3.0 * x + 0.5);
        let (weight, bias, residual) =
            (Host::random(2, 1, width), Host::random(3, 1, width), Host::random(4, rows, width * groups));
        for (kind, bias, residual) in [
            (NormKind::Rms, None, None),
            (NormKind::Rms, None, Some(&residual)),
            (NormKind::Layer, Some(&bias), None),
            (NormKind::Layer, Some(&bias), Some(&residual)),
            (NormKind::Layer, None, None),
        ] {
            let eps = 1e-3;
            let normed = Normed { kind, weight: &weight, bias, eps };
            let want = Bounded::by_rows(rows, width * groups, |r| {
                let row: Vec<f64> = x.row(r).iter().map(|x| f64::from(*x)).collect();
                let add = |c: usize| residual.map_or(0.0, |h| f64::from(h.row(r)[c]));
                normed
                    .row(&row)
                    .iter()
                    .enumerate()
                    .map(|(c, y)| (y + add(c), 4e-6 * (1.0 + y.abs())))
                    .collect()
            });
            let by = Norm { kind, weight: t.up(&weight)?, bias: bias.map(|h| t.up(h)).transpose()?, eps };
            let residual = residual.map(|h| t.strided(h)).transpose()?;
            let y =
                t.b.run(Normalize { x: &t.strided(&x)?, norm: &by, residual: residual.as_ref() })
                    .map_err(text)?;
            t.near((rows, width, groups, kind), &y, &want)?;
        }
    }
    Ok(())
}

fn rope<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let positions = [0u32, 5, 5, 39, 17];
    for (heads, dim, width) in [(1, 2, 2), (3, 12, 12), (4, 16, 8), (2, 80, 32), (5, 64, 64), (1, 10, 0)] {
        let (x, table) = (Host::random(1, positions.len(), heads * dim), Host::random(2, 40, width));
        for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
            let want = Bounded::by_rows(positions.len(), heads * dim, |r| {
                let row: Vec<f64> = x.row(r).iter().map(|x| f64::from(*x)).collect();
                let angles = table.row(positions[r] as usize);
                row.chunks(dim)
                    .flat_map(|h| oracle::rotate(h, angles, pairs))
                    .map(|y| (y, 4.0 * EPS))
                    .collect()
            });
            let by = RopeTable { table: t.up(&table)?, pairs };
            let op = Rope { x: &t.strided(&x)?, head_dim: dim, rope: &by, positions: &t.ids(&positions)? };
            t.near((heads, dim, width, pairs), &t.b.run(op).map_err(text)?, &want)?;
        }
    }
    Ok(())
}

fn activate<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (rows, cols) in [(1, 1), (3, 7), (2, 64), (5, 173), (0, 4)] {
        let spread = |x: f32| 12.0 * x * x * x;
        let (gate, up) = (Host::random(1, rows, cols).map(spread), Host::random(2, rows, cols).map(spread));
        for act in Activation::ALL {
            for gated in [true, false] {
                let want = Bounded::by_rows(rows, cols, |r| {
                    let y = |c: usize| {
                        let x = f64::from(gate.row(r)[c]);
                        let up = if gated { oracle::gated(act, f64::from(up.row(r)[c])) } else { 1.0 };
                        let y = oracle::activate(act, x) * up;
                        (y, 2e-6 * (1.0 + x.abs() + y.abs()))
                    };
                    (0..cols).map(y).collect()
                });
                // Side by side, as in the output of a joint linear layer.
                let mut joint = Host { data: Vec::new(), rows, cols: 2 * cols };
                for r in 0..rows {
                    joint.data.extend(gate.row(r).iter().chain(up.row(r)));
                }
                let joint = t.up(&joint)?;
                let (g, u) = (joint.col_range(0..cols), joint.col_range(cols..2 * cols));
                let y = t.b.run(Activate { gate: &g, up: gated.then_some(&u), act }).map_err(text)?;
                t.near((rows, cols, act, gated), &y, &want)?;
            }
        }
    }
    Ok(())
}

fn eltwise<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (rows, cols, y_rows, y_cols) in [
        (1, 1, 1, 1),
        (4, 33, 4, 33),
        (4, 65, 1, 65),
        (0, 3, 1, 3),
        (5, 70, 5, 1),
        (3, 9, 1, 1),
        (0, 3, 0, 1),
    ] {
        let (x, y) = (Host::random(1, rows, cols).map(|x| 4.0 * x), Host::random(2, y_rows, y_cols));
        let (xs, ys) = (t.strided(&x)?, t.strided(&y)?);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        type Plain = fn(f64, f64, fn(f64) -> f64) -> f64;
        let cases: [(EltwiseOp<'_, B>, Plain); 6] = [
            (EltwiseOp::Add(&ys), |x, y, _| x + y),
            (EltwiseOp::AddScaled(&ys, 0.3), |x, y, _| x + f64::from(0.3f32) * y),
            (EltwiseOp::Mul(&ys), |x, y, _| x * y),
            (EltwiseOp::Scale(0.7), |x, _, _| x * f64::from(0.7f32)),
            (EltwiseOp::SoftCap(2.5), |x, _, _| 2.5 * (x / 2.5).tanh()),
            (EltwiseOp::Gate(&ys), |x, y, sigmoid| x * sigmoid(y)),
        ];
        for (op, plain) in cases {
            let want = Bounded::by_rows(rows, cols, |r| {
                let other =
                    |c: usize| y.row(if y_rows == 1 { 0 } else { r })[if y_cols == 1 { 0 } else { c }];
                let value = |c: usize| plain(f64::from(x.row(r)[c]), f64::from(other(c)), sigmoid);
                (0..cols).map(|c| (value(c), 2e-6)).collect()
            });
            let what = format!("{op:?}");
            t.near(what, &t.b.run(Eltwise { x: &xs, op }).map_err(text)?, &want)?;
        }
    }
    Ok(())
}

fn index_rows<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let x = Host::random(1, 6, 13);
    let xs = t.strided(&x)?;
    let at = [5u32, 0, 5, 6, u32::MAX];
    let y = t.b.run(IndexRows { x: &xs, indices: &t.ids(&at)?, mode: IndexMode::Gather }).map_err(text)?;
    let want = Bounded::by_rows(at.len(), 13, |r| match at[r] {
        id @ 0..6 => x.row(id as usize).iter().map(|x| (f64::from(*x), 0.0)).collect(),
        _ => vec![(0.0, 0.0); 13],
    });
    t.near("gather", &y, &want)?;
    let none = t.b.run(IndexRows { x: &xs, indices: &t.ids(&[])?, mode: IndexMode::Gather }).map_err(text)?;
    ensure((none.rows(), none.cols()) == (0, 13), || format!("no rows gave {none:?}"))?;

    let into = Host::random(2, 4, 13);
    let sum = t.up(&into)?;
    let at = [3u32, 1, 3, 9, 0, 3];
    let y =
        t.b.run(IndexRows { x: &xs, indices: &t.ids(&at)?, mode: IndexMode::ScatterAdd(&sum) })
            .map_err(text)?;
    let want = Bounded::by_rows(4, 13, |r| {
        let added =
            |c: usize| (0..6).filter(|i| at[*i] as usize == r).map(|i| f64::from(x.row(i)[c])).sum::<f64>();
        (0..13).map(|c| (f64::from(into.row(r)[c]) + added(c), 1e-6)).collect()
    });
    t.near("add into", &y, &want)
}

fn permute_cols<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for rows in [0, 1, 7] {
        let x = Host::random(1, rows, 70);
        let at: Vec<u32> = (0..90).map(|i| (i * 37 + 5) % 73).collect();
        let y = t.b.run(PermuteCols { x: &t.strided(&x)?, indices: &t.ids(&at)? }).map_err(text)?;
        let picked = |x: &[f32], i: u32| (f64::from(x.get(i as usize).copied().unwrap_or(0.0)), 0.0);
        let want = Bounded::by_rows(rows, 90, |r| at.iter().map(|i| picked(x.row(r), *i)).collect());
        t.near(rows, &y, &want)?;
    }
    Ok(())
}

/// Routing cases: experts, experts per token, groups.
const ROUTES: [(usize, usize, Option<Groups>); 6] = [
    (1, 1, None),
    (7, 2, None),
    (64, 8, None),
    (130, 9, None),
    (24, 3, Some(Groups { n_group: 4, topk_group: 2, best: 2 })),
    (12, 4, Some(Groups { n_group: 6, topk_group: 3, best: 1 })),
];

fn route<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (experts, top_k, groups) in ROUTES {
        for (rows, scores, biased, norm_weights, scale) in [
            (5, Scores::Softmax, false, false, 1.0),
            (1, Scores::Softmax, false, true, 1.0),
            (19, Scores::Sigmoid, true, true, 2.5),
            (3, Scores::Sigmoid, false, false, 0.5),
            (0, Scores::Softmax, false, true, 1.0),
            (9, Scores::SparseMixer { near: 0.02 }, false, false, 1.0),
            (6, Scores::SparseMixer { near: 0.3 }, false, true, 0.5),
        ] {
            if groups.is_some() && matches!(scores, Scores::SparseMixer { .. }) {
                continue;
            }
            let mut x = Host::random(7, rows, experts).map(|x| 6.0 * x);
            if rows == 19 {
                // Ties are the likely failure.
                (0..rows).for_each(|r| x.row_mut(r)[experts / 2] = x.row(r)[0]);
            }
            let bias = Host::random(8, 1, experts).map(|b| if biased { 0.5 * b } else { 0.0 });
            let bias_there = if biased { Some(t.up(&bias)?) } else { None };
            let by = Routing { top_k, scores, bias: bias_there, groups, norm_weights, scale };
            let got = t.b.run(Route { logits: &t.strided(&x)?, routing: &by }).map_err(text)?;
            let by = Routed { top_k, scores, bias: &bias.data, groups, norm_weights, scale };
            let want = Bounded::by_rows(rows, experts, |r| by.row(x.row(r)));
            t.near((experts, top_k, groups, rows), &got, &want)?;
        }
    }
    Ok(())
}

fn topk<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (rows, cols, k) in [
        (1, 1, 1),
        (3, 5, 5),
        (2, 97, 1),
        (4, 1000, 20),
        (1, 5003, 64),
        (0, 3, 2),
        (3, 4100, 300),
        (2, 9001, 1024),
        (2, 700, 700),
        (2, 9001, 1),
        (3, 40_011, 50),
    ] {
        let mut x = Host::random(1, rows, cols);
        // Ties, infinities and NaN are the likely failures.
        let mut rng = Random(9);
        for r in 0..rows {
            for value in [0.5, 0.5, f32::NEG_INFINITY, f32::NAN, f32::INFINITY] {
                x.row_mut(r)[rng.below(cols)] = value;
            }
            // Ties across the k-th place, and at zeros of both signs.
            if cols > 2000 {
                let few = [0.0, -0.0, 0.25, 0.5];
                (0..cols).filter(|c| c % 3 == r % 3).for_each(|c| x.row_mut(r)[c] = few[rng.below(4)]);
            }
            // Ties of all elements.
            if cols > 40_000 && r == 1 {
                x.row_mut(r).fill(-3.5);
            }
        }
        let out = t.b.run(TopK { x: &t.strided(&x)?, k }).map_err(text)?;
        ensure((out.ids.rows(), out.ids.cols()) == (rows, k), || format!("{:?} for the top {k}", out.ids))?;
        if !t.suite.values {
            continue;
        }
        let (ids, values): (Vec<u32>, Vec<f32>) = (t.down(&out.ids)?, t.down(&out.values)?);
        for r in 0..rows {
            let rank = |c: &usize| (x.row(r)[*c].is_nan(), std::cmp::Reverse(Ordered(x.row(r)[*c])), *c);
            let mut order: Vec<usize> = (0..cols).collect();
            order.sort_by_key(rank);
            let got: Vec<usize> = ids[r * k..][..k].iter().map(|i| *i as usize).collect();
            ensure(got == order[..k], || {
                format!("[{rows}, {cols}]: the top {k} are {:?}, got {got:?}", &order[..k])
            })?;
            let same = |(v, c): (&f32, &usize)| v.to_bits() == x.row(r)[*c].to_bits() || v.is_nan();
            ensure(values[r * k..][..k].iter().zip(&got).all(same), || "a value is not its id's".into())?;
        }
    }
    Ok(())
}

fn tail_sum<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (rows, cols, k, spread) in [
        (1, 1, 1, 1.0),
        (3, 5, 5, 2.0),
        (2, 97, 1, 5.0),
        (4, 1000, 20, 20.0),
        (0, 3, 2, 1.0),
        (2, 5003, 1024, 0.01),
        (3, 20_011, 700, 30.0),
    ] {
        let mut x = Host::random(1, rows, cols).map(|x| spread * x + 3.0);
        let mut rng = Random(9);
        for r in 0..rows {
            if cols > 1 {
                x.row_mut(r)[rng.below(cols)] = f32::NEG_INFINITY;
            }
            // A maximum far above the others, ties across the k-th place, and a row with NaN.
            match r {
                1 => x.row_mut(r)[rng.below(cols)] = 60.0,
                2 => (0..cols).step_by(2).for_each(|c| x.row_mut(r)[c] = 1.5),
                3 => x.row_mut(r)[cols - 2] = f32::NAN,
                _ => (),
            }
        }
        let given = [1.0f32, 0.05, 0.7, 7.5];
        for n in [0, 1, 3] {
            let temperatures: Vec<f32> = (0..rows * n).map(|i| given[i % 4]).collect();
            let by = t.up(&Host { data: temperatures.clone(), rows, cols: n })?;
            let xs = t.strided(&x)?;
            let top = t.b.run(TopK { x: &xs, k }).map_err(text)?;
            let got = t.b.run(TailSum { x: &xs, top: &top, temperatures: &by }).map_err(text)?;
            let want = Bounded::by_rows(rows, n, |r| {
                let mut row = x.row(r).to_vec();
                row.sort_by(|a, b| b.total_cmp(a));
                let sum = |i: usize| {
                    let away =
                        |x: &f32| (f64::from(*x) - f64::from(row[0])) / f64::from(temperatures[r * n + i]);
                    let sum: f64 = row[k..].iter().map(|x| away(x).exp()).sum();
                    (sum, TAIL_SUM_ERROR * sum + TAIL_ELEMENT_ERROR * cols as f64)
                };
                (0..n).map(sum).collect()
            });
            if rows < 4 || !t.suite.values {
                t.near((rows, cols, k, n), &got, &want)?;
                for r in 0..rows {
                    let only = |t: &Tensor<B>| t.row_range(r..r + 1);
                    let top = TopKOut { values: only(&top.values), ids: only(&top.ids) };
                    let alone =
                        t.b.run(TailSum { x: &only(&xs), top: &top, temperatures: &only(&by) })
                            .map_err(text)?;
                    t.same((cols, k, n, r), &alone, &only(&got))?;
                }
                continue;
            }
            let (sums, some): (Vec<f32>, usize) = (t.down(&got)?, n * (rows - 1));
            let finite: Vec<bool> = sums.iter().map(|sum| sum.is_finite()).collect();
            ensure(finite == (0..rows * n).map(|i| i < some).collect::<Vec<_>>(), || {
                format!("[{rows}, {cols}], NaN in the last row: {sums:?}")
            })?;
        }
    }
    Ok(())
}

/// Floats with a total order, for sorting; the caller handles NaN.
#[derive(PartialEq)]
struct Ordered(f32);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(std::cmp::Ordering::Equal)
    }
}
