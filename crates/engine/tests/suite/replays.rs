//! Decode steps that a device has captured are those that are launched op by op, bit for bit, while sequences join and leave.

use std::ops::ControlFlow;

use tallow_core::{Backend, DType};
use tallow_cuda::Cuda;
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::{Runner, SampleInput};
use tallow_engine::sampler::{Sampler, Sampling};
use tallow_engine::scheduler::{
    Batch, BatchPart, ClientId, DecodeBudget, Limits, LogitsRows, NewSeq, Scheduler, SeqId,
};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::{golden, needed};
use tallow_wgpu::{Wgpu, devices};

use crate::common::{cuda, model};

const CONTEXT: usize = 160;
const PAGE: usize = 4;
const PAGES: usize = 96;

/// A pseudo-random number below `most`.
fn any(seed: u64, most: u64) -> u64 {
    let x = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % most
}

/// A device that counts what it has launched again.
trait Counts: Backend {
    fn replays(&self) -> usize;
}

impl Counts for Wgpu {
    fn replays(&self) -> usize {
        self.counts().replays
    }
}

impl Counts for Cuda {
    fn replays(&self) -> usize {
        self.counts().replays
    }
}

/// Compares the steps of a model on a GPU.
fn compare_on_a_gpu(family: &str, steps: usize) {
    if let Some(found) = needed("Vulkan or Metal device", devices().into_iter().next()) {
        compare(Wgpu::open(&found).unwrap(), family, steps);
    }
}

/// Runs `steps` steps of a model, and compares all logits of each with those of the same step launched op by op.
fn compare<B: Counts>(b: B, family: &str, steps: usize) {
    let model = Model::open(&golden(family)).unwrap();
    let decoder = Decoder::load(&b, &model, CONTEXT, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let state_rows = if model.spec.is_recurrent() { 24 } else { 0 };
    let limits = Limits {
        context: CONTEXT,
        slots: 7,
        budget: 32,
        decode_budget: DecodeBudget::of_tokens(32),
        all_logits: 8,
        drafts: None,
    };
    let pool = BlockPool::with_states(PAGES, PAGE, state_rows);
    // No page more than they need.
    let pool = match model.spec.swa_window() {
        Some(window) => {
            let window = SlidingWindow::new(window);
            pool.with_swa(window.pages_needed(limits.slots, limits.budget, PAGE), window)
        }
        None => pool,
    };
    let swa_pages = pool.swa_pages();
    let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages: PAGES, swa_pages, state_rows };
    let runner = Runner::new(b, decoder, shape).unwrap();
    let mut scheduler = Scheduler::new(limits, pool);
    let vocab = model.spec.vocab as u64;
    let (mut next, mut mixed, mut decoded) = (0, 0, 0);
    for at in 0..steps {
        // About one joins in eight steps, and always one if nothing runs.
        if any(at as u64, 8) == 0 || scheduler.is_idle() {
            let tokens = (0..1 + any(7 * next, 30)).map(|i| any(1000 * next + i, vocab) as u32).collect();
            let new = NewSeq {
                id: SeqId(next),
                tokens,
                max_new: 1 + any(11 * next, 90) as usize,
                root: Chain::salted(next),
                all_logits: false,
                lora: None,
                drafts: false,
                cross: None,
                client: ClientId(next),
            };
            scheduler.submit(new).unwrap();
            next += 1;
        }
        let Some(batch) = scheduler.next_batch() else { continue };
        let b = runner.backend();
        let before = b.replays();
        let got = runner.logits(&batch).unwrap();
        decoded += b.replays() - before;
        mixed += usize::from(b.replays() == before);
        let want = runner.logits_seen(&batch, |_, _| Ok(())).unwrap();
        let bits = |t| b.download::<f32>(t).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let (got, want) = (bits(&got), bits(&want));
        assert!(got == want, "{family}, step {at}: {} of {} differ", differ(&got, &want), want.len());
        let sampled = |part: &BatchPart| match part.logits.samples() {
            true => vec![any(part.id.0 + 31 * part.start as u64, vocab) as u32],
            false => Vec::new(),
        };
        let tokens: Vec<Vec<u32>> = batch.parts.iter().map(sampled).collect();
        let full = scheduler.commit(&batch, &tokens);
        for (part, full) in batch.parts.iter().zip(full) {
            // Some leave before they are done.
            if full || any(part.id.0 * 977 + at as u64, 60) == 0 {
                scheduler.drop_seq(part.id);
            }
        }
    }
    println!("{family}: {next} sequences, {decoded} steps launched again, {mixed} op by op");
    assert!(decoded > steps / 3 && mixed > 0, "{decoded} of {steps}, {mixed}");
}

fn differ(got: &[u32], want: &[u32]) -> usize {
    got.iter().zip(want).filter(|(g, w)| g != w).count() + got.len().abs_diff(want.len())
}

/// Families that have all kinds of layers between them.
const FAMILIES: [&str; 5] = ["gpt-oss", "deepseek-v3", "qwen3-next", "gemma4-text", "qwen3-moe"];

#[test]
fn steps_launched_again_are_those_launched_op_by_op() {
    compare_on_a_gpu("llama", 500);
}

#[test]
fn so_are_those_of_other_layers() {
    FAMILIES.iter().for_each(|family| compare_on_a_gpu(family, 60));
}

#[test]
fn steps_launched_again_on_cuda_are_those_launched_op_by_op() {
    compare(cuda(), "llama", 120);
}

#[test]
fn so_are_those_of_other_layers_on_cuda() {
    FAMILIES.iter().for_each(|family| compare(cuda(), family, 60));
}

/// Once its size has been seen, a step of greedy decoding is one CUDA graph, the few kernels of the LM head and the choice, whatever
/// the number of layers, and one read.
#[test]
fn a_step_on_cuda_is_one_graph_and_one_read() {
    let (b, model) = (cuda(), model());
    let decoder = Decoder::load(&b, &model, CONTEXT, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages: PAGES, swa_pages: 0, state_rows: 0 };
    let runner = Runner::new(b, decoder, shape).unwrap();
    let sampler = Sampler::new(Sampling::greedy(), &[]);
    let asked = [SampleInput { sampler: &sampler, prompt: &[], input: None }; 3];
    let step = |start: usize| {
        let part = |sequence: u32| {
            let blocks = (8 * sequence..8 * sequence + 8).collect();
            let id = SeqId(u64::from(sequence));
            BatchPart { start, ..BatchPart::new(id, vec![20 + sequence], blocks, LogitsRows::Last) }
        };
        let (batch, before) = (Batch { parts: (0..3).map(part).collect() }, runner.backend().counts());
        runner.run(&batch, &asked).unwrap();
        let after = runner.backend().counts();
        (after.replays - before.replays, after.launches - before.launches, after.reads - before.reads)
    };
    // The first is launched op by op, and captured.
    let (replays, all, reads) = step(0);
    assert_eq!((replays, reads), (0, 1));
    for start in 1..12 {
        let (replays, launches, reads) = step(start);
        assert_eq!((replays, reads), (1, 1));
        assert!(launches <= 8 && launches < all, "{launches} launches after {all}");
    }
}
