//! The engine of encoder-decoder models (T5, Whisper), on its own thread.
//!
//! There is a fixed number of slots. A task that gets a slot is encoded at once; then every task with a slot decodes in
//! each step. A task's output does not depend on the rest of the batch. Its [`LogitsPolicy`] chooses the tokens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tallow_core::{Backend, DType, Error, Memory, Span, Step, StepPlan, Tensor};
use tallow_models::blocks::cross_attention::{CrossSpan, looking};
use tallow_models::encoder::Input;
use tallow_models::seq2seq::Seq2Seq;

use crate::admission::{Reply, Ticket};
use crate::counts::StepCounts;
use crate::failure::Failure;
use crate::kv_cache::{KvPool, KvShape};
use crate::service::{self, Batch, BatchWorker, Handle, Lost, SharedOf, StepError, Worker, catch, run_batch};

/// Tokens per page of the KV caches.
pub const PAGE: usize = 16;

/// Encoder input.
#[derive(Debug, Clone)]
pub enum EncoderInput {
    /// Text tokens; at least one.
    Tokens(Vec<u32>),
    /// Log-mel frames of one full window, row-major: [2 * encoder positions, mel bands].
    Mel(Vec<f32>),
}

/// Chooses a task's tokens, on the engine's thread.
pub trait LogitsPolicy: Send {
    /// Next tokens, usually one, from the logits after the last. Empty: the task is done.
    fn next(&mut self, logits: &[f32]) -> Vec<u32>;
    /// Whether the client is gone.
    fn is_gone(&self) -> bool;
    /// The task has ended: the policy was done, or the decoder's context is full (both `Ok`), or it failed.
    fn end(self: Box<Self>, how: Result<(), Failure>);
}

/// An encoder-decoder request.
pub struct Task {
    /// Encoder input.
    pub input: EncoderInput,
    /// Decoder prompt, such as the decoder start token.
    pub prompt: Vec<u32>,
    /// Chooses the tokens.
    pub policy: Box<dyn LogitsPolicy>,
}

/// Limits of an encoder-decoder engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Maximum running tasks.
    pub slots: usize,
    /// Maximum encoder tokens per task.
    pub encoder_tokens: usize,
    /// Maximum decoder tokens per task.
    pub decoder_tokens: usize,
    /// Data type of K and V.
    pub dtype: DType,
    /// Maximum running and waiting tasks.
    pub queue: usize,
}

impl SlotLimits {
    fn shape(&self, tokens: usize) -> KvShape {
        let pages = self.slots * tokens.div_ceil(PAGE);
        KvShape { dtype: self.dtype, page_len: PAGE, pages, sequences: self.slots }
    }

    /// Shapes of the self-attention and the cross-attention KV cache.
    pub fn shapes(&self) -> [KvShape; 2] {
        [self.shape(self.decoder_tokens), self.shape(self.encoder_tokens)]
    }
}

/// Counters and gauges that the engine updates.
#[derive(Debug, Default)]
pub struct Seq2SeqStats {
    /// Running tasks.
    pub running: AtomicUsize,
    /// Generated tokens.
    pub new_tokens: AtomicU64,
}

impl Reply for Box<dyn LogitsPolicy> {
    type Done = ();

    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }

    fn end(self, how: Result<(), Failure>) {
        LogitsPolicy::end(self, how);
    }
}

/// An admitted task.
pub struct AdmittedTask {
    input: EncoderInput,
    prompt: Vec<u32>,
    ticket: Ticket<Box<dyn LogitsPolicy>>,
}

/// Handle of an encoder-decoder engine. Clones refer to the same engine.
pub type Seq2SeqHandle = Handle<AdmittedTask, SlotLimits, Seq2SeqStats>;

impl Seq2SeqHandle {
    /// Submits a task. Its policy's `end` is called exactly once, unless this returns an error.
    pub fn submit(&self, task: Task) -> Result<(), Failure> {
        let Task { input, prompt, policy } = task;
        let ticket = self.admit(self.info().queue, policy)?;
        self.send(AdmittedTask { input, prompt, ticket });
        Ok(())
    }
}

/// An encoder-decoder model on a device, with its KV caches.
#[derive(Debug)]
pub struct Seq2SeqRunner<B: Backend> {
    b: B,
    model: Seq2Seq<B>,
    limits: SlotLimits,
    /// Self-attention KV cache.
    self_kv: KvPool<B>,
    /// Cross-attention KV cache.
    cross_kv: KvPool<B>,
}

/// A decoder sequence in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecoderSequence {
    /// Slot.
    pub place: usize,
    /// Encoder tokens in the cross-attention KV cache.
    pub read: usize,
    /// Decoder tokens in the self-attention KV cache.
    pub fed: usize,
    /// Tokens to compute next.
    pub tokens: Vec<u32>,
}

impl<B: Backend> Seq2SeqRunner<B> {
    /// A runner with KV caches for all slots.
    pub fn new(b: B, model: Seq2Seq<B>, limits: SlotLimits) -> Result<Seq2SeqRunner<B>, Error> {
        let spec = model.decoder.spec();
        let [own, given] = limits.shapes();
        let (self_kv, cross_kv) = (KvPool::new(&b, spec, own)?, KvPool::new(&b, spec, given)?);
        Ok(Seq2SeqRunner { b, model, limits, self_kv, cross_kv })
    }

    fn pages(&self, place: usize, tokens: usize, most: usize) -> Vec<u32> {
        let each = most.div_ceil(PAGE);
        (0..tokens.div_ceil(PAGE)).map(|page| (place * each + page) as u32).collect()
    }

    /// Backend.
    pub fn device(&self) -> &B {
        &self.b
    }

    /// Encodes an input and stores its cross-attention K and V in a slot. Returns the encoder output: [tokens, dim].
    pub fn encode(&self, place: usize, material: &EncoderInput) -> Result<Tensor<B>, Error> {
        let (b, encoder) = (&self.b, &self.model.encoder);
        let there = match material {
            EncoderInput::Tokens(tokens) => {
                let input = Input { tokens: tokens.clone(), types: vec![0; tokens.len()] };
                encoder.upload(b, &[input])?
            }
            EncoderInput::Mel(frames) => encoder.upload_sounds(b, &[frames])?,
        };
        let x = encoder.forward(b, &there, |_, _| Ok(()))?;
        let rows = x.rows();
        let span = Span { rows, start: 0, pages: self.pages(place, rows, self.limits.encoder_tokens) };
        let step = Step { tokens: vec![0; rows], spans: vec![span], page_len: PAGE, ..Step::default() };
        self.model.decoder.project_kv(b, &x, &StepPlan::new(b, step)?, self.cross_kv.layers())?;
        Ok(x)
    }

    /// Logits after the last token of each sequence.
    pub fn step(&self, sequences: &[DecoderSequence]) -> Result<Vec<Vec<f32>>, Error> {
        let logits = self.logits(sequences, |sequence| sequence.tokens.len() - 1)?;
        let all: Vec<f32> = self.b.download(&logits)?;
        Ok(all.chunks(logits.cols().max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Logits after each token of a sequence, concatenated: [tokens, vocabulary].
    pub fn step_all(&self, sequence: &DecoderSequence) -> Result<Vec<f32>, Error> {
        self.b.download(&self.logits(std::slice::from_ref(sequence), |_| 0)?)
    }

    /// Runs a step; logits of each sequence's tokens from index `from` on: [outputs, vocabulary].
    fn logits(
        &self,
        sequences: &[DecoderSequence],
        from: impl Fn(&DecoderSequence) -> usize,
    ) -> Result<Tensor<B>, Error> {
        let b = &self.b;
        let mut step = Step { page_len: PAGE, ..Step::default() };
        for sequence in sequences {
            let (rows, end) = (sequence.tokens.len(), sequence.fed + sequence.tokens.len());
            let pages = self.pages(sequence.place, end, self.limits.decoder_tokens);
            step.spans.push(Span { rows, start: sequence.fed, pages });
            let first = step.tokens.len() as u32;
            step.outputs.extend(first + from(sequence) as u32..first + rows as u32);
            step.tokens.extend(&sequence.tokens);
        }
        let cross_span = |sequence: &DecoderSequence| {
            let pages = self.pages(sequence.place, sequence.read, self.limits.encoder_tokens);
            CrossSpan { rows: sequence.tokens.len(), read: sequence.read, pages }
        };
        let cross_spans: Vec<CrossSpan> = sequences.iter().map(cross_span).collect();
        let cross = StepPlan::new(b, looking(&cross_spans, PAGE))?;
        let plan = StepPlan::new(b, step)?;
        self.model.write(b, &plan, self.self_kv.layers(), (&cross, self.cross_kv.layers()))
    }
}

/// Starts an encoder-decoder engine on its own thread. `runner` is called there because a device belongs to one thread.
/// Returns once the runner is made or has failed.
pub fn spawn<B: Backend + 'static, E: From<std::io::Error> + Send + 'static>(
    limits: SlotLimits,
    runner: impl FnOnce() -> Result<Seq2SeqRunner<B>, E> + Send + 'static,
) -> Result<Seq2SeqHandle, E> {
    service::spawn(
        "tallow-seq2seq",
        || Ok(limits),
        runner,
        move |runner, shared| Engine {
            waiting: VecDeque::new(),
            running: (0..limits.slots).map(|_| None).collect(),
            runner,
            shared,
        },
    )
}

/// A task with a slot.
struct Running {
    sequence: DecoderSequence,
    ticket: Ticket<Box<dyn LogitsPolicy>>,
}

/// A runner and its tasks.
struct Engine<B: Backend> {
    // Dropped in this order: the tasks fail, and then the device is freed.
    waiting: VecDeque<AdmittedTask>,
    /// The task of each slot.
    running: Vec<Option<Running>>,
    runner: Seq2SeqRunner<B>,
    shared: SharedOf<Engine<B>>,
}

impl<B: Backend> Worker for Engine<B> {
    type Command = AdmittedTask;
    type Info = SlotLimits;
    type Stats = Seq2SeqStats;

    fn take(&mut self, task: AdmittedTask) {
        self.waiting.push_back(task);
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.iter().all(Option::is_none)
    }

    fn step(&mut self) -> Result<(), Lost> {
        self.waiting.retain(|task| !task.ticket.is_gone());
        self.running.iter_mut().for_each(|slot| drop(slot.take_if(|task| task.ticket.is_gone())));
        // Encodes one task per step, so that decoding tasks wait no longer than that takes.
        self.encode_next()?;
        let sequences: Vec<DecoderSequence> =
            self.running.iter().flatten().map(|task| task.sequence.clone()).collect();
        if !sequences.is_empty() {
            self.publish_running();
            run_batch(self, sequences)?;
        }
        self.publish_running();
        Ok(())
    }
}

impl Batch for Vec<DecoderSequence> {
    const ITEMS: &'static str = "tasks";

    fn items(&self) -> usize {
        self.len()
    }

    fn tokens(&self) -> usize {
        self.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    fn split(self) -> Vec<Vec<DecoderSequence>> {
        self.into_iter().map(|sequence| vec![sequence]).collect()
    }
}

impl<B: Backend> BatchWorker for Engine<B> {
    type Batch = Vec<DecoderSequence>;
    /// Logits after the last token.
    type Output = Vec<f32>;

    fn steps(&self) -> &StepCounts {
        &self.shared.steps
    }

    fn compute(&self, batch: &Vec<DecoderSequence>) -> Result<Vec<Vec<f32>>, StepError> {
        Ok(self.runner.step(batch)?)
    }

    fn commit(&mut self, batch: Vec<DecoderSequence>, outputs: Vec<Vec<f32>>) {
        self.shared.stats.new_tokens.fetch_add(outputs.len() as u64, Ordering::Relaxed);
        for (sequence, logits) in batch.iter().zip(outputs) {
            self.advance(sequence.place, &logits);
        }
    }

    fn fail(&mut self, batch: Vec<DecoderSequence>, why: &str) {
        for sequence in batch {
            if let Some(mut task) = self.running[sequence.place].take() {
                task.ticket.fail(why.into());
            }
        }
    }
}

impl<B: Backend> Engine<B> {
    fn publish_running(&self) {
        let running = self.running.iter().flatten().count();
        self.shared.stats.running.store(running, Ordering::Relaxed);
    }

    /// Encodes the task that has waited longest, if a slot is free.
    fn encode_next(&mut self) -> Result<(), Lost> {
        let Some(place) = self.running.iter().position(Option::is_none) else { return Ok(()) };
        let Some(AdmittedTask { input, prompt, mut ticket }) = self.waiting.pop_front() else {
            return Ok(());
        };
        let limits = self.shared.info;
        let read = match &input {
            EncoderInput::Tokens(tokens) => tokens.len(),
            EncoderInput::Mel(_) => limits.encoder_tokens,
        };
        let fits = |tokens: usize, most: usize| (1..=most).contains(&tokens);
        if !fits(read, limits.encoder_tokens) || !fits(prompt.len(), limits.decoder_tokens) {
            let begun = prompt.len();
            ticket.fail(format!("{read} tokens to take in and {begun} to begin with do not fit"));
            return Ok(());
        }
        let encoded = catch(|| self.runner.encode(place, &input)).map_err(StepError::Failed);
        match encoded.and_then(|x| Ok(x?)) {
            Ok(x) => {
                let sequence = DecoderSequence { place, read: x.rows(), fed: 0, tokens: prompt };
                self.running[place] = Some(Running { sequence, ticket });
            }
            Err(StepError::Lost(lost)) => {
                // It fails with all others, once the engine has ended.
                self.waiting.push_front(AdmittedTask { input, prompt, ticket });
                return Err(lost);
            }
            Err(StepError::Failed(why)) => ticket.fail(why),
        }
        Ok(())
    }

    /// Handles a step's logits for one slot.
    fn advance(&mut self, place: usize, logits: &[f32]) {
        let Some(mut task) = self.running[place].take() else { return };
        if logits.iter().any(|x| x.is_nan()) {
            task.ticket.fail("the model produced NaN or infinite values; its weights may be damaged".into());
            return;
        }
        let next = |policy: &mut Box<dyn LogitsPolicy>| policy.next(logits);
        match catch(|| task.ticket.reply().map(next).unwrap_or_default()) {
            Err(why) => task.ticket.fail(why),
            Ok(next) => {
                let sequence = &mut task.sequence;
                sequence.fed += sequence.tokens.len();
                let room = self.shared.info.decoder_tokens.saturating_sub(sequence.fed);
                if next.is_empty() || next.len() > room {
                    task.ticket.end(Ok(()));
                } else {
                    sequence.tokens = next;
                    self.running[place] = Some(task);
                }
            }
        }
    }
}
