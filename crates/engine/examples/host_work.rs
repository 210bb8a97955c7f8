//! Host work of a decode step: what a device waits for between the read of one step and the launch of the next, and what
//! it costs to walk through a layer's ops. The device computes nothing, so all time is the host's.
//!
//! ```text
//! cargo run --release -p tallow-engine --example host_work -- MODEL [TOKENS]
//! ```
//!
//! For 1, 64 and 256 sequences of TOKENS tokens (8000); medians of many steps, in µs.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tallow_core::{Backend, DType, Null, StepPlan};
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::kv_cache::{KvPool, KvShape};
use tallow_engine::plan;
use tallow_engine::scheduler::{Batch, ClientId, DecodeBudget, Limits, NewSeq, Scheduler, SeqId};
use tallow_models::Model;
use tallow_models::decoder::Decoder;

const PAGE: usize = 16;
const STEPS: usize = 300;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("arguments: MODEL [TOKENS]")?);
    let tokens = args.next().map_or(Ok(8000), |n| n.parse())?;
    let model = Model::open(&path)?;
    let layers = model.spec.layers.len();
    println!("{tokens} tokens a sequence, {layers} layers; µs");
    println!("| sequences | commit | schedule | plan | read to launch | walk of a layer | its ops |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for sequences in [1, 64, 256] {
        let (medians, ops) = step(&model, sequences, tokens)?;
        let [commit, schedule, plan, walk] = medians.map(|took| took.as_secs_f64() * 1e6);
        let all = commit + schedule + plan;
        println!(
            "| {sequences} | {commit:.1} | {schedule:.1} | {plan:.1} | {all:.1} | {:.2} | {} |",
            walk / layers as f64,
            ops / layers
        );
    }
    Ok(())
}

/// Medians: recording a step's tokens, the next batch, its plan, and all ops of the forward pass; and how many those are.
fn step(model: &Model, sequences: usize, tokens: usize) -> Result<([Duration; 4], usize)> {
    let context = tokens + STEPS + 1;
    let pages = sequences * context.div_ceil(PAGE);
    let b = Null::default();
    let decoder = Decoder::load(&b, model, context, &mut |_, _| ControlFlow::Continue(()))?;
    let budget = sequences * tokens;
    let pool = BlockPool::new(pages, PAGE);
    let pool = match model.spec.swa_window().map(SlidingWindow::new) {
        Some(window) => pool.with_swa(window.pages_needed(sequences, budget, PAGE), window),
        None => pool,
    };
    let swa_pages = pool.swa_pages();
    let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages, swa_pages, state_rows: 0 };
    let kv = KvPool::new(&b, decoder.spec(), shape)?;
    let limits = Limits {
        context,
        slots: sequences,
        budget,
        decode_budget: DecodeBudget::of_tokens(budget),
        all_logits: 8,
        drafts: None,
    };
    let mut scheduler = Scheduler::new(limits, pool);
    for id in 0..sequences as u64 {
        let new = NewSeq {
            id: SeqId(id),
            // No prefix is shared.
            tokens: (0..tokens as u32).map(|at| (at * 7 + id as u32) % 1000).collect(),
            max_new: STEPS + 1,
            root: Chain::salted(id),
            all_logits: false,
            lora: None,
            drafts: false,
            cross: None,
            client: ClientId(id),
        };
        scheduler.submit(new)?;
    }
    let sampled = |batch: &Batch| -> Vec<Vec<u32>> {
        batch.parts.iter().map(|part| vec![5; usize::from(part.logits.samples())]).collect()
    };
    let mut batch = scheduler.next_batch().ok_or("nothing to run")?;
    let mut times = [(); 4].map(|()| Vec::new());
    let mut ops = 0;
    for at in 0..STEPS {
        let next = sampled(&batch);
        let began = Instant::now();
        scheduler.commit(&batch, &next);
        let committed = Instant::now();
        batch = scheduler.next_batch().ok_or("nothing to run")?;
        let scheduled = Instant::now();
        let plan = StepPlan::new(&b, plan::build(&batch, PAGE))?;
        let planned = Instant::now();
        if at == 0 {
            b.trace().start();
        }
        let x = decoder.forward(&b, &plan, kv.layers(), |_, _| Ok(()))?;
        decoder.logits(&b, &plan, &x)?;
        let walked = planned.elapsed();
        if at == 0 {
            ops = b.trace().stop().len();
        }
        let marks = [committed - began, scheduled - committed, planned - scheduled, walked];
        times.iter_mut().zip(marks).for_each(|(times, took)| times.push(took));
    }
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    Ok((medians, ops))
}
