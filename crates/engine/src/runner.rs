//! [`Runner`]: runs a batch on a device and chooses the tokens.

use std::ops::Range;

use tallow_core::ops::TopK;
use tallow_core::{Backend, Error, Memory, StepPlan, Tensor};
use tallow_models::decoder::Decoder;

use crate::kv::{KvPool, KvShape};
use crate::plan;
use crate::sampler::{self, Choice, NotFinite, Sampler};
use crate::scheduler::{Batch, Part, Wanted};

/// A model on a device, with its cache.
#[derive(Debug)]
pub struct Runner<B: Backend> {
    b: B,
    decoder: Decoder<B>,
    kv: KvPool<B>,
    page_len: usize,
}

/// What a part is sampled with.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Chooses the next token.
    pub sampler: &'a Sampler,
    /// The prompt, for parts whose prompt is to be scored.
    pub prompt: &'a [u32],
}

/// What a part gave.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The next token, if one was wanted.
    pub next: Option<Choice>,
    /// Prompt tokens after the part's first, scored, if that was wanted.
    pub prompt: Vec<Choice>,
}

impl<B: Backend> Runner<B> {
    /// A runner with an empty cache.
    pub fn new(b: B, decoder: Decoder<B>, shape: KvShape) -> Result<Runner<B>, Error> {
        let kv = KvPool::new(&b, decoder.spec(), shape)?;
        Ok(Runner { b, decoder, kv, page_len: shape.page_len })
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.b
    }

    /// The model.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// The logits of every token of a batch that wants them, in order.
    pub fn logits(&self, batch: &Batch) -> Result<Tensor<B>, Error> {
        self.logits_seen(batch, |_, _| Ok(()))
    }

    /// The same, showing the embeddings and what each layer makes of them to `see`.
    pub fn logits_seen(
        &self,
        batch: &Batch,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        let plan = StepPlan::new(&self.b, plan::build(batch, self.page_len))?;
        let x = self.decoder.forward(&self.b, &plan, &self.kv.layers(), see)?;
        self.decoder.logits(&self.b, &plan, &x) // [outputs, vocabulary]
    }

    /// Runs a batch; `asked` has an entry for each of its parts. What is wrong with one part's logits is that part's
    /// alone.
    pub fn run(&self, batch: &Batch, asked: &[Asked<'_>]) -> Result<Vec<Result<Outcome, NotFinite>>, Error> {
        let logits = self.logits(batch)?;
        let plain = |(part, asked): (&Part, &Asked<'_>)| {
            part.logits.samples() && asked.sampler.how().is_plain_greedy()
        };
        let best = match batch.parts.iter().zip(asked).any(plain) {
            true => Some(self.best(&logits)?),
            false => None,
        };
        let mut row = 0;
        let mut outcomes = Vec::new();
        for (part, asked) in batch.parts.iter().zip(asked) {
            let rows = row..row + outputs(part);
            row = rows.end;
            outcomes.push(self.outcome(part, asked, rows, &logits, best.as_deref())?);
        }
        Ok(outcomes)
    }

    /// The largest logit of each row, found on the device, and its token.
    fn best(&self, logits: &Tensor<B>) -> Result<Vec<(u32, f32)>, Error> {
        let top = self.b.run(TopK { x: logits, k: 1 })?;
        let (ids, values) = (self.b.download::<u32>(&top.ids)?, self.b.download::<f32>(&top.values)?);
        Ok(ids.into_iter().zip(values).collect())
    }

    fn outcome(
        &self,
        part: &Part,
        asked: &Asked<'_>,
        rows: Range<usize>,
        logits: &Tensor<B>,
        best: Option<&[(u32, f32)]>,
    ) -> Result<Result<Outcome, NotFinite>, Error> {
        let mut outcome = Outcome::default();
        if let Wanted::All { .. } = part.logits {
            let top = asked.sampler.how().logprobs.unwrap_or(0);
            // Row i is about the token after it, as far as the prompt goes.
            let following = asked.prompt.get(part.start + 1..).unwrap_or_default();
            for (row, token) in rows.clone().zip(following) {
                match sampler::score(&self.read(logits, row)?, *token, top) {
                    Ok(scored) => outcome.prompt.push(scored),
                    Err(bad) => return Ok(Err(bad)),
                }
            }
        }
        if part.logits.samples() {
            let last = rows.end - 1;
            let plain = asked.sampler.how().is_plain_greedy();
            let chosen = match best.map(|best| best[last]).filter(|_| plain) {
                Some((token, value)) if value.is_finite() => {
                    Ok(Choice { token, logprob: None, top: Vec::new() })
                }
                Some(_) => Err(NotFinite),
                None => asked.sampler.choose(&mut self.read(logits, last)?, part.start + part.tokens.len()),
            };
            match chosen {
                Ok(choice) => outcome.next = Some(choice),
                Err(bad) => return Ok(Err(bad)),
            }
        }
        Ok(Ok(outcome))
    }

    fn read(&self, logits: &Tensor<B>, row: usize) -> Result<Vec<f32>, Error> {
        self.b.download(&logits.row_range(row..row + 1))
    }
}

/// Rows of logits that a part has.
fn outputs(part: &Part) -> usize {
    match part.logits {
        Wanted::None => 0,
        Wanted::Last => 1,
        Wanted::All { .. } => part.tokens.len(),
    }
}
