//! The serving loop of encoder-decoder models (T5, Whisper), on its own thread.
//!
//! There is a fixed number of slots. A task that gets a slot is encoded at once; then every task with a slot decodes in
//! each step. A task's output does not depend on the rest of the batch. Its [`LogitsPolicy`] chooses the tokens.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tallow_core::{Backend, DType, Error, Memory, Span, Step, StepPlan, Tensor};
use tallow_models::blocks::cross_attention::{CrossSpan, looking};
use tallow_models::encoder::Input;
use tallow_models::seq2seq::Seq2Seq;

use crate::admission::Admission;
use crate::handle::Failure;
use crate::kv_cache::{KvPool, KvShape};

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

/// Chooses a task's tokens. Called on the engine's thread.
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
    /// Steps run.
    pub steps: AtomicU64,
    /// Failed steps. A failed step of several tasks is rerun one task at a time.
    pub failed_steps: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    limits: SlotLimits,
    stats: Seq2SeqStats,
    admission: Admission,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An admitted task. Releases its admission when it ends; dropping it unfinished ends it with a failure.
struct Ticket {
    policy: Option<Box<dyn LogitsPolicy>>,
    shared: Arc<Shared>,
}

impl Ticket {
    fn end(&mut self, how: Result<(), Failure>) {
        if let Some(pen) = self.policy.take() {
            // Release admission first, so that a client that retries on the end is admitted.
            self.shared.admission.release();
            pen.end(how);
        }
    }

    fn is_gone(&self) -> bool {
        self.policy.as_ref().is_none_or(|pen| pen.is_gone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(Err(self.shared.admission.shutdown_reason()));
    }
}

enum Command {
    Take(EncoderInput, Vec<u32>, Ticket),
    Drain(Duration),
}

/// Handle of an encoder-decoder engine. Clones refer to the same engine.
#[derive(Clone, Debug)]
pub struct Seq2SeqHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl Seq2SeqHandle {
    /// Limits.
    pub fn limits(&self) -> SlotLimits {
        self.shared.limits
    }

    /// Counters and gauges.
    pub fn stats(&self) -> &Seq2SeqStats {
        &self.shared.stats
    }

    /// Running and waiting tasks.
    pub fn taken(&self) -> usize {
        self.shared.admission.admitted()
    }

    /// Whether tasks are accepted; if not, why.
    pub fn ready(&self) -> Result<(), Failure> {
        self.shared.admission.ready()
    }

    /// Whether the engine is running.
    pub fn is_alive(&self) -> bool {
        self.shared.admission.is_alive()
    }

    /// Submits a task. Its policy's `end` is called exactly once, unless this returns an error.
    pub fn submit(&self, task: Task) -> Result<(), Failure> {
        let shared = &self.shared;
        shared.admission.admit(shared.limits.queue)?;
        let held = Ticket { policy: Some(task.policy), shared: shared.clone() };
        let taken = Command::Take(task.input, task.prompt, held);
        self.commands.send(taken).map_err(|_| shared.admission.shutdown_reason())
    }

    /// Drains: the engine finishes its tasks within a time limit and ends. Returns immediately.
    pub fn drain(&self, within: Duration) {
        self.shared.admission.drain();
        // The engine may have ended already.
        let _ = self.commands.send(Command::Drain(within));
    }

    /// Ends the engine and waits until its device is freed.
    pub fn close(&self) {
        self.drain(Duration::ZERO);
        let thread = self.shared.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// An encoder-decoder model on a device, with its KV caches.
#[derive(Debug)]
pub struct Seq2SeqRunner<B: Backend> {
    b: B,
    model: Seq2Seq<B>,
    desk: SlotLimits,
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
    pub fn new(b: B, model: Seq2Seq<B>, desk: SlotLimits) -> Result<Seq2SeqRunner<B>, Error> {
        let spec = model.decoder.spec();
        let [own, given] = desk.shapes();
        let (self_kv, cross_kv) = (KvPool::new(&b, spec, own)?, KvPool::new(&b, spec, given)?);
        Ok(Seq2SeqRunner { b, model, desk, self_kv, cross_kv })
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
        let span = Span { rows, start: 0, pages: self.pages(place, rows, self.desk.encoder_tokens) };
        let step = Step { tokens: vec![0; rows], spans: vec![span], page_len: PAGE, ..Step::default() };
        self.model.decoder.project_kv(b, &x, &StepPlan::new(b, step)?, self.cross_kv.layers())?;
        Ok(x)
    }

    /// Logits after the last token of each sequence.
    pub fn step(&self, lines: &[DecoderSequence]) -> Result<Vec<Vec<f32>>, Error> {
        let logits = self.logits(lines, |line| line.tokens.len() - 1)?;
        let all: Vec<f32> = self.b.download(&logits)?;
        Ok(all.chunks(logits.cols().max(1)).map(<[f32]>::to_vec).collect())
    }

    /// Logits after each token of a sequence, concatenated: [tokens, vocabulary].
    pub fn step_all(&self, line: &DecoderSequence) -> Result<Vec<f32>, Error> {
        self.b.download(&self.logits(std::slice::from_ref(line), |_| 0)?)
    }

    /// Runs a step; logits of each sequence's tokens from index `from` on: [outputs, vocabulary].
    fn logits(
        &self,
        lines: &[DecoderSequence],
        from: impl Fn(&DecoderSequence) -> usize,
    ) -> Result<Tensor<B>, Error> {
        let b = &self.b;
        let mut step = Step { page_len: PAGE, ..Step::default() };
        for line in lines {
            let (rows, end) = (line.tokens.len(), line.fed + line.tokens.len());
            let pages = self.pages(line.place, end, self.desk.decoder_tokens);
            step.spans.push(Span { rows, start: line.fed, pages });
            let first = step.tokens.len() as u32;
            step.outputs.extend(first + from(line) as u32..first + rows as u32);
            step.tokens.extend(&line.tokens);
        }
        let look = |line: &DecoderSequence| {
            let pages = self.pages(line.place, line.read, self.desk.encoder_tokens);
            CrossSpan { rows: line.tokens.len(), read: line.read, pages }
        };
        let look = StepPlan::new(b, looking(&lines.iter().map(look).collect::<Vec<_>>(), PAGE))?;
        let plan = StepPlan::new(b, step)?;
        self.model.write(b, &plan, self.self_kv.layers(), (&look, self.cross_kv.layers()))
    }
}

/// Starts an encoder-decoder engine on its own thread. `writer` is called there because a device belongs to one thread.
/// Returns once the runner is made or has failed.
pub fn spawn<B: Backend, E: From<std::io::Error> + Send + 'static>(
    limits: SlotLimits,
    writer: impl FnOnce() -> Result<Seq2SeqRunner<B>, E> + Send + 'static,
) -> Result<Seq2SeqHandle, E> {
    let (commands, receiver) = channel();
    let shared = Arc::new(Shared {
        limits,
        stats: Seq2SeqStats::default(),
        admission: Admission::default(),
        thread: Mutex::new(None),
    });
    let (made, when_made) = channel();
    let held = shared.clone();
    let thread = std::thread::Builder::new().name("tallow-seq2seq".into()).spawn(move || match writer() {
        Ok(writer) => {
            let _ = made.send(Ok(()));
            let writing = (0..limits.slots).map(|_| None).collect();
            let waiting = VecDeque::new();
            Loop { alive: EngineGuard(held), commands: receiver, waiting, writing, writer, drain: None }
                .run();
        }
        Err(why) => drop(made.send(Err(why))),
    })?;
    let gone = || std::io::Error::other("the model's thread ended while the model was loaded").into();
    when_made.recv().unwrap_or_else(|_| Err(gone()))?;
    if let Ok(mut slot) = shared.thread.lock() {
        *slot = Some(thread);
    }
    Ok(Seq2SeqHandle { commands, shared })
}

/// Held by the engine's thread. Dropping it marks the engine as ended.
struct EngineGuard(Arc<Shared>);

impl Drop for EngineGuard {
    fn drop(&mut self) {
        self.0.admission.end(self.0.admission.shutdown_reason());
    }
}

/// A task with a slot.
struct Running {
    line: DecoderSequence,
    held: Ticket,
}

struct Loop<B: Backend> {
    // Dropped in this order on any exit: handles see that the engine has ended, waiting tasks fail, and then the device
    // is freed.
    alive: EngineGuard,
    commands: Receiver<Command>,
    waiting: VecDeque<(EncoderInput, Vec<u32>, Ticket)>,
    writing: Vec<Option<Running>>,
    writer: Seq2SeqRunner<B>,
    /// Deadline of draining, once draining has begun.
    drain: Option<Instant>,
}

/// Why a computation failed.
enum StepError {
    /// The device is lost.
    Lost(String),
    /// One task is at fault, or the error may be transient.
    Step(String),
}

/// Runs `compute`; a panic is caught and returned as an error.
fn contained<T>(compute: impl FnOnce() -> Result<T, Error>) -> Result<T, StepError> {
    match catch_unwind(AssertUnwindSafe(compute)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e @ Error::Lost { .. })) => Err(StepError::Lost(e.to_string())),
        Ok(Err(e)) => Err(StepError::Step(e.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(StepError::Step(format!("an internal error, please report it: {text}")))
        }
    }
}

fn failed(held: &mut Ticket, why: String) {
    tracing::error!("request failed: {why}");
    held.end(Err(Failure::Broken(why)));
}

impl<B: Backend> Loop<B> {
    /// Serves until all handles are dropped, draining is done, or the device is lost.
    fn run(mut self) {
        while self.listen() {
            self.waiting.retain(|(.., held)| !held.is_gone());
            self.writing.iter_mut().for_each(|place| drop(place.take_if(|w| w.held.is_gone())));
            // Encodes one task per iteration, so that decoding tasks wait no longer than that takes.
            if let Err(lost) = self.admit().and_then(|()| self.step()) {
                tracing::error!("{lost}; all requests fail");
                self.alive.0.admission.end(Failure::Broken(format!("{lost}; restart the server")));
                return;
            }
            self.publish_running();
        }
        self.alive.0.admission.end(Failure::ShuttingDown);
    }

    fn publish_running(&self) {
        let running = self.writing.iter().flatten().count();
        self.alive.0.stats.running.store(running, Ordering::Relaxed);
    }

    /// Handles queued commands; blocks if there is nothing else to do. Returns whether to go on serving.
    fn listen(&mut self) -> bool {
        loop {
            let idle = self.waiting.is_empty() && self.writing.iter().all(Option::is_none);
            let now = Instant::now();
            if self.drain.is_some_and(|end| idle || now >= end) {
                return false;
            }
            let command = match idle {
                false => match self.commands.try_recv() {
                    Ok(command) => command,
                    // If all handles are gone, accepted tasks are still served.
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
                },
                true => match self.commands.recv_timeout(Duration::from_secs(3600)) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return false,
                },
            };
            match command {
                Command::Take(material, begun, held) => self.waiting.push_back((material, begun, held)),
                Command::Drain(within) => self.drain = Some(now + within),
            }
        }
    }

    /// Encodes the task that has waited longest, if a slot is free. Returns an error only if the device is lost.
    fn admit(&mut self) -> Result<(), String> {
        let Some(place) = self.writing.iter().position(Option::is_none) else { return Ok(()) };
        let Some((material, tokens, mut held)) = self.waiting.pop_front() else { return Ok(()) };
        let read = match &material {
            EncoderInput::Tokens(tokens) => tokens.len(),
            EncoderInput::Mel(_) => self.writer.desk.encoder_tokens,
        };
        let (most, written) = (self.writer.desk.encoder_tokens, self.writer.desk.decoder_tokens);
        if !(1..=most).contains(&read) || !(1..=written).contains(&tokens.len()) {
            failed(
                &mut held,
                format!("{read} tokens to take in and {} to begin with do not fit", tokens.len()),
            );
            return Ok(());
        }
        match contained(|| self.writer.encode(place, &material)) {
            Ok(x) => {
                let line = DecoderSequence { place, read: x.rows(), fed: 0, tokens };
                self.writing[place] = Some(Running { line, held })
            }
            Err(StepError::Lost(why)) => return Err(why),
            Err(StepError::Step(why)) => failed(&mut held, why),
        }
        Ok(())
    }

    /// Decodes all running tasks. If that fails, each is rerun alone, so that only the task at fault fails.
    fn step(&mut self) -> Result<(), String> {
        let lines: Vec<DecoderSequence> = self.writing.iter().flatten().map(|w| w.line.clone()).collect();
        if lines.is_empty() {
            return Ok(());
        }
        self.publish_running();
        let (stats, begun) = (&self.alive.0.stats, Instant::now());
        stats.steps.fetch_add(1, Ordering::Relaxed);
        let wrote = contained(|| self.writer.step(&lines));
        tracing::trace!("a step of {} tasks took {:?}", lines.len(), begun.elapsed());
        match &wrote {
            Ok(rows) => drop(stats.new_tokens.fetch_add(rows.len() as u64, Ordering::Relaxed)),
            Err(StepError::Step(_)) => drop(stats.failed_steps.fetch_add(1, Ordering::Relaxed)),
            Err(StepError::Lost(_)) => {}
        }
        let outcomes: Vec<Result<Vec<f32>, String>> = match wrote {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(StepError::Lost(why)) => return Err(why),
            Err(StepError::Step(why)) if lines.len() == 1 => vec![Err(why)],
            Err(StepError::Step(why)) => {
                tracing::error!("a step of {} tasks failed: {why}; trying each alone", lines.len());
                let alone =
                    |line: &DecoderSequence| match contained(|| self.writer.step(std::slice::from_ref(line)))
                    {
                        Ok(rows) => Ok(rows.into_iter().next().ok_or_else(|| "it gave nothing".to_owned())),
                        Err(StepError::Step(why)) => Ok(Err(why)),
                        Err(StepError::Lost(why)) => Err(why),
                    };
                lines.iter().map(alone).collect::<Result<_, String>>()?
            }
        };
        for (line, outcome) in lines.iter().zip(outcomes) {
            self.advance(line.place, outcome);
        }
        Ok(())
    }

    /// Handles a step's logits for one slot.
    fn advance(&mut self, place: usize, outcome: Result<Vec<f32>, String>) {
        let Some(mut writing) = self.writing[place].take() else { return };
        let logits = match outcome {
            Ok(logits) if logits.iter().any(|x| x.is_nan()) => {
                Err("the model produced NaN or infinite values; its weights may be damaged".to_owned())
            }
            outcome => outcome,
        };
        let next = logits.and_then(|logits| {
            let pen = writing.held.policy.as_mut();
            let next = AssertUnwindSafe(|| pen.map(|pen| pen.next(&logits)).unwrap_or_default());
            catch_unwind(next)
                .map_err(|_| "an internal error in choosing tokens, please report it".to_owned())
        });
        match next {
            Err(why) => failed(&mut writing.held, why),
            Ok(next) => {
                writing.line.fed += writing.line.tokens.len();
                let room = self.writer.desk.decoder_tokens.saturating_sub(writing.line.fed);
                if next.is_empty() || next.len() > room {
                    writing.held.end(Ok(()));
                } else {
                    writing.line.tokens = next;
                    self.writing[place] = Some(writing);
                }
            }
        }
    }
}
