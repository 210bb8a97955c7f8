//! Embedding and reranking engine: computes embeddings and scores of texts and embeddings of images, on its own thread.
//!
//! A request has several texts or images (both called texts here). Each step takes texts from all requests round robin
//! until its token budget is full, so that a large request does not block others. A text's result does not depend on
//! the rest of the batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tallow_core::{Backend, Error, Reading, Tensor};
use tallow_models::encoder::{Classes, Encoder, Image, Input, Inputs, Item};
use tallow_models::spec::encoder::Pooling;
use tokio::sync::oneshot;

use crate::admission::{Reply, Ticket};
use crate::counts::StepCounts;
use crate::failure::Failure;
use crate::service::{
    self, Batch, BatchWorker, Handle, Lost, Running, Shared, SharedOf, StepError, Worker, run_batch,
};

/// Limit on waiting tokens of all requests; an image counts as the tokens that take as much memory.
const MOST_WAITING: usize = 16 << 20;

/// Constant properties of an embedder.
#[derive(Debug)]
pub struct EmbedderInfo {
    /// Model names; the first is canonical.
    pub names: Vec<String>,
    /// Tokenizes texts to encoder inputs.
    pub inputs: Inputs,
    /// The output computed for each text.
    pub task: PoolingTask,
    /// Values per text: embedding dimension or number of scores.
    pub width: usize,
    /// Meaning of the scores, if the model returns scores.
    pub classes: Option<Classes>,
    /// Maximum running and waiting requests.
    pub queue: usize,
}

/// The output computed for each text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingTask {
    /// Embeddings with this pooling.
    Embed(Pooling),
    /// Classification or reranking scores.
    Classify,
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
}

/// One result per text of a request, or why the request failed.
pub type Answer = Result<Vec<Vec<f32>>, Failure>;

impl Reply for oneshot::Sender<Answer> {
    type Done = Vec<Vec<f32>>;

    fn is_gone(&self) -> bool {
        self.is_closed()
    }

    fn end(self, how: Answer) {
        // The caller may be gone.
        let _ = self.send(how);
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct Job {
    /// Waiting texts, with their index in the request.
    left: VecDeque<(usize, Item)>,
    /// Results so far.
    given: Vec<Vec<f32>>,
    /// Number of finished texts.
    done: usize,
    ticket: Ticket<oneshot::Sender<Answer>>,
    shared: Arc<Shared<EmbedderInfo, EmbedderStats>>,
}

impl Drop for Job {
    /// Its texts no longer wait.
    fn drop(&mut self) {
        let tokens: usize = self.left.iter().map(|(_, text)| text.weight()).sum();
        self.shared.stats.waiting_tokens.fetch_sub(tokens, Ordering::AcqRel);
    }
}

/// Handle of an embedder. Clones refer to the same embedder.
pub type EmbedderHandle = Handle<Job, EmbedderInfo, EmbedderStats>;

/// Owner of a running embedder.
pub type RunningEmbedder = Running<Job, EmbedderInfo, EmbedderStats>;

impl EmbedderHandle {
    /// Submits texts. Their results come through the receiver, in order; dropping it cancels the request.
    pub fn submit(&self, texts: Vec<impl Into<Item>>) -> Result<oneshot::Receiver<Answer>, Failure> {
        let texts: Vec<Item> = texts.into_iter().map(Into::into).collect();
        let tokens = texts.iter().map(Item::weight).sum::<usize>();
        let (reply, answer) = oneshot::channel();
        let ticket = self.admit(self.info().queue, reply)?;
        let more = |n: usize| n.checked_add(tokens).filter(|n| *n <= MOST_WAITING);
        if self.stats().waiting_tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(Failure::Full(self.taken()));
        }
        let (given, left) = (vec![Vec::new(); texts.len()], texts.into_iter().enumerate().collect());
        self.send(Job { left, given, done: 0, ticket, shared: self.shared().clone() });
        Ok(answer)
    }
}

/// An encoder on a device, optionally a second one for images, and their token budget.
#[derive(Debug)]
pub struct EncoderRunner<B: Backend> {
    b: B,
    encoder: Encoder<B>,
    /// Image encoder, if `encoder` is only for texts.
    images: Option<Encoder<B>>,
    task: PoolingTask,
    budget: usize,
}

impl<B: Backend> EncoderRunner<B> {
    /// A runner that computes up to `budget` tokens in a step, or one text if that is longer.
    pub fn new(b: B, encoder: Encoder<B>, task: PoolingTask, budget: usize) -> EncoderRunner<B> {
        EncoderRunner { b, encoder, images: None, task, budget }
    }

    /// Adds a separate image encoder.
    pub fn with(self, images: Option<Encoder<B>>) -> EncoderRunner<B> {
        EncoderRunner { images, ..self }
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
        let rows = match self.task {
            PoolingTask::Embed(pooling) => Some(encoder.vectors(b, &texts, &x, pooling)?),
            PoolingTask::Classify => encoder.scores(b, &texts, &x)?,
        };
        rows.ok_or_else(|| self.wrong("the model has no head for scores"))
    }

    /// [images, dim]
    fn images(&self, images: &[Image]) -> Result<Tensor<B>, Error> {
        let (b, encoder) = (&self.b, self.images.as_ref().unwrap_or(&self.encoder));
        let PoolingTask::Embed(pooling) = self.task else {
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

/// Starts an embedder on its own thread. `runner` is called there because a device belongs to one thread. Returns once
/// it is made or has failed. Meanwhile `info` runs on the calling thread; if both fail, its error is returned.
pub fn spawn<B: Backend + 'static, E: From<std::io::Error> + Send + 'static>(
    info: impl FnOnce() -> Result<EmbedderInfo, E>,
    runner: impl FnOnce() -> Result<EncoderRunner<B>, E> + Send + 'static,
) -> Result<RunningEmbedder, E> {
    service::spawn("tallow-embedder", info, runner, |runner, shared| Embedder {
        jobs: VecDeque::new(),
        runner,
        shared,
    })
}

/// A runner and its requests.
struct Embedder<B: Backend> {
    // Dropped in this order: waiting requests fail, and then the device is freed.
    /// The job whose turn is next is in front.
    jobs: VecDeque<Job>,
    runner: EncoderRunner<B>,
    shared: SharedOf<Embedder<B>>,
}

/// Texts of one step.
struct Texts {
    /// Each text's job, and its index in it.
    indices: Vec<(usize, usize)>,
    texts: Vec<Item>,
}

impl Batch for Texts {
    const ITEMS: &'static str = "texts";

    fn items(&self) -> usize {
        self.texts.len()
    }

    fn tokens(&self) -> usize {
        self.texts.iter().map(Item::rows).sum()
    }

    fn split(self) -> Vec<Texts> {
        let alone = |(index, text)| Texts { indices: vec![index], texts: vec![text] };
        self.indices.into_iter().zip(self.texts).map(alone).collect()
    }
}

impl<B: Backend> Worker for Embedder<B> {
    type Command = Job;
    type Info = EmbedderInfo;
    type Stats = EmbedderStats;

    fn take(&mut self, mut job: Job) {
        match job.left.is_empty() {
            true => job.ticket.end(Ok(Vec::new())),
            false => self.jobs.push_back(job),
        }
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn step(&mut self) -> Result<(), Lost> {
        self.jobs.retain(|job| !job.ticket.is_gone());
        let batch = self.pick();
        if batch.texts.is_empty() {
            return Ok(());
        }
        let mut jobs: Vec<usize> = batch.indices.iter().map(|(job, _)| *job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        self.shared.stats.running.store(jobs.len(), Ordering::Relaxed);
        run_batch(self, batch)
    }
}

impl<B: Backend> BatchWorker for Embedder<B> {
    type Batch = Texts;
    type Launched = Vec<Vec<f32>>;
    type Output = Vec<f32>;

    fn steps(&self) -> &StepCounts {
        &self.shared.steps
    }

    /// Waits for the device: nothing else is done meanwhile.
    fn launch(&self, batch: &Texts) -> Result<Vec<Vec<f32>>, StepError> {
        Ok(self.runner.run(&batch.texts)?)
    }

    fn finish(&self, _: &Texts, vectors: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>, StepError> {
        Ok(vectors)
    }

    fn commit(&mut self, batch: Texts, outputs: Vec<Vec<f32>>) {
        self.count(&batch);
        for ((job, index), given) in batch.indices.into_iter().zip(outputs) {
            let job = &mut self.jobs[job];
            if !given.iter().all(|x| x.is_finite()) {
                let why = "the model produced NaN or infinite values; its weights may be damaged";
                job.ticket.fail(why.into());
                continue;
            }
            job.given[index] = given;
            job.done += 1;
            if job.done == job.given.len() {
                job.ticket.end(Ok(std::mem::take(&mut job.given)));
            }
        }
    }

    /// The waiting texts of a job that fails are dropped before the next step.
    fn fail(&mut self, batch: Texts, why: &str) {
        self.count(&batch);
        batch.indices.iter().for_each(|(job, _)| self.jobs[*job].ticket.fail(why.into()));
    }
}

impl<B: Backend> Embedder<B> {
    /// Texts of the next step, each with its job and its index in it: one per job, round robin, while the budget lasts.
    /// The job whose text comes last is last the next time.
    fn pick(&mut self) -> Texts {
        let (mut indices, mut texts, mut tokens, mut weight) = (Vec::new(), Vec::<Item>::new(), 0, 0);
        let count = self.jobs.len();
        let mut turn = 0;
        let mut without = 0;
        while without < count {
            let at = turn % count;
            let job = &mut self.jobs[at];
            match job.left.front() {
                None => without += 1,
                Some((_, text)) if !texts.is_empty() && tokens + text.rows() > self.runner.budget => {
                    break;
                }
                Some(_) => {
                    without = 0;
                    if let Some((index, text)) = job.left.pop_front() {
                        (tokens, weight) = (tokens + text.rows(), weight + text.weight());
                        indices.push((at, index));
                        texts.push(text);
                    }
                }
            }
            turn += 1;
        }
        if count > 0 {
            let first = turn % count;
            self.jobs.rotate_left(first);
            indices.iter_mut().for_each(|(job, _)| *job = (*job + count - first) % count);
        }
        self.shared.stats.waiting_tokens.fetch_sub(weight, Ordering::AcqRel);
        Texts { indices, texts }
    }

    /// Counts the texts of a finished step.
    fn count(&self, batch: &Texts) {
        let stats = &self.shared.stats;
        stats.running.store(0, Ordering::Relaxed);
        stats.tokens.fetch_add(batch.tokens() as u64, Ordering::Relaxed);
        stats.texts.fetch_add(batch.items() as u64, Ordering::Relaxed);
    }
}
