//! [`Runner`]: runs a batch on a device and samples the tokens.

use std::borrow::Cow;
use std::ops::Range;

use bytemuck::cast_slice_mut;
use tallow_core::ops::TopK;
use tallow_core::{Backend, Error, Reading, Span, StateRows, Step, StepPlan, Tensor};
use tallow_models::adapter::AdapterFile;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::{Encoder, Input};
use tallow_models::seq2seq::Seq2Seq;

use crate::block_pool::BlockId;
use crate::encoder_input::EncoderInput;
use crate::failure::Unfit;
use crate::kv_cache::{KvPool, KvShape};
use crate::lora::{Adapters, LoraError, LoraId};
use crate::plan;
use crate::sampler::{self, Choice, NotFinite, Sampler};
use crate::scheduler::{Batch, BatchPart, Wanted};

/// A model on a device, with its KV cache.
#[derive(Debug)]
pub struct Runner<B: Backend> {
    b: B,
    encoder: Option<Encoder<B>>,
    decoder: Decoder<B>,
    kv: KvPool<B>,
    page_len: usize,
    adapters: Adapters<B>,
}

/// Sampling input of a part.
#[derive(Debug)]
pub struct SampleInput<'a> {
    /// Samples the next token.
    pub sampler: &'a Sampler,
    /// Prompt tokens, for parts whose prompt is scored.
    pub prompt: &'a [u32],
    /// Encoder input, for parts whose input is encoded.
    pub input: Option<&'a EncoderInput>,
}

/// Result of a part.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Sampled tokens, if requested: one, and one more for each token of the draft that was right.
    pub next: Vec<Choice>,
    /// Prompt tokens after the part's first, with log-probabilities, if requested.
    pub prompt: Vec<Choice>,
}

impl<B: Backend> Runner<B> {
    /// A runner with an empty KV cache.
    pub fn new(b: B, decoder: Decoder<B>, shape: KvShape) -> Result<Runner<B>, Error> {
        let kv = KvPool::new(&b, decoder.spec(), shape)?;
        let (page_len, adapters) = (shape.page_len, Adapters::default());
        Ok(Runner { b, encoder: None, decoder, kv, page_len, adapters })
    }

    /// A runner of an encoder-decoder model. Self-attention and cross-attention have K and V of the same shape, and share
    /// the pages of the KV cache.
    pub fn seq2seq(b: B, model: Seq2Seq<B>, shape: KvShape) -> Result<Runner<B>, Error> {
        let Seq2Seq { encoder, decoder } = model;
        Ok(Runner { encoder: Some(encoder), ..Runner::new(b, decoder, shape)? })
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.b
    }

    /// The model.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// Rows of the recurrent state of a sequence in its step number `step`, where no scheduler assigns them; `None` if
    /// the model has no such state.
    pub fn states_of(&self, sequence: usize, step: usize) -> Option<StateRows> {
        let row = |step: usize| (2 * sequence + step % 2) as u32;
        self.decoder.spec().is_recurrent().then(|| StateRows { from: row(step), to: row(step + 1) })
    }

    /// Whether the model has an encoder.
    pub(crate) fn has_encoder(&self) -> bool {
        self.encoder.is_some()
    }

    /// Bytes of a page of the KV cache.
    pub(crate) fn page_bytes(&self) -> usize {
        self.kv.page_bytes()
    }

    /// Types and sizes of a page's parts, in words.
    pub(crate) fn page_layout(&self) -> String {
        self.kv.page_layout()
    }

    /// Copies a page of the KV cache to the host.
    pub(crate) fn read_page(&self, block: BlockId, to: &mut [u8]) -> Result<(), Error> {
        self.kv.read_page(&self.b, block.0 as usize, to)
    }

    /// Copies a page of the KV cache from the host. No sequence may be using the page.
    pub(crate) fn write_page(&self, block: BlockId, from: &[u8]) -> Result<(), Error> {
        self.kv.write_page(&self.b, block.0 as usize, from)
    }

    /// Uploads a LoRA adapter to the device, under an id never used before.
    pub fn load_lora(&mut self, id: LoraId, file: &AdapterFile) -> Result<(), LoraError> {
        let adapter = self.decoder.adapter(&self.b, file);
        self.adapters.add(id, adapter.map_err(|e| LoraError::Refused(e.to_string()))?);
        Ok(())
    }

    pub(crate) fn adapters(&self) -> &Adapters<B> {
        &self.adapters
    }

    pub(crate) fn adapters_mut(&mut self) -> &mut Adapters<B> {
        &mut self.adapters
    }

    /// Tokens of the encoder's output for an input; `None` for a model without encoder.
    pub fn encoder_tokens(&self, input: Option<&EncoderInput>) -> Result<Option<usize>, Unfit> {
        let Some(encoder) = &self.encoder else {
            return match input {
                None => Ok(None),
                Some(_) => Err(Unfit::Input("the model has no encoder")),
            };
        };
        let (context, audio) = (encoder.spec().context, encoder.spec().audio);
        match (input, audio) {
            (None, _) => Err(Unfit::Input("the model has an encoder, and the request has no input for it")),
            (Some(EncoderInput::Tokens(tokens)), None) => Ok(Some(tokens.len())),
            (Some(EncoderInput::Mel(frames)), Some(audio)) if frames.len() == 2 * context * audio.bands => {
                Ok(Some(context))
            }
            (Some(_), None) => Err(Unfit::Input("the encoder takes tokens")),
            (Some(_), Some(_)) => Err(Unfit::Input("the encoder takes log-mel frames of a whole window")),
        }
    }

    /// Encodes an input, and writes the cross-attention K and V of the encoder's output to pages. Returns the output:
    /// [tokens, dim]. Can be repeated.
    pub fn encode(&self, input: &EncoderInput, blocks: &[BlockId]) -> Result<Tensor<B>, Error> {
        let (b, Some(encoder)) = (&self.b, &self.encoder) else {
            let (want, got) = ("one with an encoder".into(), "a decoder alone".into());
            return Err(Error::Shape { op: "encode", what: "the model", want, got });
        };
        let uploaded = match input {
            EncoderInput::Tokens(tokens) => {
                encoder.upload(b, &[Input { tokens: tokens.clone(), types: vec![0; tokens.len()] }])?
            }
            EncoderInput::Mel(frames) => encoder.upload_sounds(b, &[frames])?,
        };
        let x = encoder.forward(b, &uploaded, |_, _| Ok(()))?;
        let (rows, page_len) = (x.rows(), self.page_len);
        let span = Span { rows, start: 0, pages: blocks.iter().map(|block| block.0).collect() };
        let step = Step { tokens: vec![0; rows], spans: vec![span], page_len, ..Step::default() };
        self.decoder.project_kv(b, &x, &StepPlan::new(b, step)?, self.kv.layers())?;
        Ok(x)
    }

    /// Logits of every token of a batch that needs them, in order: [outputs, vocabulary].
    pub fn logits(&self, batch: &Batch) -> Result<Tensor<B>, Error> {
        self.logits_seen(batch, |_, _| Ok(()))
    }

    /// Like [`logits`](Self::logits); calls `see` with the embeddings and each layer's output.
    pub fn logits_seen(
        &self,
        batch: &Batch,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        self.compute(batch, see)
    }

    /// Forward pass of a batch. Can be rerun if it or what follows it fails: pages get the same K and V again, and
    /// recurrent states are read from one row and written to another.
    fn compute(
        &self,
        batch: &Batch,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        let step = plan::build(batch, self.page_len);
        let loras = self.adapters.of(batch.parts.iter().map(|part| (part.tokens.len(), part.lora)))?;
        let plan = StepPlan::new(&self.b, step)?.adapted(loras)?;
        let cross = plan::build_cross(batch, self.page_len);
        let cross = cross.map(|step| StepPlan::new(&self.b, step)).transpose()?;
        let given = cross.as_ref().map(|plan| (plan, self.kv.layers()));
        let x = self.decoder.forward_with_encoder(&self.b, &plan, self.kv.layers(), given, see)?;
        self.decoder.logits(&self.b, &plan, &x) // [outputs, vocabulary]
    }

    /// Runs a batch; `asked` has one entry per part. The inputs of parts that say so are encoded first. Non-finite logits
    /// fail only their own part.
    pub fn run(
        &self,
        batch: &Batch,
        asked: &[SampleInput<'_>],
    ) -> Result<Vec<Result<Outcome, NotFinite>>, Error> {
        for (part, asked) in batch.parts.iter().zip(asked) {
            let cross = part.cross.as_ref().filter(|cross| cross.encode);
            if let Some((cross, input)) = cross.zip(asked.input) {
                self.encode(input, &cross.blocks)?;
            }
        }
        let logits = self.compute(batch, |_, _| Ok(()))?;
        let mut end = 0;
        let needs = batch.parts.iter().zip(asked).map(|(part, asked)| {
            let first = end;
            end += outputs(part);
            LogitsPlan::new(part, asked, first..end, logits.cols())
        });
        let needs: Vec<LogitsPlan> = needs.collect();
        let (mut rows, likely) = self.read(&logits, &needs)?;
        let mut rows = rows.chunks_exact_mut(logits.cols().max(1));
        let parts = batch.parts.iter().zip(asked).zip(&needs);
        let outcomes = parts.map(|((part, asked), needs)| {
            let rows = rows.by_ref().take(needs.rows()).collect();
            outcome(part, asked, rows, needs.likely.iter().flat_map(|(rows, k)| likely.of(rows.clone(), *k)))
        });
        Ok(outcomes.collect())
    }

    /// Reads what a step needs of its logits in one transfer: full rows and top-k candidates.
    fn read(&self, logits: &Tensor<B>, needs: &[LogitsPlan]) -> Result<(Vec<f32>, TopKRows), Error> {
        let whole = runs(needs.iter().flat_map(|n| n.whole.clone()));
        let whole: Vec<Tensor<B>> = whole.into_iter().map(|rows| logits.row_range(rows)).collect();
        let candidates: Vec<&(Range<usize>, usize)> =
            needs.iter().filter_map(|n| n.likely.as_ref()).collect();
        let first = candidates.first().map_or(0, |(rows, _)| rows.start);
        let end = candidates.last().map_or(0, |(rows, _)| rows.end);
        let k = candidates.iter().map(|l| l.1).max().unwrap_or(1);
        let x = logits.row_range(first..end);
        let top = if candidates.is_empty() { None } else { Some(self.b.run(TopK { x: &x, k })?) };

        let mut rows = vec![0.0; whole.iter().map(Tensor::len).sum()];
        let count = (end - first) * k;
        let mut likely = TopKRows { first, k, tokens: vec![0; count], logits: vec![0.0; count] };
        let (mut left, mut wanted) = (&mut rows[..], Vec::new());
        for from in &whole {
            let (to, others) = left.split_at_mut(from.len());
            left = others;
            wanted.push(Reading { from, to: cast_slice_mut(to) });
        }
        if let Some(top) = &top {
            wanted.push(Reading { from: &top.ids, to: cast_slice_mut(&mut likely.tokens) });
            wanted.push(Reading { from: &top.values, to: cast_slice_mut(&mut likely.logits) });
        }
        if !wanted.is_empty() {
            self.b.read(&mut wanted)?;
        }
        Ok((rows, likely))
    }
}

/// Which logits of a part are read from the device.
#[derive(Debug)]
struct LogitsPlan {
    /// Rows read in full: those that are scored, and those to sample from if sampling needs all of them.
    whole: [Range<usize>; 2],
    /// Rows to sample from and k, if the top-k tokens are enough.
    likely: Option<(Range<usize>, usize)>,
}

impl LogitsPlan {
    /// Plan of a part whose logits are `rows` of the step's.
    fn new(part: &BatchPart, asked: &SampleInput<'_>, rows: Range<usize>, vocab: usize) -> LogitsPlan {
        let scored = rows.start..rows.start + scored(part, asked).len();
        let last = rows.end.saturating_sub(1 + part.drafted)..rows.end;
        match (part.logits.samples(), asked.sampler.top_k_needed()) {
            (false, _) => LogitsPlan { whole: [scored, 0..0], likely: None },
            (true, None) => LogitsPlan { whole: [scored, last], likely: None },
            (true, Some(k)) => LogitsPlan { whole: [scored, 0..0], likely: Some((last, k.min(vocab))) },
        }
    }

    /// Number of full rows.
    fn rows(&self) -> usize {
        self.whole.iter().map(Range::len).sum()
    }
}

/// Top-k tokens of consecutive rows of logits.
#[derive(Debug)]
struct TopKRows {
    /// Index of the first row.
    first: usize,
    /// Tokens per row.
    k: usize,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl TopKRows {
    /// Top `k` tokens of some rows and their logits.
    fn of(&self, rows: Range<usize>, k: usize) -> impl Iterator<Item = (&[u32], &[f32])> {
        let starts = rows.map(|row| (row - self.first) * self.k);
        starts.map(move |at| (&self.tokens[at..at + k], &self.logits[at..at + k]))
    }
}

/// Outcome of a part from its full rows, in order; the next tokens from their top-k tokens if those were read instead.
fn outcome<'a>(
    part: &BatchPart,
    asked: &SampleInput<'_>,
    rows: Vec<&mut [f32]>,
    mut likely: impl Iterator<Item = (&'a [u32], &'a [f32])>,
) -> Result<Outcome, NotFinite> {
    let (mut sampler, mut rows) = (Cow::Borrowed(asked.sampler), rows.into_iter());
    let top = sampler.how().logprobs.unwrap_or(0);
    let prompt = scored(part, asked).iter().zip(rows.by_ref());
    let prompt = prompt.map(|(token, row)| sampler::score(row, *token, top)).collect::<Result<_, _>>()?;
    let (tokens, draft) = part.tokens.split_at(part.tokens.len() - part.drafted);
    let mut next: Vec<Choice> = Vec::new();
    // The token after each token of the draft counts only if sampling chose all of them.
    for place in part.start + tokens.len().. {
        let choice = match (likely.next(), rows.next()) {
            (Some((tokens, logits)), _) => sampler.sample_topk(tokens, logits, place)?,
            (None, Some(row)) => sampler.sample(row, place)?,
            (None, None) => break,
        };
        let is_right = draft.get(next.len()) == Some(&choice.token);
        if is_right {
            sampler.to_mut().accept(choice.token);
        }
        next.push(choice);
        if !is_right {
            break;
        }
    }
    Ok(Outcome { next, prompt })
}

/// Prompt tokens scored by a part's first rows of logits: row i predicts the token after it.
fn scored<'a>(part: &BatchPart, asked: &SampleInput<'a>) -> &'a [u32] {
    match part.logits {
        Wanted::All { .. } => {
            let following = asked.prompt.get(part.start + 1..).unwrap_or_default();
            &following[..following.len().min(part.tokens.len())]
        }
        Wanted::None | Wanted::Last => &[],
    }
}

/// Merges adjacent ranges.
fn runs(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for range in ranges.filter(|range| !range.is_empty()) {
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
    runs
}

/// Rows of logits that a part has.
fn outputs(part: &BatchPart) -> usize {
    match part.logits {
        Wanted::None => 0,
        Wanted::Last => 1 + part.drafted,
        Wanted::All { .. } => part.tokens.len(),
    }
}
