//! The engine of decoders, with or without an encoder: generation. Each step computes a batch of the
//! [`scheduler`](crate::scheduler) and sends its tokens to the requests.
//!
//! Where the device computes while the host goes on, a step is launched before the events of the one before are sent,
//! and commands are taken while it runs. If all sequences take the likeliest token, it is launched before these tokens are
//! read, too, and the device waits for nothing; otherwise it waits for the draw, the next batch and its launch.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tallow_core::Backend;

use crate::block_pool::{BlockPool, Chain, SlidingWindow};
use crate::cache_tier::{CacheTiers, TierError, TierSettings};
use crate::counts::StepCounts;
use crate::encoder_input::{EncoderInput, EncoderOutput, InputDigest, InputKeys};
use crate::failure::{Failure, Unfit};
use crate::handle::{
    Command, EngineGuard, Finish, Info, LoadLora, Request, RunningEngine, Stats, Submission,
};
use crate::lora::{LoadedLora, LoraError, LoraId, LoraRef};
use crate::runner::{Launched, Outcome, Runner, SampleInput};
use crate::sampler::{MaskThreads, SampleError, Sampler};
use crate::scheduler::{Batch, BatchPart, Limits, NewSeq, Scheduler, SeqId};
use crate::service::{
    self, BatchWorker, InFlight, Lost, Messages, Service, SharedOf, StepError, Worker, finish_batch,
    launch_batch,
};

mod active;
mod drafts;

use active::Active;

/// A model, its KV cache and its requests.
struct Engine<B: Backend> {
    // Dropped in this order: waiting requests get their last event, and then the device is freed.
    requests: HashMap<SeqId, Active>,
    /// Pages of the prefix cache in memory and in files.
    tiers: CacheTiers,
    scheduler: Scheduler,
    /// The steps that the device computes while the host goes on: one, and one more if that was launched ahead.
    in_flight: VecDeque<InFlight<Engine<B>>>,
    /// Events of earlier steps that have not been sent yet.
    unsent: Vec<StepResult>,
    /// True if the device computed the last step while the host went on. If so, the next step is launched before the events
    /// of this one are sent; otherwise they are sent first.
    overlaps: bool,
    runner: Runner<B>,
    /// Random key per process, so that nobody can construct two salts that collide.
    salts: std::hash::RandomState,
    inputs: InputKeys,
    /// Started for the first request with a constraint.
    mask_threads: Option<MaskThreads>,
    next_id: u64,
    next_adapter: u64,
    shared: SharedOf<Engine<B>>,
}

/// Events of a step for one request, not sent yet.
struct StepResult {
    id: SeqId,
    /// Position of the step's first token, and the position after its last one.
    tokens: Range<usize>,
    outcome: Outcome,
    /// True if its sequence has reached its maximum length.
    full: bool,
}

/// Starts an engine on its own thread. `runner` is called there because a device belongs to one thread; it returns the
/// limits too, which may depend on the device's speed. Returns once both are made or have failed. Meanwhile `info` runs
/// on the calling thread; if both fail, its error is returned.
pub fn spawn<B: Backend + 'static, E: From<std::io::Error> + Send + 'static>(
    info: impl FnOnce() -> Result<Info, E>,
    runner: impl FnOnce() -> Result<(Runner<B>, Limits), E> + Send + 'static,
) -> Result<RunningEngine, E> {
    service::spawn("tallow-engine", info, runner, |(runner, limits), shared: SharedOf<Engine<B>>| {
        let Info { pages, page_len, swa_pages, state_rows, .. } = shared.info;
        let pool = BlockPool::with_states(pages, page_len, state_rows);
        let window = runner.decoder().spec().swa_window().filter(|_| swa_pages > 0);
        let pool = match window {
            Some(window) => pool.with_swa(swa_pages, SlidingWindow::new(window)),
            None => pool,
        };
        Engine::new(runner, Scheduler::new(limits, pool), shared)
    })
}

/// Serves requests on this thread until all handles are dropped, draining is done, or the device is lost.
pub fn serve<B: Backend>(
    runner: Runner<B>,
    scheduler: Scheduler,
    messages: Messages<Command>,
    guard: EngineGuard,
) {
    Service::new(messages, guard, |shared| Engine::new(runner, scheduler, shared)).run();
}

impl<B: Backend> Worker for Engine<B> {
    type Command = Command;
    type Info = Info;
    type Stats = Stats;

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            // The caller may be gone.
            Command::LoadLora(lora, reply) => drop(reply.send(self.load_lora(*lora))),
            Command::UnloadLora(name, reply) => drop(reply.send(self.unload_lora(name))),
            Command::AddCacheTier(settings, reply) => drop(reply.send(self.add_cache_tier(*settings))),
        }
    }

    fn is_idle(&self) -> bool {
        let all_sent = self.in_flight.is_empty() && self.unsent.is_empty();
        self.scheduler.is_idle() && all_sent && self.tiers.is_idle(self.scheduler.pool())
    }

    fn step(&mut self) -> Result<(), Lost> {
        self.advance_tiers();
        if self.in_flight.is_empty() {
            self.force();
            self.guess();
            if let Some(batch) = self.scheduler.next_batch() {
                let begun = self.begin(batch);
                self.unless_lost(begun)?;
            }
        }
        self.begin_ahead();
        self.send_all();
        if self.scheduler.is_idle() && !self.tiers.holds_pages() {
            self.check_pages(cfg!(debug_assertions));
        }
        self.publish_stats();
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Lost> {
        self.forget_abandoned();
        let Some(step) = self.in_flight.pop_front() else { return Ok(()) };
        let finished = finish_batch(self, step);
        self.unless_lost(finished)
    }

    fn check(&self) {
        self.check_pages(true);
    }

    fn stop(&mut self) {
        self.send_all();
        let left: Vec<SeqId> = self.requests.keys().copied().collect();
        for id in left {
            self.take_out(id);
        }
        self.tiers.close(&self.runner, self.scheduler.pool_mut());
    }
}

impl service::Batch for Batch {
    const ITEMS: &'static str = "sequences";

    fn items(&self) -> usize {
        self.parts.len()
    }

    fn tokens(&self) -> usize {
        self.parts.iter().map(BatchPart::computed).sum()
    }

    fn split(self) -> Vec<Batch> {
        self.parts.into_iter().map(|part| Batch { parts: vec![part] }).collect()
    }
}

impl<B: Backend> BatchWorker for Engine<B> {
    type Batch = Batch;
    type Launched = Launched<B>;
    type Output = Result<Outcome, SampleError>;

    fn steps(&self) -> &StepCounts {
        &self.shared.steps
    }

    fn launch(&self, batch: &Batch) -> Result<Launched<B>, StepError> {
        let asked: Option<Vec<SampleInput<'_>>> = batch.parts.iter().map(|p| self.asked(p)).collect();
        let asked =
            asked.ok_or_else(|| StepError::Failed("a sequence without a request was scheduled".into()))?;
        let before = self.in_flight.front().and_then(InFlight::launched);
        Ok(self.runner.launch_after(before, batch, &asked)?)
    }

    fn finish(&self, batch: &Batch, launched: Launched<B>) -> Result<Vec<Self::Output>, StepError> {
        let asked: Vec<Option<SampleInput<'_>>> = batch.parts.iter().map(|p| self.asked(p)).collect();
        Ok(self.runner.finish(launched, batch, &asked)?)
    }

    fn drop_ahead(&mut self) {
        self.in_flight.clear();
        self.scheduler.drop_ahead();
    }

    fn took(&mut self, batch: &Batch, time: Duration) {
        if batch.parts.iter().all(|part| part.tokens.len() == 1 + part.drafted) {
            self.scheduler.step_took(batch.parts.len(), service::Batch::tokens(batch), time);
        }
    }

    /// Records a step's tokens. Its events are sent, or kept until the next step is under way.
    fn commit(&mut self, batch: Batch, outcomes: Vec<Self::Output>) {
        let next = |outcome: &Self::Output| outcome.iter().flat_map(|o| &o.next).map(|c| c.token).collect();
        let sampled: Vec<Vec<u32>> = outcomes.iter().map(next).collect();
        // Journey, stop 8: the sampled tokens go to the scheduler and to the clients.
        let full = self.scheduler.commit(&batch, &sampled);
        for ((part, outcome), full) in batch.parts.iter().zip(outcomes).zip(full) {
            let (id, tokens) = (part.id, part.start..part.start + part.tokens.len());
            let Some(request) = self.requests.get_mut(&id) else {
                // It ended while the device computed this.
                self.shared.steps.wasted.fetch_add(tokens.len() as u64, Ordering::Relaxed);
                continue;
            };
            match outcome {
                Err(bad) => self.fail_request(id, bad.to_string()),
                Ok(outcome) => {
                    if request.accept(&outcome.next) {
                        // The next step is without it, even if its events are sent later.
                        self.scheduler.drop_seq(id);
                    }
                    let result = StepResult { id, tokens, outcome, full };
                    if self.overlaps { self.unsent.push(result) } else { self.send(result) }
                }
            }
        }
        self.follow(&sampled);
    }

    fn fail(&mut self, batch: Batch, why: &str) {
        batch.parts.iter().for_each(|part| self.fail_request(part.id, why.to_owned()));
    }
}

impl<B: Backend> Engine<B> {
    /// A part's request as the runner needs it; `None` if it has ended.
    fn asked(&self, part: &BatchPart) -> Option<SampleInput<'_>> {
        self.requests.get(&part.id).map(Active::asked)
    }

    fn new(runner: Runner<B>, scheduler: Scheduler, shared: SharedOf<Engine<B>>) -> Engine<B> {
        let (requests, salts, inputs) = (HashMap::new(), std::hash::RandomState::new(), InputKeys::default());
        shared
            .stats
            .decode_budget
            .store(scheduler.decode_budget(scheduler.limits().slots), Ordering::Relaxed);
        Engine {
            requests,
            tiers: CacheTiers::default(),
            scheduler,
            in_flight: VecDeque::new(),
            unsent: Vec::new(),
            overlaps: false,
            runner,
            salts,
            inputs,
            mask_threads: None,
            next_id: 0,
            next_adapter: 0,
            shared,
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { mut request, mut listener } = submission;
        let new = match self.new_seq(&request) {
            Ok(new) => new,
            Err(unfit) => return listener.end(Err(unfit.into())),
        };
        let sampler = match self.sampler(&mut request) {
            Ok(sampler) => sampler,
            Err(e) => return listener.fail(format!("no thread can be started for its constraint: {e}")),
        };
        let id = new.id;
        let is_saved = !request.unsaved && request.adapter.is_none() && request.input.is_none();
        let new = match is_saved {
            true => self.tiers.hold(new, request.salt.as_deref(), self.scheduler.pool()),
            false => Some(new),
        };
        if let Some(new) = new
            && let Err(unfit) = self.scheduler.submit(new)
        {
            return listener.end(Err(unfit.into()));
        }
        let tokenizer = self.shared.info.tokenizer.clone();
        self.requests.insert(id, Active::new(request, sampler, tokenizer, listener));
    }

    /// The sampler of a request.
    fn sampler(&mut self, request: &mut Request) -> std::io::Result<Sampler> {
        let sampling = std::mem::take(&mut request.sampling);
        let sampler = Sampler::new(sampling, &request.prompt).with_policy(request.policy.take());
        let Some(constraint) = request.constraint.take() else { return Ok(sampler) };
        let threads = match &self.mask_threads {
            Some(threads) => threads.clone(),
            None => self.mask_threads.insert(MaskThreads::start()?).clone(),
        };
        Ok(sampler.with_constraint(constraint, threads))
    }

    /// The sequence of a request, if the request fits the model.
    fn new_seq(&mut self, request: &Request) -> Result<NewSeq, Unfit> {
        let (vocab, input) = (self.shared.info.vocab, request.input.as_deref());
        let read: &[u32] = match input {
            Some(EncoderInput::Tokens(tokens)) => tokens,
            Some(EncoderInput::Mel(_)) | None => &[],
        };
        if let Some(token) = request.prompt.iter().chain(read).find(|t| **t as usize >= vocab) {
            return Err(Unfit::Unknown { token: *token, vocab });
        }
        if request.adapter.is_some_and(|lora| !self.runner.adapters().accepts(lora.id)) {
            return Err(Unfit::NoAdapter);
        }
        let tokens = self.runner.encoder_tokens(input)?;
        let salt = request.salt.as_deref();
        let output = |(input, tokens)| EncoderOutput { input: self.inputs.digest(salt, input), tokens };
        let cross = input.zip(tokens).map(output);
        let id = SeqId(self.next_id);
        self.next_id += 1;
        Ok(NewSeq {
            id,
            tokens: request.prompt.clone(),
            max_new: request.max_new,
            root: self.root(request, cross.map(|cross| cross.input)),
            all_logits: request.score_prompt,
            lora: request.adapter,
            client: request.client,
            drafts: request.policy.is_none(),
            cross,
        })
    }

    /// Start of the prefix hash chain: requests with the same salt, adapter and scale, and encoder input share pages;
    /// those that may be saved with each other only.
    fn root(&self, request: &Request, input: Option<InputDigest>) -> Chain {
        let adapter = request.adapter.map(|LoraRef { id, scale }| (id, scale.to_bits()));
        match (&request.salt, adapter, input, request.unsaved) {
            (None, None, None, false) => Chain::ROOT,
            key => Chain::salted(self.salts.hash_one(key)),
        }
    }

    fn add_cache_tier(&mut self, settings: TierSettings) -> Result<(), TierError> {
        let stats = &self.shared.stats;
        let counts = match settings {
            TierSettings::Ram { .. } => stats.ram.clone(),
            TierSettings::Disk(_) => stats.disk.clone(),
        };
        self.tiers.open(settings, &self.runner, &mut self.scheduler, counts)
    }

    /// Has pages saved and loaded, and queues the requests that have waited for theirs.
    fn advance_tiers(&mut self) {
        for new in self.tiers.advance(&self.runner, &mut self.scheduler) {
            let id = new.id;
            if let Err(unfit) = self.scheduler.submit(new)
                && let Some(mut request) = self.take_out(id)
            {
                request.listener.end(Err(unfit.into()));
            }
        }
    }

    /// Loads a LoRA adapter.
    fn load_lora(&mut self, lora: LoadLora) -> Result<(), LoraError> {
        let LoadLora { name, file, scale } = lora;
        self.shared.check_name(&name)?;
        let (needs, room, used) =
            (file.bytes(), self.shared.info.adapter_room, self.runner.adapters().bytes());
        if used.saturating_add(needs) > room {
            return Err(LoraError::Full { needs, room, used });
        }
        let id = LoraId(self.next_adapter);
        self.next_adapter += 1;
        self.runner.load_lora(id, &file)?;
        tracing::info!("adapter {name:?} is loaded from {}", file.path.display());
        let mut all = self.shared.stats.adapters();
        all.push(LoadedLora { name, path: file.path, lora: LoraRef { id, scale } });
        self.shared.list(all);
        Ok(())
    }

    /// Unloads a LoRA adapter: no new request can use it.
    fn unload_lora(&mut self, name: String) -> Result<(), LoraError> {
        let mut all = self.shared.stats.adapters();
        let Some(at) = all.iter().position(|a| a.name == name) else {
            return Err(LoraError::Unknown(name));
        };
        let id = all.remove(at).lora.id;
        self.shared.list(all);
        self.runner.adapters_mut().unload(id);
        self.evict_loras();
        tracing::info!("adapter {name:?} is unloaded");
        Ok(())
    }

    /// Frees unloaded adapters that no request uses any more.
    fn evict_loras(&mut self) {
        let requests = &self.requests;
        self.runner.adapters_mut().evict(|id| requests.values().any(|r| r.adapter == Some(id)));
        self.publish_lora_use();
    }

    /// Drops requests whose client is gone.
    fn forget_abandoned(&mut self) {
        let gone: Vec<SeqId> =
            self.requests.iter().filter(|(_, r)| r.listener.is_gone()).map(|(id, _)| *id).collect();
        for id in gone {
            self.take_out(id);
        }
    }

    /// Fails requests that have waited for a slot for `queue_timeout` or longer.
    fn fail_late(&mut self) {
        let Some(limit) = self.shared.info.queue_timeout else { return };
        let late = |r: &Active| r.started.is_none() && r.submitted.elapsed() >= limit;
        let late: Vec<SeqId> = self.requests.iter().filter(|(_, r)| late(r)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(mut request) = self.take_out(id) {
                request.listener.end(Err(Failure::QueueTimeout(limit)));
            }
        }
    }

    /// Forgets the cache tiers if the device is lost.
    fn unless_lost(&mut self, ran: Result<(), Lost>) -> Result<(), Lost> {
        if ran.is_err() {
            self.tiers.forget_all();
        }
        ran
    }

    /// Begins a step: runs it, or leaves it in flight if the device computes it while the host goes on.
    fn begin(&mut self, batch: Batch) -> Result<(), Lost> {
        // What need not come before the launch waits until the device has something to do, if it then does it.
        if !self.overlaps {
            self.note(&batch);
        }
        let step = launch_batch(self, batch);
        if self.overlaps {
            self.note(step.batch());
        }
        let runs = step.launched().map(Launched::runs);
        self.overlaps = runs.unwrap_or(self.overlaps);
        if runs != Some(true) {
            self.send_all();
            return finish_batch(self, step);
        }
        self.scheduler.advance(step.batch());
        self.in_flight.push_back(step);
        Ok(())
    }

    /// Launches the step after the one in flight, if that samples tokens on the device.
    fn begin_ahead(&mut self) {
        let (Some(step), 1) = (self.in_flight.front(), self.in_flight.len()) else { return };
        if !step.launched().is_some_and(Launched::samples) {
            return;
        }
        let Some(batch) = self.scheduler.next_ahead(step.batch()) else { return };
        let next = launch_batch(self, batch);
        self.shared.steps.ahead.fetch_add(1, Ordering::Relaxed);
        self.note(next.batch());
        self.in_flight.push_back(next);
    }

    /// The device goes on with the step that was launched ahead, if there is one: its tokens are those that have been sampled
    /// now.
    fn follow(&mut self, sampled: &[Vec<u32>]) {
        let Some(next) = self.in_flight.front_mut() else { return };
        for part in &mut next.batch_mut().parts {
            let token = part.follows.take().and_then(|at| sampled.get(at)?.first().copied());
            // Without one its request has ended.
            token.into_iter().for_each(|token| part.tokens = vec![token]);
        }
        next.begins();
        self.scheduler.advance(next.batch());
    }

    /// Notes that a step is run: who starts with it, who has waited for too long, its size.
    fn note(&mut self, batch: &Batch) {
        self.note_started(batch);
        self.fail_late();
        self.shared.stats.step_sizes.add(service::Batch::tokens(batch));
    }

    fn note_started(&mut self, batch: &Batch) {
        for part in &batch.parts {
            let Some(request) = self.requests.get_mut(&part.id).filter(|r| r.started.is_none()) else {
                continue;
            };
            request.start(self.scheduler.cached(part.id));
        }
    }

    /// Removes a request and its sequence. Its pages are freed before its last event is sent.
    fn take_out(&mut self, id: SeqId) -> Option<Active> {
        self.scheduler.drop_seq(id);
        self.tiers.forget(id, self.scheduler.pool_mut());
        let request = self.requests.remove(&id);
        if request.as_ref().is_some_and(|r| r.adapter.is_some()) {
            self.evict_loras();
        }
        self.publish_stats();
        request
    }

    fn fail_request(&mut self, id: SeqId, why: String) {
        if let Some(mut request) = self.take_out(id) {
            request.listener.fail(why);
        }
    }

    /// Sends all events that have not been sent yet.
    fn send_all(&mut self) {
        for result in std::mem::take(&mut self.unsent) {
            self.send(result);
        }
    }

    /// Sends a request the events of a step, and ends it if that was its last token.
    fn send(&mut self, result: StepResult) {
        let StepResult { id, tokens, outcome, full } = result;
        let Some(request) = self.requests.get_mut(&id) else { return };
        let before = request.new_tokens();
        let end = request.tell(tokens, outcome).or(full.then_some(Finish::Length));
        let new_tokens = (request.new_tokens() - before) as u64;
        self.shared.stats.new_tokens.fetch_add(new_tokens, Ordering::Relaxed);
        if let Some(reason) = end
            && let Some(request) = self.take_out(id)
        {
            self.shared.stats.prompt_tokens.fetch_add(request.prompt().len() as u64, Ordering::Relaxed);
            request.done(reason);
        }
    }

    /// Checks for leaked pages whenever no sequence is running or waiting. `closely`: checks each page, which for a
    /// large cache takes as long as decoding a token; otherwise only the counts.
    fn check_pages(&self, closely: bool) {
        let counts = self.scheduler.pool().at_rest();
        let found = counts.and_then(|()| if closely { self.scheduler.check() } else { Ok(()) });
        if let Err(why) = found {
            self.shared.stats.page_faults.fetch_add(1, Ordering::Relaxed);
            tracing::error!("the cache's pages are not in order, please report it: {why}");
        }
    }

    fn publish_stats(&self) {
        let (stats, counts) = (&self.shared.stats, self.scheduler.counts());
        stats.running.store(self.scheduler.running(), Ordering::Relaxed);
        stats.waiting.store(self.scheduler.waiting() + self.tiers.held(), Ordering::Relaxed);
        stats.pages_in_use.store(self.scheduler.pool().in_use(), Ordering::Relaxed);
        stats.prefix_queries.store(counts.prefix_queries, Ordering::Relaxed);
        stats.prefix_hits.store(counts.prefix_hits, Ordering::Relaxed);
        stats.preemptions.store(counts.preemptions, Ordering::Relaxed);
        stats.drafted.store(counts.drafted, Ordering::Relaxed);
        stats.accepted.store(counts.accepted, Ordering::Relaxed);
        if !self.runner.adapters().is_empty() {
            self.publish_lora_use();
        }
    }

    /// Publishes which adapters running and waiting requests use.
    fn publish_lora_use(&self) {
        let in_use = self.requests.values().filter_map(|r| Some((r.adapter?, r.started.is_some())));
        self.shared.use_lora(in_use);
    }
}
