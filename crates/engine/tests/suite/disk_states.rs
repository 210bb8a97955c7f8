//! Recurrent states that outlive the engine: a restart goes on after the last page with a saved snapshot, and never with another
//! answer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::cache_tier::{DiskCacheSettings, TierError};
use tallow_engine::handle::{EngineHandle, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::sampler::Choice;
use tallow_models::Model;
use tallow_support::{golden, needed};
use tallow_wgpu::{Wgpu, devices};
use tempfile::TempDir;

use crate::common::{SLOTS, comes_to_rest, cuda, ends, events, request};
use crate::disk_cache::{
    ask, in_a_small_cache, prompt, said, saved, segment, segments, settings, start_model,
};

pub(crate) const HYBRIDS: [&str; 3] = ["qwen3-next", "qwen3.5", "qwen3.5-moe"];

pub(crate) fn hybrid(name: &str) -> Model {
    Model::open(&golden(&format!("gguf-models/{name}-bf16.gguf"))).unwrap()
}

pub(crate) fn shape(dtype: DType, pages: usize, state_rows: usize) -> KvShape {
    KvShape { dtype, page_len: 4, pages, swa_pages: 0, state_rows }
}

/// An engine without a folder, with room for eight snapshots in addition to the states of running sequences.
fn plain(name: &str) -> RunningEngine {
    start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid(name), shape(DType::F32, 64, 2 * SLOTS + 8))
}

/// An engine that keeps its pages and states in a folder.
fn start_in(folder: &Path, name: &str) -> RunningEngine {
    let engine = plain(name);
    engine.cache_on_disk(settings(folder, "test")).unwrap();
    engine
}

/// The least that a folder may have for a model: sixteen segments, each with room for a page and the state after it.
fn least(name: &str) -> u64 {
    let folder = TempDir::new().unwrap();
    let small = DiskCacheSettings { bytes: 1000, ..settings(folder.path(), "test") };
    match plain(name).cache_on_disk(small) {
        Err(TierError::TooSmall { limit: 1000, least }) => least,
        other => panic!("{other:?}"),
    }
}

/// An engine whose segments are as small as they can be.
fn start_small(folder: &Path, bytes: u64) -> RunningEngine {
    let engine = plain("qwen3.5");
    engine.cache_on_disk(DiskCacheSettings { bytes, ..settings(folder, "test") }).unwrap();
    engine
}

fn tokens(answer: &[Choice]) -> impl Iterator<Item = u32> {
    answer.iter().map(|choice| choice.token)
}

fn refused(engine: &EngineHandle) -> u64 {
    engine.stats().disk.refused_bytes.load(Ordering::Relaxed)
}

#[test]
fn a_restart_goes_on_after_the_last_snapshot() {
    for name in HYBRIDS {
        let folder = TempDir::new().unwrap();
        let (_, cold) = said(&plain(name), ask(&prompt(0)));
        assert_eq!(said(&start_in(folder.path(), name), ask(&prompt(0))), (0, cold.clone()), "{name}");
        let whole = fs::metadata(segment(folder.path())).unwrap().len();

        let engine = start_in(folder.path(), name);
        // Seven pages of four are full; the last of 30 tokens are computed.
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()), "{name}");
        let disk = &engine.stats().disk;
        assert_eq!((disk.queries.load(Ordering::Relaxed), disk.hits.load(Ordering::Relaxed)), (28, 28));
        // From memory now.
        assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()), "{name}");
        assert_eq!(disk.hits.load(Ordering::Relaxed), 28);
        comes_to_rest(&engine);
        drop(engine);
        // Nothing is saved twice.
        assert_eq!(fs::metadata(segment(folder.path())).unwrap().len(), whole, "{name}");

        // Of the answer's snapshots, after 32 and 36 tokens, only the last is saved: another answer goes on before it.
        let next: Vec<u32> = prompt(0).into_iter().chain(tokens(&cold)).chain([5, 6, 7]).collect();
        let other: Vec<u32> = next[..35].iter().copied().chain([5, 6]).collect();
        let cold = plain(name);
        for (prompt, cached) in [(other, 28), (next, 36)] {
            let engine = start_in(folder.path(), name);
            let (_, want) = said(&cold, ask(&prompt));
            assert_eq!(said(&engine, ask(&prompt)), (cached, want), "{name}");
            comes_to_rest(&engine);
        }
    }
}

/// Each turn is answered by a new engine, which finds what the one before it computed.
#[test]
fn a_conversation_outlives_its_engines() {
    for name in HYBRIDS {
        let folder = TempDir::new().unwrap();
        let mut chat = prompt(3);
        let mut before = 0;
        for turn in 0..6 {
            let (_, cold) = said(&plain(name), ask(&chat));
            let engine = start_in(folder.path(), name);
            let (cached, answer) = said(&engine, ask(&chat));
            assert_eq!(answer, cold, "{name}, turn {turn}");
            // The last token of the last answer was not computed, and pages have four.
            assert_eq!(cached, before / 4 * 4, "{name}, turn {turn}");
            comes_to_rest(&engine);
            chat.extend(tokens(&answer));
            before = chat.len() - 1;
            chat.extend((0..5).map(|i| 4 + (turn * 13 + i) % 80));
        }
    }
}

/// A byte of the file is changed at a time, in pages and in states. The answer is the same, computed or not.
#[test]
fn a_damaged_file_changes_no_answer() {
    let folder = TempDir::new().unwrap();
    let name = "qwen3.5";
    let (_, cold) = said(&plain(name), ask(&prompt(0)));
    drop(said(&start_in(folder.path(), name), ask(&prompt(0))));
    let path = segment(folder.path());
    let whole = fs::read(&path).unwrap();
    let mut misses = 0;
    for i in 0..40 {
        let mut bytes = whole.clone();
        let at = i * (whole.len() - 1) / 39;
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let engine = start_in(folder.path(), name);
        let (cached, answer) = said(&engine, ask(&prompt(0)));
        assert_eq!(answer, cold, "byte {at}");
        // Damage behind the prompt's state is found later. All of it was in one file.
        assert!(matches!((cached, refused(&engine)), (28, 0) | (0, 1..)), "byte {at}: {cached} cached");
        misses += usize::from(cached == 0);
        comes_to_rest(&engine);
        drop(engine);
        segments(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    assert!(misses > 10, "{misses}");
    // Cut anywhere: what is before the cut is used.
    let mut found = BTreeSet::new();
    for i in 0..20 {
        fs::write(&path, &whole[..i * whole.len() / 20]).unwrap();
        let engine = start_in(folder.path(), name);
        let (cached, answer) = said(&engine, ask(&prompt(0)));
        assert_eq!(answer, cold, "cut at {i}/20");
        found.insert(cached);
        drop(engine);
        segments(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    assert_eq!(found, BTreeSet::from([0, 28]));
}

/// A folder with small segments, and in them the pages and five snapshots of a conversation of 58 tokens: one for each prompt,
/// and one after 44 tokens, where the last prompt leaves the pages of the one before it.
fn several_snapshots(folder: &Path, bytes: u64) -> Vec<u32> {
    let chat: Vec<u32> = [prompt(0), prompt(7)].concat()[..58].to_vec();
    let engine = start_small(folder, bytes);
    for length in [14, 30, 44, 58] {
        said(&engine, Request { ignore_end: true, ..request(&chat[..length], 1) });
    }
    drop(engine);
    chat
}

/// Without one of the files the answer goes on after an earlier snapshot, or is computed: pages behind it are of no use.
#[test]
fn what_is_missing_or_damaged_is_computed_from_an_earlier_snapshot() {
    let bytes = least("qwen3.5");
    let kept = TempDir::new().unwrap();
    let chat = several_snapshots(kept.path(), bytes);
    let (_, cold) = said(&plain("qwen3.5"), ask(&chat));
    let files: Vec<(PathBuf, Vec<u8>)> =
        segments(kept.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    assert!(files.len() >= 4, "{}", files.len());
    let restore = || {
        segments(kept.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
        files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    let again = |what: &str| {
        let engine = start_small(kept.path(), bytes);
        let (cached, answer) = said(&engine, ask(&chat));
        assert_eq!(answer, cold, "{what}");
        comes_to_rest(&engine);
        (cached, refused(&engine))
    };
    restore();
    assert_eq!(again("all of it"), (56, 0));
    let (mut missing, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    for (path, content) in &files {
        restore();
        fs::remove_file(path).unwrap();
        let (cached, refused) = again("a file is missing");
        assert_eq!(refused, 0);
        missing.insert(cached);
        // In the first record's content, in the middle, and in the last one's: found only when it is read.
        for at in [content.len() / 4, content.len() / 2, content.len() - 40] {
            restore();
            let mut bytes = content.clone();
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
            let (cached, refused) = again("a file is damaged");
            assert!(cached == 56 || refused > 0, "{cached} cached");
            damaged.insert(cached);
        }
    }
    // From the start, or after any of the snapshots.
    for cached in [&missing, &damaged] {
        assert!(cached.is_subset(&BTreeSet::from([0, 12, 28, 40, 44, 56])), "{cached:?}");
        assert!(cached.is_superset(&BTreeSet::from([0, 12, 28, 44])), "{missing:?} {damaged:?}");
    }
}

/// However much is computed, the folder has no more than it may, and what is in it is right.
#[test]
fn a_folder_has_no_more_than_it_may() {
    let bytes = least("qwen3.5");
    let folder = TempDir::new().unwrap();
    let small = DiskCacheSettings { bytes: bytes - 1, ..settings(folder.path(), "test") };
    assert!(matches!(plain("qwen3.5").cache_on_disk(small), Err(TierError::TooSmall { .. })));
    let used = || segments(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    let cold = plain("qwen3.5");
    for round in 0..2 {
        let engine = start_small(folder.path(), bytes);
        for i in 0..40 {
            let (_, want) = said(&cold, ask(&prompt(i % 30)));
            assert_eq!(said(&engine, ask(&prompt(i % 30))).1, want, "{round}.{i}");
            let counted = engine.stats().disk.bytes.load(Ordering::Relaxed);
            assert!(counted <= bytes, "{counted} of {bytes} bytes");
        }
        saved(&engine);
        assert_eq!(used(), engine.stats().disk.bytes.load(Ordering::Relaxed));
        assert!((bytes / 2..=bytes).contains(&used()), "{} of {bytes} bytes", used());
        // The newest are there.
        drop(engine);
        let engine = start_small(folder.path(), bytes);
        assert_eq!(said(&engine, ask(&prompt(9))).0, 28);
    }
}

/// Pages and states evicted from memory are found on disk, in the same process.
#[test]
fn what_was_evicted_is_loaded() {
    let folder = TempDir::new().unwrap();
    let shape = shape(DType::F32, 36, 2 * SLOTS + 1);
    let engine = start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid("qwen3.5"), shape);
    engine.cache_on_disk(settings(folder.path(), "test")).unwrap();
    let (_, first) = said(&engine, ask(&prompt(0)));
    for i in 1..6 {
        said(&engine, ask(&prompt(i)));
    }
    saved(&engine);
    assert_eq!(said(&engine, ask(&prompt(0))), (28, first));
    assert_eq!(engine.stats().disk.hits.load(Ordering::Relaxed), 28);
    comes_to_rest(&engine);
}

#[test]
fn many_at_once_say_what_they_say_alone() {
    for state_rows in [2 * SLOTS + 1, 2 * SLOTS + 12] {
        in_a_small_cache(&|folder| {
            let shape = shape(DType::F32, 36, state_rows);
            let engine = start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid("qwen3.5"), shape);
            engine.cache_on_disk(settings(folder, "test")).unwrap();
            engine
        });
    }
}

/// A state that is loaded needs a row in addition to those of running sequences.
#[test]
fn without_room_for_a_snapshot_there_is_no_disk_cache() {
    let folder = TempDir::new().unwrap();
    let shape = shape(DType::F32, 64, 2 * SLOTS);
    let engine = start_model(|| Cpu::new(Isa::best(), 2).unwrap(), hybrid("qwen3.5"), shape);
    let why = engine.cache_on_disk(settings(folder.path(), "test")).unwrap_err().to_string();
    assert!(why.contains("no rows for snapshots"), "{why}");
    assert_eq!(ends(&events(&engine, request(&[5, 6, 7], 3))), 1);
}

#[test]
fn a_restart_goes_on_after_the_last_snapshot_on_a_gpu() {
    let found = devices();
    let Some(found) = needed("Vulkan or Metal device", found.first()) else { return };
    for dtype in [DType::F16, DType::F32] {
        let found = found.clone();
        a_restart_goes_on(move || Wgpu::open(&found).unwrap(), dtype);
    }
}

#[test]
fn a_restart_goes_on_after_the_last_snapshot_on_cuda() {
    [DType::F16, DType::F32].into_iter().for_each(|dtype| a_restart_goes_on(cuda, dtype));
}

fn a_restart_goes_on<B: Backend + 'static>(device: impl Fn() -> B + Clone + Send + 'static, dtype: DType) {
    let folder = TempDir::new().unwrap();
    let start = || {
        let shape = shape(dtype, 64, 2 * SLOTS + 8);
        let engine = start_model(device.clone(), hybrid("qwen3.5"), shape);
        engine.cache_on_disk(settings(folder.path(), "test")).unwrap();
        engine
    };
    let (cached, cold) = said(&start(), ask(&prompt(0)));
    assert_eq!(cached, 0);
    assert_eq!(said(&start(), ask(&prompt(0))), (28, cold), "{dtype}");
}
