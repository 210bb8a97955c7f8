//! Speculative decoding: answers are the same with drafts and without, token by token.

use std::sync::atomic::Ordering;

use tallow_engine::handle::{EngineHandle, Event, Request};
use tallow_engine::sampler::{Choice, Sampling};
use tallow_engine::scheduler::{DraftCosts, DraftModelCost, Limits, StepCost};
use tallow_models::Model;
use tallow_support::golden;

use crate::common::{
    choices, comes_to_rest, ends, events, limits, model, reason, request, start, start_with,
    start_with_draft_model, text, tokens,
};

/// Requests of all kinds of sampling, whose prompts repeat themselves.
fn requests() -> Vec<Request> {
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
        let prompt: Vec<u32> = (0..length * 4).map(|at| 4 + ((at % length) * (i + 3) % 80) as u32).collect();
        let sampling = Sampling { seed: i as u64, ..kinds[i % kinds.len()].clone() };
        // Some of them end within a draft.
        let stops = if i.is_multiple_of(5) { vec!["t7".to_owned()] } else { Vec::new() };
        Request { sampling, stops, ignore_end: !i.is_multiple_of(3), ..request(&prompt, 1 + i % 60) }
    };
    (0..84).map(one).collect()
}

/// Tokens with their log-probabilities, text, and why it ended.
fn answers(handle: &EngineHandle) -> Vec<(Vec<Choice>, String, String)> {
    let receivers: Vec<_> = requests().into_iter().map(|r| submit(handle, r)).collect();
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
    let plain = answers(&start(64));
    for (cost, pages) in [(0.0, 64), (0.05, 64), (0.0, 33)] {
        let handle = start_with(
            pages,
            Limits {
                drafts: Some(DraftCosts { step: StepCost::Known { first: 1.0, more: cost }, model: None }),
                ..limits()
            },
        );
        assert!(answers(&handle) == plain, "cost {cost}, {pages} pages");
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let (drafted, accepted) = (of(&handle.stats().drafted), of(&handle.stats().accepted));
        println!("cost {cost}, {pages} pages: {accepted} of {drafted} drafted tokens were right");
        assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
    }
}

/// A draft model changes no answer either: one that is always right where sampling is greedy, as it is the model itself, and
/// one with another vocabulary, which knows nothing.
#[test]
fn a_draft_model_changes_no_answer() {
    let plain = answers(&start(64));
    let other = Model::open(&golden("gguf-models/qwen2-bf16.gguf")).unwrap();
    for (name, draft, step, pages) in
        [("itself", model(), 0.0, 64), ("itself", model(), 0.1, 33), ("another", other, 0.0, 64)]
    {
        let drafts = Some(DraftCosts {
            step: StepCost::Known { first: 1.0, more: 0.0 },
            model: Some(DraftModelCost { step: StepCost::Known { first: step, more: 0.0 }, context: 90 }),
        });
        let handle = start_with_draft_model(pages, Limits { drafts, ..limits() }, Some(draft));
        assert!(answers(&handle) == plain, "{name}, {pages} pages");
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let (drafted, accepted) = (of(&handle.stats().drafted), of(&handle.stats().accepted));
        println!("{name}, {pages} pages: {accepted} of {drafted} drafted tokens were right");
        assert!(drafted > accepted && accepted > 0, "{accepted} of {drafted}");
    }
}

/// Greedy answers of the model that drafts for itself: its guesses are right, in later turns too, whose beginning is in
/// the prefix cache with the draft model's K and V.
#[test]
fn a_model_guesses_its_own_answers() {
    let drafts = Some(DraftCosts {
        step: StepCost::Known { first: 1.0, more: 0.0 },
        model: Some(DraftModelCost { step: StepCost::Known { first: 0.0, more: 0.0 }, context: 128 }),
    });
    let handle = start_with_draft_model(64, Limits { drafts, ..limits() }, Some(model()));
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
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
