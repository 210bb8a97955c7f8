//! Steps that are launched ahead, on a GPU: what they compute is what the same steps compute after the tokens were read.

use std::sync::atomic::Ordering;

use tallow_core::{Backend, DType, Error};
use tallow_engine::handle::{EngineHandle, Event, Request};
use tallow_engine::runner::{Outcome, SampleInput};
use tallow_engine::sampler::{SampleError, Sampler, Sampling};
use tallow_engine::scheduler::{Batch, BatchPart, LogitsRows, SeqId};
use tallow_support::needed;
use tallow_wgpu::{Wgpu, devices};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::common::{SLOTS, comes_to_rest, cuda, model, request, tokens};
use crate::disk_cache::{prompt, start_model};
use crate::disk_states::{hybrid, shape};
use crate::pipelined::runner;

/// Steps of sequences that take the likeliest token are recorded before the tokens of the step before are read: the device gets
/// these from that step, also where one sequence has left and where the plan changes its size.
#[test]
fn a_step_is_recorded_before_the_one_before_it_is_read() {
    if needed("Vulkan or Metal device", devices().first()).is_none() {
        return;
    }
    let (model, greedy) = (model(), Sampling::greedy());
    let runner = runner(Wgpu::open(&devices()[0]).unwrap(), &model, 64);
    let part = |sequence: usize, start: usize, tokens: Vec<u32>, follows: Option<usize>| {
        let blocks = (8 * sequence as u32..8 * sequence as u32 + 8).collect();
        let id = SeqId(sequence as u64);
        BatchPart { start, follows, ..BatchPart::new(id, tokens, blocks, LogitsRows::Last) }
    };
    // For each step its sequences, which have had three tokens more than steps.
    let steps: [&[usize]; 5] = [&[0, 1, 2, 3, 4], &[0, 1, 3, 4], &[0, 1, 3, 4], &[1, 4], &[1]];
    let sampler = Sampler::new(greedy, &[]);
    let asked =
        |batch: &Batch| vec![SampleInput { sampler: &sampler, prompt: &[], input: None }; batch.parts.len()];
    let prompt = |sequence: usize| vec![20 + sequence as u32, 30, 41];
    let mut want: Vec<Vec<u32>> = Vec::new();
    let batch = |step: usize, tokens: &dyn Fn(usize) -> (Vec<u32>, Option<usize>)| {
        let start = if step == 0 { 0 } else { 2 + step };
        let one = |&sequence: &usize| {
            let (tokens, follows) = tokens(sequence);
            part(sequence, start, tokens, follows)
        };
        Batch { parts: steps[step].iter().map(one).collect() }
    };
    let place = |step: usize, sequence: usize| steps[step].iter().position(|s| *s == sequence).unwrap();
    let next = |outcomes: Vec<Result<_, _>>| -> Vec<u32> {
        outcomes
            .into_iter()
            .map(|outcome: Result<Outcome, SampleError>| outcome.unwrap().next[0].token)
            .collect()
    };
    for step in 0..steps.len() {
        let known = |sequence: usize| match step.checked_sub(1) {
            None => (prompt(sequence), None),
            Some(before) => (vec![want[before][place(before, sequence)]], None),
        };
        let batch = batch(step, &known);
        let outcomes = runner.run(&batch, &asked(&batch)).unwrap();
        want.push(next(outcomes));
    }
    // The same again, each step launched ahead, three times so that captured steps are replayed too.
    for _ in 0..3 {
        let first = batch(0, &|sequence| (prompt(sequence), None));
        let mut flying = (runner.launch(&first, &asked(&first)).unwrap(), first);
        for step in 1..=steps.len() {
            let before = runner.backend().counts();
            let ahead = (step < steps.len()).then(|| {
                assert!(flying.0.runs() && flying.0.samples());
                let batch = batch(step, &|sequence| (vec![0], Some(place(step - 1, sequence))));
                let launched = runner.launch_after(Some(&flying.0), &batch, &asked(&batch)).unwrap();
                let after = runner.backend().counts();
                assert_eq!((after.reads - before.reads, after.submits - before.submits), (0, 1));
                (launched, batch)
            });
            let (launched, batch) = flying;
            let inputs: Vec<_> = asked(&batch).into_iter().map(Some).collect();
            let got = next(runner.finish(launched, &batch, &inputs).unwrap());
            assert_eq!(got, want[step - 1], "step {}", step - 1);
            let Some(ahead) = ahead else { break };
            flying = ahead;
        }
    }
    // Without the step before there are no tokens.
    let batch = batch(1, &|sequence| (vec![0], Some(place(0, sequence))));
    assert!(matches!(runner.launch(&batch, &asked(&batch)), Err(Error::Shape { op: "step", .. })));
}

/// A step of a model with recurrent state reads the row that the step in flight writes, and writes a third one of the sequence.
#[test]
fn states_go_on_from_the_step_in_flight() {
    if needed("Vulkan or Metal device", devices().first()).is_some() {
        states_go_on(|| Wgpu::open(&devices()[0]).unwrap());
    }
}

#[test]
fn states_go_on_from_the_step_in_flight_on_cuda() {
    states_go_on(cuda);
}

fn states_go_on<B: Backend + 'static>(device: fn() -> B) {
    let start = |rows| start_model(device, hybrid("qwen3.5"), shape(DType::F32, 64, rows));
    let answers = |engine: &EngineHandle| -> Vec<Vec<u32>> {
        let ask = |i| Request { ignore_end: true, ..request(&prompt(i), 24) };
        let mut all: Vec<_> = (0..SLOTS as u32).map(|i| engine.submit(ask(i)).unwrap()).collect();
        let hear = |receiver: &mut UnboundedReceiver<Event>| {
            tokens(&std::iter::from_fn(|| receiver.blocking_recv()).collect::<Vec<_>>())
        };
        all.iter_mut().map(hear).collect()
    };
    // Without a row for a snapshot of each sequence no step is launched ahead.
    let [after, ahead] = [3 * SLOTS, 4 * SLOTS].map(|rows| {
        let engine = start(rows);
        let answers = answers(&engine);
        comes_to_rest(&engine);
        (answers, engine.steps().ahead.load(Ordering::Relaxed))
    });
    assert_eq!(ahead.0, after.0);
    assert!(after.1 == 0 && ahead.1 > 10, "{} and {} steps ahead", after.1, ahead.1);
}
