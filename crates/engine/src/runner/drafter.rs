//! [`Drafter`]: what guesses tokens: a draft model, or the model's own MTP layer. Both have K and V of their own in the pages of
//! the model's.

use std::cell::RefCell;
use std::collections::HashMap;

use tallow_core::ops::{IndexMode, IndexRows, TopK};
use tallow_core::{Backend, Error, StepPlan, Tensor};
use tallow_models::decoder::Decoder;
use tallow_models::mtp::{Hidden, Mtp};
use tallow_models::spec::DecoderSpec;

use crate::kv_cache::{KvPool, KvShape};
use crate::plan;
use crate::scheduler::{Batch, BatchPart, Guess, SeqId};

/// See the [module](self).
#[derive(Debug)]
pub(super) enum Drafter<B: Backend> {
    Model(Box<DraftModel<B>>),
    Mtp(MtpDrafter<B>),
}

/// A smaller model that guesses tokens.
#[derive(Debug)]
pub(super) struct DraftModel<B: Backend> {
    decoder: Decoder<B>,
    pub(super) context: usize,
    kv: KvPool<B>,
}

/// The model's MTP layer, and the hidden states that it has not read yet.
#[derive(Debug)]
pub(super) struct MtpDrafter<B: Backend> {
    kv: KvPool<B>,
    hidden: RefCell<Option<HiddenRows<B>>>,
}

/// Hidden states of some tokens.
#[derive(Debug)]
struct HiddenRows<B: Backend> {
    x: Hidden<B>,
    of: HashMap<SeqId, Rows>,
}

/// Rows of a sequence, in the order of its positions.
#[derive(Clone, Copy, Debug)]
struct Rows {
    /// The first row, and the position that it is of.
    first: usize,
    position: usize,
    count: usize,
}

impl<B: Backend> DraftModel<B> {
    pub(super) fn new(
        b: &B,
        decoder: Decoder<B>,
        context: usize,
        shape: KvShape,
    ) -> Result<DraftModel<B>, Error> {
        let kv = KvPool::new(b, decoder.spec(), shape.of_draft_model())?;
        Ok(DraftModel { decoder, context, kv })
    }

    /// A step; `vocab` is the size of the vocabulary of the model that it drafts for.
    pub(super) fn guess(
        &self,
        b: &B,
        batch: &Batch,
        vocab: usize,
        page_len: usize,
    ) -> Result<Vec<Guess>, Error> {
        let mut step = plan::build(batch, page_len);
        // Vocabularies may be padded to different sizes. Any token does in place of one that it has not.
        let last = self.decoder.spec().vocab.saturating_sub(1) as u32;
        step.tokens.iter_mut().for_each(|token| *token = last.min(*token));
        let plan = StepPlan::new(b, step)?;
        let x = self.decoder.forward(b, &plan, self.kv.layers(), |_, _| Ok(()))?;
        likeliest(b, &batch.parts, vocab, || self.decoder.logits(b, &plan, &x))
    }
}

impl<B: Backend> MtpDrafter<B> {
    pub(super) fn new(
        b: &B,
        mtp: &Mtp<B>,
        spec: &DecoderSpec,
        shape: KvShape,
    ) -> Result<MtpDrafter<B>, Error> {
        let spec = DecoderSpec { layers: vec![mtp.spec().clone()], ..spec.clone() };
        Ok(MtpDrafter { kv: KvPool::new(b, &spec, shape.of_draft_model())?, hidden: RefCell::default() })
    }

    /// Keeps the hidden states of a step's tokens until the next step of the model or the layer.
    pub(super) fn keep(&self, batch: &Batch, x: &Tensor<B>) {
        let mut first = 0;
        let rows = |part: &BatchPart| {
            let count = part.tokens.len();
            let rows = Rows { first, position: part.start, count };
            first += count;
            (part.id, rows)
        };
        let of = batch.parts.iter().map(rows).collect();
        *self.hidden.borrow_mut() = Some(HiddenRows { x: Hidden::OfModel(x.clone()), of });
    }

    /// A step for the positions of the parts, whose tokens are those that follow. It reads the hidden states of the model's last
    /// step, or, for a further guess, those of its own last step.
    pub(super) fn guess(
        &self,
        b: &B,
        decoder: &Decoder<B>,
        batch: &Batch,
        page_len: usize,
    ) -> Result<Vec<Guess>, Error> {
        let hidden = self.hidden.borrow_mut().take();
        let Some((HiddenRows { x, of }, cache)) = hidden.zip(self.kv.layers().first()) else {
            return Ok(vec![Guess::Lost; batch.parts.len()]);
        };
        let rows = |part: &BatchPart| of.get(&part.id)?.of(part.start, part.tokens.len());
        let found: Vec<_> = batch.parts.iter().map(rows).collect();
        let there = batch.parts.iter().zip(&found).filter(|(_, rows)| rows.is_some());
        let there = Batch { parts: there.map(|(part, _)| part.clone()).collect() };
        let indices: Vec<u32> = found.iter().flatten().flat_map(|rows| rows.clone()).collect();
        if indices.is_empty() {
            return Ok(vec![Guess::Lost; batch.parts.len()]);
        }
        let indices = b.upload_row(&indices)?;
        let gather = |x: &Tensor<B>| b.run(IndexRows { x, indices: &indices, mode: IndexMode::Gather });
        let hidden = match &x {
            Hidden::OfModel(x) => Hidden::OfModel(gather(x)?),
            Hidden::OfMtp(x) => Hidden::OfMtp(gather(x)?),
        };
        let plan = StepPlan::new(b, plan::build(&there, page_len))?;
        let x = decoder.mtp_forward(b, &plan, &hidden, cache)?; // [tokens, dim]
        let vocab = decoder.spec().vocab;
        let mut guesses = likeliest(b, &there.parts, vocab, || decoder.mtp_logits(b, &plan, &x))?.into_iter();
        let guesses = found.iter().map(|rows| match rows {
            Some(_) => guesses.next().unwrap_or(Guess::Lost),
            None => Guess::Lost,
        });
        let guesses = guesses.collect();
        self.keep_own(&there, x);
        Ok(guesses)
    }

    /// Keeps the layer's own hidden states: the last of each part stands for that of the position after it.
    fn keep_own(&self, batch: &Batch, x: Tensor<B>) {
        let mut end = 0;
        let last = |part: &BatchPart| {
            end += part.tokens.len();
            (part.id, Rows { first: end - 1, position: part.start + part.tokens.len(), count: 1 })
        };
        let of = batch.parts.iter().map(last).collect();
        *self.hidden.borrow_mut() = Some(HiddenRows { x: Hidden::OfMtp(x), of });
    }
}

impl Rows {
    /// The rows of `count` positions from `start` on, if they are among these.
    fn of(&self, start: usize, count: usize) -> Option<std::ops::Range<u32>> {
        let skipped = start.checked_sub(self.position)?;
        let first = self.first + skipped;
        (skipped + count <= self.count).then_some(first as u32..(first + count) as u32)
    }
}

/// The most likely token of each part that samples; none is computed if no part does.
fn likeliest<B: Backend>(
    b: &B,
    parts: &[BatchPart],
    vocab: usize,
    logits: impl FnOnce() -> Result<Tensor<B>, Error>,
) -> Result<Vec<Guess>, Error> {
    let samples = |part: &BatchPart| part.logits.samples();
    if !parts.iter().any(samples) {
        return Ok(vec![Guess::Computed; parts.len()]);
    }
    let logits = logits()?; // [parts that sample, vocabulary]
    let mut ids = b.download::<u32>(&b.run(TopK { x: &logits, k: 1 })?.ids)?.into_iter();
    let guess = |part| match samples(part) {
        // What is not in the vocabulary cannot be drafted.
        true => ids.next().filter(|id| (*id as usize) < vocab).map_or(Guess::Computed, Guess::Token),
        false => Guess::Computed,
    };
    Ok(parts.iter().map(guess).collect())
}
