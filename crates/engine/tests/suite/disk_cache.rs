//! Pages that outlive the engine: what a restart finds, and that it never changes an answer. Recurrent states: `disk_states`.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::cache_tier::{DiskCacheSettings, TierCounts, TierError};
use tallow_engine::engine::spawn;
use tallow_engine::handle::{EngineHandle, Event, Info, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::sampler::{Choice, Sampling};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::needed;
use tallow_wgpu::{Wgpu, devices};
use tempfile::TempDir;

use crate::common::{Wrong, choices, comes_to_rest, cuda, ends, events, info, limits, model, request, start};

pub(crate) fn settings(folder: &Path, identity: &str) -> DiskCacheSettings {
    DiskCacheSettings { folder: folder.into(), bytes: 1 << 30, identity: vec![identity.into()] }
}

/// An engine that keeps its pages in a folder.
fn start_in(folder: &Path, pages: usize) -> RunningEngine {
    let engine = start(pages);
    engine.cache_on_disk(settings(folder, "test")).unwrap();
    engine
}

fn start_on<B: Backend>(
    device: impl FnOnce() -> B + Send + 'static,
    dtype: DType,
    folder: &Path,
) -> RunningEngine {
    let engine =
        start_model(device, model(), KvShape { dtype, page_len: 4, pages: 64, swa_pages: 0, state_rows: 0 });
    engine.cache_on_disk(settings(folder, "test")).unwrap();
    engine
}

/// An engine of a model, without a folder.
pub(crate) fn start_model<B: Backend>(
    device: impl FnOnce() -> B + Send + 'static,
    model: Model,
    shape: KvShape,
) -> RunningEngine {
    let KvShape { pages, swa_pages, state_rows, .. } = shape;
    let info = Info { swa_pages, state_rows, ..info(&model, pages) };
    let runner = move || {
        let b = device();
        let decoder =
            Decoder::load(&b, &model, 128, &mut |_, _| ControlFlow::Continue(())).map_err(Wrong::Load)?;
        Ok::<_, Wrong>((Runner::new(b, decoder, shape).map_err(Wrong::Device)?, limits()))
    };
    spawn(|| Ok(info), runner).unwrap()
}

/// 30 tokens; with another `start`, others.
pub(crate) fn prompt(start: u32) -> Vec<u32> {
    (0..30).map(|i| 4 + (start + i * 7) % 80).collect()
}

/// Asks for log-probabilities, so that all of an answer's bits are compared.
pub(crate) fn ask(prompt: &[u32]) -> Request {
    let sampling = Sampling { logprobs: Some(5), ..Sampling::greedy() };
    Request { sampling, ignore_end: true, ..request(prompt, 8) }
}

/// Tokens of an answer from the cache, and the answer.
pub(crate) fn said(handle: &EngineHandle, request: Request) -> (usize, Vec<Choice>) {
    let got = events(handle, request);
    let Some(Event::Done(done)) = got.last() else { panic!("{got:?}") };
    (done.cached_tokens, choices(&got))
}

/// The segments in a folder, in order.
pub(crate) fn segments(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "pages")).collect();
    all.sort();
    all
}

/// The only segment in a folder.
pub(crate) fn segment(folder: &Path) -> PathBuf {
    let mut all = segments(folder);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Waits until all that can be saved is saved: the thread that writes may be slower than a small model.
pub(crate) fn saved(engine: &EngineHandle) {
    saved_in(engine, &engine.stats().disk);
}

/// The same for any tier.
pub(crate) fn saved_in(engine: &EngineHandle, tier: &TierCounts) {
    comes_to_rest(engine);
    let (saved, mut before) = (&tier.saved_bytes, 0);
    while before == 0 || before != saved.load(Ordering::Relaxed) {
        before = saved.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The next engine goes on where the last one ended: a conversation's next turn has the pages of prompt and answer.
#[test]
fn a_restart_finds_what_was_computed() {
    let folder = TempDir::new().unwrap();
    let (_, cold) = said(&start(64), ask(&prompt(0)));
    let engine = start_in(folder.path(), 64);
    assert_eq!(said(&engine, ask(&prompt(0))), (0, cold.clone()));
    let disk = engine.stats().disk.clone();
    drop(engine);
    let (bytes, saved) =
        (fs::metadata(segment(folder.path())).unwrap().len(), disk.saved_bytes.load(Ordering::Relaxed));
    assert!(saved > 0 && (saved..saved + 200).contains(&bytes), "{saved} of {bytes} bytes");

    let engine = start_in(folder.path(), 64);
    // Seven pages of four are full; the last of 30 tokens are computed.
    assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
    let disk = &engine.stats().disk;
    assert_eq!((disk.queries.load(Ordering::Relaxed), disk.hits.load(Ordering::Relaxed)), (28, 28));
    assert!(disk.loaded_bytes.load(Ordering::Relaxed) > 0);
    // From memory now.
    assert_eq!(said(&engine, ask(&prompt(0))), (28, cold.clone()));
    assert_eq!(disk.hits.load(Ordering::Relaxed), 28);
    comes_to_rest(&engine);
    drop(engine);

    let next: Vec<u32> =
        prompt(0).into_iter().chain(cold.iter().map(|choice| choice.token)).chain([5, 6, 7]).collect();
    let (_, want) = said(&start(64), ask(&next));
    let engine = start_in(folder.path(), 64);
    // The last token of an answer is not computed: 30 and 7 tokens were, and 36 fill pages.
    assert_eq!(said(&engine, ask(&next)), (36, want));
    comes_to_rest(&engine);
    drop(engine);
    // Nothing is saved twice.
    let more = fs::metadata(segment(folder.path())).unwrap().len() - bytes;
    assert!(more < bytes / 2, "{more} bytes more, of {bytes}");
}

/// Bytes of the file are changed one at a time. The answer is the same, computed or not.
#[test]
fn a_damaged_file_changes_no_answer() {
    let folder = TempDir::new().unwrap();
    let (_, cold) = said(&start(64), ask(&prompt(0)));
    drop(said(&start_in(folder.path(), 64), ask(&prompt(0))));
    let path = segment(folder.path());
    let whole = fs::read(&path).unwrap();
    for i in 0..24 {
        let mut bytes = whole.clone();
        let at = i * (whole.len() - 1) / 23;
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let engine = start_in(folder.path(), 64);
        let (cached, answer) = said(&engine, ask(&prompt(0)));
        assert_eq!(answer, cold, "byte {at}");
        // Damage behind the prompt's pages is found later.
        let refused = engine.stats().disk.refused_bytes.load(Ordering::Relaxed);
        assert!((cached < 28) == (refused > 0), "byte {at}: {cached} cached, {refused} refused");
        comes_to_rest(&engine);
        drop(engine);
        segments(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}

#[test]
fn pages_are_of_their_salt_model_and_program() {
    let folder = TempDir::new().unwrap();
    let salted = |salt: Option<&str>| Request { salt: salt.map(Into::into), ..ask(&prompt(0)) };
    let engine = start_in(folder.path(), 64);
    let (_, cold) = said(&engine, salted(Some("key 1")));
    let (_, unsaved) = said(&engine, Request { unsaved: true, ..ask(&prompt(1)) });
    drop(engine);

    let engine = start_in(folder.path(), 64);
    for (salt, cached) in [(None, 0), (Some("key 2"), 0), (Some("key 1"), 28)] {
        assert_eq!(said(&engine, salted(salt)), (cached, cold.clone()), "{salt:?}");
    }
    assert_eq!(said(&engine, ask(&prompt(1))), (0, unsaved));
    drop(engine);

    // Another model or program, another type of K and V.
    let engine = start(64);
    engine.cache_on_disk(settings(folder.path(), "another")).unwrap();
    assert_eq!(said(&engine, salted(Some("key 1"))), (0, cold));
    drop(engine);
    let engine = start_on(|| Cpu::new(Isa::best(), 2).unwrap(), DType::F16, folder.path());
    assert_eq!(said(&engine, salted(Some("key 1"))).0, 0);
}

/// 8 prompts, some of them with a common prefix.
pub(crate) fn mixed_prompts() -> Vec<Vec<u32>> {
    let more = |i: u32| (0..8 * (i % 4)).map(move |j| 4 + (i * 11 + j) % 80);
    (0..8).map(|i| prompt(i % 3).into_iter().chain(more(i)).collect()).collect()
}

/// 8 requests of 30 + 8 tokens, some of them with a common prefix, in a KV cache that holds three: all of them at once, again
/// and again, evicted and preempted, saved and loaded.
pub(crate) fn in_a_small_cache(start: &dyn Fn(&Path) -> RunningEngine) {
    let folder = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    let prompts = mixed_prompts();
    let alone: Vec<Vec<Choice>> = {
        let engine = start(elsewhere.path());
        prompts.iter().map(|prompt| said(&engine, Request { unsaved: true, ..ask(prompt) }).1).collect()
    };
    let mut hits = 0;
    for round in 0..3 {
        let engine = start(folder.path());
        let mut receivers: Vec<_> = prompts.iter().map(|p| engine.submit(ask(p)).unwrap()).collect();
        // Who leaves while its pages are loaded leaves nothing behind.
        drop(engine.submit(ask(&prompts[round])).unwrap());
        for (i, receiver) in receivers.iter_mut().enumerate() {
            let got: Vec<Event> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
            assert_eq!(choices(&got), alone[i], "request {i} of round {round}");
            assert_eq!(ends(&got), 1);
        }
        comes_to_rest(&engine);
        hits = engine.stats().disk.hits.load(Ordering::Relaxed);
        assert!(hits > 0 || round == 0, "round {round}");
    }
    println!("{hits} tokens were loaded");
}

#[test]
fn many_at_once_say_what_they_say_alone() {
    in_a_small_cache(&|folder| start_in(folder, 36));
}

#[test]
fn a_restart_finds_what_was_computed_on_a_gpu() {
    let found = devices();
    let Some(found) = needed("Vulkan or Metal device", found.first()) else { return };
    for dtype in [DType::F16, DType::I8] {
        let found = found.clone();
        a_restart_finds(move || Wgpu::open(&found).unwrap(), dtype);
    }
}

#[test]
fn a_restart_finds_what_was_computed_on_cuda() {
    [DType::F16, DType::I8].into_iter().for_each(|dtype| a_restart_finds(cuda, dtype));
}

fn a_restart_finds<B: Backend + 'static>(device: impl Fn() -> B + Clone + Send + 'static, dtype: DType) {
    let folder = TempDir::new().unwrap();
    let start = || start_on(device.clone(), dtype, folder.path());
    let (cached, cold) = said(&start(), ask(&prompt(0)));
    assert_eq!(cached, 0);
    assert_eq!(said(&start(), ask(&prompt(0))), (28, cold), "{dtype}");
}

/// Pages evicted from memory are found on disk, in the same process.
#[test]
fn what_was_evicted_is_loaded() {
    let folder = TempDir::new().unwrap();
    let engine = start_in(folder.path(), 36);
    let (_, first) = said(&engine, ask(&prompt(0)));
    for i in 1..6 {
        said(&engine, ask(&prompt(i)));
    }
    saved(&engine);
    assert_eq!(said(&engine, ask(&prompt(0))), (28, first));
    assert_eq!(engine.stats().disk.hits.load(Ordering::Relaxed), 28);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_by_words() {
    let folder = TempDir::new().unwrap();
    let engine = start_in(folder.path(), 64);
    let second = start(64);
    let why = second.cache_on_disk(settings(folder.path(), "test")).unwrap_err();
    assert!(matches!(why, TierError::InUse(_)), "{why}");
    drop(engine);
    second.cache_on_disk(settings(folder.path(), "test")).unwrap();
    // It serves with it and without it.
    assert_eq!(said(&second, ask(&prompt(0))), said(&start(64), ask(&prompt(0))));

    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |settings| start(64).cache_on_disk(settings).unwrap_err().to_string();
    assert!(refused(settings(&file, "")).contains(file.to_str().unwrap()));
    let small = DiskCacheSettings { bytes: 1000, ..settings(&folder.path().join("new"), "") };
    assert!(refused(small).contains("1000 bytes are too few"));
}
