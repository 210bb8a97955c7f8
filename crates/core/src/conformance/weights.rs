use super::oracle::{EPS, Product};
use super::{Bench, Bounded, Host, Outcome, text};
use crate::ops::{Dequant, Embed, Epilogue, Linear, Matmul};
use crate::{Backend, Format, LinearWeights, compose};

cases!(embed dequant matmul linear linear_alone);

/// Row widths that a format can store, odd ones where possible.
fn widths(format: Format) -> &'static [usize] {
    match format.block_weights() {
        // Rows may end within a block: see `HostWeight::row_bytes`. Sums over many inputs may be cut in another way.
        32 if format == Format::Q8_0 => &[1088, 7, 32, 352, 300, 16],
        1 => &[1, 7, 48, 65, 172, 300],
        32 => &[32, 96, 352],
        64 => &[64, 192, 320],
        128 => &[128, 384],
        256 if format == Format::Q4K => &[1024, 256, 768],
        _ => &[256, 768],
    }
}

fn embed<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for &format in t.suite.formats {
        for &cols in widths(format).iter().rev().take(t.suite.sizes) {
            let (table, host) = t.weight(7, format, 11, cols)?;
            let ids = [3, 0, 10, 3, 11, u32::MAX];
            let y = t.b.run(Embed { table: &table, ids: &t.ids(&ids)?, scale: 1.5 }).map_err(text)?;
            let want = Bounded::by_rows(ids.len(), cols, |r| {
                let id = ids[r] as usize;
                let row = (0..cols).map(|c| if id < 11 { f64::from(host.row(id)[c]) * 1.5 } else { 0.0 });
                row.map(|x| (x, EPS * x.abs())).collect()
            });
            t.near((format, cols), &y, &want)?;
        }
    }
    Ok(())
}

fn dequant<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for &format in t.suite.formats {
        for &cols in widths(format).iter().rev().take(t.suite.sizes) {
            let (w, host) = t.weight(8, format, 37, cols)?;
            for rows in [0..37, 5..6, 16..33, 4..4] {
                let y = t.b.run(Dequant { w: &w, rows: rows.clone() }).map_err(text)?;
                let exact =
                    |r: usize| host.row(rows.start + r).iter().map(|x| (f64::from(*x), 0.0)).collect();
                t.near((format, cols, &rows), &y, &Bounded::by_rows(rows.len(), cols, exact))?;
            }
        }
    }
    Ok(())
}

fn matmul<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (i, &(m, n, k)) in
        [(1, 1, 1), (1, 5, 33), (2, 7, 48), (3, 64, 31), (5, 17, 256), (9, 33, 300), (33, 19, 64), (0, 4, 8)]
            .iter()
            .rev()
            .take(t.suite.sizes.saturating_mul(2))
            .enumerate()
    {
        let (x, w) = (Host::random(i as u64, m, k), Host::random(100 + i as u64, n, k));
        let (bias, residual) = (Host::random(3, 1, n), Host::random(4, m, n));
        for (bias, scale, softcap, residual) in
            [(None, 1.0, None, None), (Some(&bias), 0.5, None, Some(&residual)), (None, 2.0, Some(1.5), None)]
        {
            let want = Product { x: &x, w: &w, bias, scale, softcap, residual }.get();
            let (xs, ws) = (t.strided(&x)?, t.strided(&w)?);
            let bias = bias.map(|h| t.up(h)).transpose()?;
            let residual = residual.map(|h| t.strided(h)).transpose()?;
            let epilogue = Epilogue { scale, softcap, residual: residual.as_ref() };
            let y = t.b.run(Matmul { x: &xs, weight: &ws, bias: bias.as_ref(), epilogue }).map_err(text)?;
            t.near((m, n, k, epilogue), &y, &want)?;
        }
        for half in [true, false] {
            let round = |x: f32| {
                if half { half::f16::from_f32(x).to_f32() } else { half::bf16::from_f32(x).to_f32() }
            };
            let host = w.clone().map(round);
            let w = if half {
                t.b.upload(&host.data.iter().map(|x| half::f16::from_f32(*x)).collect::<Vec<_>>(), n, k)
            } else {
                t.b.upload(&host.data.iter().map(|x| half::bf16::from_f32(*x)).collect::<Vec<_>>(), n, k)
            };
            let y = t.b.run(Matmul {
                x: &t.up(&x)?,
                weight: &w.map_err(text)?,
                bias: None,
                epilogue: Epilogue::NONE,
            });
            let want =
                Product { x: &x, w: &host, bias: None, scale: 1.0, softcap: None, residual: None }.get();
            t.near((m, n, k, half), &y.map_err(text)?, &want)?;
        }
    }
    Ok(())
}

fn linear<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for &format in t.suite.formats {
        for &k in widths(format).iter().rev().take(t.suite.sizes) {
            for (m, n) in [(1, 1), (1, 37), (2, 16), (3, 33), (7, 300), (20, 19), (70, 19), (0, 3)] {
                let x = Host::random(5, m, k);
                let (weight, w) = t.weight(6, format, n, k)?;
                let (bias, residual) = (Host::random(3, 1, n), Host::random(4, m, n));
                let by = LinearWeights::new(weight, Some(t.up(&bias)?));
                let (xs, rs) = (t.strided(&x)?, t.up(&residual)?);
                let epilogue = Epilogue { scale: 0.5, softcap: None, residual: Some(&rs) };
                let op = Linear { x: &xs, weights: &by, epilogue };
                let want = |x: &Host| {
                    let (bias, residual) = (Some(&bias), Some(&residual));
                    Product { x, w: &w, bias, scale: 0.5, softcap: None, residual }.get()
                };
                let composed = compose::linear(t.b, &op).map_err(text)?;
                t.near((format, m, n, k, "composed"), &composed, &want(&x))?;
                t.near((format, m, n, k), &t.b.run(op).map_err(text)?, &want(&t.rounded(format, &x)))?;
            }
        }
    }
    Ok(())
}

/// A row's product is bit-identical whatever other rows are in the batch.
fn linear_alone<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for &format in t.suite.formats {
        for &k in widths(format).iter().rev().take(t.suite.sizes) {
            let (weight, _) = t.weight(6, format, 45, k)?;
            let by = LinearWeights::new(weight, None);
            // More rows than any device's way for a few, and any rest of tiles.
            let x = t.up(&Host::random(5, 81, k))?;
            let all = t.b.run(Linear { x: &x, weights: &by, epilogue: Epilogue::NONE }).map_err(text)?;
            for rows in [0..1, 28..29, 3..5, 5..8, 4..12, 8..12, 9..20, 17..29, 10..17, 12..25, 3..17, 20..61]
                .into_iter()
                .chain([9..77, 5..71, 1..66, 11..81])
            {
                let some =
                    t.b.run(Linear { x: &x.row_range(rows.clone()), weights: &by, epilogue: Epilogue::NONE });
                t.same((format, k, &rows), &some.map_err(text)?, &all.row_range(rows.clone()))?;
            }
        }
    }
    Ok(())
}
