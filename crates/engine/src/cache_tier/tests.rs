//! States are copied a part at a time, between steps that may evict them.

use std::ops::ControlFlow;
use std::path::Path;

use tallow_core::DType;
use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::{PATIENCE, golden};
use tempfile::TempDir;

use super::index::lock;
use super::*;
use crate::block_pool::StateRow;
use crate::kv_cache::KvShape;
use crate::runner::SampleInput;
use crate::sampler::{Sampler, Sampling};
use crate::scheduler::{DecodeBudget, Limits};

const PROMPT: u32 = 14;
const ROWS: usize = 6;

/// A small hybrid model, and its disk cache in a folder.
fn open(folder: &Path) -> (Runner<Cpu>, Scheduler, CacheTier) {
    let model = Model::open(&golden("gguf-models/qwen3.5-bf16.gguf")).unwrap();
    let b = Cpu::new(Isa::best(), 1).unwrap();
    let decoder = Decoder::load(&b, &model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let shape = KvShape { dtype: DType::F32, page_len: 4, pages: 16, swa_pages: 0, state_rows: ROWS };
    let runner = Runner::new(b, decoder, shape).unwrap();
    let limits = Limits {
        context: 64,
        slots: 2,
        budget: 32,
        decode_budget: DecodeBudget::of_tokens(32),
        all_logits: 8,
        drafts: None,
    };
    let mut scheduler = Scheduler::new(limits, BlockPool::with_states(16, 4, ROWS));
    let settings = DiskCacheSettings { folder: folder.into(), bytes: 1 << 30, identity: Vec::new() };
    let disk =
        CacheTier::open(TierSettings::Disk(settings), &runner, &mut scheduler, Arc::default(), 0).unwrap();
    (runner, scheduler, disk)
}

fn prompt() -> NewSeq {
    NewSeq {
        id: SeqId(0),
        tokens: (10..10 + PROMPT).collect(),
        max_new: 1,
        root: Chain::ROOT,
        all_logits: false,
        lora: None,
        client: Default::default(),
        drafts: false,
        cross: None,
    }
}

/// Offers it the prompt.
fn hold(disk: &mut CacheTier, pool: &BlockPool) -> Option<NewSeq> {
    disk.note_root(Chain::ROOT, None);
    disk.hold(prompt(), pool)
}

/// Computes the prompt, whose state after three pages of four tokens is a snapshot then.
fn compute(runner: &Runner<Cpu>, scheduler: &mut Scheduler, disk: &mut CacheTier) {
    let new = hold(disk, scheduler.pool()).expect("nothing is on disk");
    scheduler.submit(new).unwrap();
    let sampler = Sampler::new(Sampling::greedy(), &[]);
    while let Some(batch) = scheduler.next_batch() {
        let asked = SampleInput { sampler: &sampler, prompt: &[], input: None };
        let outcomes = runner.run(&batch, &vec![asked; batch.parts.len()]).unwrap();
        let next = outcomes.into_iter().map(|o| o.unwrap().next.iter().map(|c| c.token).collect());
        scheduler.commit(&batch, &next.collect::<Vec<_>>());
    }
    disk.note_changes(scheduler.pool_mut());
}

/// The snapshot after the prompt's pages, and its bits.
fn snapshot(runner: &Runner<Cpu>, scheduler: &Scheduler) -> Option<(StateRow, Vec<u8>)> {
    let prefix = scheduler.pool().find(Chain::ROOT, &prompt().tokens);
    let row = prefix.state.filter(|_| prefix.blocks.len() == 3)?;
    let sizes = runner.state_parts();
    let mut bits = vec![0; sizes.iter().sum()];
    runner.read_state(row, 0..sizes.len(), &mut bits).unwrap();
    Some((row, bits))
}

#[test]
fn a_state_is_saved_and_loaded_part_by_part() {
    let folder = TempDir::new().unwrap();
    let (runner, mut scheduler, mut disk) = open(folder.path());
    compute(&runner, &mut scheduler, &mut disk);
    let (_, want) = snapshot(&runner, &scheduler).unwrap();
    assert!(want.iter().any(|byte| *byte != 0));
    // A byte is less than any part, so each call copies one: three pages, and the state's parts.
    let (parts, mut calls) = (runner.state_parts().len(), 0);
    assert!(parts > 2, "{parts}");
    while !disk.is_idle(scheduler.pool()) {
        disk.save(&runner, scheduler.pool(), 1);
        calls += 1;
    }
    assert_eq!(calls, 3 + parts);
    disk.close(&runner, scheduler.pool_mut());
    drop(disk);

    let (runner, mut scheduler, mut disk) = open(folder.path());
    assert_eq!(snapshot(&runner, &scheduler), None);
    assert!(hold(&mut disk, scheduler.pool()).is_none());
    assert!(disk.begin_load(scheduler.pool_mut(), 0));
    let mut calls = 0;
    let pool = scheduler.pool_mut();
    while !disk.take_loaded(&runner, pool, &mut 1, true) {
        calls += 1;
        // Half a state is found by nobody.
        assert!(pool.find(Chain::ROOT, &prompt().tokens).state.is_none());
    }
    assert!(calls >= 3 + parts - 1, "{calls}");
    assert!(disk.end_load(pool));
    assert_eq!(snapshot(&runner, &scheduler).unwrap().1, want);
    assert_eq!(disk.counts.hits.load(Ordering::Relaxed), 12);
    disk.forget(SeqId(0), scheduler.pool_mut());
    scheduler.check().unwrap();
    scheduler.pool().at_rest().unwrap();
}

/// A request that is cancelled while its state is copied gives its row back.
#[test]
fn a_request_that_leaves_holds_no_state() {
    let folder = TempDir::new().unwrap();
    let (runner, mut scheduler, mut disk) = open(folder.path());
    compute(&runner, &mut scheduler, &mut disk);
    disk.close(&runner, scheduler.pool_mut());
    drop(disk);

    let (runner, mut scheduler, mut disk) = open(folder.path());
    assert!(hold(&mut disk, scheduler.pool()).is_none());
    let pool = scheduler.pool_mut();
    assert!(disk.begin_load(pool, 0));
    while pool.spare_states() == ROWS {
        assert!(!disk.take_loaded(&runner, pool, &mut 1, true));
    }
    assert!(disk.holds_pages());
    disk.forget(SeqId(0), pool);
    assert!(disk.is_idle(pool) && !disk.holds_pages());
    assert_eq!(pool.spare_states(), ROWS);
    // Its pages are there, and nothing goes on after them.
    assert_eq!((pool.find_pages(Chain::ROOT, &prompt().tokens).len(), pool.available()), (3, 16));
    pool.at_rest().unwrap();
}

/// A snapshot that is evicted while it is copied is not saved: its row holds another state.
#[test]
fn a_state_that_is_evicted_meanwhile_is_not_saved() {
    let folder = TempDir::new().unwrap();
    let (runner, mut scheduler, mut disk) = open(folder.path());
    compute(&runner, &mut scheduler, &mut disk);
    for _ in 0..4 {
        disk.save(&runner, scheduler.pool(), 1);
    }
    assert!(disk.saving.is_some() && disk.unsaved.is_empty());
    let start = disk.keys.start(None);
    let page = |after, tokens: &[u32]| disk.keys.page(&after, tokens);
    let key = disk.keys.state(&prompt().tokens[..12].chunks(4).fold(start, page));
    assert!(lock(&disk.index).has(&key));
    let rows: Vec<StateRow> = std::iter::from_fn(|| scheduler.pool_mut().take_state()).collect();
    assert_eq!(rows.len(), ROWS);
    disk.save(&runner, scheduler.pool(), 1);
    assert!(disk.is_idle(scheduler.pool()) && !lock(&disk.index).has(&key));
    disk.close(&runner, scheduler.pool_mut());
    drop(disk);
    // Its pages are on disk, and of no use.
    let (_, scheduler, mut disk) = open(folder.path());
    assert!(hold(&mut disk, scheduler.pool()).is_some());
}

/// A state is loaded alone where its pages are in memory.
#[test]
fn an_evicted_state_comes_back_to_its_pages() {
    let folder = TempDir::new().unwrap();
    let (runner, mut scheduler, mut disk) = open(folder.path());
    compute(&runner, &mut scheduler, &mut disk);
    let (_, want) = snapshot(&runner, &scheduler).unwrap();
    disk.save(&runner, scheduler.pool(), usize::MAX);
    let begun = Instant::now();
    while !disk.thread.has_room(QUEUED) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let pool = scheduler.pool_mut();
    let rows: Vec<StateRow> = std::iter::from_fn(|| pool.take_state()).collect();
    rows.iter().for_each(|row| pool.give_back_state(*row));
    let available = pool.available();
    assert_eq!((snapshot(&runner, &scheduler), rows.len()), (None, ROWS));

    assert!(hold(&mut disk, scheduler.pool()).is_none());
    let mut ready = Vec::new();
    while ready.is_empty() {
        ready = disk.advance(&runner, &mut scheduler);
    }
    assert_eq!(snapshot(&runner, &scheduler).unwrap().1, want);
    assert_eq!((disk.counts.hits.load(Ordering::Relaxed), scheduler.pool().available()), (12, available));
    scheduler.check().unwrap();
}
