//! A token's logits are bitwise identical whatever else is in the batch, however its prompt is chunked, whether its
//! prefix comes from the prefix cache, and however often its sequence is preempted: on a real model, over random
//! schedules.

use std::ops::ControlFlow;

use proptest::prelude::*;
use tallow_core::{Backend, DType, Memory, Tensor};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{
    Batch, BatchPart, ClientId, DecodeBudget, DraftCosts, Limits, LogitsRows, NewSeq, Scheduler, SeqId,
    StepCost,
};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::{ci, golden, needed};
use tallow_wgpu::{Wgpu, devices};

use crate::common::cuda;

/// Makes a device with the given number of threads, where the device has threads.
type Make<'a, B> = &'a dyn Fn(usize) -> B;

fn runner<B: Backend>(b: B, model: &Model, shape: KvShape) -> Runner<B> {
    let decoder = Decoder::load(&b, model, 256, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Runner::new(b, decoder, shape).unwrap()
}

/// Logits of every token of a sequence that is computed alone in one step.
fn alone<B: Backend>(b: B, model: &Model, dtype: DType, tokens: &[u32]) -> Vec<Vec<u32>> {
    let r = runner(b, model, KvShape { dtype, page_len: 256, pages: 1, swa_pages: 0, state_rows: 2 });
    let blocks = BlockPool::new(1, 256).take().into_iter().collect();
    let logits = LogitsRows::All { last: false };
    let part = BatchPart::new(SeqId(0), tokens.to_vec(), blocks, logits);
    let part = BatchPart { state: r.states_of(0, 0), ..part };
    let logits = r.logits(&Batch { parts: vec![part] }).unwrap();
    let rows: Vec<f32> = r.backend().download(&logits).unwrap();
    rows.chunks_exact(logits.cols()).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

#[derive(Clone, Debug)]
struct Asked {
    tokens: Vec<u32>,
    prompt: usize,
    at_step: usize,
}

fn asked() -> impl Strategy<Value = Asked> {
    // Some of them repeat themselves, so that drafts are right.
    let own = (prop::collection::vec(0u32..90, 2..50), 1usize..4);
    let tokens = (0usize..40, own).prop_map(|(common, (own, times))| {
        let own = own.iter().copied().cycle().take(50.min(own.len() * times));
        (0..common as u32).map(|i| 3 + i * 7 % 80).chain(own).collect::<Vec<u32>>()
    });
    (tokens, any::<prop::sample::Index>(), 0usize..12).prop_map(|(tokens, cut, at_step)| {
        let prompt = 1 + cut.index(tokens.len() - 1);
        Asked { tokens, prompt, at_step }
    })
}

#[derive(Clone, Debug)]
struct Schedule {
    requests: Vec<Asked>,
    page_len: usize,
    spare_pages: usize,
    slots: usize,
    budget: usize,
    threads: usize,
    clients: u64,
    /// Rows of recurrent states that are left for snapshots when all slots are in use.
    snapshots: usize,
    /// Pages of their own for sliding-window layers, and how many more than all slots need.
    swa: Option<usize>,
    /// True if tokens are drafted, at any probability.
    drafts: bool,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let requests = prop::collection::vec(asked(), 1..7);
    let page_len = prop_oneof![Just(1usize), Just(3), Just(16)];
    let limits = (0usize..20, 1usize..6, 1usize..60, 1usize..4, 1u64..4);
    let swa = prop::option::of(0usize..20);
    (requests, page_len, limits, 0usize..6, swa, any::<bool>()).prop_map(
        |(requests, page_len, limits, snapshots, swa, drafts)| {
            let (spare_pages, slots, budget, threads, clients) = limits;
            Schedule {
                requests,
                page_len,
                spare_pages,
                slots,
                budget,
                threads,
                clients,
                snapshots,
                swa,
                drafts,
            }
        },
    )
}

/// Runs a schedule, feeding each sequence its own tokens, and compares every row of logits. Returns the number of
/// preemptions and of prefix cache hits (tokens).
fn check<B: Backend>(
    make: Make<'_, B>,
    model: &Model,
    dtype: DType,
    s: &Schedule,
) -> Result<(), TestCaseError> {
    let want: Vec<Vec<Vec<u32>>> =
        s.requests.iter().map(|r| alone(make(1), model, dtype, &r.tokens)).collect();
    // Little more than the longest sequence needs, so that sequences are preempted.
    let longest = s.requests.iter().map(|r| r.tokens.len()).max().unwrap_or(1);
    let pages = longest.div_ceil(s.page_len) + s.spare_pages;
    let state_rows = if model.spec.is_recurrent() { 2 * s.slots + s.snapshots } else { 0 };
    let pool = BlockPool::with_states(pages, s.page_len, state_rows);
    let pool = match s.swa.zip(model.spec.swa_window()) {
        Some((spare, window)) => {
            let step = s.budget.max(2 * s.slots);
            let window = SlidingWindow::new(window);
            pool.with_swa(window.pages_needed(s.slots, step, s.page_len) + spare, window)
        }
        None => pool,
    };
    let shape = KvShape { dtype, page_len: s.page_len, pages, swa_pages: pool.swa_pages(), state_rows };
    let r = runner(make(s.threads), model, shape);
    let (slots, budget) = (s.slots, s.budget);
    let decode_budget = DecodeBudget::of_tokens(budget.div_ceil(2));
    let limits = Limits {
        context: 256,
        slots,
        budget,
        decode_budget,
        all_logits: 5,
        drafts: s.drafts.then_some(DraftCosts::new(StepCost::Known { first: 1.0, more: 0.0 }, None)),
    };
    let mut scheduler = Scheduler::new(limits, pool);
    let mut waiting: Vec<usize> = (0..s.requests.len()).collect();
    for step in 0.. {
        for i in waiting.extract_if(.., |i| s.requests[*i].at_step <= step) {
            let asked = &s.requests[i];
            let (tokens, max_new) =
                (asked.tokens[..asked.prompt].to_vec(), asked.tokens.len() - asked.prompt);
            let new = NewSeq {
                id: SeqId(i as u64),
                tokens,
                max_new,
                root: Chain::ROOT,
                all_logits: false,
                lora: None,
                cross: None,
                drafts: true,
                client: ClientId(i as u64 % s.clients),
            };
            scheduler.submit(new).map_err(|e| TestCaseError::fail(e.to_string()))?;
        }
        let Some(mut batch) = scheduler.next_batch() else {
            if waiting.is_empty() {
                break;
            }
            continue;
        };
        // Compare every row of logits, not only the sampled ones.
        let samples: Vec<bool> = batch.parts.iter().map(|p| p.logits.samples()).collect();
        batch.parts.iter_mut().for_each(|p| p.logits = LogitsRows::All { last: false });
        let logits = r.logits(&batch).unwrap();
        let got: Vec<f32> = r.backend().download(&logits).unwrap();
        let mut rows = got.chunks_exact(model.spec.vocab);
        let mut next = Vec::new();
        for (part, samples) in batch.parts.iter().zip(samples) {
            let (i, end) = (part.id.0 as usize, part.start + part.tokens.len());
            // The tokens of a draft that are right, and those before it.
            let own = &s.requests[i].tokens;
            let both = part.tokens.iter().zip(&own[part.start..]);
            let right = part.start + both.take_while(|(a, b)| a == b).count();
            prop_assert!(right + part.drafted >= end, "request {i} computes tokens that are not its own");
            for position in part.start..end {
                let row: Vec<u32> = rows.next().unwrap().iter().map(|x| x.to_bits()).collect();
                let same = position >= right || want[i].get(position) == Some(&row);
                prop_assert!(same, "request {i}, token {position}, step {step}");
            }
            next.push(if samples { own[end - part.drafted..=right].to_vec() } else { Vec::new() });
        }
        scheduler.commit(&batch, &next);
    }
    prop_assert!(scheduler.check().is_ok());
    prop_assert_eq!(scheduler.pool().in_use(), 0);
    Ok(())
}

fn hold<B: Backend>(make: Make<'_, B>, cases: u32, path: &str, dtype: DType) {
    let model = Model::open(&golden(path)).unwrap();
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner.run(&schedule(), |s| check(make, &model, dtype, &s)).unwrap();
}

fn hold_on_the_cpu(path: &str, dtype: DType) {
    hold(&|threads| Cpu::new(Isa::best(), threads).unwrap(), 40, path, dtype);
}

/// Fewer schedules than on the CPU: the GPU may be a software implementation.
fn hold_on_a_gpu(path: &str, dtype: DType) {
    let found = devices();
    if let Some(found) = needed("Vulkan or Metal device", found.first()) {
        let gpu = Wgpu::open(found).unwrap();
        hold(&|_| gpu.clone(), if ci() { 12 } else { 3 }, path, dtype);
    }
}

/// Few schedules: kernels are interpreted.
fn hold_on_cuda(path: &str, dtype: DType) {
    let gpu = cuda();
    hold(&|_| gpu.clone(), 3, path, dtype);
}

#[test]
fn for_f32_weights() {
    hold_on_the_cpu("gguf-models/llama-f32-f32.gguf", DType::F32);
}

#[test]
fn for_k_quants() {
    hold_on_the_cpu("gguf-mix/q4_k_m-like.gguf", DType::F32);
}

#[test]
fn for_k_quants_on_a_gpu() {
    hold_on_a_gpu("gguf-mix/q4_k_m-like.gguf", DType::F32);
}

#[test]
fn for_k_quants_on_cuda() {
    hold_on_cuda("gguf-mix/q4_k_m-like.gguf", DType::F32);
}

#[test]
fn for_every_block_format_and_a_16_bit_cache() {
    hold_on_the_cpu("gguf-mix/mix-a.gguf", DType::F16);
}

#[test]
fn for_every_block_format_and_a_16_bit_cache_on_a_gpu() {
    hold_on_a_gpu("gguf-mix/mix-a.gguf", DType::F16);
}

#[test]
fn for_every_block_format_and_a_16_bit_cache_on_cuda() {
    hold_on_cuda("gguf-mix/mix-a.gguf", DType::F16);
}

#[test]
fn for_a_cache_of_bytes() {
    hold_on_the_cpu("gguf-mix/mix-a.gguf", DType::I8);
}

#[test]
fn for_a_cache_of_bytes_on_a_gpu() {
    hold_on_a_gpu("gguf-mix/mix-a.gguf", DType::I8);
}

#[test]
fn for_a_cache_of_bytes_on_cuda() {
    hold_on_cuda("gguf-mix/mix-a.gguf", DType::I8);
}

#[test]
fn for_a_cache_of_small_floats() {
    hold_on_the_cpu("gguf-models/llama-f32-f32.gguf", DType::F8);
}

#[test]
fn for_sliding_windows_and_small_floats() {
    hold_on_the_cpu("mistral-swa", DType::F8);
}

#[test]
fn for_sliding_windows_and_small_floats_on_a_gpu() {
    hold_on_a_gpu("mistral-swa", DType::F8);
}

#[test]
fn for_sliding_windows_and_small_floats_on_cuda() {
    hold_on_cuda("mistral-swa", DType::F8);
}

#[test]
fn for_caps_and_bytes() {
    hold_on_the_cpu("gemma2", DType::I8);
}

#[test]
fn for_sinks_and_small_floats() {
    hold_on_the_cpu("gpt-oss", DType::F8);
}

#[test]
fn for_narrow_rows_and_bytes() {
    hold_on_the_cpu("deepseek-v3", DType::I8);
}

#[test]
fn for_parts_of_tokens_and_bytes() {
    hold_on_the_cpu("gemma4-text", DType::I8);
}

#[test]
fn for_layers_with_keys_of_others() {
    hold_on_the_cpu("more/gemma4-shared", DType::F32);
}

#[test]
fn for_layers_with_keys_of_others_on_a_gpu() {
    hold_on_a_gpu("more/gemma4-shared", DType::F32);
}

#[test]
fn for_layers_with_keys_of_others_on_cuda() {
    hold_on_cuda("more/gemma4-shared", DType::F32);
}

#[test]
fn for_experts_beside_blocks_and_values_of_keys() {
    hold_on_the_cpu("more/gemma4-experts", DType::BF16);
}

#[test]
fn for_sliding_windows_and_bf16() {
    hold_on_the_cpu("mistral-swa", DType::BF16);
}

#[test]
fn for_sliding_windows_and_bf16_on_a_gpu() {
    hold_on_a_gpu("mistral-swa", DType::BF16);
}

#[test]
fn for_sliding_windows_and_bf16_on_cuda() {
    hold_on_cuda("mistral-swa", DType::BF16);
}

#[test]
fn for_experts() {
    hold_on_the_cpu("qwen2-moe", DType::F32);
}

#[test]
fn for_experts_on_a_gpu() {
    hold_on_a_gpu("qwen3-moe", DType::F32);
}

#[test]
fn for_experts_on_cuda() {
    hold_on_cuda("qwen3-moe", DType::F32);
}

#[test]
fn for_experts_of_shared_inputs_and_chunks() {
    hold_on_the_cpu("llama4-text", DType::F32);
}

#[test]
fn for_experts_of_shared_inputs_and_chunks_on_a_gpu() {
    hold_on_a_gpu("llama4-text", DType::F32);
}

#[test]
fn for_experts_of_shared_inputs_and_chunks_on_cuda() {
    hold_on_cuda("llama4-text", DType::F32);
}

#[test]
fn for_experts_chosen_one_by_one() {
    hold_on_the_cpu("phimoe", DType::F32);
}

#[test]
fn for_sinks_and_quantized_experts() {
    hold_on_the_cpu("quant/gpt-oss-mxfp4", DType::F16);
}

#[test]
fn for_sinks_on_a_gpu() {
    hold_on_a_gpu("gpt-oss", DType::F32);
}

#[test]
fn for_sinks_on_cuda() {
    hold_on_cuda("gpt-oss", DType::F32);
}

#[test]
fn for_parts_of_tokens_in_each_layer() {
    hold_on_the_cpu("gemma4-text", DType::F32);
}

#[test]
fn for_narrow_rows() {
    hold_on_the_cpu("deepseek-v3", DType::BF16);
}

#[test]
fn for_narrow_rows_on_a_gpu() {
    hold_on_a_gpu("deepseek-v2", DType::F32);
}

#[test]
fn for_narrow_rows_on_cuda() {
    hold_on_cuda("deepseek-v2", DType::F32);
}

#[test]
fn for_norms_behind_the_blocks() {
    hold_on_the_cpu("olmo3", DType::F32);
}

#[test]
fn for_norms_on_both_sides_and_caps() {
    hold_on_the_cpu("gemma2", DType::F32);
}

#[test]
fn for_norms_on_both_sides_and_caps_on_a_gpu() {
    hold_on_a_gpu("gemma2", DType::F32);
}

#[test]
fn for_norms_on_both_sides_and_caps_on_cuda() {
    hold_on_cuda("gemma2", DType::F32);
}

#[test]
fn for_blocks_side_by_side_and_layers_without_rotation() {
    hold_on_the_cpu("cohere2", DType::F32);
}

#[test]
fn for_blocks_side_by_side_with_a_norm_each() {
    hold_on_the_cpu("gpt-neox", DType::F32);
}

#[test]
fn for_learned_positions() {
    hold_on_the_cpu("gpt2", DType::F32);
}

#[test]
fn for_learned_positions_on_a_gpu() {
    hold_on_a_gpu("gpt2", DType::F32);
}

#[test]
fn for_learned_positions_on_cuda() {
    hold_on_cuda("gpt2", DType::F32);
}

#[test]
fn for_queries_that_grow() {
    hold_on_the_cpu("ministral3", DType::F32);
}

#[test]
fn for_states_in_place_of_keys_and_values() {
    hold_on_the_cpu("qwen3.5", DType::F16);
}

#[test]
fn for_states_in_place_of_keys_and_values_on_a_gpu() {
    hold_on_a_gpu("qwen3.5", DType::F32);
}

#[test]
fn for_states_in_place_of_keys_and_values_on_cuda() {
    hold_on_cuda("qwen3.5", DType::F32);
}

#[test]
fn for_states_and_experts() {
    hold_on_the_cpu("qwen3-next", DType::F32);
}

#[test]
fn for_states_of_heads_that_share_keys_in_turn() {
    hold_on_the_cpu("gguf-models/qwen3.5-moe-bf16.gguf", DType::BF16);
}

/// A step that fails midway has already written the recurrent states of some layers. It can be repeated nevertheless,
/// by these or other state_rows: 0 states it read are unchanged (each step writes to another row).
#[test]
fn a_step_that_failed_can_be_done_again() {
    let model = Model::open(&golden("qwen3.5")).unwrap();
    let tokens: Vec<u32> = (0..12).map(|i| 3 + i * 7 % 80).collect();
    let want = alone(Cpu::new(Isa::best(), 1).unwrap(), &model, DType::F32, &tokens);
    let shape = KvShape { dtype: DType::F32, page_len: 4, pages: 6, swa_pages: 0, state_rows: 4 };
    let r = runner(Cpu::new(Isa::best(), 2).unwrap(), &model, shape);
    // The same tokens in two sequences.
    let batch = |places: &[u32], step: usize, part: std::ops::Range<usize>| {
        let part = |place: &u32| {
            let (id, blocks) = (SeqId(u64::from(*place)), (0..3).map(|i| 3 * place + i).collect());
            let logits = LogitsRows::All { last: false };
            BatchPart {
                start: part.start,
                state: r.states_of(*place as usize, step),
                ..BatchPart::new(id, tokens[part.clone()].to_vec(), blocks, logits)
            }
        };
        Batch { parts: places.iter().map(part).collect() }
    };
    let check = |logits: Tensor<Cpu>, part: std::ops::Range<usize>| {
        let got: Vec<f32> = r.backend().download(&logits).unwrap();
        let rows: Vec<Vec<u32>> =
            got.chunks_exact(logits.cols()).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();
        assert!(rows.chunks(part.len()).all(|rows| *rows == want[part.clone()]), "{part:?}");
    };
    check(r.logits(&batch(&[0, 1], 0, 0..5)).unwrap(), 0..5);
    for layer in 1..4 {
        let failed = r.logits_seen(&batch(&[0, 1], 1, 5..9), |i, _| match i == layer {
            true => Err(tallow_core::Error::Device { device: "test".into(), why: "it fails".into() }),
            false => Ok(()),
        });
        assert!(failed.is_err());
    }
    // Each sequence alone, as the engine retries a failed step; then both together again.
    check(r.logits(&batch(&[1], 1, 5..9)).unwrap(), 5..9);
    check(r.logits(&batch(&[0], 1, 5..9)).unwrap(), 5..9);
    check(r.logits(&batch(&[1, 0], 2, 9..12)).unwrap(), 9..12);
}
