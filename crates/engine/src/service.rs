//! `Service`: the loop under models of all kinds, on a thread of its own. It takes requests, runs steps until it is told
//! to end, and reports why it ended.
//!
//! A `Worker` serves one kind of model: generation or embedding. A [`Handle`] is the other end: requests
//! go in through it. A step that fails is rerun item by item (`finish_batch`), so that only the item at fault fails.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::admission::{Admission, Reply, Ticket};
use crate::counts::StepCounts;
use crate::failure::Failure;
use crate::step_lock::{StepLock, Turn};

mod batch;

pub(crate) use batch::{
    Batch, BatchWorker, InFlight, Lost, StepError, finish_batch, launch_batch, run_batch,
};

/// Idle time before [`Worker::check`].
const QUIET: Duration = Duration::from_secs(1);

/// Message from a handle to a service's thread.
#[derive(Debug)]
pub enum Message<C> {
    /// A request or another command.
    Take(C),
    /// Finish the requests, accept no more, and end. Requests that are not done in time fail.
    Drain {
        /// Time limit.
        within: Duration,
    },
}

/// Receiving end of a service's messages.
pub type Messages<C> = Receiver<Message<C>>;

/// State shared by a service's handles and its thread: constant properties `I`, counters and gauges `S`.
#[derive(Debug)]
pub struct Shared<I, S> {
    /// Constant properties.
    pub info: I,
    /// Counters and gauges.
    pub stats: S,
    /// Counts of steps.
    pub steps: StepCounts,
    admission: Arc<Admission>,
    /// Held during a step, where engines share the CPU.
    step_lock: OnceLock<StepLock>,
}

/// Handle of a service that takes commands `C`. Clones refer to the same service.
pub struct Handle<C, I, S> {
    messages: Sender<Message<C>>,
    shared: Arc<Shared<I, S>>,
}

impl<C, I, S> Clone for Handle<C, I, S> {
    fn clone(&self) -> Self {
        Handle { messages: self.messages.clone(), shared: self.shared.clone() }
    }
}

impl<C, I: Debug, S: Debug> Debug for Handle<C, I, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl<C, I, S: Default> Handle<C, I, S> {
    /// A handle, and the service's ends of it.
    pub fn new(info: I) -> (Self, Messages<C>, Guard<I, S>) {
        let (messages, receiver) = channel();
        let shared = Arc::new(Shared {
            info,
            stats: S::default(),
            steps: StepCounts::default(),
            admission: Arc::default(),
            step_lock: OnceLock::new(),
        });
        (Handle { messages, shared: shared.clone() }, receiver, Guard(shared))
    }
}

impl<C, I, S> Handle<C, I, S> {
    /// Constant properties.
    pub fn info(&self) -> &I {
        &self.shared.info
    }

    /// Counters and gauges.
    pub fn stats(&self) -> &S {
        &self.shared.stats
    }

    /// Counts of steps.
    pub fn steps(&self) -> &StepCounts {
        &self.shared.steps
    }

    /// Has the service compute its steps in turn with others that share the lock. Has no effect if it does already.
    pub fn take_turns(&self, lock: StepLock) {
        let _ = self.shared.step_lock.set(lock);
    }

    /// Running and waiting requests.
    pub fn taken(&self) -> usize {
        self.shared.admission.admitted()
    }

    /// Fails with the reason if requests are not accepted.
    pub fn ready(&self) -> Result<(), Failure> {
        self.shared.admission.ready()
    }

    /// True if requests are accepted.
    pub fn is_ready(&self) -> bool {
        self.ready().is_ok()
    }

    /// True if the service is running.
    pub fn is_alive(&self) -> bool {
        self.shared.admission.is_alive()
    }

    /// Drains: the service finishes its requests within a time limit and ends. Returns immediately.
    pub fn drain(&self, within: Duration) {
        self.shared.admission.drain();
        // The service may have ended already.
        let _ = self.messages.send(Message::Drain { within });
    }

    /// Failure for requests that will not be served.
    pub(crate) fn shutdown_reason(&self) -> Failure {
        self.shared.admission.shutdown_reason()
    }

    /// Admits a request if fewer than `most` are admitted; its end is reported to `reply`.
    pub(crate) fn admit<R: Reply>(&self, most: usize, reply: R) -> Result<Ticket<R>, Failure> {
        self.shared.admission.admit(most, reply)
    }

    /// Sends a command to the service. If it has just ended, the command is dropped, and the [`Ticket`] in it says why.
    pub(crate) fn send(&self, command: C) {
        let _ = self.messages.send(Message::Take(command));
    }

    /// The state shared with the service's thread.
    pub(crate) fn shared(&self) -> &Arc<Shared<I, S>> {
        &self.shared
    }
}

/// Held by the service's thread. Dropping it marks the service as ended.
#[derive(Debug)]
pub struct Guard<I, S>(Arc<Shared<I, S>>);

impl<I, S> Guard<I, S> {
    /// Ends the service with a reason. No more requests are accepted; unfinished requests fail with the first reason
    /// given.
    pub fn end(&self, why: Failure) {
        self.admission.end(why);
    }
}

impl<I, S> Deref for Guard<I, S> {
    type Target = Shared<I, S>;

    fn deref(&self) -> &Shared<I, S> {
        &self.0
    }
}

impl<I, S> Drop for Guard<I, S> {
    fn drop(&mut self) {
        self.end(self.admission.shutdown_reason());
    }
}

/// Serves requests of one kind. Called on the service's thread; drops its requests before its device.
pub(crate) trait Worker {
    /// A request, or another command.
    type Command;
    /// Constant properties.
    type Info;
    /// Counters and gauges.
    type Stats: Default;
    /// Handles a command; a request is queued.
    fn take(&mut self, command: Self::Command);
    /// True if there are no requests.
    fn is_idle(&self) -> bool;
    /// Runs the next step. Where the device computes while the host goes on, it may return as soon as the step is under way.
    fn step(&mut self) -> Result<(), Lost>;
    /// Completes the step that is under way, if there is one.
    fn complete(&mut self) -> Result<(), Lost> {
        Ok(())
    }
    /// Checks its own state, since nothing else is to be done: slow for a large KV cache, but no request waits.
    fn check(&self) {}
    /// Drops the requests that are left. The service has ended.
    fn stop(&mut self) {}
}

/// Handle of a worker's service.
pub(crate) type HandleOf<W> = Handle<<W as Worker>::Command, <W as Worker>::Info, <W as Worker>::Stats>;
/// Owner of a worker's service.
pub(crate) type RunningOf<W> = Running<<W as Worker>::Command, <W as Worker>::Info, <W as Worker>::Stats>;
/// State shared by a worker and the handles of its service.
pub(crate) type SharedOf<W> = Arc<Shared<<W as Worker>::Info, <W as Worker>::Stats>>;

/// See the [module](self).
pub(crate) struct Service<W: Worker> {
    // Dropped in this order on any exit: handles see that the service has ended, queued requests fail, then those of the
    // worker, and then the device is freed.
    guard: Guard<W::Info, W::Stats>,
    messages: Messages<W::Command>,
    worker: W,
    /// Deadline of draining, once draining has begun.
    deadline: Option<Instant>,
    /// Held while it computes, where engines share the CPU.
    turn: Option<Turn>,
}

impl<W: Worker> Service<W> {
    pub(crate) fn new(
        messages: Messages<W::Command>,
        guard: Guard<W::Info, W::Stats>,
        worker: impl FnOnce(SharedOf<W>) -> W,
    ) -> Service<W> {
        let worker = worker(guard.0.clone());
        Service { guard, messages, worker, deadline: None, turn: None }
    }

    /// Serves until all handles are dropped, draining is done, or the device is lost.
    pub(crate) fn run(mut self) {
        let why = self.serve();
        self.turn = None;
        // No requests are accepted from here on. Those that are left, queued or the worker's, get the reason.
        self.guard.end(why);
        self.worker.stop();
    }

    /// The loop. Returns why it ended.
    fn serve(&mut self) -> Failure {
        // Journey, stop 3: the engine's loop: commands, the next batch, its tokens, the events.
        while self.listen() {
            if let Err(Lost(why)) = self.step() {
                tracing::error!("{why}; all requests fail");
                return Failure::Broken(format!("{why}; restart the server"));
            }
        }
        Failure::ShuttingDown
    }

    /// Completes the step that is under way, and runs or begins the next.
    fn step(&mut self) -> Result<(), Lost> {
        self.turn = self.turn.take().filter(|turn| !turn.is_over());
        if let Some(lock) = self.guard.step_lock.get().filter(|_| self.turn.is_none()) {
            self.turn = Some(lock.turn());
        }
        self.worker.complete()?;
        // What has come meanwhile need not wait for another step.
        while let Ok(message) = self.messages.try_recv() {
            self.handle(message);
        }
        self.worker.step()
    }

    fn handle(&mut self, message: Message<W::Command>) {
        match message {
            Message::Take(command) => self.worker.take(command),
            Message::Drain { within } => self.deadline = Some(Instant::now() + within),
        }
    }

    /// Handles queued messages; blocks if there is nothing else to do. Returns whether to go on serving.
    fn listen(&mut self) -> bool {
        loop {
            let idle = self.worker.is_idle();
            if idle {
                self.turn = None;
            }
            if self.deadline.is_some_and(|end| idle || Instant::now() >= end) {
                return false;
            }
            let message = if idle { self.wait() } else { self.messages.try_recv().ok() };
            match message {
                Some(message) => self.handle(message),
                // Nothing is queued, or all handles are gone; then accepted requests are still served.
                None => return !idle,
            }
        }
    }

    /// The next message; `None` if all handles are gone.
    fn wait(&self) -> Option<Message<W::Command>> {
        match self.messages.recv_timeout(QUIET) {
            Err(RecvTimeoutError::Timeout) => {
                self.worker.check();
                self.messages.recv().ok()
            }
            received => received.ok(),
        }
    }
}

/// Owner of a service's thread; ends the service on drop.
pub struct Running<C, I, S> {
    handle: Handle<C, I, S>,
    /// `None` once the service has been closed.
    thread: Option<JoinHandle<()>>,
}

impl<C, I, S> Running<C, I, S> {
    /// Ends the service at once; running requests fail. Returns once its device has been freed: a program that leaves
    /// `main` while another thread is in a driver may crash in the driver's exit handlers.
    pub fn close(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.drain(Duration::ZERO);
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl<C, I, S> Deref for Running<C, I, S> {
    type Target = Handle<C, I, S>;

    fn deref(&self) -> &Handle<C, I, S> {
        &self.handle
    }
}

impl<C, I, S> Drop for Running<C, I, S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<C, I: Debug, S: Debug> Debug for Running<C, I, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Running").field(&self.handle).finish()
    }
}

/// Starts a service on its own thread, called `name`. `load` is called there because a device belongs to one thread, and
/// `worker` makes what it returns into a worker. Returns once that is done, or has failed and the device has been freed.
/// Meanwhile `info` runs on the calling thread; if both fail, its error is returned.
pub(crate) fn spawn<W, L, E>(
    name: &str,
    info: impl FnOnce() -> Result<W::Info, E>,
    load: impl FnOnce() -> Result<L, E> + Send + 'static,
    worker: impl FnOnce(L, SharedOf<W>) -> W + Send + 'static,
) -> Result<RunningOf<W>, E>
where
    W: Worker<Command: Send, Info: Send + Sync, Stats: Send + Sync> + 'static,
    E: From<std::io::Error> + Send + 'static,
{
    let (loaded, when_loaded) = channel();
    let (found_out, when_found_out) = channel();
    let (begun, when_begun) = channel();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || match load() {
        Ok(model) => {
            let _ = loaded.send(Ok(()));
            // Otherwise `info` failed and the service is not needed.
            if let Ok(info) = when_found_out.recv() {
                let (handle, messages, guard) = HandleOf::<W>::new(info);
                let service = Service::new(messages, guard, |shared| worker(model, shared));
                let _ = begun.send(handle);
                service.run();
            }
        }
        Err(why) => drop(loaded.send(Err(why))),
    })?;
    let info = info();
    let gone = || std::io::Error::other("the model's thread ended while the model was loaded").into();
    let loaded = when_loaded.recv().unwrap_or_else(|_| Err(gone()));
    let begun = info.and_then(|info| {
        loaded?;
        found_out.send(info).map_err(|_| gone())?;
        when_begun.recv().map_err(|_| gone())
    });
    match begun {
        Ok(handle) => Ok(Running { handle, thread: Some(thread) }),
        Err(why) => {
            drop(found_out);
            let _ = thread.join();
            Err(why)
        }
    }
}

#[cfg(test)]
mod tests;
