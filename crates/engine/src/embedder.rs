//! Embedding and reranking engine: computes embeddings and scores of texts and embeddings of images, on its own thread.
//!
//! A request has several texts or images (both called texts here). Each step takes texts from all requests round robin
//! until its token budget is full, so that a large request does not block others. A text's result does not depend on
//! the rest of the batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tallow_core::{Backend, Error, Reading, Tensor};
use tallow_models::encoder::spec::Pooling;
use tallow_models::encoder::{Classes, Encoder, Image, Input, Inputs, Item};
use tokio::sync::oneshot;

use crate::admission::Admission;
use crate::handle::Failure;

/// Limit on waiting tokens of all requests; an image counts as the tokens that take as much memory.
const MOST_WAITING: usize = 16 << 20;

/// Constant properties of an embedder.
#[derive(Debug)]
pub struct EmbedderInfo {
    /// Model names; the first is canonical.
    pub names: Vec<String>,
    /// Tokenizes texts to encoder inputs.
    pub inputs: Inputs,
    /// What is computed for each text.
    pub wanted: Wanted,
    /// Values per text: embedding dimension or number of scores.
    pub width: usize,
    /// Meaning of the scores, if the model returns scores.
    pub classes: Option<Classes>,
    /// Maximum running and waiting requests.
    pub queue: usize,
}

/// What is computed for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Embeddings with this pooling.
    Vectors(Pooling),
    /// Classification or reranking scores.
    Scores,
}

/// Counters and gauges that an embedder updates.
#[derive(Debug, Default)]
pub struct EmbedderStats {
    /// Requests with texts in the current step.
    pub running: AtomicUsize,
    /// Tokens of waiting texts; images count by their memory.
    pub waiting_tokens: AtomicUsize,
    /// Tokens of finished texts.
    pub tokens: AtomicU64,
    /// Finished texts.
    pub texts: AtomicU64,
    /// Steps run.
    pub steps: AtomicU64,
    /// Failed steps. A failed step of several texts is rerun one text at a time.
    pub failed_steps: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    info: EmbedderInfo,
    stats: EmbedderStats,
    admission: Admission,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// One result per text of a request, or why the request failed.
pub type Answer = Result<Vec<Vec<f32>>, Failure>;

/// Admission and reply channel of a request. Dropping it releases both, replying with a failure if unanswered.
#[derive(Debug)]
struct Place {
    reply: Option<oneshot::Sender<Answer>>,
    shared: Arc<Shared>,
}

impl Place {
    fn answer(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            // Release admission first, so that a client that retries on the answer is admitted.
            self.shared.admission.release();
            // The caller may be gone.
            let _ = reply.send(answer);
        }
    }

    fn is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.answer(Err(self.shared.admission.shutdown_reason()));
    }
}

/// A request in progress.
struct Job {
    /// Waiting texts, with their index in the request.
    left: VecDeque<(usize, Item)>,
    /// Results so far.
    given: Vec<Vec<f32>>,
    /// Number of finished texts.
    done: usize,
    place: Place,
}

/// Command to an embedder.
enum Command {
    Submit(Job),
    Drain(Duration),
}

/// Handle of an embedder. Clones refer to the same embedder.
#[derive(Clone, Debug)]
pub struct EmbedderHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl EmbedderHandle {
    /// Constant properties.
    pub fn info(&self) -> &EmbedderInfo {
        &self.shared.info
    }

    /// Counters and gauges.
    pub fn stats(&self) -> &EmbedderStats {
        &self.shared.stats
    }

    /// Running and waiting requests.
    pub fn taken(&self) -> usize {
        self.shared.admission.admitted()
    }

    /// Whether requests are accepted; if not, why.
    pub fn ready(&self) -> Result<(), Failure> {
        self.shared.admission.ready()
    }

    /// Whether the embedder is running.
    pub fn is_alive(&self) -> bool {
        self.shared.admission.is_alive()
    }

    /// Submits texts. Their results come through the receiver, in order; dropping it cancels the request.
    pub fn submit(&self, texts: Vec<impl Into<Item>>) -> Result<oneshot::Receiver<Answer>, Failure> {
        let texts: Vec<Item> = texts.into_iter().map(Into::into).collect();
        let (shared, tokens) = (&self.shared, texts.iter().map(Item::weight).sum::<usize>());
        shared.admission.admit(shared.info.queue)?;
        let (reply, answer) = oneshot::channel();
        // From here on `Place` releases admission on every path.
        let place = Place { reply: Some(reply), shared: shared.clone() };
        let waiting = &shared.stats.waiting_tokens;
        let more = |n: usize| n.checked_add(tokens).filter(|n| *n <= MOST_WAITING);
        if waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(Failure::Full(shared.admission.admitted()));
        }
        let (given, left) = (vec![Vec::new(); texts.len()], texts.into_iter().enumerate().collect());
        let job = Job { left, given, done: 0, place };
        self.commands.send(Command::Submit(job)).map_err(|_| shared.admission.shutdown_reason())?;
        Ok(answer)
    }

    /// Drains: the embedder finishes its requests within a time limit and ends. Returns immediately.
    pub fn drain(&self, within: Duration) {
        self.shared.admission.drain();
        // The embedder may have ended already.
        let _ = self.commands.send(Command::Drain(within));
    }

    /// Ends the embedder and waits until its device is freed: some drivers misbehave if the process exits with a device
    /// in use.
    pub fn close(&self) {
        self.drain(Duration::ZERO);
        let thread = self.shared.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// An encoder on a device, optionally a second one for images, and their token budget.
#[derive(Debug)]
pub struct Worker<B: Backend> {
    b: B,
    encoder: Encoder<B>,
    /// Image encoder, if `encoder` is only for texts.
    beside: Option<Encoder<B>>,
    wanted: Wanted,
    budget: usize,
}

impl<B: Backend> Worker<B> {
    /// A worker that computes up to `budget` tokens in a step, or one text if that is longer.
    pub fn new(b: B, encoder: Encoder<B>, wanted: Wanted, budget: usize) -> Worker<B> {
        Worker { b, encoder, beside: None, wanted, budget }
    }

    /// Adds a separate image encoder.
    pub fn with(self, images: Option<Encoder<B>>) -> Worker<B> {
        Worker { beside: images, ..self }
    }

    /// Results of texts and images, in order. One transfer reads all of them from the device.
    pub fn run(&self, all: &[Item]) -> Result<Vec<Vec<f32>>, Error> {
        let (mut texts, mut images) = (Vec::<Input>::new(), Vec::<Image>::new());
        for item in all {
            match item {
                Item::Text(text) => texts.push(text.clone()),
                Item::Image(image) => images.push(image.clone()),
            }
        }
        let texts = (!texts.is_empty()).then(|| self.texts(&texts)).transpose()?;
        let images = (!images.is_empty()).then(|| self.images(&images)).transpose()?;
        let [mut texts, mut images] = self.read([texts, images])?.map(Vec::into_iter);
        let of = |item: &Item| match item {
            Item::Text(_) => texts.next(),
            Item::Image(_) => images.next(),
        };
        Ok(all.iter().filter_map(of).collect())
    }

    /// [texts, dim or scores]
    fn texts(&self, texts: &[Input]) -> Result<Tensor<B>, Error> {
        let (b, encoder) = (&self.b, &self.encoder);
        let texts = encoder.upload(b, texts)?;
        let x = encoder.forward(b, &texts, |_, _| Ok(()))?;
        let rows = match self.wanted {
            Wanted::Vectors(pooling) => Some(encoder.vectors(b, &texts, &x, pooling)?),
            Wanted::Scores => encoder.scores(b, &texts, &x)?,
        };
        rows.ok_or_else(|| self.wrong("the model has no head for scores"))
    }

    /// [images, dim]
    fn images(&self, images: &[Image]) -> Result<Tensor<B>, Error> {
        let (b, encoder) = (&self.b, self.beside.as_ref().unwrap_or(&self.encoder));
        let Wanted::Vectors(pooling) = self.wanted else {
            return Err(self.wrong("the model scores texts alone"));
        };
        let images = encoder.upload_images(b, images)?;
        let x = encoder.forward(b, &images, |_, _| Ok(()))?;
        encoder.vectors(b, &images, &x, pooling)
    }

    fn wrong(&self, why: &str) -> Error {
        Error::Device { device: self.b.label(), why: why.into() }
    }

    /// Rows of the tensors that are `Some`.
    fn read(&self, from: [Option<Tensor<B>>; 2]) -> Result<[Vec<Vec<f32>>; 2], Error> {
        let mut to = from.each_ref().map(|t| vec![0.0f32; t.as_ref().map_or(0, Tensor::len)]);
        let readings = from.iter().zip(&mut to).filter_map(|(from, to)| {
            Some(Reading { from: from.as_ref()?, to: bytemuck::cast_slice_mut(to) })
        });
        self.b.read(&mut readings.collect::<Vec<_>>())?;
        let mut widths = from.iter().map(|t| t.as_ref().map_or(1, Tensor::cols).max(1));
        Ok(to.map(|rows| rows.chunks(widths.next().unwrap_or(1)).map(<[f32]>::to_vec).collect()))
    }
}

/// Starts an embedder on its own thread. `worker` is called there because a device belongs to one thread. Returns once
/// it is made or has failed. Meanwhile `info` runs on the calling thread; if both fail, its error is returned.
pub fn spawn<B: Backend, E: From<std::io::Error> + Send + 'static>(
    info: impl FnOnce() -> Result<EmbedderInfo, E>,
    worker: impl FnOnce() -> Result<Worker<B>, E> + Send + 'static,
) -> Result<EmbedderHandle, E> {
    let (made, when_made) = channel();
    let (found_out, when_found_out) = channel::<(Receiver<Command>, Arc<Shared>)>();
    let thread =
        std::thread::Builder::new().name("tallow-embedder".into()).spawn(move || match worker() {
            Ok(worker) => {
                let _ = made.send(Ok(()));
                // Otherwise `info` failed and the embedder is not needed.
                if let Ok((commands, shared)) = when_found_out.recv() {
                    Embedder {
                        alive: EngineGuard(shared),
                        commands,
                        jobs: VecDeque::new(),
                        worker,
                        drain: None,
                    }
                    .run();
                }
            }
            Err(why) => drop(made.send(Err(why))),
        })?;
    let info = info();
    let gone = || std::io::Error::other("the embedder's thread ended while the model was loaded").into();
    let made = when_made.recv().unwrap_or_else(|_| Err(gone()));
    let info = info?;
    made?;
    let (stats, admission, thread) =
        (EmbedderStats::default(), Admission::default(), Mutex::new(Some(thread)));
    let shared = Arc::new(Shared { info, stats, admission, thread });
    let (commands, receiver) = channel();
    found_out.send((receiver, shared.clone())).map_err(|_| gone())?;
    Ok(EmbedderHandle { commands, shared })
}

/// Held by the embedder's thread. Dropping it marks the embedder as ended.
struct EngineGuard(Arc<Shared>);

impl Drop for EngineGuard {
    fn drop(&mut self) {
        self.0.admission.end(self.0.admission.shutdown_reason());
    }
}

/// A worker and its requests.
struct Embedder<B: Backend> {
    // Dropped in this order on any exit: handles see that the embedder has ended, waiting requests fail, and then the
    // device is freed.
    alive: EngineGuard,
    commands: Receiver<Command>,
    /// The job whose turn is next is in front.
    jobs: VecDeque<Job>,
    worker: Worker<B>,
    /// Deadline of draining, once draining has begun.
    drain: Option<Instant>,
}

/// Why a step failed.
enum StepError {
    /// The device is lost.
    Lost(String),
    /// One of the texts is at fault, or the error may be transient.
    Step(String),
}

impl<B: Backend> Embedder<B> {
    /// Serves until all handles are dropped, draining is done, or the device is lost.
    fn run(mut self) {
        while self.listen() {
            self.jobs.retain(|job| {
                let gone = job.place.is_gone();
                if gone {
                    forget(&self.alive.0, job);
                }
                !gone
            });
            let (places, texts) = self.pick();
            if !texts.is_empty()
                && let Err(lost) = self.step(places, texts)
            {
                tracing::error!("{lost}; all requests fail");
                self.alive.0.admission.end(Failure::Broken(format!("{lost}; restart the server")));
                return;
            }
        }
        self.alive.0.admission.end(Failure::ShuttingDown);
    }

    /// Handles queued commands; blocks if there is nothing else to do. Returns whether to go on serving.
    fn listen(&mut self) -> bool {
        loop {
            let (idle, now) = (self.jobs.is_empty(), Instant::now());
            if self.drain.is_some_and(|end| idle || now >= end) {
                return false;
            }
            let command = match idle {
                false => match self.commands.try_recv() {
                    Ok(command) => command,
                    // If all handles are gone, accepted requests are still served.
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
                },
                true => match self.commands.recv_timeout(Duration::from_secs(3600)) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return false,
                },
            };
            match command {
                Command::Submit(mut job) if job.left.is_empty() => job.place.answer(Ok(Vec::new())),
                Command::Submit(job) => self.jobs.push_back(job),
                Command::Drain(within) => self.drain = Some(now + within),
            }
        }
    }

    /// Texts of the next step, each with its job and its index in it: one per job, round robin, while the budget lasts.
    /// The job whose text comes last is last the next time.
    fn pick(&mut self) -> (Vec<(usize, usize)>, Vec<Item>) {
        let (mut places, mut texts, mut tokens, mut weight) = (Vec::new(), Vec::<Item>::new(), 0, 0);
        let count = self.jobs.len();
        let mut turn = 0;
        let mut without = 0;
        while without < count {
            let at = turn % count;
            let job = &mut self.jobs[at];
            match job.left.front() {
                None => without += 1,
                Some((_, text)) if !texts.is_empty() && tokens + text.rows() > self.worker.budget => {
                    break;
                }
                Some(_) => {
                    without = 0;
                    if let Some((place, text)) = job.left.pop_front() {
                        (tokens, weight) = (tokens + text.rows(), weight + text.weight());
                        places.push((at, place));
                        texts.push(text);
                    }
                }
            }
            turn += 1;
        }
        if count > 0 {
            let first = turn % count;
            self.jobs.rotate_left(first);
            places.iter_mut().for_each(|(job, _)| *job = (*job + count - first) % count);
        }
        self.alive.0.stats.waiting_tokens.fetch_sub(weight, Ordering::AcqRel);
        (places, texts)
    }

    /// Runs texts. If that fails, each is rerun alone, so that only the request at fault fails. Returns an error only
    /// if the device is lost.
    fn step(&mut self, places: Vec<(usize, usize)>, texts: Vec<Item>) -> Result<(), String> {
        let stats = &self.alive.0.stats;
        stats.steps.fetch_add(1, Ordering::Relaxed);
        let mut jobs: Vec<usize> = places.iter().map(|(job, _)| *job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        stats.running.store(jobs.len(), Ordering::Relaxed);
        let begun = Instant::now();
        let whole = self.run_texts(&texts);
        tracing::trace!("a step of {} texts took {:?}", texts.len(), begun.elapsed());
        if let Err(StepError::Step(_)) = &whole {
            stats.failed_steps.fetch_add(1, Ordering::Relaxed);
        }
        let outcomes: Vec<Result<Vec<f32>, String>> = match whole {
            Ok(given) => given.into_iter().map(Ok).collect(),
            Err(StepError::Lost(why)) => return Err(why),
            Err(StepError::Step(why)) if texts.len() == 1 => vec![Err(why)],
            Err(StepError::Step(why)) => {
                tracing::error!("a step of {} texts failed: {why}; trying each alone", texts.len());
                let alone = |text: &Item| match self.run_texts(std::slice::from_ref(text)) {
                    Ok(given) => Ok(given.into_iter().next().ok_or_else(|| "it gave nothing".to_owned())),
                    Err(StepError::Step(why)) => Ok(Err(why)),
                    Err(StepError::Lost(why)) => Err(why),
                };
                texts.iter().map(alone).collect::<Result<_, String>>()?
            }
        };
        let tokens: usize = texts.iter().map(Item::rows).sum();
        stats.running.store(0, Ordering::Relaxed);
        stats.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        stats.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
        for ((job, place), outcome) in places.into_iter().zip(outcomes) {
            let job = &mut self.jobs[job];
            match outcome {
                Ok(given) if given.iter().all(|x| x.is_finite()) => {
                    job.given[place] = given;
                    job.done += 1;
                }
                Ok(_) => {
                    fail(job, "the model produced NaN or infinite values; its weights may be damaged".into())
                }
                Err(why) => fail(job, why),
            }
            if job.done == job.given.len() {
                let given = std::mem::take(&mut job.given);
                job.place.answer(Ok(given));
            }
        }
        Ok(())
    }

    /// Runs texts; a panic is caught and returned as an error.
    fn run_texts(&self, texts: &[Item]) -> Result<Vec<Vec<f32>>, StepError> {
        match catch_unwind(AssertUnwindSafe(|| self.worker.run(texts))) {
            Ok(Ok(given)) => Ok(given),
            Ok(Err(e @ Error::Lost { .. })) => Err(StepError::Lost(e.to_string())),
            Ok(Err(e)) => Err(StepError::Step(e.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(StepError::Step(format!("an internal error, please report it: {text}")))
            }
        }
    }
}

/// Fails a request. Its waiting texts are dropped before the next step.
fn fail(job: &mut Job, why: String) {
    tracing::error!("request failed: {why}");
    job.place.answer(Err(Failure::Broken(why)));
}

/// Subtracts the waiting texts of a request that is gone from `waiting_tokens`.
fn forget(shared: &Shared, job: &Job) {
    let tokens: usize = job.left.iter().map(|(_, text)| text.weight()).sum();
    shared.stats.waiting_tokens.fetch_sub(tokens, Ordering::AcqRel);
}
