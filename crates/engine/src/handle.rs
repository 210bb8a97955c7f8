//! [`EngineHandle`]: the interface of a generation engine, whatever backend it runs on.
//!
//! Commands go in; events come out, on one channel per request. Dropping the receiver cancels the request. Every
//! accepted request gets exactly one last event, whatever happens to the engine.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tallow_models::adapter::AdapterFile;
use tallow_text::tokenizer::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::admission::{Reply, Ticket};
use crate::cache_tier::{DiskCacheSettings, TierCounts, TierError, TierSettings};
use crate::counts::StepSizes;
use crate::encoder_input::EncoderInput;
pub use crate::failure::Failure;
use crate::lora::{LoadedLora, LoraError, LoraId, LoraRef, LoraUse};
use crate::sampler::{Choice, Constraint, LogitsPolicy, Sampling};
use crate::scheduler::ClientId;
use crate::service::{Guard, Handle, Running, Shared};

/// A generation request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Maximum tokens to generate.
    pub max_new: usize,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Stop strings; not included in the answer.
    pub stops: Vec<String>,
    /// Stop tokens, in addition to the model's end-of-generation tokens.
    pub stop_tokens: Vec<u32>,
    /// Ignore the model's end-of-generation tokens.
    pub ignore_end: bool,
    /// Special tokens to include in the answer's text, such as those that delimit its sections.
    pub shown: Vec<u32>,
    /// Prefix cache salt: only requests with the same salt share pages. `None`: shared with all that have none.
    pub salt: Option<String>,
    /// Its pages are not written to disk, and not shared with requests whose pages are.
    pub unsaved: bool,
    /// Return the log-probabilities of the prompt's tokens too.
    pub score_prompt: bool,
    /// Report prefill progress: an [`Event::Prefill`] after each step of the prompt.
    pub progress: bool,
    /// LoRA adapter.
    pub adapter: Option<LoraRef>,
    /// Client; clients share the slots evenly.
    pub client: ClientId,
    /// Encoder input, for a model with an encoder.
    pub input: Option<Arc<EncoderInput>>,
    /// Rules that choose the tokens in place of `sampling`.
    pub policy: Option<Arc<dyn LogitsPolicy>>,
    /// Restricts the tokens that `sampling` chooses from.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Counts the bytes of events sent to a request and not received yet: an engine generates whether or not its client
/// reads.
pub trait Unread: Send + Sync + std::fmt::Debug {
    /// Called when `bytes` more are sent. Returns whether the request may go on.
    fn add(&self, bytes: usize) -> bool;
}

/// Event of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prefill has started.
    Started {
        /// Prompt tokens found in the prefix cache.
        cached: usize,
    },
    /// Prefill progress, if requested: sent after each step that computed part of the prompt. `computed` only
    /// increases; the last event, with the whole prompt, comes before the first piece.
    Prefill {
        /// Prompt tokens in the KV cache, including those from the prefix cache.
        computed: usize,
        /// Prompt tokens found in the prefix cache.
        cached: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// Log-probabilities of the prompt tokens from the second on, in order. May be split over several events.
    Prompt(Vec<Choice>),
    /// Piece of the answer.
    Piece {
        /// Whole characters. May be empty: text that could begin a stop string is held back.
        text: String,
        /// Token that completed this piece.
        choice: Choice,
    },
    /// The answer is complete.
    Done(Done),
    /// The request failed.
    Failed(Failure),
}

impl Event {
    /// Approximate memory of a queued event, in bytes.
    pub fn bytes(&self) -> usize {
        let choice = |choice: &Choice| size_of_val(choice) + size_of_val(choice.top.as_slice());
        size_of::<Event>()
            + match self {
                Event::Started { .. } | Event::Prefill { .. } | Event::Failed(_) => 0,
                Event::Prompt(choices) => choices.iter().map(choice).sum(),
                Event::Piece { text, choice: one } => text.len() + choice(one),
                Event::Done(done) => done.text.len(),
            }
    }
}

/// Result of a completed answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Last piece: text that was held back and turned out not to be a stop string.
    pub text: String,
    /// Finish reason.
    pub reason: Finish,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub new_tokens: usize,
    /// Timings.
    pub timings: Timings,
}

/// Finish reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-generation or stop token.
    End,
    /// A stop string.
    Stop(String),
    /// Maximum tokens reached, or the context is full.
    Length,
}

/// Time spent in each phase of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Waiting for a slot, until prefill starts.
    pub queue: Duration,
    /// From the start of prefill to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Command to an engine.
#[derive(Debug)]
pub enum Command {
    /// Submit a request.
    Submit(Box<Submission>),
    /// Load a LoRA adapter and reply with the result.
    LoadLora(Box<LoadLora>, Sender<Result<(), LoraError>>),
    /// Unload the adapter of that name: no new request can use it, and it is freed once no request does. Replies with
    /// the result.
    UnloadLora(String, Sender<Result<(), LoraError>>),
    /// Keep pages of the prefix cache in one more tier, and reply with the result.
    AddCacheTier(Box<TierSettings>, Sender<Result<(), TierError>>),
}

/// A LoRA adapter to load.
#[derive(Debug)]
pub struct LoadLora {
    /// Name by which requests select it.
    pub name: String,
    /// Adapter file.
    pub file: AdapterFile,
    /// Default scale.
    pub scale: f32,
}

/// A submitted request.
#[derive(Debug)]
pub struct Submission {
    /// The request.
    pub request: Request,
    /// Channel to which its events are sent.
    pub listener: Listener,
}

/// Sending end of a request's events. The request counts as admitted until its last event; dropping this sends one.
pub type Listener = Ticket<EventSender>;

impl Listener {
    /// Sends an event. Events after the last one are ignored.
    pub fn tell(&mut self, event: Event) {
        match event {
            Event::Done(done) => self.end(Ok(done)),
            Event::Failed(why) => self.end(Err(why)),
            event => {
                if let Some(Err(why)) = self.reply().map(|events| events.send(event)) {
                    self.end(Err(why));
                }
            }
        }
    }
}

/// Channel of a request's events.
#[derive(Debug)]
pub struct EventSender {
    channel: UnboundedSender<Event>,
    unread: Option<Arc<dyn Unread>>,
}

impl EventSender {
    /// Counts an event's bytes. Fails if too many are unread.
    fn count(&self, event: &Event) -> Result<(), Failure> {
        match &self.unread {
            Some(unread) if !unread.add(event.bytes()) => Err(Failure::Unread),
            _ => Ok(()),
        }
    }

    fn send(&self, event: Event) -> Result<(), Failure> {
        self.count(&event)?;
        // A closed channel is detected by `is_gone`.
        let _ = self.channel.send(event);
        Ok(())
    }
}

impl Reply for EventSender {
    type Done = Done;

    fn is_gone(&self) -> bool {
        self.channel.is_closed()
    }

    fn end(self, how: Result<Done, Failure>) {
        let event = how.map_or_else(Event::Failed, Event::Done);
        let event = match event {
            // It replaces an event that has been counted.
            Event::Failed(Failure::Unread) => event,
            event => self.count(&event).map_or_else(Event::Failed, |()| event),
        };
        let _ = self.channel.send(event);
    }
}

/// Constant properties of an engine.
#[derive(Debug)]
pub struct Info {
    /// Model names; the first is canonical.
    pub names: Vec<String>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Vocabulary size.
    pub vocab: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
    /// Maximum running sequences.
    pub slots: usize,
    /// Maximum waiting requests.
    pub queue: usize,
    /// Maximum time a request waits for a slot; `None` for no limit.
    pub queue_timeout: Option<Duration>,
    /// Tokens per page of the KV cache.
    pub page_len: usize,
    /// Pages of the KV cache.
    pub pages: usize,
    /// Pages of the sliding-window layers; 0 if these have the same pages as the other layers.
    pub swa_pages: usize,
    /// Rows of recurrent states; 0 if the model has none.
    pub state_rows: usize,
    /// Default sampling parameters.
    pub sampling: Sampling,
    /// Device memory for all LoRA adapters, in bytes.
    pub adapter_room: usize,
}

/// Counters and gauges that an engine updates.
#[derive(Debug, Default)]
pub struct Stats {
    /// Token budget of a step in which all slots decode (`Scheduler::decode_budget`).
    pub decode_budget: AtomicUsize,
    /// Running sequences.
    pub running: AtomicUsize,
    /// Waiting sequences.
    pub waiting: AtomicUsize,
    /// Pages in use by sequences.
    pub pages_in_use: AtomicUsize,
    /// Prompt tokens of finished requests.
    pub prompt_tokens: AtomicU64,
    /// Generated tokens.
    pub new_tokens: AtomicU64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: AtomicU64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: AtomicU64,
    /// Preempted sequences.
    pub preemptions: AtomicU64,
    /// Tokens computed as drafts (speculative decoding).
    pub drafted: AtomicU64,
    /// Drafted tokens that sampling chose.
    pub accepted: AtomicU64,
    /// Histogram of tokens per step.
    pub step_sizes: StepSizes,
    /// Times that the idle check found pages unaccounted for.
    pub page_faults: AtomicU64,
    /// Counts of the RAM cache.
    pub ram: Arc<TierCounts>,
    /// Counts of the disk cache.
    pub disk: Arc<TierCounts>,
    adapters: RwLock<Vec<LoadedLora>>,
    adapter_use: RwLock<LoraUse>,
}

impl Stats {
    /// Loaded LoRA adapters that requests can select, in order of loading.
    pub(crate) fn adapters(&self) -> Vec<LoadedLora> {
        self.adapters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Handle of an engine. Clones refer to the same engine.
pub type EngineHandle = Handle<Command, Info, Stats>;

/// Owner of a running engine.
pub type RunningEngine = Running<Command, Info, Stats>;

impl EngineHandle {
    /// Loaded LoRA adapters that requests can select, in order of loading.
    pub fn loras(&self) -> Vec<LoadedLora> {
        self.stats().adapters()
    }

    /// LoRA adapters in use by requests.
    pub fn lora_use(&self) -> LoraUse {
        self.stats().adapter_use.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads a LoRA adapter. Blocks until done; running steps are delayed too.
    pub fn load_lora(&self, lora: LoadLora) -> Result<(), LoraError> {
        self.ask(|reply| Command::LoadLora(Box::new(lora), reply))
    }

    /// Unloads a LoRA adapter: no new request can use it, and it is freed once the requests that use it are done.
    pub fn unload_lora(&self, name: &str) -> Result<(), LoraError> {
        self.ask(|reply| Command::UnloadLora(name.to_owned(), reply))
    }

    /// Keeps pages of the prefix cache on disk from now on, and finds those that are there. Blocks until that has begun.
    pub fn cache_on_disk(&self, settings: DiskCacheSettings) -> Result<(), TierError> {
        self.add_cache_tier(TierSettings::Disk(settings))
    }

    /// Keeps pages that the device evicts in the host's memory from now on, at most so many bytes. Blocks until that has begun.
    pub fn cache_in_ram(&self, bytes: u64) -> Result<(), TierError> {
        self.add_cache_tier(TierSettings::Ram { bytes })
    }

    fn add_cache_tier(&self, settings: TierSettings) -> Result<(), TierError> {
        self.ready()?;
        let (reply, answer) = channel();
        self.send(Command::AddCacheTier(Box::new(settings), reply));
        answer.recv().unwrap_or_else(|_| Err(TierError::Ended(self.shutdown_reason())))
    }

    fn ask(&self, command: impl FnOnce(Sender<Result<(), LoraError>>) -> Command) -> Result<(), LoraError> {
        self.ready()?;
        let (reply, answer) = channel();
        self.send(command(reply));
        answer.recv().unwrap_or_else(|_| Err(LoraError::Ended(self.shutdown_reason())))
    }

    /// Submits a request. Its events come through the receiver; dropping the receiver cancels it.
    pub fn submit(&self, request: Request) -> Result<UnboundedReceiver<Event>, Failure> {
        self.submit_counted(request, None)
    }

    /// Like [`submit`](Self::submit), with `unread` counting the bytes of its events; the request fails if there are
    /// too many.
    pub fn submit_counted(
        &self,
        request: Request,
        unread: Option<Arc<dyn Unread>>,
    ) -> Result<UnboundedReceiver<Event>, Failure> {
        let (channel, receiver) = unbounded_channel();
        let most = self.info().slots.saturating_add(self.info().queue);
        let listener = self.admit(most, EventSender { channel, unread })?;
        self.send(Command::Submit(Box::new(Submission { request, listener })));
        Ok(receiver)
    }
}

/// Held by the engine's thread. Dropping it marks the engine as ended.
pub type EngineGuard = Guard<Info, Stats>;

impl Shared<Info, Stats> {
    /// Sets the LoRA adapters that requests can select.
    pub fn list(&self, adapters: Vec<LoadedLora>) {
        *self.stats.adapters.write().unwrap_or_else(PoisonError::into_inner) = adapters;
    }

    /// Sets the LoRA adapters in use; `true` marks those of running requests.
    pub(crate) fn use_lora(&self, in_use: impl Iterator<Item = (LoraId, bool)>) {
        let mut now = LoraUse::default();
        for (id, runs) in in_use {
            let some = if runs { &mut now.running } else { &mut now.waiting };
            if let Err(at) = some.binary_search(&id) {
                some.insert(at, id);
            }
        }
        *self.stats.adapter_use.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Fails if the name is not free for an adapter.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), LoraError> {
        let taken =
            self.info.names.iter().any(|n| n == name) || self.stats.adapters().iter().any(|a| a.name == name);
        if taken { Err(LoraError::Taken(name.into())) } else { Ok(()) }
    }
}
