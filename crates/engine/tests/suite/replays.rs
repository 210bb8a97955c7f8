//! Decode steps that a device has captured are those that are launched op by op, bit for bit, while sequences join and leave.

use std::ops::ControlFlow;

use tallow_core::{DType, Memory};
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{BatchPart, ClientId, DecodeBudget, Limits, NewSeq, Scheduler, SeqId};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::{golden, needed};
use tallow_wgpu::{Wgpu, devices};

const CONTEXT: usize = 160;
const PAGE: usize = 4;
const PAGES: usize = 96;

/// A pseudo-random number below `most`.
fn any(seed: u64, most: u64) -> u64 {
    let x = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) % most
}

/// Runs `steps` steps of a model, and compares all logits of each with those of the same step launched op by op.
fn compare(family: &str, steps: usize) {
    let Some(found) = needed("Vulkan or Metal device", devices().into_iter().next()) else { return };
    let b = Wgpu::open(&found).unwrap();
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
        let before = b.counts().replays;
        let got = runner.logits(&batch).unwrap();
        decoded += b.counts().replays - before;
        mixed += usize::from(b.counts().replays == before);
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

#[test]
fn steps_launched_again_are_those_launched_op_by_op() {
    compare("llama", 500);
}

#[test]
fn so_are_those_of_other_layers() {
    for family in ["gpt-oss", "deepseek-v3", "qwen3-next", "gemma4-text", "qwen3-moe"] {
        compare(family, 60);
    }
}
