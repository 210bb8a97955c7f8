//! The engine through its handle: answers, stop strings, limits, cancelled requests, failed steps, shutdown.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    SLOTS, Thirds, choices, comes_to_rest, ends, events, faulty, greedy, info, limits, model, reason,
    request, runner, start, start_faulty, start_held, start_held_with, text, tokens,
};
use tallow_engine::block_pool::BlockPool;
use tallow_engine::engine::serve;
use tallow_engine::failure::Unfit;
use tallow_engine::handle::{EngineHandle, Event, Failure, Finish, Request};
use tallow_engine::sampler::{LogitsNeeded, Sampler, Sampling};
use tallow_engine::scheduler::{DecodeBudget, Limits, Scheduler};
use tallow_support::PATIENCE;

#[test]
fn an_answer_is_the_models_and_ends_in_one_event() {
    let handle = start(64);
    let (prompt, want) = greedy();
    let got = events(&handle, request(&prompt, want.len()));
    assert_eq!(tokens(&got), want);
    assert_eq!(got[0], Event::Started { cached: 0 });
    assert_eq!((ends(&got), reason(&got)), (1, Finish::Length));
    let Some(Event::Done(done)) = got.last() else { panic!() };
    assert_eq!((done.prompt_tokens, done.new_tokens, done.cached_tokens), (prompt.len(), want.len(), 0));
    comes_to_rest(&handle);
    // The same request again hits the prefix cache and returns the same tokens.
    let again = events(&handle, request(&prompt, want.len()));
    assert_eq!(again[0], Event::Started { cached: 4 });
    assert_eq!(tokens(&again), want);
}

#[test]
fn many_at_once_say_what_they_say_alone() {
    let (prompt, _) = greedy();
    let prompts: Vec<Vec<u32>> = (0..12).map(|i| prompt.iter().map(|t| 3 + (t + i) % 90).collect()).collect();
    // Each kind needs the logits in a different way (top-k, argmax, all).
    let sampled = |i: usize| match i % 4 {
        0 => Sampling { temperature: 0.9, top_k: 20, seed: i as u64, ..Sampling::default() },
        1 => Sampling::greedy(),
        2 => Sampling { temperature: 0.9, seed: i as u64, ..Sampling::default() },
        _ => Sampling { logprobs: Some(2), top_k: 3, seed: i as u64, ..Sampling::default() },
    };
    let ask = |i: usize| Request {
        sampling: sampled(i),
        score_prompt: i.is_multiple_of(3),
        constraint: i.is_multiple_of(5).then(Thirds::boxed),
        ..request(&prompts[i], 30)
    };
    let alone: Vec<_> = (0..12).map(|i| choices(&events(&start(64), ask(i)))).collect();
    assert_eq!(alone[3].len(), prompt.len() - 1 + 30);
    // Too few pages for all sequences, so that some are preempted: not where this thread is so slow that the first have ended
    // before the last come. Then they come again.
    let handle = start(32);
    let preempted = || handle.stats().preemptions.load(Ordering::Relaxed) > 0;
    for _ in 0..100 {
        let mut receivers: Vec<_> = (0..12).map(|i| handle.submit(ask(i)).unwrap()).collect();
        for (i, r) in receivers.iter_mut().enumerate() {
            let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
            assert_eq!(choices(&got), alone[i], "request {i}");
            assert_eq!(ends(&got), 1);
        }
        if preempted() {
            break;
        }
    }
    assert!(preempted());
    comes_to_rest(&handle);
}

#[test]
fn the_most_likely_tokens_say_what_whole_rows_say() {
    let handle = start(64);
    let (prompt, _) = greedy();
    for (seed, top_k) in [1, 2, 7, 40, 64, 500].into_iter().enumerate() {
        let few = Sampling { temperature: 1.5, top_k, top_p: 0.95, seed: seed as u64, ..Sampling::default() };
        // A zero bias changes no logit but forces the sampler to read all of them.
        let all = Sampling { bias: vec![(0, 0.0)], ..few.clone() };
        assert_eq!((few.top_k_needed(), all.top_k_needed()), (Some(top_k).filter(|k| *k <= 64), None));
        let say = |sampling| {
            let asked = Request { sampling, ignore_end: true, ..request(&prompt, 40) };
            tokens(&events(&handle, asked))
        };
        let (few, all) = (say(few), say(all));
        assert_eq!(few.len(), 40);
        assert_eq!(few, all, "the top {top_k}");
    }
}

#[test]
fn candidates_say_what_whole_rows_say() {
    let handle = start(64);
    let (prompt, _) = greedy();
    let base = Sampling { seed: 3, ..Sampling::default() };
    let ways = [
        base.clone(),
        Sampling { temperature: 0.3, top_p: 0.9, ..base.clone() },
        Sampling { temperature: 0.2, logprobs: Some(5), ..base.clone() },
        Sampling { temperature: 0.5, min_p: 0.1, repetition_penalty: 1.3, logprobs: Some(0), ..base.clone() },
        Sampling { temperature: 0.2, presence_penalty: 1.0, frequency_penalty: 0.5, ..base.clone() },
        Sampling { temperature: 0.3, bias: vec![(7, -100.0), (8, 3.0), (90, 30.0)], ..base },
    ];
    for how in ways {
        // A top-k of the whole vocabulary is the same, but reads all logits.
        let all = Sampling { top_k: 96, ..how.clone() };
        let needs = |how: &Sampling| Sampler::new(how.clone(), &prompt).needs(96);
        assert_eq!(needs(&how), LogitsNeeded::Candidates);
        assert_eq!(needs(&all), LogitsNeeded::Row);
        let say = |sampling| {
            let asked = Request { sampling, ignore_end: true, ..request(&prompt, 40) };
            choices(&events(&handle, asked))
        };
        assert_eq!(say(how.clone()), say(all), "{how:?}");
    }
}

/// Each request would fill the KV cache alone. They preempt each other, and all of them finish.
#[test]
fn c3_39_requests_that_fill_the_cache_all_end() {
    let (prompt, _) = greedy();
    let requests: Vec<Request> = (0..SLOTS as u32 * 2)
        .map(|i| request(&[&prompt[..], &[20 + i]].concat(), 128 - prompt.len() - 1))
        .map(|r| Request { ignore_end: true, ..r })
        .collect();
    let roomy = start(64 * SLOTS);
    let alone: Vec<Vec<u32>> = requests.iter().map(|r| tokens(&events(&roomy, r.clone()))).collect();
    let handle = start(128 / 4);
    let receivers: Vec<_> = requests.iter().map(|r| handle.submit(r.clone()).unwrap()).collect();
    for (mut r, alone) in receivers.into_iter().zip(alone) {
        let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
        assert_eq!((reason(&got), ends(&got)), (Finish::Length, 1));
        assert_eq!(tokens(&got), alone);
    }
    assert!(handle.stats().preemptions.load(Ordering::Relaxed) > 0);
    comes_to_rest(&handle);
}

#[test]
fn stops_end_answers_and_never_show() {
    let handle = start(64);
    let (prompt, want) = greedy();
    let whole = text(&events(&handle, request(&prompt, 12)));
    let stop_at = |stops: &[&str]| {
        let stops = stops.iter().map(|s| s.to_string()).collect();
        events(&handle, Request { stops, ..request(&prompt, 12) })
    };
    // A stop string across two tokens, one inside a token, and one whose prefix appears but which is never completed.
    let middle = &whole[3..6];
    let got = stop_at(&["zzz", middle]);
    assert_eq!(text(&got), whole[..whole.find(middle).unwrap()]);
    assert_eq!(reason(&got), Finish::Stop(middle.into()));
    let never = format!("{whole}!");
    let got = stop_at(&[&never]);
    assert_eq!((text(&got), reason(&got)), (whole.clone(), Finish::Length));
    let got = events(&handle, Request { stop_tokens: vec![want[3]], ..request(&prompt, 12) });
    let first = want.iter().position(|t| *t == want[3]).unwrap();
    assert_eq!(tokens(&got), want[..first]);
    assert_eq!(reason(&got), Finish::End);
}

#[test]
fn prompts_are_scored_on_demand() {
    let handle = start(64);
    let (prompt, want) = greedy();
    let sampling = Sampling { logprobs: Some(2), ..Sampling::greedy() };
    let got = events(&handle, Request { score_prompt: true, sampling, ..request(&prompt, 1) });
    let scores: Vec<_> = got
        .iter()
        .filter_map(|e| if let Event::Prompt(p) = e { Some(p.clone()) } else { None })
        .flatten()
        .collect();
    assert_eq!(scores.iter().map(|c| c.token).collect::<Vec<_>>(), prompt[1..]);
    assert!(scores.iter().all(|c| c.top.len() == 2 && c.logprob.unwrap() <= c.top[0].logprob));
    assert_eq!(tokens(&got), want[..1]);
    let none = events(&handle, Request { score_prompt: true, ..request(&prompt, 0) });
    assert_eq!((tokens(&none).len(), reason(&none)), (0, Finish::Length));
}

#[test]
fn prefill_progress_is_reported_on_demand() {
    let handle = start(64);
    let prefill = |r: Request| -> Vec<[usize; 3]> {
        let got = events(&handle, r);
        let piece = got.iter().position(|e| matches!(e, Event::Piece { .. })).unwrap();
        let all = got.iter().enumerate().filter_map(|(at, event)| match event {
            Event::Prefill { computed, cached, total } => Some((at, [*computed, *cached, *total])),
            _ => None,
        });
        all.inspect(|(at, _)| assert!(*at < piece)).map(|(_, counts)| counts).collect()
    };
    // A step has up to 32 tokens.
    let asked = || Request { progress: true, ..request(&[5; 100], 3) };
    assert_eq!(prefill(asked()), [[32, 0, 100], [64, 0, 100], [96, 0, 100], [100, 0, 100]]);
    // The last page is recomputed for its logits.
    assert_eq!(prefill(asked()), [[100, 96, 100]]);
    assert!(prefill(Request { progress: false, ..asked() }).is_empty());
}

/// Closing an engine waits until its memory is free, since the caller may load another model next.
#[test]
fn an_engine_that_is_closed_has_ended() {
    let mut handle = start(64);
    let mut under_way = handle.submit(Request { ignore_end: true, ..request(&[5; 8], 100) }).unwrap();
    let other = handle.clone();
    handle.close();
    assert!(!other.is_alive() && !other.is_ready());
    let last = std::iter::from_fn(|| under_way.blocking_recv()).last();
    assert!(matches!(last, Some(Event::Failed(Failure::ShuttingDown) | Event::Done(_))), "{last:?}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let handle = start(64);
    let unfit = |r: Request| match events(&handle, r).as_slice() {
        [Event::Failed(Failure::Unfit(unfit))] => unfit.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(unfit(request(&[], 5)), Unfit::Empty);
    assert_eq!(unfit(request(&[5; 200], 5)), Unfit::TooLong { prompt: 200, context: 128 });
    assert_eq!(unfit(request(&[5, 96], 5)), Unfit::Unknown { token: 96, vocab: 96 });
    // Up to the last position of the context and no further.
    let got = events(&handle, Request { ignore_end: true, ..request(&[5; 120], usize::MAX) });
    assert_eq!((tokens(&got).len(), reason(&got)), (8, Finish::Length));
    comes_to_rest(&handle);
}

#[test]
fn waiting_for_a_slot_may_have_an_end() {
    let limit = Duration::ZERO;
    let held = Arc::new(Mutex::new(()));
    let handle = start_held_with(held.clone(), |info| info.queue_timeout = Some(limit));
    // All other requests arrive while the first step is held.
    let step = held.lock().unwrap();
    // The prompts differ: requests with a common prefix would wait for the first to compute it.
    let ask = |i: usize| Request { ignore_end: true, ..request(&[5 + i as u32; 8], 110) };
    let mut all: Vec<_> = (0..SLOTS + 2).map(|i| handle.submit(ask(i)).unwrap()).collect();
    drop(step);
    for receiver in all.split_off(SLOTS).iter_mut() {
        assert_eq!(receiver.blocking_recv(), Some(Event::Failed(Failure::QueueTimeout(limit))));
    }
    // Requests that already have a slot are not subject to the queue timeout.
    for mut receiver in all {
        let events: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!(reason(&events), Finish::Length);
    }
    comes_to_rest(&handle);
}

#[test]
fn a_queue_has_an_end() {
    let handle = start(64);
    let long = || Request { ignore_end: true, ..request(&[5; 8], 100) };
    // Some may finish meanwhile.
    let mut receivers = Vec::new();
    let why = loop {
        match handle.submit(long()) {
            Ok(receiver) => receivers.push(receiver),
            Err(why) => break why,
        }
        assert!(receivers.len() < 10_000, "there is no end");
    };
    assert!(receivers.len() >= SLOTS + 20);
    assert_eq!(why, Failure::Full(SLOTS + 20));
    drop(receivers);
    comes_to_rest(&handle);
    assert!(handle.submit(long()).is_ok());
}

/// A prompt of 100 tokens during a running answer: full steps while nobody reads the answer, then seven tokens per
/// step, and the answer gets a token from each of these steps.
#[test]
fn an_answer_under_way_waits_for_small_steps_only() {
    let model = model();
    let (handle, commands, alive) = EngineHandle::new(info(&model, 64));
    let answer = handle.submit(Request { ignore_end: true, ..request(&[5; 4], 20) }).unwrap();
    let long = handle.submit(request(&[6; 100], 1)).unwrap();
    // With the handle dropped, the engine ends when its requests have.
    drop(handle);
    let runner = runner(&model);
    let steps = runner.backend().steps.clone();
    steps.borrow_mut().clear();
    let limits = Limits { budget: 64, decode_budget: DecodeBudget::of_tokens(8), ..limits() };
    serve(runner, Scheduler::new(limits, BlockPool::new(64, 4)), commands, alive);
    assert_eq!(*steps.borrow(), [&[64, 8, 8, 8, 8, 8, 6][..], &[1; 13]].concat());
    for (mut receiver, count) in [(answer, 20), (long, 1)] {
        let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!((tokens(&got).len(), reason(&got)), (count, Finish::Length));
    }
}

#[test]
fn who_hears_of_the_end_finds_all_of_it_free() {
    let handle = start(64);
    for _ in 0..200 {
        let mut receiver = handle.submit(request(&[5; 8], 2)).unwrap();
        while !matches!(receiver.blocking_recv(), Some(Event::Done(_))) {}
        assert_eq!((handle.taken(), handle.stats().pages_in_use.load(Ordering::Relaxed)), (0, 0));
    }
}

#[test]
fn who_vanishes_frees_the_pages_at_once() {
    let handle = start(64);
    for wait_for_token in [false, true] {
        let mut receiver = handle.submit(Request { ignore_end: true, ..request(&[5; 40], 88) }).unwrap();
        if wait_for_token {
            // A step's statistics are published after its events: those of the first step are there when the second has
            // sent some.
            for _ in 0..2 {
                while !matches!(receiver.blocking_recv(), Some(Event::Piece { .. })) {}
            }
            // If this thread was descheduled, the answer may have ended meanwhile; then its `Done` event is there.
            let held = handle.stats().pages_in_use.load(Ordering::Relaxed) > 0;
            let rest = std::iter::from_fn(|| receiver.try_recv().ok());
            assert!(held || rest.into_iter().any(|e| matches!(e, Event::Done(_))));
        }
        let steps = handle.steps().run.load(Ordering::Relaxed);
        drop(receiver);
        comes_to_rest(&handle);
        // At most the current step and the one that may have started meanwhile.
        assert!(handle.steps().run.load(Ordering::Relaxed) <= steps + 2);
    }
}

#[test]
fn it_drains() {
    let handle = start(64);
    let slow = handle.submit(Request { ignore_end: true, ..request(&[5; 8], 100) }).unwrap();
    let quick = handle.submit(request(&[6; 8], 3)).unwrap();
    handle.drain(PATIENCE);
    assert_eq!(handle.submit(request(&[5], 1)).unwrap_err(), Failure::ShuttingDown);
    for mut r in [slow, quick] {
        let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
        assert!(matches!(got.last(), Some(Event::Done(_))), "{got:?}");
    }
    while handle.is_alive() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_does_not_finish_in_time_fails_clearly() {
    let held = Arc::new(Mutex::new(()));
    let handle = start_held(Arc::clone(&held));
    // The step is held, so that nothing finishes before the engine is told to stop, however fast it is.
    let wait = held.lock().unwrap();
    let receivers: Vec<_> = (0..SLOTS + 3)
        .map(|_| handle.submit(Request { ignore_end: true, ..request(&[20; 8], 120) }).unwrap())
        .collect();
    handle.drain(Duration::ZERO);
    drop(wait);
    for mut r in receivers {
        let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
        assert_eq!(got.last(), Some(&Event::Failed(Failure::ShuttingDown)));
        assert_eq!(ends(&got), 1);
    }
}

#[test]
fn one_requests_failure_stays_its_own() {
    let handle = start_faulty();
    let bad = [faulty::PANICS, faulty::FAILS, faulty::NOT_A_NUMBER];
    let receivers: Vec<_> = (0..SLOTS as u32 * 3)
        .map(|i| {
            let prompt = if i % 4 == 3 { vec![20, bad[i as usize / 4], 21] } else { vec![20 + i; 3] };
            (i % 4 == 3, handle.submit(request(&prompt, 10)).unwrap())
        })
        .collect();
    let mut said = Vec::new();
    for (fails, mut r) in receivers {
        let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
        assert_eq!(ends(&got), 1);
        match got.last() {
            Some(Event::Failed(Failure::Broken(why))) if fails => said.push(why.clone()),
            Some(Event::Done(done)) if !fails => assert_eq!(done.new_tokens, 10),
            other => panic!("{other:?}"),
        }
    }
    said.sort();
    assert_eq!(
        said,
        [
            "an internal error, please report it: a bug in a kernel",
            "faulty failed: it is out of order",
            "the model's logits are not finite numbers: its weights are damaged, or overflow at this precision",
        ]
    );
    comes_to_rest(&handle);
    assert!(handle.is_ready());
}
