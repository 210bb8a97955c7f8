//! Speculative decoding: answers are the same with drafts and without, token by token.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tallow_core::{Arithmetic, Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::handle::{EngineHandle, Event, Request};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::sampler::{Choice, Sampling};
use tallow_engine::scheduler::{DraftCosts, DraftModelCost, Limits, StepCost};
use tallow_models::Model;
use tallow_support::{Golden, golden, needed, only_tensors, tensors, with_tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::common::{
    Forces, Phrases, SLOTS, Thirds, choices, comes_to_rest, cuda, ends, events, limits, model, reason,
    request, start, start_drafting, start_drafting_on, start_with, start_with_draft_model, text, tokens,
};
use crate::disk_states::{HYBRIDS, hybrid, shape};

/// Requests of all kinds of sampling, whose prompts repeat themselves, for a vocabulary of that size. Where nothing is to be
/// drafted, tokens are forced by masks.
fn requests(vocab: usize, forces: Forces) -> Vec<Request> {
    let kinds = [
        Sampling::greedy(),
        Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() },
        Sampling { temperature: 0.2, ..Sampling::default() },
        Sampling { repetition_penalty: 1.1, ..Sampling::greedy() },
        Sampling { presence_penalty: 0.3, frequency_penalty: 0.2, temperature: 0.3, ..Sampling::default() },
        Sampling { logprobs: Some(3), ..Sampling::greedy() },
        Sampling { bias: vec![(9, 4.0), (10, -100.0)], temperature: 0.4, ..Sampling::default() },
    ];
    let one = |i: usize| {
        let length = 3 + i % 7;
        let prompt: Vec<u32> =
            (0..length * 4).map(|at| 4 + ((at % length) * (i + 3) % (vocab - 16)) as u32).collect();
        let sampling = Sampling { seed: i as u64, ..kinds[i % kinds.len()].clone() };
        // Some of them end within a draft.
        let stops = if i.is_multiple_of(5) { vec!["t7".to_owned()] } else { Vec::new() };
        let constraint = match i % 4 {
            0 => Some(Thirds::boxed()),
            2 => Some(Phrases::boxed(forces)),
            _ => None,
        };
        let ignore_end = !i.is_multiple_of(3);
        Request { sampling, stops, ignore_end, constraint, ..request(&prompt, 1 + i % 60) }
    };
    (0..84).map(one).collect()
}

/// Tokens with their log-probabilities, text, and why it ended.
type Answer = (Vec<Choice>, String, String);

fn answers(handle: &EngineHandle, forces: Forces) -> Vec<Answer> {
    let receivers: Vec<_> =
        requests(handle.info().vocab, forces).into_iter().map(|r| submit(handle, r)).collect();
    let all = receivers.into_iter().map(|mut receiver| {
        let events: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!(ends(&events), 1);
        (choices(&events), text(&events), format!("{:?}", reason(&events)))
    });
    let all = all.collect();
    comes_to_rest(handle);
    all
}

fn submit(handle: &EngineHandle, request: Request) -> tokio::sync::mpsc::UnboundedReceiver<Event> {
    loop {
        if let Ok(receiver) = handle.submit(request.clone()) {
            return receiver;
        }
        // The queue is full.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn drafts_change_no_answer() {
    let plain = answers(&start(64), Forces::ByMasks);
    for (cost, pages) in [(0.0, 64), (0.05, 64), (0.0, 33)] {
        let handle = start_with(
            pages,
            Limits {
                drafts: Some(DraftCosts::new(StepCost::Known { first: 1.0, more: cost }, None)),
                ..limits()
            },
        );
        assert!(answers(&handle, Forces::Together) == plain, "cost {cost}, {pages} pages");
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (drafted, accepted) = (of(&handle.stats().drafted), of(&handle.stats().accepted));
        println!("cost {cost}, {pages} pages: {accepted} of {drafted} drafted tokens were right");
        assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
    }
}

/// Forced tokens are computed with the token before them: the same answers in fewer steps, with drafts and without.
#[test]
fn tokens_that_must_come_are_computed_together() {
    let run = |how, drafts| {
        let handle = start_with(64, Limits { drafts, ..limits() });
        let one = |sampling| {
            let constraint = Some(Phrases::boxed(how));
            let asked = Request { sampling, constraint, ignore_end: true, ..request(&[4, 9, 30, 9, 30], 60) };
            let events = events(&handle, asked);
            (choices(&events), text(&events))
        };
        let answers = [
            Sampling::greedy(),
            Sampling { logprobs: Some(3), ..Sampling::greedy() },
            Sampling { temperature: 0.8, top_k: 5, seed: 3, ..Sampling::default() },
            Sampling { logprobs: Some(2), repetition_penalty: 1.2, ..Sampling::default() },
        ];
        let answers = answers.map(one);
        comes_to_rest(&handle);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stats = handle.stats();
        (answers, of(&handle.steps().run), of(&stats.drafted), of(&stats.accepted))
    };
    let (plain, steps, drafted, _) = run(Forces::ByMasks, None);
    assert_eq!((steps, drafted), (4 * 60, 0));
    assert!(run(Forces::OneByOne, None).0 == plain);
    let costs = |more| Some(DraftCosts::new(StepCost::Known { first: 1.0, more }, None));
    for drafts in [None, costs(0.0), costs(0.1)] {
        let (answers, steps, drafted, accepted) = run(Forces::Together, drafts);
        println!("{steps} steps; {accepted} of {drafted} drafted tokens were right");
        assert!(answers == plain, "{drafts:?}");
        // Of eight tokens five are forced; of these four at least are known with the first.
        assert!(steps <= 4 * (60 / 2 + 4) && accepted >= 4 * 28, "{steps} steps, {accepted} of {drafted}");
        assert!(drafts.is_some() || accepted == drafted, "{accepted} of {drafted}");
    }
    // Where rows cost more than steps, one after another.
    assert!(run(Forces::Together, costs(2.0)).1 > 4 * 50);
}

/// A draft model changes no answer either: one that is always right where sampling is greedy, as it is the model itself, and
/// one with another vocabulary, which knows nothing.
#[test]
fn a_draft_model_changes_no_answer() {
    let plain = answers(&start(64), Forces::ByMasks);
    let other = Model::open(&golden("gguf-models/qwen2-bf16.gguf")).unwrap();
    for (name, draft, step, pages) in
        [("itself", model(), 0.0, 64), ("itself", model(), 0.1, 33), ("another", other, 0.0, 64)]
    {
        let drafts = Some(DraftCosts::new(
            StepCost::Known { first: 1.0, more: 0.0 },
            Some(DraftModelCost {
                step: StepCost::Known { first: step, more: 0.0 },
                context: 90,
                mtp: false,
            }),
        ));
        let handle = start_with_draft_model(pages, Limits { drafts, ..limits() }, Some(draft));
        assert!(answers(&handle, Forces::Together) == plain, "{name}, {pages} pages");
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (drafted, accepted) = (of(&handle.stats().drafted), of(&handle.stats().accepted));
        println!("{name}, {pages} pages: {accepted} of {drafted} drafted tokens were right");
        assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
    }
}

/// Greedy answers of the model that drafts for itself: its guesses are right, in later turns too, whose beginning is in
/// the prefix cache with the draft model's K and V.
#[test]
fn a_model_guesses_its_own_answers() {
    let drafts = Some(DraftCosts::new(
        StepCost::Known { first: 1.0, more: 0.0 },
        Some(DraftModelCost { step: StepCost::Known { first: 0.0, more: 0.0 }, context: 128, mtp: false }),
    ));
    let handle = start_with_draft_model(64, Limits { drafts, ..limits() }, Some(model()));
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut prompt: Vec<u32> = (0..20).map(|at| 4 + (at * 7) % 80).collect();
    for turn in 0..3 {
        let events = events(&handle, Request { ignore_end: true, ..request(&prompt, 24) });
        let (drafted, accepted) = (count(&handle.stats().drafted), count(&handle.stats().accepted));
        // Prompt lookup guesses too, and may be wrong.
        assert!(accepted * 10 >= drafted * 8, "turn {turn}: {accepted} of {drafted}");
        assert!(accepted >= 12 * (turn + 1), "turn {turn}: {accepted} of {drafted}");
        prompt.extend(tokens(&events));
        prompt.extend([5, 9]);
    }
}

/// Answers of a model that drafts by itself, the tokens that it drafted, and those that were right.
fn drafted(model: &Model, shape: KvShape, drafts: Option<DraftCosts>) -> (Vec<Answer>, u64, u64) {
    let handle = start_drafting(model.clone(), shape, Limits { drafts, ..limits() }, None);
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let forces = if drafts.is_none() { Forces::ByMasks } else { Forces::Together };
    let all = answers(&handle, forces);
    (all, of(&handle.stats().drafted), of(&handle.stats().accepted))
}

/// A recurrent state that has gone past a wrong guess is of no use: the step after it begins where the draft did.
#[test]
fn drafts_change_no_answer_of_a_hybrid() {
    for name in HYBRIDS {
        let rows = shape(DType::F32, 64, 2 * SLOTS + 8);
        let run = |drafts, shape| drafted(&hybrid(name), shape, drafts);
        let (plain, drafted, _) = run(None, rows);
        assert_eq!(drafted, 0);
        for (cost, shape) in
            [(0.0, rows), (0.05, rows), (0.0, KvShape { pages: 33, state_rows: 2 * SLOTS, ..rows })]
        {
            let step = StepCost::Known { first: 1.0, more: cost };
            let (got, drafted, accepted) = run(Some(DraftCosts::new(step, None)), shape);
            println!(
                "{name}, cost {cost}, {} pages: {accepted} of {drafted} drafted tokens were right",
                shape.pages
            );
            assert!(got == plain, "{name}, cost {cost}, {} pages", shape.pages);
            assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
        }
    }
}

const MTP_CASES: [&str; 6] =
    ["deepseek-v3", "deepseek-v3-shared", "glm4-moe", "qwen3-next", "qwen3.5", "qwen3.5-moe"];

/// Drafts by an MTP layer, whose steps cost so much.
fn by_mtp(step: f32) -> Option<DraftCosts> {
    let (of_model, step) =
        (StepCost::Known { first: 1.0, more: 0.0 }, StepCost::Known { first: step, more: 0.0 });
    Some(DraftCosts::new(of_model, Some(DraftModelCost { step, context: 128, mtp: true })))
}

fn with_mtp(path: &Path) -> Model {
    let model = Model::open(path).unwrap();
    assert!(model.has_mtp(), "{}", path.display());
    Model { mtp: true, ..model }
}

/// An MTP layer changes no answer, however wrong it is: these have random weights. With few pages sequences are preempted.
#[test]
fn an_mtp_layer_changes_no_answer() {
    for name in MTP_CASES {
        let model = with_mtp(&golden(&format!("mtp/{name}")));
        let rows = if model.spec.is_recurrent() { 2 * SLOTS + 8 } else { 0 };
        let (plain, ..) = drafted(&model, shape(DType::F32, 64, rows), None);
        for (step, pages) in [(0.0, 64), (0.0, 33), (0.1, 64)] {
            let (got, drafted, accepted) = drafted(&model, shape(DType::F32, pages, rows), by_mtp(step));
            println!("{name}, {pages} pages, step {step}: {accepted} of {drafted} drafted tokens were right");
            assert!(got == plain, "{name}, {pages} pages, step {step}");
            assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
        }
    }
}

/// Writes a model whose next token depends on the last one alone, and whose MTP layer knows it: nothing is added to the
/// embeddings, and the layer reads that of the token that follows.
fn chain(case: &str, folder: &Path) -> Model {
    let (from, file) = (golden(&format!("mtp/{case}")), "model.safetensors");
    let all = tensors(&from.join(file));
    let ones = |n: usize| vec![if case.starts_with("qwen") { 0.0 } else { 1.0 }; n];
    let changed = |(name, t): (&String, &Golden)| {
        let cols = *t.shape.last().unwrap();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        let numbers = if ends(&["o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj"])
        {
            vec![0.0; t.shape.iter().product()]
        } else if ends(&[".eh_proj.weight", "mtp.fc.weight"]) {
            let one = |i: usize| if i / cols == i % cols { 1.0 } else { 0.0 };
            (0..t.shape[0] * cols).map(one).collect()
        } else if ends(&[".enorm.weight", "pre_fc_norm_embedding.weight"]) {
            ones(cols)
        } else if ends(&["shared_head.norm.weight", "mtp.norm.weight"]) {
            all["model.norm.weight"].f32()
        } else if ends(&["shared_head.head.weight", "lm_head.weight"]) {
            // Both of one type: a device may round the inputs of 16-bit weights, and then choose another token.
            all["lm_head.weight"].f32()
        } else if ends(&[".embed_tokens.weight"]) {
            all["model.embed_tokens.weight"].f32()
        } else {
            return None;
        };
        Some((name.clone(), t.shape.clone(), numbers))
    };
    let more: Vec<_> = all.iter().filter_map(changed).collect();
    let more: Vec<_> =
        more.iter().map(|(name, shape, numbers)| (&**name, &shape[..], &numbers[..])).collect();
    let same = |name: &str| more.iter().all(|(changed, ..)| *changed != name);
    let unchanged = only_tensors(&std::fs::read(from.join(file)).unwrap(), same);
    std::fs::write(folder.join(file), with_tensors(&unchanged, &more)).unwrap();
    std::fs::copy(from.join("config.json"), folder.join("config.json")).unwrap();
    with_mtp(folder)
}

/// Greedy answers of a model whose MTP layer is always right, in later turns too, whose beginning is in the prefix cache with
/// the layer's K and V.
fn believe<B: Backend + 'static>(device: fn() -> B, case: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = chain(case, folder.path());
    let rows = if model.spec.is_recurrent() { 3 * SLOTS + 8 } else { 0 };
    let limits = Limits { drafts: by_mtp(0.0), ..limits() };
    let handle = start_drafting_on(device, model, shape(DType::F32, 64, rows), limits, None);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut prompt: Vec<u32> = (0..21).map(|at| 4 + (at * 7) % 43).collect();
    for turn in 1..4 {
        // Too few for prompt lookup to know them.
        let events = events(&handle, Request { ignore_end: true, ..request(&prompt, 6) });
        let (drafted, accepted) = (count(&handle.stats().drafted), count(&handle.stats().accepted));
        println!("{case}, turn {turn}: {accepted} of {drafted} drafted tokens were right");
        assert!(accepted == drafted && accepted >= 3 * turn, "{case}, turn {turn}: {accepted} of {drafted}");
        prompt.extend(tokens(&events));
        prompt.extend([5, 9, 50, 4, 44]);
    }
}

#[test]
fn an_mtp_layer_that_is_right_is_believed() {
    // Where the head is the embedding, a token follows itself, which prompt lookup knows.
    for case in MTP_CASES.into_iter().filter(|case| *case != "qwen3.5") {
        // The layer's projection would round what the model does not, and the likeliest token would be another one.
        believe(|| Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact), case);
    }
}

/// On a device that computes while the host goes on, and launches captured steps again.
#[test]
fn an_mtp_layer_drafts_on_a_gpu() {
    if needed("Vulkan or Metal device", devices().first()).is_none() {
        return;
    }
    for case in ["glm4-moe", "qwen3-next"] {
        believe(|| Wgpu::open(&devices()[0]).unwrap(), case);
    }
    wrong_guesses_change_nothing(|| Wgpu::open(&devices()[0]).unwrap());
}

#[test]
fn an_mtp_layer_drafts_on_cuda() {
    ["glm4-moe", "qwen3-next"].into_iter().for_each(|case| believe(cuda, case));
    wrong_guesses_change_nothing(cuda);
}

/// With random weights an MTP layer's guesses are wrong, and change no token.
fn wrong_guesses_change_nothing<B: Backend + 'static>(device: fn() -> B) {
    let model = with_mtp(&golden("mtp/deepseek-v3"));
    let said = |drafts| {
        let limits = Limits { drafts, ..limits() };
        let handle = start_drafting_on(device, model.clone(), shape(DType::F32, 64, 0), limits, None);
        let forces = if drafts.is_none() { Forces::ByMasks } else { Forces::Together };
        let asked = requests(handle.info().vocab, forces);
        let asked = asked.into_iter().filter(|r| r.sampling.temperature == 0.0);
        let receivers: Vec<_> = asked.map(|r| submit(&handle, r)).collect();
        let all: Vec<Vec<u32>> = receivers
            .into_iter()
            .map(|mut receiver| tokens(&std::iter::from_fn(|| receiver.blocking_recv()).collect::<Vec<_>>()))
            .collect();
        (all, handle.stats().drafted.load(Ordering::Relaxed))
    };
    let ((plain, none), (drafted, some)) = (said(None), said(by_mtp(0.1)));
    assert_eq!(plain, drafted);
    assert!(none == 0 && some > 0);
}
