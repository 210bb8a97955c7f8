//! Captures: what they give is what the work gives, they share memory with nobody else, and where there can be none, the work is done
//! nevertheless.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tallow_core::conformance::{Suite, cases};
use tallow_core::ops::{Copy, Eltwise, EltwiseOp};
use tallow_core::{Backend, DType, Error, Memory, Replay, Result, Tensor};
use tallow_ptx::mock::{self, Gpu, Machine};

use super::{devices, open};
use crate::Cuda;

fn scaled(b: &Cuda, x: &Tensor<Cuda>, by: f32) -> Result<Tensor<Cuda>> {
    b.run(Eltwise { x, op: EltwiseOp::Scale(by) })
}

fn read(b: &Cuda, t: &Tensor<Cuda>) -> Vec<f32> {
    b.download(t).unwrap()
}

/// Captures `x` times 30, with two results in between that are freed.
fn thirty(b: &Cuda, x: &Tensor<Cuda>) -> (Option<Replay>, Tensor<Cuda>) {
    let mut out = None;
    let mut work = || {
        let doubled = scaled(b, x, 2.0)?;
        out = Some(scaled(b, &scaled(b, &doubled, 3.0)?, 5.0)?);
        Ok(())
    };
    let replay = b.capture(&mut work).unwrap();
    (replay, out.unwrap())
}

/// Bytes of the device that nobody has allocated.
fn free(b: &Cuda) -> u64 {
    b.memory().unwrap().1
}

/// The case of steps that are refilled and launched again, with memory that is used again and without.
#[test]
fn replays_conform() {
    for suite in [Suite::exact(), Suite::fast(8e-3)] {
        for reuses in [false, true] {
            let b = open(Machine::default()).with(suite.arithmetic);
            if !reuses {
                b.gpu.stop_reuse();
            }
            let case = cases::<Cuda>().into_iter().find(|case| case.name == "replay").unwrap();
            (case.run)(&b, suite).unwrap_or_else(|why| panic!("{why}\n{:?}", mock::last_fault()));
            let replays = b.counts().replays;
            assert!(replays > 20 && mock::calls("cuGraphLaunch") == replays as u64, "{replays}");
        }
    }
}

#[test]
fn a_replay_computes_with_what_its_operands_hold_by_then() {
    let b = open(Machine::default());
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let (replay, out) = thirty(&b, &x);
    let replay = replay.unwrap();
    // It was done when it was captured, once.
    assert_eq!(read(&b, &out), [30.0, 60.0]);
    let start = b.counts();
    for n in 1..5u8 {
        let n = f32::from(n);
        b.write(&x, bytemuck::cast_slice(&[n, -n])).unwrap();
        // Other work uses other memory, whatever the capture has freed.
        let other: Vec<_> = (0..4).map(|_| scaled(&b, &x, 100.0).unwrap()).collect();
        replay.launch().unwrap();
        assert_eq!(read(&b, &out), [30.0 * n, -30.0 * n]);
        other.iter().for_each(|other| assert_eq!(read(&b, other), [100.0 * n, -100.0 * n]));
    }
    let counts = b.counts();
    assert_eq!((counts.replays - start.replays, counts.launches - start.launches), (4, 4 * 4));
}

/// Copies and fills are captured too, and what was asked for before is no part of it.
#[test]
fn all_that_is_put_on_the_stream_is_captured() {
    let b = open(Machine::default());
    let x = b.upload(&[1.0f32, 2.0, 3.0, 4.0], 1, 4).unwrap();
    let before = scaled(&b, &x, 10.0).unwrap();
    let (to, counts) = (b.upload(&[0.0f32; 4], 1, 4).unwrap(), b.counts());
    let mut work = || {
        b.run(Copy { from: &x, to: &to })?;
        b.zero(&to.col_range(1..3))
    };
    let replay = b.capture(&mut work).unwrap().unwrap();
    assert_eq!(read(&b, &to), [1.0, 0.0, 0.0, 4.0]);
    b.write(&x, bytemuck::cast_slice(&[5.0f32, 6.0, 7.0, 8.0])).unwrap();
    replay.launch().unwrap();
    assert_eq!((read(&b, &to), read(&b, &before)), (vec![5.0, 0.0, 0.0, 8.0], vec![10.0, 20.0, 30.0, 40.0]));
    assert_eq!(b.counts().launches, counts.launches);
}

/// From large to small and back: what a capture has freed is the next one's, and what it has returned is not.
#[test]
fn captures_leave_alone_what_others_returned() {
    let b = open(Machine::default());
    let capture = |len: usize| {
        let x = b.upload(&vec![1.0f32; len], 1, len).unwrap();
        let (replay, out) = thirty(&b, &x);
        (x, replay.unwrap(), out)
    };
    let all: Vec<_> = [4096, 3000, 1500, 2000, 4000].into_iter().map(|len| (len, capture(len))).collect();
    for (_, (_, replay, _)) in all.iter().chain(all.iter().rev()) {
        replay.launch().unwrap();
    }
    for (len, (_, _, out)) in &all {
        assert_eq!(read(&b, out), vec![30.0; *len]);
    }
}

/// Captures of the same size take no more memory than one, and when the last of them is dropped, others get it.
#[test]
fn memory_of_dropped_replays_is_free_again() {
    let b = open(Machine { devices: vec![Gpu { memory: 1 << 20, ..Gpu::default() }], ..Machine::default() });
    let x = b.upload(&vec![1.0f32; 25_000], 1, 25_000).unwrap();
    let [first, second] = [thirty(&b, &x), thirty(&b, &x)];
    // The operand, two results in between and what each has returned, of 100 KB and a little.
    let left = free(&b);
    assert!((1 << 20) - left < 560 << 10, "{left}");
    let full = || b.alloc(DType::U8, 500, 1024);
    assert!(matches!(full(), Err(Error::OutOfMemory { .. })));
    // A general shortage frees nothing that a replay writes to.
    second.0.as_ref().unwrap().launch().unwrap();
    drop(first);
    assert!(matches!(full(), Err(Error::OutOfMemory { .. })));
    second.0.as_ref().unwrap().launch().unwrap();
    assert_eq!(read(&b, &second.1)[..2], [30.0, 30.0]);
    drop(second);
    full().unwrap();
}

#[test]
fn work_that_writes_waits_or_captures_is_done_and_not_captured() {
    let b = open(Machine::default());
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let captured = |work: &dyn Fn() -> Result<()>| {
        b.capture(&mut || {
            scaled(&b, &x, 2.0)?;
            work()?;
            scaled(&b, &x, 3.0).map(drop)
        })
        .unwrap()
        .is_some()
    };
    let (replay, out) = thirty(&b, &x);
    let replay = replay.unwrap();
    assert!(!captured(&|| b.write(&x, bytemuck::cast_slice(&[3.0f32, 4.0]))));
    assert_eq!(read(&b, &x), [3.0, 4.0]);
    assert!(!captured(&|| b.download::<f32>(&x).map(drop)));
    assert!(!captured(&|| b.sync()));
    assert!(!captured(&|| b.clock().map(drop)));
    assert!(!captured(&|| replay.launch()));
    assert_eq!(read(&b, &out), [90.0, 120.0]);
    assert!(!captured(&|| {
        assert!(b.capture(&mut || scaled(&b, &x, 4.0).map(drop))?.is_none());
        Ok(())
    }));
    assert!(captured(&|| Ok(())));
}

#[test]
fn a_capture_ends_with_work_that_fails_or_panics() {
    let b = open(Machine::default());
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    assert!(b.capture(&mut || b.upload::<f32>(&[1.0], 2, 2).map(drop)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| b.capture(&mut || panic!("as it should")))).is_err());
    assert_eq!(read(&b, &scaled(&b, &x, 7.0).unwrap()), [7.0, 14.0]);
    assert!(thirty(&b, &x).0.is_some());
}

/// A driver that has no graphs, or fails to make one: the work is done all the same.
#[test]
fn work_is_done_where_no_graph_is_made_of_it() {
    let lacks = |name| Machine { lacks: vec![name], ..Machine::default() };
    let fails = |name, nth, code| Machine { fail: vec![(name, nth, code)], ..Machine::default() };
    for machine in [
        lacks("cuStreamBeginCapture_v2"),
        lacks("cuGraphInstantiateWithFlags"),
        fails("cuStreamBeginCapture_v2", 1, 900),
        // The second launch that is captured, after the three that were done.
        fails("cuLaunchKernel", 5, 900),
        fails("cuGraphInstantiateWithFlags", 1, 2),
    ] {
        let b = open(machine.clone());
        let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
        let (replay, out) = thirty(&b, &x);
        assert!(replay.is_none(), "{machine:?}");
        assert_eq!(read(&b, &out), [30.0, 60.0]);
        // The next is as any.
        let (replay, out) = thirty(&b, &x);
        assert_eq!((read(&b, &out), replay.is_some()), (vec![30.0, 60.0], machine.lacks.is_empty()));
        b.write(&x, bytemuck::cast_slice(&[2.0f32, 3.0])).unwrap();
        if let Some(replay) = replay {
            replay.launch().unwrap();
            assert_eq!(read(&b, &out), [60.0, 90.0]);
        }
    }
}

/// There is room only after free blocks were given back.
#[test]
fn a_graph_that_finds_no_room_is_made_when_there_is_some() {
    let machine = Machine { fail: vec![("cuGraphInstantiateWithFlags", 1, 2)], ..Machine::default() };
    let b = open(machine);
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    drop(b.alloc(DType::F32, 100, 100).unwrap());
    assert!(thirty(&b, &x).0.is_some());
    assert!(mock::calls("cuMemFree_v2") > 0);
}

/// A device that is lost while a graph is made, or by one.
#[test]
fn a_device_that_a_graph_has_lost_says_so() {
    for name in ["cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        let b = open(Machine { fail: vec![(name, 1, 719)], ..Machine::default() });
        let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
        let lost = b.capture(&mut || scaled(&b, &x, 2.0).map(drop)).unwrap_err();
        assert!(matches!(lost, Error::Lost { .. }) && lost.to_string().contains(name), "{lost}");
    }
    let b = open(Machine { fail: vec![("cuGraphLaunch", 2, 719)], ..Machine::default() });
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let replay = thirty(&b, &x).0.unwrap();
    replay.launch().unwrap();
    assert!(matches!(replay.launch(), Err(Error::Lost { .. })));
    assert!(matches!(replay.launch(), Err(Error::Lost { .. })));
    assert_eq!(mock::calls("cuGraphLaunch"), 2);
}

/// A replay keeps its device open, and leaves nothing of it behind.
#[test]
fn what_was_captured_is_given_back() {
    let found = devices(Machine::default()).unwrap();
    let b = Cuda::open(&found[0]).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let (replay, out) = thirty(&b, &x);
    drop(b);
    replay.as_ref().unwrap().launch().unwrap();
    drop((x, out));
    drop(replay);
    for (made, unmade) in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuStreamBeginCapture_v2", "cuStreamEndCapture"),
        ("cuStreamEndCapture", "cuGraphDestroy"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuModuleLoadDataEx", "cuModuleUnload"),
    ] {
        assert!(mock::calls(made) > 0);
        assert_eq!(mock::calls(made), mock::calls(unmade), "{made} and {unmade}");
    }
    assert_eq!(found[0].free_memory().unwrap(), found[0].about().memory);
}
