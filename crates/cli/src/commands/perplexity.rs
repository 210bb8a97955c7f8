//! `tallow perplexity`: perplexity of a model on a text.

use serde_json::json;
use tallow_core::Backend;
use tallow_engine::sampler;
use tallow_engine::scheduler::LogitsRows;

use super::print;
use crate::Failed;
use crate::args::Perplexity;
use crate::chunks::Chunks;
use crate::devices::{Arithmetic, MeasuredBackend};
use crate::load;
use crate::settings::Sources;
use crate::single_runner::{ModelTask, Setup, SingleRunner, run_single};
use crate::terminal;

/// Tokens per step; each needs a row of logits.
const STEP: usize = 64;

pub(crate) fn perplexity(args: &Perplexity, sources: &Sources) -> Result<(), Failed> {
    let loaded =
        load::open(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    // Every token of a chunk but the first is scored.
    let Chunks { mut chunks, context: wanted, tokens } = Chunks::read(&args.file, &loaded, args.context)?;
    chunks.truncate(args.chunks.unwrap_or(usize::MAX));
    let mut setup = Setup::new(sources, &args.device, Some(&args.kv), Arithmetic::Fast)?;
    (setup.context, setup.batch, setup.logits) = (wanted, STEP, STEP);
    let Scores { sum, squares, count } = run_single(&loaded.model, setup, &mut Scoring { chunks: &chunks })?;
    if count == 0 {
        let name = args.file.display();
        return Err(Failed::new(format!("{name}: has {tokens} tokens; two are needed to score one")));
    }
    let mean = -sum / count as f64;
    let spread = (squares / count as f64 - mean * mean).max(0.0);
    let perplexity = mean.exp();
    let error = perplexity * (spread / count as f64).sqrt();
    if args.json {
        let found = json!({
            "model": loaded.name, "perplexity": perplexity, "error": error, "tokens": count, "context": wanted,
        });
        return print(&format!("{found}\n"));
    }
    print(&format!(
        "perplexity {perplexity:.4} +- {error:.4} ({count} tokens scored, in chunks of {wanted})\n"
    ))
}

/// Scores chunks.
struct Scoring<'a> {
    chunks: &'a [Vec<u32>],
}

/// Sums over the log-probabilities of all scored tokens.
#[derive(Default)]
struct Scores {
    sum: f64,
    squares: f64,
    count: u64,
}

impl ModelTask for Scoring<'_> {
    type Output = Scores;

    fn run<B: MeasuredBackend>(&mut self, mut runner: SingleRunner<B>) -> Result<Scores, Failed> {
        let bar = terminal::count_bar(self.chunks.len() as u64, "scoring");
        let mut scores = Scores::default();
        for chunk in self.chunks {
            for logprob in score(&mut runner, chunk)? {
                scores.sum += logprob;
                scores.squares += logprob * logprob;
                scores.count += 1;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(scores)
    }
}

/// The log-probability of each token after the first.
fn score<B: Backend>(runner: &mut SingleRunner<B>, tokens: &[u32]) -> Result<Vec<f64>, Failed> {
    runner.rewind(0);
    let mut scored = Vec::with_capacity(tokens.len());
    for (i, step) in tokens.chunks(STEP).enumerate() {
        let logits = runner.step(step, LogitsRows::All { last: true }, |_, _| Ok(()))?;
        let rows: Vec<f32> = runner.backend().download(&logits)?;
        let following = tokens[i * STEP + 1..].iter().take(step.len());
        for (row, token) in rows.chunks_exact(logits.cols()).zip(following) {
            let choice = sampler::score(row, *token, 0).map_err(Failed::new)?;
            scored.extend(choice.logprob.map(f64::from));
        }
    }
    Ok(scored)
}
