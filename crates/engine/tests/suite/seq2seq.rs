//! The seq2seq engine: many tasks on one `Seq2SeqRunner`, each with the same result as alone.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{FAILS, Faulty, LOST, PANICS};
use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::handle::Failure;
use tallow_engine::seq2seq::{
    EncoderInput, LogitsPolicy, Seq2SeqHandle, Seq2SeqRunner, SlotLimits, Task, spawn,
};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_support::golden;

const LIMITS: SlotLimits =
    SlotLimits { slots: 3, encoder_tokens: 40, decoder_tokens: 24, dtype: DType::F16, queue: 20 };

fn start(limits: SlotLimits) -> Seq2SeqHandle {
    start_on(limits, || Cpu::new(Isa::best(), 2).unwrap())
}

fn start_on<B: Backend + 'static>(
    limits: SlotLimits,
    b: impl FnOnce() -> B + Send + 'static,
) -> Seq2SeqHandle {
    spawn(limits, move || {
        let model = Seq2SeqModel::open(&golden("t5")).unwrap_or_else(|e| panic!("{e}"));
        let b = b();
        let model = Seq2Seq::load(&b, &model, &mut |_, _| ControlFlow::Continue(())).unwrap();
        Ok::<_, std::io::Error>(Seq2SeqRunner::new(b, model, limits).unwrap())
    })
    .unwrap()
}

/// Greedy `LogitsPolicy` that records all logits.
struct Greedy {
    seen: Vec<Vec<f32>>,
    most: usize,
    gone: Arc<AtomicBool>,
    panics: bool,
    done: Option<std::sync::mpsc::Sender<Result<Vec<Vec<f32>>, Failure>>>,
}

impl LogitsPolicy for Greedy {
    fn next(&mut self, logits: &[f32]) -> Vec<u32> {
        assert!(!self.panics, "a policy that panics");
        self.seen.push(logits.to_vec());
        if self.seen.len() >= self.most {
            return Vec::new();
        }
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
        // Sometimes several tokens at once.
        if self.seen.len().is_multiple_of(3) { vec![best, 5] } else { vec![best] }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn end(mut self: Box<Self>, how: Result<(), Failure>) {
        let seen = std::mem::take(&mut self.seen);
        let _ = self.done.take().unwrap().send(how.map(|()| seen));
    }
}

type Answer = Receiver<Result<Vec<Vec<f32>>, Failure>>;

fn submit(handle: &Seq2SeqHandle, words: Vec<u32>, most: usize, panics: bool) -> (Answer, Arc<AtomicBool>) {
    let (done, answer) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    let policy = Greedy { seen: Vec::new(), most, gone: gone.clone(), panics, done: Some(done) };
    let task = Task { input: EncoderInput::Tokens(words), prompt: vec![0], policy: Box::new(policy) };
    handle.submit(task).unwrap();
    (answer, gone)
}

fn words(i: u32) -> Vec<u32> {
    (0..3 + 5 * i).map(|n| (7 * n + i) % 90 + 3).chain([1]).collect()
}

#[test]
fn company_changes_no_bit() {
    let handle = start(LIMITS);
    let alone: Vec<_> =
        (0..7).map(|i| submit(&handle, words(i), 4 + i as usize, false).0.recv().unwrap().unwrap()).collect();
    let together: Vec<_> = (0..7).map(|i| submit(&handle, words(i), 4 + i as usize, false).0).collect();
    for (i, (alone, together)) in alone.iter().zip(together).enumerate() {
        assert_eq!(alone.len(), 4 + i);
        assert!(together.recv().unwrap().unwrap() == *alone, "task {i}");
    }
    assert_eq!(handle.taken(), 0);
    handle.close();
}

#[test]
fn a_full_context_ends_the_task() {
    let handle = start(SlotLimits { decoder_tokens: 9, ..LIMITS });
    let seen = submit(&handle, words(1), 100, false).0.recv().unwrap().unwrap();
    assert!((6..=9).contains(&seen.len()), "{}", seen.len());
    handle.close();
}

#[test]
fn who_is_at_fault_fails_alone() {
    let handle = start(LIMITS);
    let good = submit(&handle, words(2), 12, false).0;
    let bad = submit(&handle, words(1), 12, true).0;
    let long = submit(&handle, words(20), 12, false).0;
    assert!(matches!(bad.recv().unwrap(), Err(Failure::Broken(why)) if why.contains("internal error")));
    assert!(matches!(long.recv().unwrap(), Err(Failure::Broken(why)) if why.contains("do not fit")));
    assert_eq!(good.recv().unwrap().unwrap().len(), 12);
    assert_eq!(handle.taken(), 0);
    handle.close();
}

#[test]
fn every_task_hears_its_end_once_whatever_happens() {
    let handle = start(SlotLimits { slots: 1, queue: 3, ..LIMITS });
    let (first, gone) = submit(&handle, words(2), 1000, false);
    let waiting = submit(&handle, words(1), 5, false).0;
    gone.store(true, Ordering::Relaxed);
    // The task may have finished on its own.
    let _ = first.recv().unwrap();
    waiting.recv().unwrap().unwrap();
    handle.drain(Duration::from_secs(5));
    assert_eq!(handle.ready(), Err(Failure::ShuttingDown));
    let (done, _answer) = channel();
    let policy = Greedy { seen: vec![], most: 1, gone, panics: false, done: Some(done) };
    let task = Task { input: EncoderInput::Tokens(vec![1]), prompt: vec![0], policy: Box::new(policy) };
    assert_eq!(handle.submit(task), Err(Failure::ShuttingDown));
    handle.close();
    assert!(!handle.is_alive());
}

#[test]
fn more_than_there_is_room_for_is_refused() {
    let handle = start(SlotLimits { slots: 1, queue: 2, ..LIMITS });
    let held = Arc::new(Mutex::new(()));
    let lock = held.lock().unwrap();
    struct Slow(Arc<Mutex<()>>);
    impl LogitsPolicy for Slow {
        fn next(&mut self, _: &[f32]) -> Vec<u32> {
            drop(self.0.lock());
            Vec::new()
        }
        fn is_gone(&self) -> bool {
            false
        }
        fn end(self: Box<Self>, _: Result<(), Failure>) {}
    }
    let task = || Task {
        input: EncoderInput::Tokens(vec![1]),
        prompt: vec![0],
        policy: Box::new(Slow(held.clone())),
    };
    handle.submit(task()).unwrap();
    handle.submit(task()).unwrap();
    assert_eq!(handle.submit(task()), Err(Failure::Full(2)));
    drop(lock);
    handle.close();
}

/// The engine may end between the check that it is ready and the submission.
#[test]
fn who_comes_as_it_ends_hears_of_it_once() {
    struct Counting(Arc<AtomicUsize>);
    impl LogitsPolicy for Counting {
        fn next(&mut self, _: &[f32]) -> Vec<u32> {
            Vec::new()
        }
        fn is_gone(&self) -> bool {
            false
        }
        fn end(self: Box<Self>, how: Result<(), Failure>) {
            assert!(how.is_err());
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (handle, messages, guard) = Seq2SeqHandle::new(LIMITS);
    let told = || {
        let ends = Arc::new(AtomicUsize::new(0));
        let policy = Box::new(Counting(ends.clone()));
        let task = Task { input: EncoderInput::Tokens(vec![1]), prompt: vec![0], policy };
        let refused = handle.submit(task).is_err();
        (refused, ends.load(Ordering::Relaxed))
    };
    drop(messages);
    assert_eq!((told(), handle.taken()), ((false, 1), 0));
    drop(guard);
    assert_eq!((told(), handle.taken()), ((true, 0), 0));
}

#[test]
fn a_task_that_fails_a_step_fails_alone() {
    let handle = start_on(LIMITS, Faulty::default);
    let submit = |prompt: u32| {
        let (done, answer) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        let policy = Greedy { seen: Vec::new(), most: 1, gone, panics: false, done: Some(done) };
        let input = EncoderInput::Tokens(vec![20, 21]);
        handle.submit(Task { input, prompt: vec![prompt], policy: Box::new(policy) }).unwrap();
        answer
    };
    for round in 0..3 {
        let [good, panics, fails] = [30, PANICS, FAILS].map(submit).map(|answer| answer.recv().unwrap());
        assert_eq!(good.unwrap().len(), 1, "round {round}");
        let broken = |why: &str| Err(Failure::Broken(why.into()));
        assert_eq!(panics, broken("an internal error, please report it: a bug in a kernel"));
        assert_eq!(fails, broken("faulty failed: it is out of order"));
    }
    assert!(handle.ready().is_ok() && handle.taken() == 0);
    handle.close();
}

/// All tasks get the device's words, and first the handle does.
#[test]
fn a_device_lost_by_the_encoder_ends_all_tasks() {
    let handle = start_on(LIMITS, Faulty::default);
    let good = submit(&handle, vec![20, 21], 1000, false).0;
    let lost = submit(&handle, vec![20, LOST], 5, false).0;
    let why = Failure::Broken("faulty is lost: it fell off the bus; restart the server".into());
    assert_eq!(lost.recv().unwrap(), Err(why.clone()));
    assert_eq!((handle.ready(), handle.is_alive()), (Err(why), false));
    // It may have reached the end of its context before.
    let _ = good.recv().unwrap();
    assert_eq!(handle.taken(), 0);
    handle.close();
}
