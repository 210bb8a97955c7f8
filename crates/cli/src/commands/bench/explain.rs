//! `tallow bench --explain`: the ops of a step, and where its time goes.

use std::time::Instant;

use tallow_core::launch_table;
use tallow_models::Model;

use super::{Test, Tokens, fill, label, once, prompt};
use crate::Failed;
use crate::commands::print;
use crate::devices::MeasuredBackend;
use crate::single_runner::SingleRunner;

/// Shows the ops of a prefill step and of a decode step.
pub(super) fn launches<B: MeasuredBackend>(
    runner: &mut SingleRunner<B>,
    model: &Model,
    tokens: usize,
) -> Result<(), Failed> {
    let mut text = format!("{} on {}\n", model.family.name, runner.backend().label());
    for (what, tokens) in [("a step of a prompt", tokens), ("a step of an answer", 1)] {
        runner.rewind(0);
        runner.backend().sync()?;
        let before = runner.backend().costs();
        runner.backend().trace().start();
        prompt(runner, model, Tokens { each: tokens, sequences: 1 }, tokens)?;
        text += &format!("\n{what} ({tokens} tokens)\n{}", launch_table(&runner.backend().trace().stop()));
        runner.backend().sync()?;
        for ((name, after), (_, before)) in runner.backend().costs().iter().zip(&before) {
            text += &format!("{name:<24} {:>8}\n", after - before);
        }
    }
    print(&text)
}

/// Shows where the time of each test goes, op by op.
pub(super) fn times<B: MeasuredBackend>(
    runner: &mut SingleRunner<B>,
    model: &Model,
    batch: usize,
    tests: &[Test],
    repetitions: usize,
) -> Result<(), Failed> {
    if runner.backend().begin()? {
        return Err(Failed::new(
            "--time: this device computes ops after they are launched, so that they have no times of their own; try --device \
             cpu",
        ));
    }
    let mut text = format!("{} on {}\n", model.family.name, runner.backend().label());
    for test in tests {
        fill(runner, model, *test, batch)?;
        // Touches the memory, wakes the threads.
        once(runner, model, *test, batch)?;
        runner.backend().trace().start_timing();
        let begun = Instant::now();
        for _ in 0..repetitions {
            once(runner, model, *test, batch)?;
        }
        let took = begun.elapsed();
        let times = runner.backend().trace().stop_timing();
        let steps = repetitions * test.steps(batch);
        let s = if steps == 1 { "" } else { "s" };
        text += &format!("\n{}, {steps} step{s}\n{}", label(*test), times.table(steps, took));
    }
    print(&text)
}
