//! Host time of launching a decode step on a GPU: op by op, and as a replay of captured launches.
//!
//! ```text
//! cargo run --release -p tallow-engine --example launch_cost -- MODEL
//! ```
//!
//! For 1, 8 and 32 sequences of 200 tokens, in turns; medians of many steps, in µs: until all is recorded, and until it has
//! been handed to the driver. Then loops of steps, in µs a step: of which nothing is read, of which the likeliest token is read
//! before the next is launched, and after that, as the engine does it; and the host's time to launch a step and to wait for
//! it.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tallow_core::{Backend, DType, PageTable, Tensor};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::{Launched, Runner, SampleInput};
use tallow_engine::sampler::{Sampler, Sampling};
use tallow_engine::scheduler::{Batch, BatchPart, LogitsRows, SeqId};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_wgpu::{Wgpu, devices};

const PAGE: usize = 16;
const TOKENS: usize = 200;
const STEPS: usize = 40;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("arguments: MODEL")?);
    let model = Model::open(&path)?;
    let b = Wgpu::open(devices().first().ok_or("there is no GPU")?)?;
    let context = TOKENS + STEPS + 1;
    let decoder = Decoder::load(&b, &model, context, &mut |_, _| ControlFlow::Continue(()))?;
    let pages = 32 * context.div_ceil(PAGE);
    let shape = KvShape { dtype: DType::F16, page_len: PAGE, pages, swa_pages: 0, state_rows: 64 };
    println!("{} layers on {}; µs", model.spec.layers.len(), b.label());
    let runner = Runner::new(b, decoder, shape)?;
    println!("| sequences | recorded op by op | replay | handed over op by op | replay |");
    println!("|---:|---:|---:|---:|---:|");
    for sequences in [1, 8, 32] {
        let mut times = [(); 4].map(|()| Vec::new());
        for step in 0..STEPS {
            let batch = batch(&runner, sequences, step);
            let by_op = launch(runner.backend(), || runner.logits_seen(&batch, |_, _| Ok(())))?;
            let replayed = launch(runner.backend(), || runner.logits(&batch))?;
            let took = [by_op.0, replayed.0, by_op.1, replayed.1];
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
        let [by_op, replayed, all_by_op, all_replayed] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_micros()
        });
        println!("| {sequences} | {by_op} | {replayed} | {all_by_op} | {all_replayed} |");
    }
    println!("\n| sequences | nothing read | read before the next | read after | launching | waiting |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for sequences in [1, 8, 32] {
        println!("| {sequences} {}|", loops(&runner, sequences)?);
    }
    Ok(())
}

/// Microseconds a step of loops of steps.
fn loops(runner: &Runner<Wgpu>, sequences: usize) -> Result<String> {
    let sampler = Sampler::new(Sampling::greedy(), &[]);
    let asked: Vec<SampleInput<'_>> =
        (0..sequences).map(|_| SampleInput { prompt: &[], input: None, sampler: &sampler }).collect();
    let answered: Vec<_> = asked.iter().copied().map(Some).collect();
    let micros = |time: Duration| time.as_micros() / STEPS as u128;
    let mut row = String::new();
    for kind in 0..3 {
        runner.backend().sync()?;
        let (begun, mut launching, mut waiting) = (Instant::now(), Duration::ZERO, Duration::ZERO);
        let mut before: Option<(Batch, Launched<Wgpu>)> = None;
        for step in 0..STEPS {
            let mut batch = batch(runner, sequences, step);
            if kind == 0 {
                runner.logits(&batch)?;
                runner.backend().begin()?;
                continue;
            }
            let last = before.take();
            if kind == 2 && last.is_some() {
                (0..).zip(&mut batch.parts).for_each(|(i, part)| part.follows = Some(i));
            }
            let now = Instant::now();
            let launched = runner.launch_after(last.as_ref().map(|(_, l)| l), &batch, &asked)?;
            launching += now.elapsed();
            let now = Instant::now();
            if kind == 1 {
                runner.finish(launched, &batch, &answered)?;
            } else {
                if let Some((batch, launched)) = last {
                    runner.finish(launched, &batch, &answered)?;
                }
                before = Some((batch, launched));
            }
            waiting += now.elapsed();
        }
        if let Some((batch, launched)) = before {
            runner.finish(launched, &batch, &answered)?;
        }
        runner.backend().sync()?;
        row += &format!("| {} ", micros(begun.elapsed()));
        if kind == 2 {
            row += &format!("| {} | {} ", micros(launching), micros(waiting));
        }
    }
    Ok(row)
}

/// Time until a step is recorded, and until it is handed over; the device computes nothing else meanwhile.
fn launch(
    b: &Wgpu,
    step: impl FnOnce() -> tallow_core::Result<Tensor<Wgpu>>,
) -> Result<(Duration, Duration)> {
    b.sync()?;
    let begun = Instant::now();
    step()?;
    let recorded = begun.elapsed();
    b.begin()?;
    let handed_over = begun.elapsed();
    b.sync()?;
    Ok((recorded, handed_over))
}

/// A token of each sequence. What is in the cache does not matter.
fn batch(runner: &Runner<Wgpu>, sequences: usize, step: usize) -> Batch {
    let each = (TOKENS + STEPS + 1).div_ceil(PAGE) as u32;
    let start = TOKENS + step;
    let part = |i: usize| {
        let blocks: PageTable = (0..(start / PAGE + 1) as u32).map(|page| i as u32 * each + page).collect();
        let part = BatchPart::new(SeqId(i as u64), vec![5], blocks, LogitsRows::Last);
        BatchPart { start, state: runner.states_of(i, step), ..part }
    };
    Batch { parts: (0..sequences).map(part).collect() }
}
