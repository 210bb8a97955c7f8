//! The embedder: concurrent requests, step batching, isolated failures, shutdown.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::Wrong;
use crate::common::faulty::{FAILS, Faulty, LOST, PANICS};
use tallow_core::Backend;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::embedder::{
    Answer, EmbedderHandle, EmbedderInfo, EncoderRunner, PoolingTask, RunningEmbedder, spawn,
};
use tallow_engine::handle::Failure;
use tallow_models::encoder::{Encoder, EncoderModel, Input, Inputs};
use tallow_models::spec::encoder::Pooling;
use tallow_support::{PATIENCE, text_encoder};
use tokio::sync::oneshot;

const BUDGET: usize = 16;

/// Small encoder; its folder is removed once it is open.
fn model() -> (EncoderModel, Inputs) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder: PathBuf =
        std::env::temp_dir().join(format!("tallow-embedder-{}-{number}", std::process::id()));
    text_encoder(&folder, None);
    let model = EncoderModel::open(&folder).unwrap();
    let inputs = Inputs::new(&model).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    (model, inputs)
}

fn start<B: Backend>(queue: usize, b: impl FnOnce() -> B + Send + 'static) -> RunningEmbedder {
    let (model, inputs) = model();
    let task = PoolingTask::Embed(Pooling::Mean);
    let info = EmbedderInfo { names: vec!["test".into()], inputs, task, width: 48, classes: None, queue };
    let worker = move || {
        let b = b();
        let encoder =
            Encoder::load(&b, &model, &mut |_, _| ControlFlow::Continue(())).map_err(Wrong::Load)?;
        Ok::<_, Wrong>(EncoderRunner::new(b, encoder, task, BUDGET))
    };
    spawn(|| Ok(info), worker).unwrap()
}

fn cpu(queue: usize) -> RunningEmbedder {
    start(queue, || Cpu::new(Isa::best(), 1).unwrap())
}

/// An input of `tokens` tokens, the first of which is `first`.
fn text(first: u32, tokens: usize) -> Input {
    let rest = (1..tokens as u32).map(|i| 20 + (first + 5 * i) % 70);
    Input { tokens: std::iter::once(first).chain(rest).collect(), types: vec![0; tokens] }
}

fn wait(answer: oneshot::Receiver<Answer>) -> Answer {
    answer.blocking_recv().unwrap()
}

#[test]
fn texts_give_the_same_in_any_company() {
    let handle = cpu(64);
    let texts: Vec<Input> = (0..24).map(|i| text(30 + i, 1 + i as usize % 9)).collect();
    let alone: Vec<Vec<f32>> =
        texts.iter().map(|t| wait(handle.submit(vec![t.clone()]).unwrap()).unwrap().remove(0)).collect();
    let parts = [&texts[..1], &texts[1..20], &texts[20..24], &texts[..24]];
    let answers: Vec<_> = parts.map(|part| handle.submit(part.to_vec()).unwrap()).into_iter().collect();
    let got: Vec<Vec<f32>> = answers.into_iter().flat_map(|a| wait(a).unwrap()).collect();
    let want = [&alone[..1], &alone[1..20], &alone[20..24], &alone[..24]].concat();
    assert_eq!(got, want);
    assert_eq!((handle.taken(), handle.stats().waiting_tokens.load(Ordering::Relaxed)), (0, 0));
    // Texts longer than the step budget get a step of their own.
    let long = wait(handle.submit(vec![text(30, 40), text(31, 2)]).unwrap()).unwrap();
    assert_eq!(long.len(), 2);
    assert_eq!(wait(handle.submit(Vec::<Input>::new()).unwrap()), Ok(Vec::new()));
}

/// Enough texts to keep the engine busy for a while.
fn many() -> Vec<Input> {
    (0..3000).map(|i| text(20 + i % 70, 8)).collect()
}

#[test]
fn a_request_with_many_texts_does_not_keep_others_waiting() {
    let handle = cpu(64);
    let mut many = handle.submit(many()).unwrap();
    let few = handle.submit(vec![text(30, 5), text(31, 5)]).unwrap();
    assert_eq!(wait(few).unwrap().len(), 2);
    assert_eq!(many.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    assert_eq!(wait(many).unwrap().len(), 3000);
}

#[test]
fn failures_stay_apart() {
    let handle = start(64, Faulty::default);
    let (good, panics, fails) = (text(30, 4), text(PANICS, 2), text(FAILS, 3));
    let requests = [
        vec![good.clone()],
        vec![good.clone(), panics, good.clone()],
        vec![fails],
        vec![good.clone(), good.clone()],
    ];
    for _ in 0..3 {
        let answers = requests.clone().map(|texts| handle.submit(texts).unwrap());
        let [first, panicked, failed, last] = answers.map(wait);
        assert_eq!((first.unwrap().len(), last.unwrap().len()), (1, 2));
        let Err(Failure::Broken(why)) = panicked else { panic!("{panicked:?}") };
        assert_eq!(why, "an internal error, please report it: a bug in a kernel");
        assert!(matches!(&failed, Err(Failure::Broken(why)) if why.contains("out of order")), "{failed:?}");
    }
    assert_eq!(handle.taken(), 0);
    assert!(handle.ready().is_ok());
}

#[test]
fn a_lost_device_ends_all_with_its_words() {
    let handle = start(64, Faulty::default);
    let lost = handle.submit(vec![text(30, 4), text(LOST, 3), text(31, 2)]).unwrap();
    let answer = wait(lost);
    assert!(matches!(&answer, Err(Failure::Broken(why)) if why.contains("fell off the bus")), "{answer:?}");
    assert!(!handle.is_alive());
    assert!(
        matches!(handle.submit(vec![text(30, 4)]), Err(Failure::Broken(why)) if why.contains("fell off"))
    );
    assert_eq!(handle.taken(), 0);
}

#[test]
fn places_are_bounded_and_given_back() {
    let handle = cpu(1);
    let answer = handle.submit(many()).unwrap();
    assert_eq!(handle.submit(vec![text(30, 4)]).unwrap_err(), Failure::Full(1));
    drop(answer);
    let begun = Instant::now();
    while handle.taken() > 0 {
        assert!(begun.elapsed() < PATIENCE, "a place was kept");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(wait(handle.submit(vec![text(30, 4)]).unwrap()).unwrap().len(), 1);
    // Most of them were never computed, because nobody waited for them.
    assert!(handle.stats().texts.load(Ordering::Relaxed) < 3000);
    assert_eq!(handle.stats().waiting_tokens.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_under_way_is_finished_before_the_end() {
    let mut handle = cpu(8);
    let answer = handle.submit(many()).unwrap();
    handle.drain(Duration::from_secs(60));
    assert_eq!(handle.submit(vec![text(30, 4)]).unwrap_err(), Failure::ShuttingDown);
    assert_eq!(wait(answer).unwrap().len(), 3000);
    handle.close();
    assert!(!handle.is_alive());
    // Requests that do not finish within the drain time fail.
    let handle = cpu(8);
    let answer = handle.submit(many()).unwrap();
    handle.drain(Duration::ZERO);
    assert_eq!(wait(answer), Err(Failure::ShuttingDown));
}

/// The embedder may end between the check that it is ready and the submission.
#[test]
fn who_comes_as_it_ends_is_told_and_waits_no_more() {
    let (_, inputs) = model();
    let task = PoolingTask::Embed(Pooling::Mean);
    let info = EmbedderInfo { names: vec!["test".into()], inputs, task, width: 48, classes: None, queue: 4 };
    let (handle, messages, guard) = EmbedderHandle::new(info);
    let queued = handle.submit(vec![text(30, 4)]).unwrap();
    drop(messages);
    let late = handle.submit(vec![text(30, 4), text(31, 5)]).unwrap();
    let told = Failure::Broken("the engine has stopped; restart the server".into());
    assert_eq!([queued, late].map(wait), [Err(told.clone()), Err(told.clone())]);
    assert_eq!((handle.taken(), handle.stats().waiting_tokens.load(Ordering::Relaxed)), (0, 0));
    drop(guard);
    assert_eq!(handle.submit(vec![text(30, 4)]).unwrap_err(), told);
}
