//! Encoder-decoder models in the engine: each request has the same result as alone, inputs are encoded once, and whoever
//! leaves or fails leaves the others alone.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::faulty::{FAILS, Faulty, LOST, PANICS};
use crate::common::{Wrong, comes_to_rest, ends, info, model, reason, start};
use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::encoder_input::EncoderInput;
use tallow_engine::engine::spawn;
use tallow_engine::failure::{Failure, Unfit};
use tallow_engine::handle::{EngineHandle, Event, Finish, Info, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::sampler::{LogitsPolicy, Sampling};
use tallow_engine::scheduler::{ClientId, DecodeBudget, Limits};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_support::{PATIENCE, golden};
use tokio::sync::mpsc::UnboundedReceiver;

const PAGE: usize = 4;
const CONTEXT: usize = 25;

/// Engine of a T5 with random weights. Its tokenizer is another model's: tests read tokens.
fn start_t5<B: Backend + 'static>(
    pages: usize,
    slots: usize,
    b: impl FnOnce() -> B + Send + 'static,
) -> RunningEngine {
    let seq2seq = Seq2SeqModel::open(&golden("t5")).unwrap_or_else(|e| panic!("{e}"));
    let vocab = seq2seq.spec.decoder.vocab;
    let info = Info { vocab, slots, context: CONTEXT, page_len: PAGE, ..info(&model(), pages) };
    let runner = move || {
        let b = b();
        let seq2seq = Seq2Seq::load(&b, &seq2seq, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages, swa_pages: 0, state_rows: 0 };
        let runner = Runner::seq2seq(b, seq2seq, shape).map_err(Wrong::Device)?;
        let (budget, context) = (32, CONTEXT);
        let limits = Limits {
            context,
            slots,
            budget,
            decode_budget: DecodeBudget::of_tokens(budget),
            all_logits: 8,
            drafts: None,
        };
        Ok::<_, Wrong>((runner, limits))
    };
    spawn(|| Ok(info), runner).unwrap()
}

fn start_cpu(pages: usize, slots: usize) -> RunningEngine {
    start_t5(pages, slots, || Cpu::new(Isa::best(), 2).unwrap())
}

fn words(i: u32) -> Vec<u32> {
    (0..3 + 5 * i).map(|n| (7 * n + i) % 90 + 3).chain([1]).collect()
}

/// Greedy decoding that records all logits.
#[derive(Debug, Default)]
struct Greedy(Mutex<Vec<Vec<f32>>>);

impl LogitsPolicy for Greedy {
    fn choose(&self, written: &[u32], logits: &[f32]) -> u32 {
        let mut seen = self.0.lock().unwrap();
        seen.truncate(written.len());
        seen.push(logits.to_vec());
        (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
    }
}

#[derive(Debug)]
struct Panics;

impl LogitsPolicy for Panics {
    fn choose(&self, _: &[u32], _: &[f32]) -> u32 {
        panic!("a policy that panics")
    }
}

fn request(words: Vec<u32>, max_new: usize) -> Request {
    let input = Some(Arc::new(EncoderInput::Tokens(words)));
    let sampling = Sampling::greedy();
    Request { prompt: vec![0], max_new, ignore_end: true, input, sampling, ..Request::default() }
}

fn rest(mut receiver: UnboundedReceiver<Event>) -> Vec<Event> {
    std::iter::from_fn(|| receiver.blocking_recv()).collect()
}

fn events(handle: &EngineHandle, request: Request) -> Vec<Event> {
    rest(handle.submit(request).unwrap())
}

/// Tokens computed by encoder and decoder so far.
fn computed(handle: &EngineHandle) -> u64 {
    handle.stats().step_sizes.tokens()
}

#[test]
fn company_and_preemption_change_no_bit() {
    let ask = |i: u32| {
        let policy = Arc::new(Greedy::default());
        let asked = Request { policy: Some(policy.clone()), ..request(words(i), 20) };
        (Request { client: ClientId(u64::from(i % 3)), ..asked }, policy)
    };
    let alone: Vec<Vec<Vec<f32>>> = (0..7)
        .map(|i| {
            let (asked, policy) = ask(i);
            let events = events(&start_cpu(40, 1), asked);
            assert_eq!(reason(&events), Finish::Length);
            std::mem::take(&mut *policy.0.lock().unwrap())
        })
        .collect();
    // Few pages, so that some are preempted, and inputs are evicted and encoded again.
    let handle = start_cpu(20, 3);
    for round in 0..2 {
        let together: Vec<_> = (0..7)
            .map(|i| {
                let (asked, policy) = ask(i);
                (handle.submit(asked).unwrap(), policy)
            })
            .collect();
        for (i, (receiver, policy)) in together.into_iter().enumerate() {
            assert_eq!(reason(&rest(receiver)), Finish::Length);
            let got = policy.0.lock().unwrap();
            assert_eq!(got.len(), 20);
            assert!(*got == alone[i], "request {i} in round {round}");
        }
    }
    assert!(handle.stats().preemptions.load(Ordering::Relaxed) > 0);
    comes_to_rest(&handle);
}

/// The sampler chooses where a request brings no rules of its own.
#[test]
fn the_sampler_and_a_policy_write_the_same_greedily() {
    let handle = start_cpu(60, 3);
    let token = |e: &Event| if let Event::Piece { choice, .. } = e { Some(choice.token) } else { None };
    let tokens = |policy: Option<Arc<dyn LogitsPolicy>>| -> Vec<u32> {
        let asked = Request { policy, ..request(words(2), 9) };
        events(&handle, asked).iter().filter_map(token).collect()
    };
    let sampled = tokens(None);
    assert_eq!((sampled.len(), &sampled), (9, &tokens(Some(Arc::new(Greedy::default())))));
}

#[test]
fn a_full_context_ends_an_answer() {
    let handle = start_cpu(60, 3);
    let events = events(&handle, request(words(1), usize::MAX));
    let Some(Event::Done(done)) = events.last() else { panic!("{events:?}") };
    assert_eq!((done.reason.clone(), done.new_tokens), (Finish::Length, CONTEXT - 1));
}

#[test]
fn an_input_is_encoded_once() {
    let handle = start_cpu(60, 3);
    let (words, max_new) = (words(4), 6);
    // The prompt's token and all generated ones but the last.
    let decoded = max_new as u64;
    events(&handle, request(words.clone(), max_new));
    assert_eq!(computed(&handle), words.len() as u64 + decoded);
    for drafts in 2..4 {
        events(&handle, request(words.clone(), max_new));
        assert_eq!(computed(&handle), words.len() as u64 + drafts * decoded);
    }
    // Those that come together wait for the first.
    let (other, before) = (words[1..].to_vec(), computed(&handle));
    let all = [0; 3].map(|_| handle.submit(request(other.clone(), max_new)).unwrap());
    all.into_iter().for_each(|receiver| assert_eq!(reason(&rest(receiver)), Finish::Length));
    assert_eq!(computed(&handle), before + other.len() as u64 + 3 * decoded);
    // With another salt it is encoded again: how long that takes tells nothing of others.
    let before = computed(&handle);
    events(&handle, Request { salt: Some("key 1".into()), ..request(words.clone(), max_new) });
    assert_eq!(computed(&handle), before + words.len() as u64 + decoded);
}

#[test]
fn its_metrics_are_those_of_generation() {
    let handle = start_cpu(60, 3);
    events(&handle, request(words(1), 5));
    events(&handle, request(words(2), 7));
    let (stats, load) = (handle.stats(), |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed));
    assert_eq!((load(&stats.prompt_tokens), load(&stats.new_tokens)), (2, 12));
    assert_eq!((load(&handle.steps().run), load(&handle.steps().failed)), (12, 0));
}

#[test]
fn who_is_at_fault_fails_alone() {
    let handle = start_cpu(30, 3);
    let good = handle.submit(request(words(2), 12)).unwrap();
    let bad = events(&handle, Request { policy: Some(Arc::new(Panics)), ..request(words(1), 12) });
    assert!(
        matches!(bad.last(), Some(Event::Failed(Failure::Broken(why))) if why.contains("internal error"))
    );
    let unfit = |asked| match events(&handle, asked).pop() {
        Some(Event::Failed(Failure::Unfit(unfit))) => unfit,
        other => panic!("{other:?}"),
    };
    let long = words(30);
    let (tokens, room) = (long.len(), 29 * PAGE);
    assert_eq!(unfit(request(long, 12)), Unfit::LongInput { tokens, room });
    assert_eq!(unfit(request(vec![], 12)), Unfit::Empty);
    assert_eq!(unfit(request(vec![96], 12)), Unfit::Unknown { token: 96, vocab: 96 });
    let sound = Some(Arc::new(EncoderInput::Mel(vec![0.0; 32])));
    assert!(matches!(unfit(Request { input: sound.clone(), ..request(vec![3], 12) }), Unfit::Input(_)));
    assert!(matches!(unfit(Request { input: None, ..request(vec![3], 12) }), Unfit::Input(_)));
    assert_eq!(reason(&rest(good)), Finish::Length);
    comes_to_rest(&handle);
    // A decoder alone takes no input.
    let handle = start(20);
    let refused = events(&handle, Request { input: sound, ..request(vec![3], 12) });
    assert!(matches!(refused[..], [Event::Failed(Failure::Unfit(Unfit::Input(_)))]), "{refused:?}");
}

#[test]
fn a_request_that_fails_a_step_fails_alone() {
    let handle = start_t5(60, 3, Faulty::default);
    let broken = |why: &str| Some(Event::Failed(Failure::Broken(why.into())));
    let (panics, fails) =
        ("an internal error, please report it: a bug in a kernel", "faulty failed: it is out of order");
    for round in 0..3 {
        // In the decoder, and in the encoder.
        let decoders =
            [30, PANICS, FAILS].map(|token| Request { prompt: vec![token], ..request(vec![20, 21], 3) });
        let encoders = [30, PANICS, FAILS].map(|token| request(vec![20, token], 3));
        for asked in [decoders, encoders] {
            let [good, panicked, failed] = asked.map(|asked| handle.submit(asked).unwrap()).map(rest);
            assert_eq!(reason(&good), Finish::Length, "round {round}");
            assert_eq!((panicked.last(), failed.last()), (broken(panics).as_ref(), broken(fails).as_ref()));
            assert_eq!(ends(&panicked) + ends(&failed), 2);
        }
    }
    assert!(handle.ready().is_ok());
    comes_to_rest(&handle);
}

/// All requests get the device's words, and first the handle does.
#[test]
fn a_device_lost_by_the_encoder_ends_all_requests() {
    let handle = start_t5(60, 3, Faulty::default);
    let good = handle.submit(request(vec![20, 21], 1000)).unwrap();
    let lost = events(&handle, request(vec![20, LOST], 5));
    let why = Failure::Broken("faulty is lost: it fell off the bus; restart the server".into());
    assert_eq!(lost.last(), Some(&Event::Failed(why.clone())));
    assert_eq!((handle.ready(), handle.is_alive()), (Err(why), false));
    // It may have reached the end of its context before.
    assert_eq!(ends(&rest(good)), 1);
    assert_eq!(handle.taken(), 0);
}

#[test]
fn who_leaves_while_the_input_is_encoded_leaves_no_page_behind() {
    let held = Arc::new(Mutex::new(()));
    let lock = held.lock().unwrap();
    let device = held.clone();
    let handle = start_t5(60, 1, || Faulty::held(device));
    let mut first = handle.submit(request(vec![20; 30], 20)).unwrap();
    let waiting = handle.submit(request(vec![21; 30], 20)).unwrap();
    // The first step has begun: it encodes, and cannot go on.
    assert_eq!(first.blocking_recv(), Some(Event::Started { cached: 0 }));
    drop((first, waiting));
    drop(lock);
    comes_to_rest(&handle);
    // That step was the last: who waited was not encoded.
    assert_eq!(handle.steps().run.load(Ordering::Relaxed), 1);
    assert_eq!(reason(&events(&handle, request(vec![20; 30], 2))), Finish::Length);
}

/// Clients whose tokens were chosen, in order.
#[derive(Debug)]
struct Chosen(u64, Arc<Mutex<Vec<u64>>>);

impl LogitsPolicy for Chosen {
    fn choose(&self, _: &[u32], _: &[f32]) -> u32 {
        self.1.lock().unwrap().push(self.0);
        30
    }
}

#[test]
fn a_client_with_many_inputs_does_not_delay_another() {
    let held = Arc::new(Mutex::new(()));
    let lock = held.lock().unwrap();
    let device = held.clone();
    let handle = start_t5(60, 2, || Faulty::held(device));
    let order = Arc::new(Mutex::new(Vec::new()));
    let ask = |client, i: u32| {
        let policy: Option<Arc<dyn LogitsPolicy>> = Some(Arc::new(Chosen(client, order.clone())));
        let asked = Request { client: ClientId(client), policy, ..request(vec![20 + i, 21], 20) };
        handle.submit(asked).unwrap()
    };
    // All of it comes before the first step has ended.
    let mut all: Vec<_> = (0..10).map(|i| ask(1, i)).collect();
    all.push(ask(2, 30));
    drop(lock);
    all.into_iter().for_each(|receiver| assert_eq!(reason(&rest(receiver)), Finish::Length));
    // The first is encoded in the first step, the other's in the second; from then on each step has a token of both.
    let order = order.lock().unwrap();
    assert_eq!((order.len(), order[..41].iter().filter(|client| **client == 2).count()), (11 * 20, 20));
    comes_to_rest(&handle);
}

#[test]
fn it_drains_and_says_so() {
    let mut handle = start_cpu(60, 1);
    let two = [1, 2].map(|i| handle.submit(request(words(i), 20)).unwrap());
    handle.drain(PATIENCE);
    assert_eq!(handle.submit(request(words(1), 2)).unwrap_err(), Failure::ShuttingDown);
    two.into_iter().for_each(|receiver| assert_eq!(reason(&rest(receiver)), Finish::Length));
    handle.close();
    assert!(!handle.is_alive());
}
