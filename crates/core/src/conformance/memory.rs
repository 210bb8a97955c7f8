use half::{bf16, f16};

use super::{Bench, Host, Outcome, ensure, text};
use crate::ops::{
    CausalConv, Copy, Eltwise, EltwiseOp, Epilogue, GatedDelta, Matmul, Normalize, TailSum, TopK,
};
use crate::{
    Backend, DType, Decay, DeltaHeads, Elem, Error, Format, HostWeight, Norm, NormKind, Sharing, Span,
    StateRows, Step, StepPlan,
};

cases!(memory fetch copy refusals);

fn round_trip<B: Backend, T: Elem + PartialEq + std::fmt::Debug>(t: &Bench<'_, B>, data: [T; 6]) -> Outcome {
    let up = t.b.upload(&data, 2, 3).map_err(text)?;
    ensure(up.dtype() == T::DTYPE && (up.rows(), up.cols()) == (2, 3), || format!("{up:?} after upload"))?;
    if !t.suite.values {
        return Ok(());
    }
    ensure(t.down::<T>(&up)? == data, || format!("{up:?} did not come back as it went"))?;
    let view = up.row_range(1..2).col_range(1..3);
    ensure(t.down::<T>(&view)? == data[4..], || format!("a view of {up:?} reads wrong"))?;
    let column = up.col_range(1..2);
    ensure(t.down::<T>(&column)? == [data[1], data[4]], || format!("a column of {up:?} reads wrong"))
}

fn memory<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    round_trip(t, [1.5f32, -2.0, f32::MIN_POSITIVE, 0.0, -0.0, 3.25])?;
    round_trip(t, [1.5, -2.0, 0.0, 4.0, 5.0, 6.0].map(f16::from_f32))?;
    round_trip(t, [1.5, -2.0, 0.0, 4.0, 5.0, 6.0].map(bf16::from_f32))?;
    round_trip(t, [1i32, -2, i32::MAX, i32::MIN, 0, 7])?;
    round_trip(t, [1u32, 2, u32::MAX, 0x3F80_0000, 0, 7])?;
    round_trip(t, [1i8, -2, 127, -128, 0, 7])?;
    round_trip(t, [1u8, 2, 255, 128, 0, 7])?;
    let empty = t.b.upload::<f32>(&[], 0, 5).map_err(text)?;
    ensure(t.down::<f32>(&empty)?.is_empty(), || "an empty tensor has elements".into())?;
    let zeros = t.b.zeros(DType::F32, 3, 7).map_err(text)?;
    ensure(t.down::<f32>(&zeros)?.iter().all(|x| *x == 0.0), || "zeros are not zero".into())?;
    let (then, now) = (t.b.clock().map_err(text)?, t.b.clock().map_err(text)?);
    ensure(now >= then, || format!("the clock went back from {then} to {now}"))?;
    t.b.sync().map_err(text)
}

/// A tensor that was fetched arrives as it was then, whatever is launched, begun, read or given up before it is waited for.
fn fetch<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let host = Host::random(1, 5, 7);
    let (x, norm) = (t.up(&host)?, t.up(&Host::random(2, 1, 7))?);
    let norm = Norm { kind: NormKind::Rms, weight: norm, bias: None, eps: 1e-5 };
    let normed = || t.b.run(Normalize { x: &x, norm: &norm, residual: None }).map_err(text);
    let first = normed()?;
    let want = t.down::<f32>(&first)?;
    let mut got = [vec![0f32; 35], vec![0f32; 15], vec![0f32; 35], Vec::new()];
    let mut rooms = got.each_mut().map(|room| bytemuck::cast_slice_mut::<f32, u8>(room));
    let (view, none) = (x.row_range(1..4).col_range(2..7), x.row_range(0..0));
    let one = t.b.fetch(&[&first, &view]).map_err(text)?;
    t.b.begin().map_err(text)?;
    let again = normed()?;
    let given_up = t.b.fetch(&[&again]).map_err(text)?;
    let other = t.b.fetch(&[&again, &none]).map_err(text)?;
    drop((first, again, given_up));
    // What is freed meanwhile may be given to these.
    for seed in 3..6 {
        let other = t.up(&Host::random(seed, 5, 7))?;
        t.b.run(Eltwise { x: &other, op: EltwiseOp::Scale(2.0) }).map_err(text)?;
        t.b.begin().map_err(text)?;
    }
    ensure(t.down::<f32>(&x)?.len() == 35, || "a read between them fails".into())?;
    t.b.wait(other, &mut rooms[2..]).map_err(text)?;
    t.b.wait(one, &mut rooms[..2]).map_err(text)?;
    let refuses = |wrong: &mut [&mut [u8]]| {
        let waited = t.b.wait(t.b.fetch(&[&x]).map_err(text)?, wrong);
        ensure(matches!(waited, Err(Error::Shape { op: "read", .. })), || {
            format!("wrong room gave {waited:?}")
        })
    };
    refuses(&mut [])?;
    refuses(&mut [&mut [0; 139]])?;
    refuses(&mut [&mut [0; 140], &mut [0; 4]])?;
    if !t.suite.values {
        return Ok(());
    }
    let part: Vec<f32> = (1..4).flat_map(|r| host.row(r)[2..].to_vec()).collect();
    ensure(got[0] == want && got[2] == want, || "results were not fetched as they were".into())?;
    ensure(got[1] == part, || "a view was not fetched as it was".into())
}

fn copy<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (from, to) = (Host::random(1, 5, 7), Host::random(2, 5, 7));
    let (a, b) = (t.up(&from)?, t.up(&to)?);
    t.b.run(Copy { from: &a.col_range(1..4), to: &b.col_range(2..5) }).map_err(text)?;
    let pages = t.b.upload(&[1u8, 2, 3, 4, 5, 6], 3, 2).map_err(text)?;
    t.b.run(Copy { from: &pages.row_range(2..3), to: &pages.row_range(0..1) }).map_err(text)?;
    let halves = t.b.upload(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(f16::from_f32), 2, 3).map_err(text)?;
    t.b.run(Copy { from: &halves.col_range(0..1), to: &halves.col_range(2..3) }).map_err(text)?;
    if !t.suite.values {
        return Ok(());
    }
    let mut want = to.clone();
    for r in 0..5 {
        want.row_mut(r)[2..5].copy_from_slice(&from.row(r)[1..4]);
    }
    ensure(t.down::<f32>(&b)? == want.data, || "columns were not copied as they should".into())?;
    let want = [1.0, 2.0, 1.0, 4.0, 5.0, 4.0].map(f16::from_f32);
    ensure(t.down::<f16>(&halves)? == want, || "a column was not copied as it should".into())?;
    ensure(t.down::<u8>(&pages)? == [5, 6, 3, 4, 5, 6], || "a row was not copied as it should".into())
}

/// Operands that do not fit are rejected before launch, with an error that describes the mismatch.
fn refusals<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (x, w) = (t.up(&Host::random(1, 2, 8))?, t.up(&Host::random(2, 3, 9))?);
    let wide = t.b.run(Matmul { x: &x, weight: &w, bias: None, epilogue: Epilogue::NONE });
    ensure(matches!(wide, Err(Error::Shape { op: "matmul", .. })), || {
        format!("a wrong matmul gave {wide:?}")
    })?;
    let ids = t.ids(&[1, 2, 3, 4, 5, 6, 7, 8])?;
    let ints = t.b.run(Matmul { x: &ids, weight: &x, bias: None, epilogue: Epilogue::NONE });
    ensure(matches!(ints, Err(Error::Type { .. })), || format!("a matmul of integers gave {ints:?}"))?;
    let weight = t.up(&Host::random(3, 1, 5))?;
    let by = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
    let norm = t.b.run(Normalize { x: &x, norm: &by, residual: None });
    ensure(matches!(norm, Err(Error::Shape { .. })), || format!("a norm of the wrong width gave {norm:?}"))?;
    for k in [0, 9] {
        let top = t.b.run(TopK { x: &x, k });
        ensure(top.is_err(), || format!("the top {k} of 8 gave {top:?}"))?;
    }
    let top = t.b.run(TopK { x: &x, k: 3 }).map_err(text)?;
    let (short, ids) = (x.row_range(0..1), t.ids(&[1, 2])?);
    for (x, temperatures) in [(&short, &x), (&x, &short), (&x, &ids), (&ids, &x)] {
        let sum = t.b.run(TailSum { x, top: &top, temperatures });
        ensure(sum.is_err(), || format!("the tail of {x:?} at {temperatures:?} gave {sum:?}"))?;
    }
    let up = t.b.upload(&[1f32, 2.0], 3, 1);
    ensure(up.is_err(), || format!("2 elements as 3 rows gave {up:?}"))?;
    let down = t.b.download::<u32>(&x);
    ensure(down.is_err(), || "floats were read as integers".into())?;
    for (format, bytes) in [(Format::F32, 31), (Format::Q8_0, 33), (Format::Q4_0, 18)] {
        let short = vec![0; bytes];
        let got = t.b.prepare(HostWeight::new(format, 1, 8, &short));
        ensure(got.is_err(), || format!("{bytes} bytes of {format} gave {got:?}"))?;
    }
    states(t)
}

/// Recurrent states that are missing, out of range, or written for one sequence and used by another. Two sequences may
/// read the same one.
fn states<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let plan = |states: &[(u32, u32)]| {
        let spans = vec![Span { rows: 1, start: 1, pages: vec![0].into() }; 2];
        let states = states.iter().map(|(from, to)| StateRows { from: *from, to: *to }).collect();
        StepPlan::new(t.b, Step { tokens: vec![0; 2], spans, states, page_len: 4, ..Step::default() })
    };
    for states in [&[(0, 1)][..], &[(0, 1), (2, 1)], &[(0, 0), (1, 2)], &[(0, 1), (1, 2)]] {
        let made = plan(states);
        let made = made.map(|_| ());
        ensure(matches!(made, Err(Error::Shape { op: "step", .. })), || format!("{states:?} gave {made:?}"))?;
    }
    let (x, by) = (t.up(&Host::random(1, 2, 6))?, t.up(&Host::random(2, 3, 6))?);
    let (window, gates) = (t.up(&Host::random(3, 4, 12))?, t.up(&Host::random(4, 2, 2))?);
    let one = t.up(&Host::random(5, 1, 1))?;
    let forgetting = Decay { rate: one.clone(), bias: one };
    let heads = DeltaHeads { keys: 1, values: 1, key_dim: 3, value_dim: 4, sharing: Sharing::RoundRobin };
    let given = [
        (&[][..], false),
        (&[(0, 1), (2, 3)], true),
        (&[(0, 1), (0, 3)], true),
        (&[(0, 1), (2, 4)], false),
        (&[(0, 1), (4, 2)], false),
    ];
    for (states, fits) in given {
        let plan = plan(states).map_err(text)?;
        let ran = t.b.run(CausalConv { x: &x, weight: &by, window: &window, plan: &plan });
        ensure(ran.is_ok() == fits, || format!("a convolution with {states:?} gave {ran:?}"))?;
        let v = x.col_range(0..4);
        let op = GatedDelta {
            qk: &x,
            v: &v,
            gates: &gates,
            heads,
            decay: &forgetting,
            states: &window,
            plan: &plan,
        };
        let ran = t.b.run(op);
        ensure(ran.is_ok() == fits, || format!("heads with {states:?} gave {ran:?}"))?;
    }
    Ok(())
}
