//! [`EngineHandle`]: how everybody else talks to an engine, whatever it runs on.
//!
//! Commands go in, events come out, one channel for each request. Dropping the receiver ends the request. Every request
//! that is taken gets exactly one last event, whatever becomes of the engine.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tallow_models::adapter::AdapterFile;
use tallow_models::tokenizer::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::admission::Admission;
use crate::counts::StepSizes;
use crate::lora::{LoadedLora, LoraError, LoraId, LoraRef, LoraUse};
use crate::sampler::{Choice, Sampling};
use crate::scheduler::ClientId;

/// Something to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_new: usize,
    /// How to choose them.
    pub sampling: Sampling,
    /// Texts that end the answer; they are not part of it.
    pub stops: Vec<String>,
    /// Tokens that end the answer, besides those that always do.
    pub stop_tokens: Vec<u32>,
    /// Go on past the tokens that always end an answer.
    pub ignore_end: bool,
    /// Special tokens that are part of the answer's text, such as those that mark its parts.
    pub shown: Vec<u32>,
    /// Whom to share the prefix cache with; everybody if there is none.
    pub salt: Option<String>,
    /// Score the prompt's tokens too.
    pub score_prompt: bool,
    /// Report prefill progress: an [`Event::Prefill`] after each step of the prompt.
    pub progress: bool,
    /// What is added to the model.
    pub adapter: Option<LoraRef>,
    /// Who asks: clients share the slots evenly.
    pub client: ClientId,
}

/// Counts the bytes of events that a request has been told and nobody has taken yet: an engine goes on whether or not
/// its client reads.
pub trait Unread: Send + Sync + std::fmt::Debug {
    /// There are so many bytes more. Whether the request may go on.
    fn told(&self, bytes: usize) -> bool;
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its prompt is being computed.
    Started {
        /// Prompt tokens that were in the cache already.
        cached: usize,
    },
    /// Prefill progress, for requests that ask for it: after each step that computed some of the prompt. Only rises, and
    /// the last one, with all of the prompt, comes before the first piece.
    Prefill {
        /// Prompt tokens in the KV cache by now, those that were there before included.
        computed: usize,
        /// Of those, prompt tokens that were in the cache already.
        cached: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Prompt tokens from the second on, scored, in order. Comes in pieces.
    Prompt(Vec<Choice>),
    /// A piece of the answer.
    Piece {
        /// Whole characters. May be empty: text that could be the beginning of a stop is held back.
        text: String,
        /// The token that it ends with.
        choice: Choice,
    },
    /// The end of an answer.
    Done(Done),
    /// The end of a request that failed.
    Failed(Failure),
}

impl Event {
    /// Bytes that it takes while it waits to be taken, roughly.
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

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Text that was held back and turned out not to be a stop.
    pub text: String,
    /// Why it ended.
    pub reason: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, how many were in the cache already.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub new_tokens: usize,
    /// Where the time went.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop token did.
    End,
    /// A stop text came.
    Stop(String),
    /// It has all the tokens that it may have, or that the context has room for.
    Length,
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Until its prompt was begun.
    pub queue: Duration,
    /// From there to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It cannot be done with this model: the caller's mistake.
    #[error("{0}")]
    Unfit(#[from] crate::scheduler::Unfit),
    /// Too many requests wait already.
    #[error("{0} requests are being served or waiting already; try again in a while")]
    Full(usize),
    /// No slot was free in time.
    #[error("no slot was free for {} s; try again in a while", .0.as_secs())]
    QueueTimeout(Duration),
    /// Too much of its answer has not been taken.
    #[error("the answer was not read as fast as it came, and there is no memory left for what is unread")]
    Unread,
    /// No more requests are taken.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Something is broken that the caller cannot help.
    #[error("{0}")]
    Broken(String),
}

/// What an engine is told.
#[derive(Debug)]
pub enum Command {
    /// Take a request.
    Submit(Box<Submission>),
    /// Load an adapter, and say how that went.
    LoadLora(Box<LoadLora>, Sender<Result<(), LoraError>>),
    /// Give an adapter of that name to no new request, let go of it once nobody has it, and say how that went.
    UnloadLora(String, Sender<Result<(), LoraError>>),
    /// Finish what is under way, take nothing more, and end; what is not finished by then fails.
    Drain {
        /// How long it may take.
        within: Duration,
    },
}

/// An adapter on its way to the engine.
#[derive(Debug)]
pub struct LoadLora {
    /// What requests call it.
    pub name: String,
    /// Its files.
    pub file: AdapterFile,
    /// How much it counts unless a request says otherwise.
    pub scale: f32,
}

/// A request on its way to the engine.
#[derive(Debug)]
pub struct Submission {
    /// What to do.
    pub request: Request,
    /// Whom to tell what happens.
    pub listener: Listener,
}

/// Whoever asked. Holds one of the places for requests that an engine has, and gives it up when it is dropped.
#[derive(Debug)]
pub struct Listener {
    events: UnboundedSender<Event>,
    /// Has it had its last event?
    ended: bool,
    unread: Option<Arc<dyn Unread>>,
    shared: Arc<Shared>,
}

impl Listener {
    /// Says what happened. After a last event there is nothing more to say.
    pub fn tell(&mut self, event: Event) {
        if !self.ended {
            let event = match &self.unread {
                Some(unread) if !unread.told(event.bytes()) => Event::Failed(Failure::Unread),
                _ => event,
            };
            self.ended = matches!(event, Event::Done(_) | Event::Failed(_));
            if self.ended {
                // First its place: who asks again on hearing of the end finds room.
                self.shared.admission.release();
            }
            // Whether anybody still listens is asked elsewhere.
            let _ = self.events.send(event);
        }
    }

    /// Does nobody listen any more, or is there nothing more to say?
    pub fn is_gone(&self) -> bool {
        self.ended || self.events.is_closed()
    }
}

impl Drop for Listener {
    /// Whatever happens to the engine, and to requests on their way to it: each gets its last event.
    fn drop(&mut self) {
        self.tell(Event::Failed(self.shared.admission.shutdown_reason()));
    }
}

/// What is known of an engine from outside.
#[derive(Debug)]
pub struct Info {
    /// Names it goes by; the first is the real one.
    pub names: Vec<String>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Ids that tokens may have.
    pub vocab: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Sequences under way at once.
    pub slots: usize,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// How long a request may wait for a slot; `None` for as long as somebody listens.
    pub queue_timeout: Option<Duration>,
    /// Tokens in a page of the cache.
    pub page_len: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// How tokens are chosen unless a request says otherwise.
    pub sampling: Sampling,
    /// Bytes that adapters may take on the device, all together.
    pub adapter_room: usize,
}

/// Numbers that an engine keeps up to date.
#[derive(Debug, Default)]
pub struct Stats {
    /// Tokens that a step may have while answers are under way.
    pub beside: AtomicUsize,
    /// Sequences under way.
    pub running: AtomicUsize,
    /// Sequences that wait.
    pub waiting: AtomicUsize,
    /// Pages that sequences have.
    pub pages_in_use: AtomicUsize,
    /// Prompt tokens of finished requests.
    pub prompt_tokens: AtomicU64,
    /// Tokens generated.
    pub new_tokens: AtomicU64,
    /// Prompt tokens looked for in the prefix cache.
    pub prefix_queries: AtomicU64,
    /// Prompt tokens found there.
    pub prefix_hits: AtomicU64,
    /// Sequences that had to give way.
    pub preemptions: AtomicU64,
    /// Steps run.
    pub steps: AtomicU64,
    /// Tokens of steps.
    pub step_sizes: StepSizes,
    /// Steps that failed. Those of several sequences are run again, one sequence at a time.
    pub failed_steps: AtomicU64,
    /// How often the pages were not in order when nobody used any.
    pub page_faults: AtomicU64,
}

/// What handles and their engine share.
#[derive(Debug)]
pub struct Shared {
    /// What does not change.
    pub info: Info,
    /// What does.
    pub stats: Stats,
    adapters: RwLock<Vec<LoadedLora>>,
    adapter_use: RwLock<LoraUse>,
    admission: Admission,
    /// The engine's thread, where [`spawn`](crate::engine::spawn) has started one.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A way to an engine. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl EngineHandle {
    /// A handle, and what its engine needs of it.
    pub fn new(info: Info) -> (EngineHandle, std::sync::mpsc::Receiver<Command>, EngineGuard) {
        let (commands, receiver) = std::sync::mpsc::channel();
        let shared = Arc::new(Shared {
            info,
            stats: Stats::default(),
            adapters: RwLock::default(),
            adapter_use: RwLock::default(),
            admission: Admission::default(),
            thread: Mutex::default(),
        });
        (EngineHandle { commands, shared: shared.clone() }, receiver, EngineGuard(shared))
    }

    /// What does not change.
    pub fn info(&self) -> &Info {
        &self.shared.info
    }

    /// What does.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// The adapters that requests may have, in the order in which they were loaded.
    pub fn loras(&self) -> Vec<LoadedLora> {
        self.shared.adapters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapters that requests have.
    pub fn lora_use(&self) -> LoraUse {
        self.shared.adapter_use.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads an adapter. Waits until that is done; steps under way wait for it, too.
    pub fn load_lora(&self, adoption: LoadLora) -> Result<(), LoraError> {
        self.ask(|reply| Command::LoadLora(Box::new(adoption), reply))
    }

    /// Gives an adapter to no new request. It goes once those that have it are done.
    pub fn unload_lora(&self, name: &str) -> Result<(), LoraError> {
        self.ask(|reply| Command::UnloadLora(name.to_owned(), reply))
    }

    fn ask(&self, command: impl FnOnce(Sender<Result<(), LoraError>>) -> Command) -> Result<(), LoraError> {
        self.ready()?;
        let (reply, answer) = channel();
        let gone = || LoraError::Ended(self.shared.admission.shutdown_reason());
        self.commands.send(command(reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }

    /// Requests that are being served or wait.
    pub fn taken(&self) -> usize {
        self.shared.admission.admitted()
    }

    /// Does it take requests? If not, why.
    pub fn ready(&self) -> Result<(), Failure> {
        self.shared.admission.ready()
    }

    /// Does it take requests?
    pub fn is_ready(&self) -> bool {
        self.ready().is_ok()
    }

    /// Does the engine live?
    pub fn is_alive(&self) -> bool {
        self.shared.admission.is_alive()
    }

    /// Hands in a request. What happens to it comes through the receiver; dropping that ends it.
    pub fn submit(&self, request: Request) -> Result<UnboundedReceiver<Event>, Failure> {
        self.submit_counted(request, None)
    }

    /// The same. The bytes of what happens to it are counted, and it ends when there are too many.
    pub fn submit_counted(
        &self,
        request: Request,
        unread: Option<Arc<dyn Unread>>,
    ) -> Result<UnboundedReceiver<Event>, Failure> {
        self.shared.admission.admit(self.info().slots + self.info().queue)?;
        let (events, receiver) = unbounded_channel();
        let listener = Listener { events, ended: false, unread, shared: self.shared.clone() };
        let sent = self.commands.send(Command::Submit(Box::new(Submission { request, listener })));
        sent.map_err(|_| self.shared.admission.shutdown_reason())?;
        Ok(receiver)
    }

    /// Notes the engine's thread, for [`close`](Self::close).
    pub(crate) fn runs_on(&self, thread: JoinHandle<()>) {
        *self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Ends the engine at once; requests under way fail. Returns when its memory on the device has been released.
    pub fn close(self) {
        self.drain(Duration::ZERO);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the engine's was reported where it happened.
        let _ = thread.map(JoinHandle::join);
    }

    /// Lets the engine finish within some time, and end. Returns at once.
    pub fn drain(&self, within: Duration) {
        self.shared.admission.drain();
        // If it has ended already there is nobody to tell.
        let _ = self.commands.send(Command::Drain { within });
    }
}

/// Held by the engine's thread. When it goes, everybody knows that the engine has ended.
#[derive(Debug)]
pub struct EngineGuard(Arc<Shared>);

impl EngineGuard {
    /// What does not change.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// What does.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// The adapters that requests may have.
    pub fn adapters(&self) -> Vec<LoadedLora> {
        self.0.adapters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says which adapters requests may have from here on.
    pub fn list(&self, adapters: Vec<LoadedLora>) {
        *self.0.adapters.write().unwrap_or_else(PoisonError::into_inner) = adapters;
    }

    /// Says which adapters requests have: those with `true` are under way.
    pub fn use_lora(&self, worn: impl Iterator<Item = (LoraId, bool)>) {
        let mut now = LoraUse::default();
        for (id, runs) in worn {
            let some = if runs { &mut now.running } else { &mut now.waiting };
            if let Err(at) = some.binary_search(&id) {
                some.insert(at, id);
            }
        }
        *self.0.adapter_use.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// May an adapter be called so?
    pub fn check_name(&self, name: &str) -> Result<(), LoraError> {
        let taken =
            self.info().names.iter().any(|n| n == name) || self.adapters().iter().any(|a| a.name == name);
        if taken { Err(LoraError::Taken(name.into())) } else { Ok(()) }
    }

    /// Says why the engine ends. From here on it takes nothing more, and whoever gets no answer is told this.
    pub fn end(&self, why: Failure) {
        self.0.admission.end(why);
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        self.end(self.0.admission.shutdown_reason());
    }
}
