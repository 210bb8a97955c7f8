//! Captures do not repeat what the host wrote, share no memory with other work, and end with their own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tallow_core::ops::{Copy, Eltwise, EltwiseOp};
use tallow_core::{Backend, Memory, Result, Tensor};

use super::found;
use crate::Wgpu;

fn open() -> Option<Wgpu> {
    Some(Wgpu::open(&found()?).unwrap())
}

fn scaled(b: &Wgpu, x: &Tensor<Wgpu>, by: f32) -> Result<Tensor<Wgpu>> {
    b.run(Eltwise { x, op: EltwiseOp::Scale(by) })
}

#[test]
fn a_replay_computes_with_what_its_operands_hold_by_then() {
    let Some(b) = open() else { return };
    let x = b.upload_row(&[1f32, 2.0]).unwrap();
    // Recorded, and not submitted, before the capture begins.
    let before = scaled(&b, &x, 10.0).unwrap();
    let mut out = None;
    let mut work = || {
        // What is freed here is used again within the work.
        let doubled = scaled(&b, &x, 2.0)?;
        out = Some(scaled(&b, &scaled(&b, &doubled, 3.0)?, 5.0)?);
        Ok(())
    };
    let replay = b.capture(&mut work).unwrap().unwrap();
    let out = out.unwrap();
    let read = |t: &Tensor<Wgpu>| b.download::<f32>(t).unwrap();
    assert_eq!((read(&before), read(&out)), (vec![10.0, 20.0], vec![30.0, 60.0]));
    let start = b.counts();
    for n in 1..5u8 {
        let n = f32::from(n);
        b.write(&x, bytemuck::cast_slice(&[n, -n])).unwrap();
        // Other work uses other memory, whatever the capture has freed.
        let other: Vec<_> = (0..4).map(|_| scaled(&b, &x, 100.0).unwrap()).collect();
        replay.launch().unwrap();
        assert_eq!(read(&out), [30.0 * n, -30.0 * n]);
        other.iter().for_each(|other| assert_eq!(read(other), [100.0 * n, -100.0 * n]));
    }
    let (counts, launches) = (b.counts(), 4 * (3 + 4));
    assert_eq!((counts.replays - start.replays, counts.dispatches - start.dispatches), (4, launches));
}

/// While the device computes a replay, the next is encoded: with what the operands hold by then, after other replays and
/// other work, and only if it begins a submission.
#[test]
fn a_replay_that_was_encoded_ahead_is_as_any() {
    let Some(b) = open() else { return };
    let x = b.upload_row(&[1f32, 2.0]).unwrap();
    let capture = |by: f32| {
        let mut out = None;
        let mut work = || {
            out = Some(scaled(&b, &scaled(&b, &x, by)?, 2.0)?);
            Ok(())
        };
        let replay = b.capture(&mut work).unwrap().unwrap();
        (replay, out.unwrap())
    };
    let [(first, ten), (second, twenty)] = [capture(5.0), capture(10.0)];
    let read = |t: &Tensor<Wgpu>| b.download::<f32>(t).unwrap();
    let write = |n: f32| b.write(&x, bytemuck::cast_slice(&[n, -n])).unwrap();
    b.sync().unwrap();
    let ahead = || b.counts().encoded_ahead;
    let start = ahead();
    // The first time there is nothing to use, then there is.
    for (n, encoded) in [(1.0, 0), (2.0, 1), (3.0, 2)] {
        write(n);
        first.launch().unwrap();
        assert_eq!((read(&ten), ahead() - start), (vec![10.0 * n, -10.0 * n], encoded));
    }
    // What is recorded later runs later.
    write(4.0);
    first.launch().unwrap();
    let after = scaled(&b, &ten, 3.0).unwrap();
    assert_eq!((read(&after), ahead() - start), (vec![120.0, -120.0], 3));
    // Another replay is not taken for it, nor is it lost meanwhile.
    write(5.0);
    second.launch().unwrap();
    first.launch().unwrap();
    assert_eq!((read(&ten), read(&twenty), ahead() - start), (vec![50.0, -50.0], vec![100.0, -100.0], 3));
    // After recorded work its parameters would lie elsewhere.
    let before = scaled(&b, &x, 7.0).unwrap();
    second.launch().unwrap();
    assert_eq!((read(&before), read(&twenty), ahead() - start), (vec![35.0, -35.0], vec![100.0, -100.0], 3));
    write(6.0);
    second.launch().unwrap();
    assert_eq!((read(&twenty), ahead() - start), (vec![120.0, -120.0], 4));
    // What is copied before has none.
    let seven = b.upload_row(&[7f32, -7.0]).unwrap();
    b.run(Copy { from: &seven, to: &x }).unwrap();
    second.launch().unwrap();
    assert_eq!((read(&twenty), ahead() - start), (vec![140.0, -140.0], 5));
    // Within a capture it is part of what is captured.
    let both = b.capture(&mut || second.launch()).unwrap().unwrap();
    write(8.0);
    both.launch().unwrap();
    assert_eq!(read(&twenty), [160.0, -160.0]);
}

#[test]
fn captures_leave_alone_what_others_returned() {
    let Some(b) = open() else { return };
    let capture = |len: usize| {
        let x = b.upload_row(&vec![1f32; len]).unwrap();
        let mut out = None;
        let mut work = || {
            let freed = scaled(&b, &x, 2.0)?;
            out = Some(scaled(&b, &freed, len as f32)?);
            Ok(())
        };
        let replay = b.capture(&mut work).unwrap().unwrap();
        (x, replay, out.unwrap())
    };
    // From large to small, and back.
    let all: Vec<_> = [4096, 3000, 1500, 2000, 4000].into_iter().map(|len| (len, capture(len))).collect();
    for (_, (_, replay, _)) in all.iter().chain(all.iter().rev()) {
        replay.launch().unwrap();
    }
    for (len, (_, _, out)) in &all {
        assert_eq!(b.download::<f32>(out).unwrap(), vec![2.0 * *len as f32; *len]);
    }
}

#[test]
fn work_that_writes_reads_or_captures_is_done_and_not_captured() {
    let Some(b) = open() else { return };
    let x = b.upload_row(&[1f32, 2.0]).unwrap();
    let captured = |work: &dyn Fn() -> Result<()>| {
        b.capture(&mut || {
            scaled(&b, &x, 2.0)?;
            work()?;
            scaled(&b, &x, 3.0).map(|_| ())
        })
    };
    assert!(captured(&|| b.write(&x, bytemuck::cast_slice(&[3f32, 4.0]))).unwrap().is_none());
    assert_eq!(b.download::<f32>(&x).unwrap(), [3.0, 4.0]);
    assert!(captured(&|| b.download::<f32>(&x).map(|_| ())).unwrap().is_none());
    let inner = captured(&|| {
        assert!(b.capture(&mut || scaled(&b, &x, 4.0).map(|_| ()))?.is_none());
        Ok(())
    });
    assert!(inner.unwrap().is_none());
    assert!(captured(&|| Ok(())).unwrap().is_some());
}

#[test]
fn a_capture_ends_with_work_that_fails_or_panics() {
    let Some(b) = open() else { return };
    let x = b.upload_row(&[1f32, 2.0]).unwrap();
    let fails = || b.upload::<f32>(&[1.0], 2, 2).map(|_| ());
    assert!(b.capture(&mut || fails()).is_err());
    let panics = catch_unwind(AssertUnwindSafe(|| b.capture(&mut || panic!("as it should"))));
    assert!(panics.is_err());
    let replay = b.capture(&mut || scaled(&b, &x, 2.0).map(|_| ())).unwrap();
    assert!(replay.is_some());
    assert_eq!(b.download::<f32>(&scaled(&b, &x, 7.0).unwrap()).unwrap(), [7.0, 14.0]);
}
