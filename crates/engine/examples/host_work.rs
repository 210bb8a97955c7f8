//! Host work of a decode step: what a device waits for between the read of one step and the launch of the next, and what
//! it costs to walk through a layer's ops. The device computes nothing, so all time is the host's.
//!
//! ```text
//! cargo run --release -p tallow-engine --example host_work -- MODEL [TOKENS [DEVICE [LAYERS]]]
//! ```
//!
//! For 1, 64 and 256 sequences of TOKENS tokens (8000); medians of many steps, in µs. DEVICE is `null`, which launches nothing,
//! or `cuda`: that backend on a driver that does nothing. There the steps of an engine are measured too, which takes the likeliest
//! tokens. A GGUF file's layers are repeated until there are LAYERS.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tallow_checkpoint::{Checkpoint, Stored, StoredTensors};
use tallow_core::{Backend, DType, Null, StepPlan};
use tallow_cuda::{Cuda, devices_through};
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::kv_cache::{KvPool, KvShape};
use tallow_engine::plan;
use tallow_engine::runner::{Runner, SampleInput};
use tallow_engine::sampler::{Sampler, Sampling};
use tallow_engine::scheduler::{Batch, ClientId, DecodeBudget, Limits, NewSeq, Scheduler, SeqId};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_ptx::mock;

const PAGE: usize = 16;
const STEPS: usize = 300;
const SEQUENCES: [usize; 3] = [1, 64, 256];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "arguments: MODEL [TOKENS [DEVICE [LAYERS]]]";
    let path = PathBuf::from(args.next().ok_or(usage)?);
    let tokens = args.next().map_or(Ok(8000), |n| n.parse())?;
    let device = args.next().unwrap_or("null".into());
    let model = Model::open(&path)?;
    let model = match args.next() {
        Some(layers) => deepened(model, layers.parse()?),
        None => model,
    };
    println!("{tokens} tokens a sequence, {} layers; µs", model.spec.layers.len());
    match &*device {
        "null" => walks(&model, tokens, || Ok(Null::default())),
        "cuda" => {
            walks(&model, tokens, cuda)?;
            steps(&model, tokens)
        }
        _ => Err(usage.into()),
    }
}

/// The model with its layers repeated until there are so many.
fn deepened(mut model: Model, layers: usize) -> Model {
    let own = model.spec.layers.len();
    let name = |layer: usize| format!("blk.{layer}.");
    let of = |layer: usize| {
        let (from, to) = (name(layer % own), name(layer));
        let named =
            move |(old, t): (&str, &Stored)| Some((format!("{to}{}", old.strip_prefix(&from)?), t.clone()));
        model.checkpoint.tensors().filter_map(named)
    };
    let rest = model.checkpoint.tensors().filter(|(name, _)| !name.starts_with("blk."));
    let rest = rest.map(|(name, t)| (name.to_owned(), t.clone()));
    let tensors: StoredTensors = rest.chain((0..layers).flat_map(of)).collect();
    model.spec.layers = model.spec.layers.iter().cycle().take(layers).cloned().collect();
    let Checkpoint { path, settings, .. } = &model.checkpoint;
    model.checkpoint = Checkpoint::in_memory(path, settings.clone(), tensors);
    model
}

/// A GPU of much memory whose driver does nothing.
fn cuda() -> Result<Cuda> {
    let gpu = mock::Gpu { memory: 1 << 44, ..mock::Gpu::default() };
    mock::set(mock::Machine { devices: vec![gpu], computes: false, ..mock::Machine::default() });
    // SAFETY: its functions have the types of the driver's.
    let found = unsafe { devices_through(&mock::symbol) }?;
    Ok(Cuda::open(found.first().ok_or("there is no device")?)?)
}

/// Prints what comes before a step's launch, and what it costs to launch it op by op.
fn walks<B: Backend>(model: &Model, tokens: usize, device: impl Fn() -> Result<B>) -> Result<()> {
    let layers = model.spec.layers.len();
    println!("| sequences | commit | schedule | plan | read to launch | walk of a layer | its ops |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for sequences in SEQUENCES {
        let (medians, ops) = walk(&device()?, model, sequences, tokens)?;
        let [commit, schedule, plan, walk] = medians;
        let all = commit + schedule + plan;
        println!(
            "| {sequences} | {commit:.1} | {schedule:.1} | {plan:.1} | {all:.1} | {:.2} | {} |",
            walk / layers as f64,
            ops / layers
        );
    }
    Ok(())
}

/// Prints what an engine's steps cost, and what is launched in each.
fn steps(model: &Model, tokens: usize) -> Result<()> {
    println!("\n| sequences | read | commit | schedule | launch | step | graphs | kernels | reads |");
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for sequences in SEQUENCES {
        let (b, context) = (cuda()?, tokens + STEPS + 2);
        let decoder = Decoder::load(&b, model, context, &mut |_, _| ControlFlow::Continue(()))?;
        let (mut scheduler, shape) = scheduler(model, sequences, tokens)?;
        let runner = Runner::new(b, decoder, shape)?;
        let sampler = Sampler::new(Sampling::greedy(), &[]);
        let asked = vec![SampleInput { prompt: &[], input: None, sampler: &sampler }; sequences];
        let answered: Vec<_> = asked.iter().copied().map(Some).collect();
        // What the prompts leave in the cache does not matter.
        let batch = scheduler.next_batch().ok_or("nothing to run")?;
        scheduler.commit(&batch, &sampled(&batch));
        let mut batch = scheduler.next_batch().ok_or("nothing to run")?;
        let mut launched = runner.launch(&batch, &asked)?;
        let (mut times, mut counts) = ([(); 5].map(|()| Vec::new()), runner.backend().counts());
        let mut each = [0; 3];
        for _ in 0..STEPS {
            let began = Instant::now();
            let mut next = Vec::with_capacity(sequences);
            for outcome in runner.finish(launched, &batch, &answered)? {
                next.push(outcome?.next.iter().map(|choice| choice.token).collect());
            }
            let read = Instant::now();
            scheduler.commit(&batch, &next);
            let committed = Instant::now();
            batch = scheduler.next_batch().ok_or("nothing to run")?;
            let scheduled = Instant::now();
            launched = runner.launch(&batch, &asked)?;
            let ended = Instant::now();
            let marks =
                [read - began, committed - read, scheduled - committed, ended - scheduled, ended - began];
            times.iter_mut().zip(marks).for_each(|(times, took)| times.push(took));
            let now = runner.backend().counts();
            each = [now.replays - counts.replays, now.launches - counts.launches, now.reads - counts.reads];
            counts = now;
        }
        let [read, commit, schedule, launch, step] = medians(times);
        let [graphs, kernels, reads] = each;
        println!(
            "| {sequences} | {read:.1} | {commit:.1} | {schedule:.1} | {launch:.1} | {step:.1} | {graphs} | {kernels} | {reads} |"
        );
    }
    Ok(())
}

/// Medians in µs.
fn medians<const N: usize>(times: [Vec<Duration>; N]) -> [f64; N] {
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    })
}

/// Some token for each part that samples.
fn sampled(batch: &Batch) -> Vec<Vec<u32>> {
    batch.parts.iter().map(|part| vec![5; usize::from(part.logits.samples())]).collect()
}

/// A scheduler with so many sequences of so many tokens, and its KV cache.
fn scheduler(model: &Model, sequences: usize, tokens: usize) -> Result<(Scheduler, KvShape)> {
    let context = tokens + STEPS + 2;
    let pages = sequences * context.div_ceil(PAGE);
    let budget = sequences * tokens;
    let pool = BlockPool::new(pages, PAGE);
    let pool = match model.spec.swa_window().map(SlidingWindow::new) {
        Some(window) => pool.with_swa(window.pages_needed(sequences, budget, PAGE), window),
        None => pool,
    };
    let swa_pages = pool.swa_pages();
    let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages, swa_pages, state_rows: 0 };
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
            max_new: STEPS + 2,
            root: Chain::salted(id),
            all_logits: false,
            lora: None,
            drafts: false,
            cross: None,
            client: ClientId(id),
        };
        scheduler.submit(new)?;
    }
    Ok((scheduler, shape))
}

/// Medians: recording a step's tokens, the next batch, its plan, and all ops of the forward pass; and how many those are.
fn walk<B: Backend>(b: &B, model: &Model, sequences: usize, tokens: usize) -> Result<([f64; 4], usize)> {
    let decoder = Decoder::load(b, model, tokens + STEPS + 2, &mut |_, _| ControlFlow::Continue(()))?;
    let (mut scheduler, shape) = scheduler(model, sequences, tokens)?;
    let kv = KvPool::new(b, decoder.spec(), shape)?;
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
        let plan = StepPlan::new(b, plan::build(&batch, PAGE))?;
        let planned = Instant::now();
        if at == 0 {
            b.trace().start();
        }
        let x = decoder.forward(b, &plan, kv.layers(), |_, _| Ok(()))?;
        decoder.logits(b, &plan, &x)?;
        let walked = planned.elapsed();
        if at == 0 {
            ops = b.trace().stop().len();
        }
        let marks = [committed - began, scheduled - committed, planned - scheduled, walked];
        times.iter_mut().zip(marks).for_each(|(times, took)| times.push(took));
    }
    Ok((medians(times), ops))
}
