//! Decoder models.

use std::collections::BTreeMap;

use tallow_core::Backend;
use tallow_engine::handle::LoadLora;
use tallow_engine::scheduler::LogitsRows;
use tallow_models::Model;

use super::Tensors;
use super::inputs::{Ids, Inputs};
use crate::Failed;
use crate::devices::MeasuredBackend;
use crate::lora::Lora;
use crate::single_runner::{ModelTask, Setup, SingleRunner, run_single};

/// Logits of all tokens, and hidden states; each row is computed alone.
pub(super) fn dump(
    model: &Model,
    mut setup: Setup,
    inputs: &Inputs,
    only_logits: bool,
    lora: Option<&Lora>,
) -> Result<Tensors, Failed> {
    let (vocab, most) = (model.spec.vocab, model.spec.context);
    // One load for each length: some RoPE variants depend on the maximum length of a sequence.
    let mut lengths: BTreeMap<usize, Vec<(String, Ids)>> = BTreeMap::new();
    for before in inputs.groups(&["input_ids"])? {
        let Some(rows) = inputs.texts(&before, vocab, most)? else { continue };
        lengths.entry(rows.iter().map(Vec::len).max().unwrap_or(0)).or_default().push((before, rows));
    }
    let adapter = lora.map(Lora::open).transpose()?;
    let mut written = Tensors::new();
    for (context, prompts) in lengths {
        (setup.context, setup.batch, setup.logits) = (context, context, context);
        let mut forward = Forward { context, prompts, only_logits, adapter: adapter.as_ref() };
        written.extend(run_single(model, setup, &mut forward)?);
    }
    Ok(written)
}

/// Prompts of one length.
struct Forward<'a> {
    context: usize,
    prompts: Vec<(String, Ids)>,
    only_logits: bool,
    adapter: Option<&'a LoadLora>,
}

impl ModelTask for Forward<'_> {
    type Output = Tensors;

    fn run<B: MeasuredBackend>(&mut self, mut runner: SingleRunner<B>) -> Result<Tensors, Failed> {
        if let Some(adapter) = self.adapter {
            let lora = runner.load_lora(0, adapter)?;
            runner.use_loras(&[lora]);
        }
        let mut written = Tensors::new();
        for (name, rows) in &self.prompts {
            let mut outputs: BTreeMap<String, Vec<f32>> = BTreeMap::new();
            for row in rows {
                for (output, mut numbers) in forward(&mut runner, row, self.only_logits)? {
                    // Padding is written as zeros.
                    numbers.resize(numbers.len() / row.len() * self.context, 0.0);
                    outputs.entry(output).or_default().extend(numbers);
                }
            }
            let tokens = rows.len() * self.context;
            let lead = if rows.len() == 1 { vec![self.context] } else { vec![rows.len(), self.context] };
            for (output, numbers) in outputs {
                let width = numbers.len() / tokens.max(1);
                written.insert(format!("{name}{output}"), ([&lead[..], &[width]].concat(), numbers));
            }
        }
        Ok(written)
    }
}

/// One forward pass: the logits of every token, and the hidden states, the last one after the final norm.
fn forward<B: Backend>(
    runner: &mut SingleRunner<B>,
    tokens: &[u32],
    only_logits: bool,
) -> Result<Vec<(String, Vec<f32>)>, Failed> {
    runner.rewind(0);
    let mut seen = Vec::new();
    let logits = runner.step(tokens, LogitsRows::All { last: true }, |i, x| {
        if !only_logits {
            seen.push((i, x.clone()));
        }
        Ok(())
    })?;
    let (b, decoder) = (runner.backend(), runner.decoder());
    let last = seen.len().saturating_sub(1);
    let mut outputs = vec![("logits".to_owned(), b.download(&logits)?)];
    for (i, x) in seen {
        let x = if i == last { decoder.normed(b, &x)? } else { x };
        outputs.push((format!("hidden{i}"), b.download(&x)?));
    }
    Ok(outputs)
}
