//! LoRA adapters through an `EngineHandle`: one adapter per request in mixed batches, the prefix cache, load and
//! unload.

use crate::common::{choices, comes_to_rest, ends, events, greedy, request, start, tokens};
use tallow_engine::failure::Unfit;
use tallow_engine::handle::{EngineHandle, Event, Failure, LoadLora, Request, RunningEngine};
use tallow_engine::lora::{LoraError, LoraRef, LoraUse};
use tallow_engine::sampler::Sampling;
use tallow_models::adapter::AdapterFile;
use tallow_support::golden;

fn load(name: &str, golden_name: &str) -> LoadLora {
    let file = AdapterFile::open(&golden("adapters").join(golden_name)).unwrap();
    LoadLora { name: name.into(), file, scale: 1.0 }
}

fn lora_ref(handle: &EngineHandle, name: &str) -> Option<LoraRef> {
    Some(handle.loras().iter().find(|a| a.name == name).unwrap().lora)
}

/// Engine with two LoRA adapters loaded.
fn with_two(pages: usize) -> RunningEngine {
    let handle = start(pages);
    handle.load_lora(load("one", "llama")).unwrap();
    handle.load_lora(load("two", "llama-some/adapter.gguf")).unwrap();
    handle
}

/// Number of prompt tokens served from the prefix cache.
fn cached(got: &[Event]) -> usize {
    match got[0] {
        Event::Started { cached } => cached,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn each_request_has_its_adapter_in_any_company() {
    let (prompt, plain) = greedy();
    let handle = with_two(64);
    let half = lora_ref(&handle, "one").map(|w| LoraRef { scale: 0.5, ..w });
    let kinds = [None, lora_ref(&handle, "one"), lora_ref(&handle, "two"), half];
    let sampling = Sampling { logprobs: Some(2), ..Sampling::greedy() };
    let ask = |i: usize| {
        let prompt: Vec<u32> = prompt.iter().map(|t| 3 + (t + i as u32 / 4) % 90).collect();
        Request {
            adapter: kinds[i % 4],
            sampling: sampling.clone(),
            score_prompt: i.is_multiple_of(3),
            ignore_end: true,
            ..request(&prompt, 30)
        }
    };
    let alone: Vec<_> = (0..12).map(|i| choices(&events(&with_two(64), ask(i)))).collect();
    for (i, j) in [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)] {
        assert_ne!(alone[4 + i].last(), alone[4 + j].last(), "{i} and {j} have the same adapter");
    }
    // An engine without LoRA loaded returns the same tokens for requests without an adapter.
    let without = events(&start(64), ask(4));
    assert_eq!(choices(&without), alone[4]);
    assert_eq!(tokens(&events(&handle, request(&prompt, plain.len()))), plain);
    // Too few pages for all sequences, so that some are preempted.
    let handle = with_two(40);
    let mut receivers: Vec<_> = (0..12).map(|i| handle.submit(ask(i)).unwrap()).collect();
    for (i, receiver) in receivers.iter_mut().enumerate() {
        let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        assert_eq!(choices(&got), alone[i], "request {i}");
        assert_eq!(ends(&got), 1);
    }
    comes_to_rest(&handle);
}

#[test]
fn prefixes_are_shared_by_those_with_the_same_adapter_only() {
    let (prompt, _) = greedy();
    let handle = with_two(64);
    let ask = |adapter, salt: Option<&str>| {
        let salt = salt.map(str::to_owned);
        events(&handle, Request { adapter, salt, ..request(&prompt, 8) })
    };
    let (one, two) = (lora_ref(&handle, "one"), lora_ref(&handle, "two"));
    let half = one.map(|w| LoraRef { scale: 0.5, ..w });
    let mut first = Vec::new();
    for (adapter, salt) in
        [(None, None), (one, None), (two, None), (half, None), (one, Some("a")), (None, Some("a"))]
    {
        let got = ask(adapter, salt);
        assert_eq!(cached(&got), 0, "{adapter:?} {salt:?}");
        let again = ask(adapter, salt);
        assert_eq!((cached(&again), tokens(&again)), (4, tokens(&got)), "{adapter:?} {salt:?}");
        first.push(tokens(&got));
    }
    // A new adapter under the same name must not hit the old one's prefix cache.
    handle.unload_lora("one").unwrap();
    handle.load_lora(load("one", "llama-some")).unwrap();
    let got = ask(lora_ref(&handle, "one"), None);
    assert_eq!((cached(&got), tokens(&got)), (0, first[2].clone()));
    assert_ne!(first[1], first[2]);
    comes_to_rest(&handle);
}

#[test]
fn adapters_come_and_go_under_traffic() {
    let (prompt, _) = greedy();
    let handle = with_two(64);
    let old = lora_ref(&handle, "one");
    let long = |adapter| Request { adapter, ignore_end: true, ..request(&prompt, 100) };
    let want = tokens(&events(&handle, long(old)));
    let mut under_way = handle.submit(long(old)).unwrap();
    let mut first = Vec::new();
    while !matches!(first.last(), Some(Event::Piece { .. })) {
        first.push(under_way.blocking_recv().unwrap());
    }
    handle.unload_lora("one").unwrap();
    assert_eq!(handle.loras().iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ["two"]);
    // After unloading, no new request gets the adapter, its name can be reused, and running sequences keep it.
    let late = events(&handle, long(old));
    assert_eq!(late, [Event::Failed(Failure::Unfit(Unfit::NoAdapter))]);
    handle.load_lora(load("one", "llama-some")).unwrap();
    assert_ne!(lora_ref(&handle, "one").unwrap().id, old.unwrap().id);
    first.extend(std::iter::from_fn(|| under_way.blocking_recv()));
    assert_eq!(tokens(&first), want);
    assert_eq!(events(&handle, long(old)), [Event::Failed(Failure::Unfit(Unfit::NoAdapter))]);
    comes_to_rest(&handle);
}

#[test]
fn an_adapter_that_is_freed_is_no_longer_in_use() {
    let (prompt, _) = greedy();
    let handle = start(64);
    handle.load_lora(load("one", "llama")).unwrap();
    let adapter = lora_ref(&handle, "one");
    let mut under_way =
        handle.submit(Request { adapter, ignore_end: true, ..request(&prompt, 100) }).unwrap();
    while !matches!(under_way.blocking_recv(), Some(Event::Piece { .. })) {}
    handle.unload_lora("one").unwrap();
    while under_way.blocking_recv().is_some() {}
    assert_eq!(handle.lora_use(), LoraUse::default());
}

#[test]
fn what_does_not_fit_is_refused_and_harms_nobody() {
    let (prompt, want) = greedy();
    let handle = with_two(64);
    assert_eq!(handle.load_lora(load("one", "llama")), Err(LoraError::Taken("one".into())));
    assert_eq!(handle.load_lora(load("test", "llama")), Err(LoraError::Taken("test".into())));
    assert_eq!(handle.unload_lora("three"), Err(LoraError::Unknown("three".into())));
    let other = handle.load_lora(load("three", "phi3")).unwrap_err().to_string();
    assert!(other.contains("gate_up_proj") && other.contains("Llama"), "{other}");
    let other = handle.load_lora(load("three", "qwen3")).unwrap_err().to_string();
    assert!(other.contains("lora_B") || other.contains("has shape"), "{other}");
    // The LoRA memory limit is one megabyte.
    let mut loaded = 0;
    let full = loop {
        match handle.load_lora(load(&format!("more-{loaded}"), "llama")) {
            Ok(()) => loaded += 1,
            Err(why) => break why,
        }
    };
    assert!(matches!(full, LoraError::Full { room: 1_048_576, .. }) && loaded > 1, "{loaded}: {full}");
    handle.unload_lora("more-0").unwrap();
    handle.load_lora(load("again", "llama")).unwrap();
    assert_eq!(tokens(&events(&handle, request(&prompt, want.len()))), want);
    comes_to_rest(&handle);
}
