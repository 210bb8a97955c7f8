//! Pages and recurrent states that the device evicts, kept in the host's memory: they come back, and never change an answer.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tallow_core::DType;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::cache_tier::TierError;
use tallow_engine::handle::{EngineHandle, Event, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::sampler::Choice;
use tallow_support::{PATIENCE, needed};
use tallow_wgpu::{Wgpu, devices};
use tempfile::TempDir;

use crate::common::{SLOTS, choices, comes_to_rest, cuda, ends, model, start};
use crate::disk_cache::{ask, mixed_prompts, prompt, said, saved_in, settings, start_model};
use crate::disk_states::{HYBRIDS, hybrid, shape};

const ROOMY: u64 = 1 << 30;
/// Pages of the KV cache: not four requests fit, of 30 tokens and 8 more each.
const FEW: usize = 36;
/// Full pages of such a request: the last token of an answer is not computed.
const FULL: u64 = 9;

fn start_in_ram(pages: usize, bytes: u64) -> RunningEngine {
    let engine = start(pages);
    engine.cache_in_ram(bytes).unwrap();
    engine
}

/// Bytes of a page.
fn page_bytes() -> u64 {
    let shape = KvShape { dtype: DType::F32, page_len: 4, pages: 1, swa_pages: 0, state_rows: 0 };
    shape.bytes(&model().spec) as u64
}

/// Bytes that a page takes of the RAM cache: no less than the least that it may have.
fn page_cost() -> u64 {
    match start(8).cache_in_ram(1) {
        Err(TierError::TooSmall { limit: 1, least }) => least,
        other => panic!("{other:?}"),
    }
}

/// Waits until so many pages have been copied, and no more.
fn kept(engine: &EngineHandle, pages: u64) {
    kept_at_least(engine, pages);
    assert_eq!(engine.stats().ram.saved_bytes.load(Ordering::Relaxed), pages * page_bytes());
}

/// Waits until so many pages have been copied.
fn kept_at_least(engine: &EngineHandle, pages: u64) {
    comes_to_rest(engine);
    let (begun, saved) = (Instant::now(), &engine.stats().ram.saved_bytes);
    while saved.load(Ordering::Relaxed) < pages * page_bytes() {
        assert!(begun.elapsed() < PATIENCE, "{:?}: {pages} of {}", engine.stats().ram, page_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hits(engine: &EngineHandle) -> (u64, u64) {
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    (read(&engine.stats().ram.hits), read(&engine.stats().disk.hits))
}

#[test]
fn what_was_evicted_comes_back() {
    let (_, cold) = said(&start(64), ask(&prompt(0)));
    let engine = start_in_ram(FEW, ROOMY);
    for i in 0..6 {
        let (cached, answer) = said(&engine, ask(&prompt(i)));
        assert_eq!((cached, i > 0 || answer == cold), (0, true));
        kept(&engine, FULL * u64::from(i + 1));
    }
    assert_eq!(hits(&engine), (0, 0));
    // Seven pages of four are full; the last of 30 tokens are computed.
    assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
    let ram = &engine.stats().ram;
    assert_eq!((hits(&engine), ram.loaded_bytes.load(Ordering::Relaxed)), ((28, 0), 7 * page_bytes()));
    // From the device now.
    assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
    assert_eq!(hits(&engine), (28, 0));
    // The next turn of an evicted conversation goes on after its answer.
    for i in 1..6 {
        said(&engine, ask(&prompt(i)));
    }
    let answer = cold.iter().map(|choice| choice.token);
    let next: Vec<u32> = prompt(0).into_iter().chain(answer).chain([5, 6, 7]).collect();
    let (_, want) = said(&start(64), ask(&next));
    assert_eq!(said(&engine, ask(&next)), (36, want));
    comes_to_rest(&engine);
}

/// The first of six requests was evicted from the engine's KV cache, and comes back from RAM.
fn comes_back(engine: &EngineHandle, cold: Vec<Choice>, what: &str) {
    engine.cache_in_ram(ROOMY).unwrap();
    for i in 0..6 {
        said(engine, ask(&prompt(i)));
    }
    saved_in(engine, &engine.stats().ram);
    assert_eq!(said(engine, ask(&prompt(0))), (28, cold), "{what}");
    assert_eq!(hits(engine), (28, 0), "{what}");
    comes_to_rest(engine);
}

#[test]
fn what_was_evicted_of_a_hybrid_comes_back() {
    for name in HYBRIDS {
        let start = |pages, rows| {
            start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid(name), shape(DType::F32, pages, rows))
        };
        let (_, cold) = said(&start(64, 2 * SLOTS + 8), ask(&prompt(0)));
        comes_back(&start(FEW, 2 * SLOTS + 1), cold, name);
    }
}

#[test]
fn pages_are_of_their_salt() {
    let engine = start_in_ram(FEW, ROOMY);
    let salted = |salt: Option<&str>| Request { salt: salt.map(Into::into), ..ask(&prompt(0)) };
    let (_, cold) = said(&engine, salted(Some("key 1")));
    let (_, unsaved) = said(&engine, Request { unsaved: true, ..ask(&prompt(1)) });
    for i in 2..7 {
        said(&engine, ask(&prompt(i)));
    }
    kept(&engine, 6 * FULL);
    for (salt, cached) in [(None, 0), (Some("key 2"), 0), (Some("key 1"), 28)] {
        assert_eq!(said(&engine, salted(salt)), (cached, cold.clone()), "{salt:?}");
    }
    // Not kept, so not found either.
    assert_eq!(said(&engine, ask(&prompt(1))), (0, unsaved));
    assert_eq!(hits(&engine), (28, 0));
}

/// Less memory than the device has: what it holds is what the device has evicted last, and never more than it may.
#[test]
fn a_small_one_keeps_what_was_evicted_last() {
    let bytes = 30 * page_cost();
    let cold: Vec<Vec<Choice>> = (0..8).map(|i| said(&start(64), ask(&prompt(i))).1).collect();
    // Tokens of a request that are found after all eight.
    let found = |bytes: Option<u64>, again: usize| {
        let engine = start(FEW);
        bytes.iter().for_each(|bytes| engine.cache_in_ram(*bytes).unwrap());
        for (i, cold) in (0..).zip(&cold) {
            assert_eq!(said(&engine, ask(&prompt(i))).1, *cold);
            comes_to_rest(&engine);
            // What the next request may evict is kept: as many pages as it has, after those that have been evicted.
            let computed = FULL * u64::from(i + 1);
            let evicted = (computed + 1).saturating_sub(FEW as u64);
            bytes.iter().for_each(|_| kept_at_least(&engine, computed.min(evicted + FULL + 1)));
        }
        let (cached, answer) = said(&engine, ask(&prompt(again as u32)));
        assert_eq!(answer, cold[again], "{again}");
        comes_to_rest(&engine);
        let used = engine.stats().ram.bytes.load(Ordering::Relaxed);
        assert!(used <= bytes.unwrap_or(0), "{used} of {bytes:?} bytes");
        cached
    };
    let without: Vec<usize> = (0..8).map(|again| found(None, again)).collect();
    let with: Vec<usize> = (0..8).map(|again| found(Some(bytes), again)).collect();
    println!("{without:?} {with:?}");
    assert!(without.iter().zip(&with).all(|(without, with)| without <= with), "{without:?} {with:?}");
    // At least one request more, and still not the first ones.
    assert!(with.iter().sum::<usize>() >= without.iter().sum::<usize>() + 28, "{without:?} {with:?}");
    assert_eq!((with[0], with[7]), (0, 28), "{with:?}");
}

/// All requests at once, again and again, evicted and preempted, saved and loaded.
fn many_at_once(start: &dyn Fn() -> RunningEngine, bytes: u64) {
    let prompts = mixed_prompts();
    let alone: Vec<Vec<Choice>> = {
        let engine = start();
        prompts.iter().map(|prompt| said(&engine, Request { unsaved: true, ..ask(prompt) }).1).collect()
    };
    let engine = start();
    engine.cache_in_ram(bytes).unwrap();
    for round in 0..6 {
        let mut receivers: Vec<_> = prompts.iter().map(|p| engine.submit(ask(p)).unwrap()).collect();
        // Who leaves while its pages are loaded leaves nothing behind.
        drop(engine.submit(ask(&prompts[round])).unwrap());
        for (i, receiver) in receivers.iter_mut().enumerate() {
            let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
            assert_eq!(choices(&got), alone[i], "request {i} of round {round}");
            assert_eq!(ends(&got), 1);
        }
        comes_to_rest(&engine);
        let used = engine.stats().ram.bytes.load(Ordering::Relaxed);
        assert!(used <= bytes, "{used} of {bytes} bytes");
    }
    assert!(hits(&engine).0 > 0);
}

#[test]
fn many_at_once_say_what_they_say_alone() {
    for bytes in [ROOMY, 40 * page_cost()] {
        many_at_once(&|| start(FEW), bytes);
    }
}

#[test]
fn many_at_once_say_of_a_hybrid_what_they_say_alone() {
    for rows in [2 * SLOTS + 1, 2 * SLOTS + 12] {
        let start = || {
            let shape = shape(DType::F32, FEW, rows);
            start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid("qwen3.5"), shape)
        };
        many_at_once(&start, ROOMY);
    }
}

/// RAM is asked before the disk, which has the rest, and all of it after a restart.
#[test]
fn ram_comes_before_disk() {
    let (_, cold) = said(&start(64), ask(&prompt(0)));
    for ram_first in [true, false] {
        let folder = TempDir::new().unwrap();
        let start = |bytes: u64| {
            let engine = start(FEW);
            if ram_first {
                engine.cache_in_ram(bytes).unwrap();
            }
            engine.cache_on_disk(settings(folder.path(), "test")).unwrap();
            if !ram_first {
                engine.cache_in_ram(bytes).unwrap();
            }
            engine
        };
        let fill = |engine: &EngineHandle| {
            for i in 1..6 {
                said(engine, ask(&prompt(i)));
            }
        };
        let engine = start(ROOMY);
        assert_eq!(said(&engine, ask(&prompt(0))), (0, cold.clone()));
        fill(&engine);
        kept(&engine, 6 * FULL);
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
        assert_eq!(hits(&engine), (28, 0));
        drop(engine);

        // Nothing is in RAM after a restart. What is loaded from disk comes there, and back from there.
        let engine = start(ROOMY);
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
        assert_eq!(hits(&engine), (0, 28));
        fill(&engine);
        saved_in(&engine, &engine.stats().ram);
        let (ram, disk) = hits(&engine);
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
        assert_eq!(hits(&engine), (ram + 28, disk));
        drop(engine);

        // What a small one has evicted is on disk.
        let engine = start(4 * page_cost());
        fill(&engine);
        comes_to_rest(&engine);
        let before = hits(&engine);
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
        let after = hits(&engine);
        assert_eq!((after.0 - before.0) + (after.1 - before.1), 28);
        assert!(after.1 > before.1);
        comes_to_rest(&engine);
    }
}

#[test]
fn what_was_evicted_comes_back_to_a_gpu() {
    let found = devices();
    let Some(found) = needed("Vulkan or Metal device", found.first()) else { return };
    for dtype in [DType::F16, DType::I8] {
        let start = || {
            let found = found.clone();
            let shape = KvShape { dtype, page_len: 4, pages: FEW, swa_pages: 0, state_rows: 0 };
            start_model(move || Wgpu::open(&found).unwrap(), model(), shape)
        };
        let (_, cold) = said(&start(), ask(&prompt(0)));
        comes_back(&start(), cold, &dtype.to_string());
    }
}

#[test]
fn a_hybrid_comes_back_to_a_gpu() {
    let found = devices();
    let Some(found) = needed("Vulkan or Metal device", found.first()) else { return };
    let start = || {
        let found = found.clone();
        let shape = shape(DType::F16, FEW, 2 * SLOTS + 1);
        start_model(move || Wgpu::open(&found).unwrap(), hybrid("qwen3.5"), shape)
    };
    let (_, cold) = said(&start(), ask(&prompt(0)));
    comes_back(&start(), cold, "qwen3.5");
}

#[test]
fn what_was_evicted_comes_back_on_cuda() {
    for dtype in [DType::F16, DType::I8] {
        let shape = KvShape { dtype, page_len: 4, pages: FEW, swa_pages: 0, state_rows: 0 };
        let start = || start_model(cuda, model(), shape);
        let (_, cold) = said(&start(), ask(&prompt(0)));
        comes_back(&start(), cold, &dtype.to_string());
    }
}

#[test]
fn a_hybrid_comes_back_on_cuda() {
    let start = || start_model(cuda, hybrid("qwen3.5"), shape(DType::F16, FEW, 2 * SLOTS + 1));
    let (_, cold) = said(&start(), ask(&prompt(0)));
    comes_back(&start(), cold, "qwen3.5");
}

#[test]
fn one_that_cannot_be_is_refused_by_words() {
    let why = start(8).cache_in_ram(1000).unwrap_err().to_string();
    assert!(why.starts_with("1000 bytes are too few for this model's pages"), "{why}");
    // A state that is loaded needs a row beside those of running sequences, from each tier one.
    let start = |rows| {
        let shape = shape(DType::F32, 64, rows);
        start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid("qwen3.5"), shape)
    };
    let why = start(2 * SLOTS).cache_in_ram(ROOMY).unwrap_err().to_string();
    assert!(why.contains("no rows for snapshots"), "{why}");
    let folder = TempDir::new().unwrap();
    let engine = start(2 * SLOTS + 1);
    engine.cache_in_ram(ROOMY).unwrap();
    let why = engine.cache_on_disk(settings(folder.path(), "test")).unwrap_err().to_string();
    assert!(why.contains("no rows for snapshots"), "{why}");
    let (_, cold) = said(&start(2 * SLOTS), ask(&prompt(0)));
    assert_eq!(said(&engine, ask(&prompt(0))).1, cold);
}
