//! [`Runner`]: runs a batch on a device and samples the tokens.

mod drafter;
mod logits;
mod replays;

pub use replays::MOST_REPLAYED_ROWS;

use std::borrow::Cow;
use std::ops::Range;
use std::vec;

use drafter::{DraftModel, Drafter, MtpDrafter};
use logits::{FetchedLogits, LogitsPlan, SampledRow};
use replays::Replays;
use tallow_core::ops::Copy;
use tallow_core::{Backend, Error, PageTable, Span, StateRows, Step, StepPlan, Tensor};
use tallow_models::adapter::AdapterFile;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::{Encoder, Input};
use tallow_models::seq2seq::Seq2Seq;

use crate::block_pool::{BlockId, StateRow};
use crate::encoder_input::EncoderInput;
use crate::failure::Unfit;
use crate::kv_cache::{KvPool, KvShape};
use crate::lora::{Adapters, LoraError, LoraId};
use crate::plan;
use crate::sampler::{self, Choice, SampleError, Sampler};
use crate::scheduler::{Batch, BatchPart, Guess};

/// A model on a device, with its KV cache.
#[derive(Debug)]
pub struct Runner<B: Backend> {
    b: B,
    encoder: Option<Encoder<B>>,
    decoder: Decoder<B>,
    kv: KvPool<B>,
    /// `None` if the device captures nothing.
    replays: Option<Replays<B>>,
    drafter: Option<Drafter<B>>,
    page_len: usize,
    /// Pages of the sliding-window layers, if these have their own.
    swa_pages: usize,
    adapters: Adapters<B>,
}

/// Sampling input of a part.
#[derive(Clone, Copy, Debug)]
pub struct SampleInput<'a> {
    /// Samples the next token.
    pub sampler: &'a Sampler,
    /// Prompt tokens, for parts whose prompt is scored.
    pub prompt: &'a [u32],
    /// Encoder input, for parts whose input is encoded.
    pub input: Option<&'a EncoderInput>,
}

/// A step that was launched: what the host needs to finish it.
#[derive(Debug)]
pub struct Launched<B: Backend> {
    plan: LogitsPlan,
    /// [outputs, vocabulary]: a row is read by itself where what was fetched does not suffice. `None` where it always does.
    logits: Option<Tensor<B>>,
    fetched: FetchedLogits<B>,
    runs: bool,
}

impl<B: Backend> Launched<B> {
    /// True if the device computes it while the host goes on; otherwise it has been computed.
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// True if each part's token is sampled on the device, so that a step that computes these tokens can be launched before
    /// they are read.
    pub fn samples(&self) -> bool {
        self.plan.is_greedy()
    }
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
        let replays = Replays::new(&b, decoder.spec(), shape)?;
        let allocated = if replays.is_some() { shape.with_scratch() } else { shape };
        let kv = KvPool::new(&b, decoder.spec(), allocated)?;
        let KvShape { page_len, swa_pages, .. } = shape;
        let adapters = Adapters::default();
        Ok(Runner { b, encoder: None, decoder, kv, replays, drafter: None, page_len, swa_pages, adapters })
    }

    /// The same runner with a draft model that has the same vocabulary and was loaded for `context` tokens. Its K and V are
    /// in the same pages: `shape` is the model's.
    pub fn with_draft_model(
        self,
        decoder: Decoder<B>,
        context: usize,
        shape: KvShape,
    ) -> Result<Runner<B>, Error> {
        let model = DraftModel::new(&self.b, decoder, context, shape)?;
        Ok(Runner { drafter: Some(Drafter::Model(Box::new(model))), ..self })
    }

    /// The same runner, which drafts with the model's MTP layer, if that was loaded. Its K and V are in the same pages: `shape`
    /// is the model's.
    pub fn with_mtp(self, shape: KvShape) -> Result<Runner<B>, Error> {
        let Some(mtp) = self.decoder.mtp() else { return Ok(self) };
        let drafter = MtpDrafter::new(&self.b, mtp, self.decoder.spec(), shape)?;
        Ok(Runner { drafter: Some(Drafter::Mtp(drafter)), ..self })
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

    /// Maximum tokens of a sequence that the draft model or the MTP layer supports, if there is one.
    pub fn draft_context(&self) -> Option<usize> {
        self.drafter.as_ref().map(|drafter| match drafter {
            Drafter::Model(model) => model.context,
            Drafter::Mtp(_) => self.decoder.spec().context,
        })
    }

    /// True if it drafts with the model's MTP layer.
    pub fn has_mtp(&self) -> bool {
        matches!(self.drafter, Some(Drafter::Mtp(_)))
    }

    /// Rows of the recurrent state of a sequence in its step number `step`, where no scheduler assigns them; `None` if
    /// the model has no such state.
    pub fn states_of(&self, sequence: usize, step: usize) -> Option<StateRows> {
        let row = |step: usize| (2 * sequence + step % 2) as u32;
        self.decoder.spec().is_recurrent().then(|| StateRows { from: row(step), to: row(step + 1) })
    }

    /// Pages of a sequence in the sliding-window layers, where no scheduler assigns them: each in the place of one that no
    /// window reaches any more. `None` if these layers have no pages of their own.
    pub fn swa_blocks_of(&self, pages: usize) -> Option<PageTable> {
        let pages = || (0..pages).map(|page| (page % self.swa_pages) as u32).collect();
        (self.swa_pages > 0).then(pages)
    }

    /// True if the model has an encoder.
    pub(crate) fn has_encoder(&self) -> bool {
        self.encoder.is_some()
    }

    /// Bytes of a page of the KV cache.
    pub(crate) fn page_bytes(&self) -> usize {
        self.kv.page_bytes()
    }

    /// Bytes of each part of a recurrent state, in order; none in a model without.
    pub(crate) fn state_parts(&self) -> Vec<usize> {
        self.kv.state_parts()
    }

    /// Types and sizes of the parts of a page and of a recurrent state, in words.
    pub(crate) fn cache_layout(&self) -> String {
        self.kv.layout()
    }

    /// Copies a page of the KV cache to the host.
    pub(crate) fn read_page(&self, block: BlockId, to: &mut [u8]) -> Result<(), Error> {
        self.kv.read_page(&self.b, block.0 as usize, to)
    }

    /// Copies a page of the KV cache from the host. No sequence may be using the page.
    pub(crate) fn write_page(&self, block: BlockId, from: &[u8]) -> Result<(), Error> {
        self.kv.write_page(&self.b, block.0 as usize, from)
    }

    /// Copies some parts of a recurrent state to the host.
    pub(crate) fn read_state(&self, row: StateRow, parts: Range<usize>, to: &mut [u8]) -> Result<(), Error> {
        self.kv.read_state(&self.b, row.0 as usize, parts, to)
    }

    /// Copies some parts of a recurrent state from the host. No sequence may be using the state.
    pub(crate) fn write_state(&self, row: StateRow, parts: Range<usize>, from: &[u8]) -> Result<(), Error> {
        self.kv.write_state(&self.b, row.0 as usize, parts, from)
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
    pub fn encode(&self, input: &EncoderInput, pages: &PageTable) -> Result<Tensor<B>, Error> {
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
        let span = Span { rows, start: 0, pages: pages.clone() };
        let step = Step { tokens: vec![0; rows], spans: vec![span], page_len, ..Step::default() };
        self.decoder.project_kv(b, &x, &StepPlan::new(b, step)?, self.kv.layers())?;
        Ok(x)
    }

    /// Logits of every token of a batch that needs them, in order: [outputs, vocabulary].
    pub fn logits(&self, batch: &Batch) -> Result<Tensor<B>, Error> {
        self.logits_after(None, batch)
    }

    /// The same for a batch whose tokens the step `before` may sample: [1, its parts].
    fn logits_after(&self, before: Option<&Tensor<B>>, batch: &Batch) -> Result<Tensor<B>, Error> {
        let (b, decoder) = (&self.b, &self.decoder);
        let feed = |plan: &StepPlan<B>| feed(b, before, batch, plan);
        let forward = |plan: &StepPlan<B>| decoder.forward(b, plan, self.kv.layers(), |_, _| Ok(()));
        let head = |plan: &StepPlan<B>, x: &Tensor<B>| {
            self.keep_hidden(batch, x);
            decoder.logits(b, plan, x)
        };
        // A replay launches no op that a trace could show.
        let replays = self.replays.as_ref().filter(|_| !b.trace().is_on());
        match replays.map(|replays| replays.run(b, batch, feed, forward, head)).transpose()?.flatten() {
            Some(logits) => Ok(logits),
            None => self.logits_by_op(batch, feed, |_, _| Ok(())),
        }
    }

    /// Like [`logits`](Self::logits), launching each op; calls `see` with the embeddings and each layer's output.
    ///
    /// Can be rerun if it or what follows it fails: pages get the same K and V again, and recurrent states are read from one
    /// row and written to another.
    pub fn logits_seen(
        &self,
        batch: &Batch,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        self.logits_by_op(batch, |plan| feed(&self.b, None, batch, plan), see)
    }

    /// Logits of a batch, launching each op; `feed` fills in the tokens that the host does not know.
    fn logits_by_op(
        &self,
        batch: &Batch,
        feed: impl Fn(&StepPlan<B>) -> Result<(), Error>,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        let step = plan::build(batch, self.page_len);
        let loras = self.adapters.of(batch.parts.iter().map(|part| (part.tokens.len(), part.lora)))?;
        let plan = StepPlan::new(&self.b, step)?.adapted(loras)?;
        feed(&plan)?;
        let cross = plan::build_cross(batch, self.page_len);
        let cross = cross.map(|step| StepPlan::new(&self.b, step)).transpose()?;
        let given = cross.as_ref().map(|plan| (plan, self.kv.layers()));
        let x = self.decoder.forward_with_encoder(&self.b, &plan, self.kv.layers(), given, see)?;
        self.keep_hidden(batch, &x);
        self.decoder.logits(&self.b, &plan, &x) // [outputs, vocabulary]
    }

    /// Keeps a step's hidden states for the MTP layer.
    fn keep_hidden(&self, batch: &Batch, x: &Tensor<B>) {
        if let Some(Drafter::Mtp(mtp)) = &self.drafter {
            mtp.keep(batch, x);
        }
    }

    /// A step of the draft model or the MTP layer: for each part that samples, the most likely next token.
    pub fn guess(&self, batch: &Batch) -> Result<Vec<Guess>, Error> {
        match &self.drafter {
            None => Ok(vec![Guess::Lost; batch.parts.len()]),
            Some(Drafter::Model(model)) => {
                model.guess(&self.b, batch, self.decoder.spec().vocab, self.page_len)
            }
            Some(Drafter::Mtp(mtp)) => mtp.guess(&self.b, &self.decoder, batch, self.page_len),
        }
    }

    /// Runs a batch: [`launch`](Self::launch) and [`finish`](Self::finish). `asked` has one entry per part.
    pub fn run(
        &self,
        batch: &Batch,
        asked: &[SampleInput<'_>],
    ) -> Result<Vec<Result<Outcome, SampleError>>, Error> {
        let launched = self.launch(batch, asked)?;
        self.finish(launched, batch, &asked.iter().copied().map(Some).collect::<Vec<_>>())
    }

    /// Launches a batch and asks for what is needed of its logits, without waiting for the device; `asked` has one entry
    /// per part. The inputs of parts that say so are encoded first.
    pub fn launch(&self, batch: &Batch, asked: &[SampleInput<'_>]) -> Result<Launched<B>, Error> {
        self.launch_after(None, batch, asked)
    }

    /// The same for a batch whose tokens the step `before` may [sample](Launched::samples).
    pub fn launch_after(
        &self,
        before: Option<&Launched<B>>,
        batch: &Batch,
        asked: &[SampleInput<'_>],
    ) -> Result<Launched<B>, Error> {
        for (part, asked) in batch.parts.iter().zip(asked) {
            let cross = part.cross.as_ref().filter(|cross| cross.encode);
            if let Some((cross, input)) = cross.zip(asked.input) {
                self.encode(input, &cross.blocks)?;
            }
        }
        let plan = LogitsPlan::new(batch, asked, self.decoder.spec().vocab);
        let uploaded = plan.upload(&self.b)?;
        let before = before.and_then(|before| before.fetched.greedy(&before.plan));
        let logits = self.logits_after(before.as_ref(), batch)?;
        let fetched = plan.launch(&self.b, &logits, &uploaded)?.fetch(&self.b)?;
        let logits = Some(logits).filter(|_| !plan.is_greedy());
        Ok(Launched { plan, logits, fetched, runs: self.b.begin()? })
    }

    /// Waits for a batch that was launched, and samples. `asked` has one entry per part: as at the launch, or `None` where
    /// nobody wants the outcome any more, which is then empty. Non-finite logits fail only their own part.
    pub fn finish(
        &self,
        launched: Launched<B>,
        batch: &Batch,
        asked: &[Option<SampleInput<'_>>],
    ) -> Result<Vec<Result<Outcome, SampleError>>, Error> {
        let Launched { plan, logits, fetched, .. } = launched;
        let mut read = fetched.wait(&self.b)?;
        let mut whole = std::mem::take(&mut read.whole);
        let mut whole = whole.chunks_exact_mut(self.decoder.spec().vocab.max(1));
        // Who takes the likeliest token reads no row.
        let none = || Ok(Vec::new());
        let fetch = |row| logits.as_ref().map_or_else(none, |x| self.b.download(&x.row_range(row..row + 1)));
        let parts = batch.parts.iter().zip(asked).zip(&plan.parts);
        let outcomes = parts.map(|((part, asked), of)| {
            let whole: Vec<&mut [f32]> = whole.by_ref().take(of.whole_rows()).collect();
            let Some(asked) = asked else { return Ok(Ok(Outcome::default())) };
            let sampled: Vec<SampledRow<'_>> = plan.sampled(&read, of).collect();
            let rows = PartRows { whole: whole.into_iter(), sampled: sampled.into_iter(), fetch: &fetch };
            outcome(part, asked, rows)
        });
        outcomes.collect()
    }
}

/// Copies the tokens that the step before has sampled, [1, its parts], to the plan of the step that computes them.
fn feed<B: Backend>(
    b: &B,
    before: Option<&Tensor<B>>,
    batch: &Batch,
    plan: &StepPlan<B>,
) -> Result<(), Error> {
    let mut end = 0;
    for parts in batch.parts.chunk_by(|a, b| a.follows.zip(b.follows).is_some_and(|(a, b)| a + 1 == b)) {
        let start = end;
        end += parts.iter().map(|part| part.tokens.len()).sum::<usize>();
        let Some(first) = parts[0].follows else { continue };
        let Some(before) = before.filter(|before| first + end - start <= before.cols()) else {
            let (want, got) = ("sampled by the step before".into(), "not sampled there".into());
            return Err(Error::Shape { op: "step", what: "a token", want, got });
        };
        let from = before.col_range(first..first + end - start);
        b.run(Copy { from: &from, to: &plan.tokens.col_range(start..end) })?;
    }
    Ok(())
}

/// Logits of a part.
struct PartRows<'a> {
    /// Full rows, in order: those that are scored, and those to sample from if all of them are needed.
    whole: vec::IntoIter<&'a mut [f32]>,
    /// Candidates of the other rows to sample from.
    sampled: vec::IntoIter<SampledRow<'a>>,
    /// Reads a row in full.
    fetch: &'a dyn Fn(usize) -> Result<Vec<f32>, Error>,
}

impl PartRows<'_> {
    /// Samples from the next row; `None` after the last one.
    fn sample(
        &mut self,
        sampler: &Sampler,
        place: usize,
    ) -> Result<Option<Result<Choice, SampleError>>, Error> {
        let (row, choice) = match self.sampled.next() {
            Some(SampledRow::TopK(row, tokens, logits)) => (row, sampler.sample_topk(tokens, logits, place)),
            Some(SampledRow::Candidates(row, candidates)) => {
                (row, sampler.sample_candidates(&candidates, place))
            }
            None => return Ok(self.whole.next().map(|row| sampler.sample(row, place))),
        };
        Ok(Some(match choice.transpose() {
            Some(choice) => choice,
            None => sampler.sample(&mut (self.fetch)(row)?, place),
        }))
    }
}

/// Outcome of a part; the error within is that of its logits.
fn outcome(
    part: &BatchPart,
    asked: &SampleInput<'_>,
    mut rows: PartRows<'_>,
) -> Result<Result<Outcome, SampleError>, Error> {
    let mut sampler = Cow::Borrowed(asked.sampler);
    let top = sampler.how().logprobs.unwrap_or(0);
    let prompt = logits::scored(part, asked).iter().zip(rows.whole.by_ref());
    let prompt = prompt.map(|(token, row)| sampler::score(row, *token, top)).collect::<Result<_, _>>();
    let prompt = match prompt {
        Ok(prompt) => prompt,
        Err(bad) => return Ok(Err(bad)),
    };
    let (tokens, draft) = logits::draft(part);
    let mut next: Vec<Choice> = Vec::new();
    // The token after each token of the draft counts only if sampling chose all of them.
    for place in part.start + tokens.len().. {
        let choice = match rows.sample(&sampler, place)? {
            Some(Ok(choice)) => choice,
            Some(Err(bad)) => return Ok(Err(bad)),
            None => break,
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
    Ok(Ok(Outcome { next, prompt }))
}
