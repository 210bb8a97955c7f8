//! On a device that computes while the host goes on, a step is launched before the events of the one before are sent and, if
//! the tokens between them are sampled on the device, before these are read. Answers are those of one step after the other,
//! bit for bit, and who ends meanwhile is left out or ignored.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::answer::{Answer, TextStep};
use tallow_engine::block_pool::{BlockPool, Chain};
use tallow_engine::engine::spawn;
use tallow_engine::handle::{Event, Failure, Finish, LoadLora, Request};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::lora::{LoraId, LoraRef};
use tallow_engine::runner::{Runner, SampleInput};
use tallow_engine::sampler::{Choice, MaskThreads, Sampler, Sampling};
use tallow_engine::scheduler::{
    ClientId, DecodeBudget, DraftCosts, Limits, NewSeq, Scheduler, SeqId, StepCost,
};
use tallow_models::Model;
use tallow_models::adapter::AdapterFile;
use tallow_models::decoder::Decoder;
use tallow_support::{PATIENCE, ci, golden, needed};
use tallow_wgpu::{Wgpu, devices};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::common::faulty::{FAILS, FAILS_LATE, Faulty, LOST, LOST_LATE, PANICS};
use crate::common::{
    Thirds, Wrong, comes_to_rest, cuda, ends, events, info, limits, model, reason, request, start_on, tokens,
};

/// Events of a request, without what depends on others: times, and what was found in the prefix cache.
#[derive(Debug, Default)]
struct Said {
    prompt: Vec<Choice>,
    pieces: Vec<(String, Choice)>,
    /// Last piece, why it ended, tokens of the prompt and of the answer.
    end: Option<(String, Finish, usize, usize)>,
}

impl Said {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Started { .. } | Event::Prefill { .. } => {}
            Event::Prompt(scored) => self.prompt.extend(scored),
            Event::Piece { text, choice } => self.pieces.push((text, choice)),
            Event::Done(done) => {
                self.end = Some((done.text, done.reason, done.prompt_tokens, done.new_tokens));
            }
            Event::Failed(why) => panic!("{why}"),
        }
    }

    /// The same numbers have the same digits, and others have others.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        hasher.finish()
    }
}

/// A request, and after how many pieces its client leaves.
struct Asked {
    request: Request,
    /// Index of its LoRA adapter.
    adapter: Option<usize>,
    leaves_after: Option<usize>,
}

const ADAPTERS: [&str; 2] = ["llama", "llama-some/adapter.gguf"];

fn adapter(index: usize) -> AdapterFile {
    AdapterFile::open(&golden("adapters").join(ADAPTERS[index])).unwrap()
}

/// Requests of all kinds.
fn requests(count: usize, adapters: usize) -> Vec<Asked> {
    let kinds = [
        Sampling::greedy(),
        Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() },
        Sampling { temperature: 0.9, top_p: 0.9, ..Sampling::default() },
        Sampling { repetition_penalty: 1.1, ..Sampling::greedy() },
        Sampling { presence_penalty: 0.3, frequency_penalty: 0.2, temperature: 0.3, ..Sampling::default() },
        Sampling { logprobs: Some(3), ..Sampling::greedy() },
        Sampling { bias: vec![(9, 4.0), (10, -100.0)], temperature: 0.4, ..Sampling::default() },
    ];
    let one = |i: usize| {
        let any = |what: u32, most: usize| {
            let mut hasher = DefaultHasher::new();
            (what, i).hash(&mut hasher);
            hasher.finish() as usize % most
        };
        // Some begin alike, some repeat themselves so that drafts are right.
        let period = 2 + any(0, 9);
        let own = (0..1 + any(1, 24)).map(|at| 4 + ((at % period) * (3 + any(2, 50)) % 80) as u32);
        let prompt: Vec<u32> = (0..any(3, 3) as u32 * 4).map(|at| 20 + at).chain(own).collect();
        let sampling = Sampling { seed: i as u64, ..kinds[any(4, kinds.len())].clone() };
        let text = |token: usize| format!("t{}", 4 + token);
        let asked = Request {
            sampling,
            stops: (0..any(5, 3)).map(|stop| text(any(6 + stop as u32, 80))).collect(),
            stop_tokens: (0..any(8, 3)).map(|stop| 4 + any(9 + stop as u32, 80) as u32).collect(),
            ignore_end: any(11, 3) > 0,
            score_prompt: any(12, 5) == 0,
            progress: any(13, 2) == 0,
            client: ClientId(any(14, 3) as u64),
            constraint: (any(19, 4) == 0).then(Thirds::boxed),
            ..request(&prompt, any(15, 24))
        };
        let adapter = any(16, 3).checked_sub(1).filter(|index| *index < adapters);
        let leaves_after = (any(17, 8) == 0).then(|| any(18, 10));
        Asked { request: asked, adapter, leaves_after }
    };
    (0..count).map(one).collect()
}

/// A model on a device, with so many pages of its cache.
pub(crate) fn runner<B: Backend>(b: B, model: &Model, pages: usize) -> Runner<B> {
    let decoder = Decoder::load(&b, model, 128, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Runner::new(b, decoder, KvShape { dtype: DType::F32, page_len: 4, pages, swa_pages: 0, state_rows: 0 })
        .unwrap()
}

/// Events of the requests in a loop that does one thing after another: the next batch, its step, the tokens, the
/// text.
fn one_after_another<B: Backend>(b: B, asked: &[Asked], adapters: usize) -> Vec<Said> {
    let model = model();
    let mut runner = runner(b, &model, 512);
    for index in 0..adapters {
        runner.load_lora(LoraId(index as u64), &adapter(index)).unwrap();
    }
    let tokenizer = info(&model, 512).tokenizer;
    let threads = MaskThreads::start().unwrap();
    let limits = Limits { slots: 16, budget: 64, decode_budget: DecodeBudget::of_tokens(64), ..limits() };
    let mut scheduler = Scheduler::new(limits, BlockPool::new(512, 4));
    let mut all = Vec::new();
    for (i, Asked { request: r, adapter, .. }) in asked.iter().enumerate() {
        let new = NewSeq {
            id: SeqId(i as u64),
            tokens: r.prompt.clone(),
            max_new: r.max_new,
            root: adapter.map_or(Chain::ROOT, |index| Chain::salted(index as u64)),
            all_logits: r.score_prompt,
            lora: adapter.map(|index| LoraRef { id: LoraId(index as u64), scale: 1.0 }),
            client: ClientId(0),
            drafts: false,
            cross: None,
        };
        scheduler.submit(new).unwrap();
        let (stops, stop_tokens) = (r.stops.clone(), r.stop_tokens.clone());
        let answer = Answer::new(tokenizer.clone(), &r.prompt, stops, stop_tokens, r.ignore_end);
        let sampler = Sampler::new(r.sampling.clone(), &r.prompt);
        let sampler = match r.constraint.clone() {
            Some(constraint) => sampler.with_constraint(constraint, threads.clone()),
            None => sampler,
        };
        all.push((sampler, answer, Said::default()));
    }
    while let Some(batch) = scheduler.next_batch() {
        let inputs = batch.parts.iter().map(|part| {
            let i = part.id.0 as usize;
            SampleInput { sampler: &all[i].0, prompt: &asked[i].request.prompt, input: None }
        });
        let outcomes = runner.run(&batch, &inputs.collect::<Vec<_>>()).unwrap();
        let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        let next = outcomes.iter().map(|outcome| outcome.next.iter().map(|c| c.token).collect());
        let full = scheduler.commit(&batch, &next.collect::<Vec<_>>());
        for ((part, outcome), full) in batch.parts.iter().zip(outcomes).zip(full) {
            let (i, (sampler, answer, said)) = (part.id.0 as usize, &mut all[part.id.0 as usize]);
            said.prompt.extend(outcome.prompt);
            let (mut end, mut rest) = (full.then_some(Finish::Length), None);
            for choice in outcome.next {
                sampler.accept(choice.token);
                match answer.push(choice.token) {
                    TextStep::More(text) => said.pieces.push((text, choice)),
                    TextStep::Stop(text, stop) => {
                        said.pieces.push((text, choice));
                        (end, rest) = (Some(Finish::Stop(stop)), Some(String::new()));
                    }
                    TextStep::End => end = Some(Finish::End),
                }
            }
            if let Some(reason) = end {
                scheduler.drop_seq(part.id);
                let new_tokens = said.pieces.len() + usize::from(reason == Finish::End);
                let rest = rest.unwrap_or_else(|| answer.rest());
                said.end = Some((rest, reason, asked[i].request.prompt.len(), new_tokens));
            }
        }
    }
    all.into_iter().map(|(.., said)| said).collect()
}

/// Events of a request until it ends, or until its client leaves.
fn hear(mut receiver: UnboundedReceiver<Event>, leaves_after: Option<usize>) -> Said {
    let mut said = Said::default();
    while leaves_after.is_none_or(|most| said.pieces.len() < most) {
        match receiver.blocking_recv() {
            Some(event) => said.hear(event),
            None => break,
        }
    }
    said
}

/// Has an engine answer requests as they come from four clients, with few pages and with drafts, and compares what they are
/// told.
fn compare<B: Backend + 'static>(make: fn() -> B, asked: &[Asked], adapters: usize, cost: Option<f32>) {
    let takes_likeliest = |asked: &Asked| asked.request.sampling == Sampling::greedy();
    let launches_ahead = asked.iter().all(takes_likeliest) && make().begin().unwrap() && cost.is_none();
    let want = one_after_another(make(), asked, adapters);
    let (model, pages) = (model(), 48);
    let mut info = info(&model, pages);
    (info.slots, info.queue, info.adapter_room) = (8, 1000, 1 << 24);
    let limits = Limits {
        slots: 8,
        drafts: cost.map(|token| DraftCosts::new(StepCost::Known { first: 1.0, more: token }, None)),
        ..limits()
    };
    let handle = spawn(|| Ok(info), move || Ok::<_, Wrong>((runner(make(), &model, pages), limits))).unwrap();
    let load = |index: usize| LoadLora { name: ADAPTERS[index].into(), file: adapter(index), scale: 1.0 };
    (0..adapters).for_each(|index| handle.load_lora(load(index)).unwrap());
    let lora = |index: usize| handle.loras().iter().find(|a| a.name == ADAPTERS[index]).unwrap().lora;
    let (mut whole, mut left) = (0u64, 0);
    std::thread::scope(|s| {
        // Each client has up to six requests under way; adapters come and go while steps run.
        let client = |client: usize| {
            let own = asked.iter().enumerate().skip(client).step_by(4).collect::<Vec<_>>();
            let mut said = Vec::new();
            for some in own.chunks(6) {
                let submit = |asked: &Asked| {
                    let adapter = asked.adapter.map(lora);
                    handle.submit(Request { adapter, ..asked.request.clone() }).unwrap()
                };
                let receivers: Vec<_> = some.iter().map(|(i, asked)| (*i, submit(asked))).collect();
                let hear = |(i, r): (usize, _)| (i, hear(r, asked[i].leaves_after));
                said.extend(receivers.into_iter().map(hear));
            }
            said
        };
        let clients: Vec<_> = (0..4).map(|n| s.spawn(move || client(n))).collect();
        if adapters > 0 {
            for _ in 0..20 {
                handle.load_lora(LoadLora { name: "other".into(), ..load(0) }).unwrap();
                handle.unload_lora("other").unwrap();
            }
        }
        for (i, said) in clients.into_iter().flat_map(|client| client.join().unwrap()) {
            if let Some(most) = asked[i].leaves_after.filter(|_| said.end.is_none()) {
                assert_eq!(said.pieces, want[i].pieces[..most], "request {i}");
                left += 1;
            } else {
                assert_eq!(said.digest(), want[i].digest(), "request {i}: {said:?}, and not {:?}", want[i]);
                whole ^= said.digest();
            }
        }
    });
    comes_to_rest(&handle);
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (stats, steps) = (handle.stats(), handle.steps());
    println!(
        "{} requests, {left} of them left: digest {whole:016x}; {} steps, {} of them launched ahead, {} tokens wasted, \
         {} preemptions, {} drafted",
        asked.len(),
        load(&steps.run),
        load(&steps.ahead),
        load(&steps.wasted),
        load(&stats.preemptions),
        load(&stats.drafted),
    );
    assert!(left > 0 && load(&stats.preemptions) > 0 && load(&steps.failed) == 0);
    assert_eq!(cost.is_some(), load(&stats.drafted) > 0);
    assert!(!launches_ahead || load(&steps.ahead) > load(&steps.run) / 4);
}

/// The same requests, all of which take the likeliest token.
fn greedy(asked: Vec<Asked>) -> Vec<Asked> {
    let one = |asked: Asked| {
        let request = Request { sampling: Sampling::greedy(), constraint: None, ..asked.request };
        Asked { request, ..asked }
    };
    asked.into_iter().map(one).collect()
}

#[test]
fn answers_are_those_of_one_step_after_another() {
    let asked = requests(500, 0);
    for cost in [None, Some(0.0)] {
        compare(|| late().chained(), &asked, 0, cost);
        compare(|| Faulty::default().chained(), &asked, 0, cost);
    }
    let asked = greedy(asked);
    for cost in [None, Some(0.0)] {
        compare(|| late().chained(), &asked, 0, cost);
    }
}

#[test]
fn answers_of_a_model_are_those_of_one_step_after_another() {
    for make in [|| Cpu::new(Isa::best(), 2).unwrap(), || Cpu::new(Isa::Scalar, 2).unwrap()] {
        compare(make, &requests(500, 2), 2, Some(0.0));
    }
}

#[test]
fn answers_of_a_model_are_those_of_one_step_after_another_on_a_gpu() {
    if needed("Vulkan or Metal device", devices().first()).is_none() {
        return;
    }
    // The GPU may be a software implementation.
    let all = if ci() { 500 } else { 100 };
    for (count, cost) in [(all, Some(0.0)), (100, None)] {
        let asked = requests(count, 2);
        compare(|| Wgpu::open(&devices()[0]).unwrap(), &asked, 2, cost);
    }
    compare(|| Wgpu::open(&devices()[0]).unwrap(), &greedy(requests(all, 2)), 2, None);
}

/// Fewer requests: kernels are interpreted.
#[test]
fn answers_of_a_model_are_those_of_one_step_after_another_on_cuda() {
    let asked = requests(100, 2);
    [Some(0.0), None].into_iter().for_each(|cost| compare(cuda, &asked, 2, cost));
    compare(cuda, &greedy(asked), 2, None);
}

/// The next event, or `None` if none comes.
fn next(receiver: &mut UnboundedReceiver<Event>, within: Duration) -> Option<Event> {
    let begun = Instant::now();
    loop {
        match receiver.try_recv() {
            Ok(event) => return Some(event),
            Err(_) if begun.elapsed() > within => return None,
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// A device that computes meanwhile has its next step before the events of the last one are sent. One that computes what is
/// launched does not keep them waiting for the next step.
#[test]
fn the_next_step_is_launched_before_listeners_hear_of_the_last_one() {
    for late in [true, false] {
        let (permit, permits) = channel();
        let launches = Arc::new(AtomicUsize::new(0));
        let counter = launches.clone();
        let handle = start_on(move || Faulty::default().late(late).permitted(permits, counter));
        let mut receiver = handle.submit(Request { ignore_end: true, ..request(&[20; 3], 5) }).unwrap();
        // Of a device that has run nothing nothing is known.
        assert!(matches!(next(&mut receiver, LONG), Some(Event::Started { .. })));
        for step in 1..=5 {
            permit.send(()).unwrap();
            if late && step <= 2 {
                // The first two are launched before the first is read. Then the third waits for a permit, and so does the
                // listener.
                assert_eq!(next(&mut receiver, SHORT), None);
                continue;
            }
            assert!(matches!(next(&mut receiver, LONG), Some(Event::Piece { .. })), "late {late}, {step}");
            assert_eq!(launches.load(Ordering::Relaxed), step);
        }
        // The last step has none after it.
        let rest: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!((tokens(&rest).len(), reason(&rest)), (if late { 2 } else { 0 }, Finish::Length));
    }
}

const LONG: Duration = PATIENCE;
const SHORT: Duration = Duration::from_millis(20);

fn late() -> Faulty {
    Faulty::default().late(true)
}

/// Sequences that end at their length are left out of the next step. That has been launched ahead when a token ends one, and
/// the step after it when a stop string is found.
#[test]
fn what_is_computed_in_vain_is_counted() {
    let asked = || request(&[20; 3], 5);
    let all = [
        (asked(), Finish::Length, 0),
        (Request { stop_tokens: vec![30], ..asked() }, Finish::End, 1),
        (Request { stops: vec!["t30".into()], ..asked() }, Finish::Stop("t30".into()), 2),
    ];
    for is_late in [true, false] {
        let handle = start_on(move || Faulty::default().late(is_late));
        for (asked, why, _) in &all {
            let got = events(&handle, asked.clone());
            assert_eq!((ends(&got), reason(&got)), (1, why.clone()));
        }
        let want: u64 = all.iter().map(|(.., wasted)| if is_late { *wasted } else { 0 }).sum();
        let (begun, wasted) = (Instant::now(), || handle.steps().wasted.load(Ordering::Relaxed));
        while wasted() < want && begun.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert_eq!(wasted(), want);
        comes_to_rest(&handle);
    }
}

/// Only the request at fault fails, also where a step fails when it is waited for.
#[test]
fn who_is_at_fault_fails_alone() {
    let handle = start_on(late);
    let bad = [PANICS, FAILS, FAILS_LATE];
    let ask = |i: usize| match i % 4 {
        3 => request(&[20, bad[i / 4 % 3], 21], 10),
        _ => request(&[20 + i as u32, 20, 21], 10),
    };
    let receivers: Vec<_> = (0..24).map(|i| handle.submit(ask(i)).unwrap()).collect();
    for (i, mut receiver) in receivers.into_iter().enumerate() {
        let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!(ends(&got), 1);
        match got.last() {
            Some(Event::Failed(Failure::Broken(why))) if i % 4 == 3 => {
                assert!(why.contains("a bug in a kernel") || why.contains("out of order"), "{why}");
                assert!(tokens(&got).is_empty());
            }
            Some(Event::Done(_)) if i % 4 != 3 => assert_eq!(tokens(&got), [30; 10]),
            other => panic!("{i}: {other:?}"),
        }
    }
    comes_to_rest(&handle);
    assert!(handle.is_ready());
}

#[test]
fn a_device_lost_in_flight_ends_all_requests() {
    for token in [LOST, LOST_LATE] {
        let held = Arc::new(Mutex::new(()));
        let device = held.clone();
        let handle = start_on(move || Faulty::held(device).late(true));
        let asked = Request { ignore_end: true, ..request(&[20; 3], 120) };
        // Nothing is launched before both are there.
        let wait = held.lock().unwrap();
        let mut all = vec![handle.submit(asked).unwrap(), handle.submit(request(&[20, token], 5)).unwrap()];
        drop(wait);
        let why = Failure::Broken("faulty is lost: it fell off the bus; restart the server".into());
        for receiver in &mut all {
            let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
            assert_eq!((ends(&got), got.last()), (1, Some(&Event::Failed(why.clone()))));
        }
        assert_eq!((handle.ready(), handle.is_alive(), handle.taken()), (Err(why), false, 0));
        assert_eq!(handle.steps().failed.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn an_engine_that_ends_tells_all_requests() {
    let ask = |token: u32| Request { ignore_end: true, ..request(&[token; 8], 100) };
    for within in [Duration::ZERO, LONG] {
        let mut handle = start_on(late);
        let all: Vec<_> = (20..28).map(|token| handle.submit(ask(token)).unwrap()).collect();
        handle.drain(within);
        for mut receiver in all {
            let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
            assert_eq!(ends(&got), 1);
            let done = matches!(got.last(), Some(Event::Done(done)) if done.new_tokens == 100);
            assert!(done || (within.is_zero() && got.last() == Some(&Event::Failed(Failure::ShuttingDown))));
        }
        handle.close();
        assert_eq!(handle.taken(), 0);
    }
}
