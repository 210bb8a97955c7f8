//! Captured work: its commands are recorded while they are done, and become a CUDA graph, which one call launches again.
//!
//! The work itself is done as any: it may allocate, load modules and wait. Then the stream captures the recorded commands once more,
//! which does nothing but name them, so no call is made while it captures that a driver forbids then, and no kernel runs twice.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use tallow_core::{Error, Result};

use super::context::Context;
use super::memory::Pool;
use super::{Gpu, Launch};
use crate::driver::Handle;

/// A command put on the stream, which a replay does again.
pub(super) enum Command<'a> {
    /// A launch of this function of the driver's.
    Launch(Handle, Cow<'a, Launch>),
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Clear {
        at: u64,
        bytes: usize,
    },
}

impl Command<'_> {
    fn into_owned(self) -> Command<'static> {
        match self {
            Command::Launch(function, launch) => Command::Launch(function, Cow::Owned(launch.into_owned())),
            Command::Copy { to, from, bytes } => Command::Copy { to, from, bytes },
            Command::Clear { at, bytes } => Command::Clear { at, bytes },
        }
    }

    /// Puts it on the context's stream.
    fn put(&self, context: &Context) -> Result<()> {
        let stream = context.stream();
        match self {
            Command::Launch(function, launch) => {
                let Launch { grid: [x, y, z], block, shared, ref args, .. } = **launch;
                // What follows in the list, by its tag.
                let [end, buffer, length] = [0usize, 1, 2].map(|tag| tag as *mut c_void);
                let (bytes, mut size) = (args.bytes(), args.bytes().len());
                let mut list =
                    [buffer, bytes.as_ptr().cast_mut().cast(), length, (&raw mut size).cast(), end];
                context.ask(|driver| {
                    // SAFETY: the function's module is loaded. The driver reads the arguments during the call; they are of the size
                    // that the kernel declares.
                    unsafe {
                        let list = list.as_mut_ptr();
                        driver.launch(*function, x, y, z, block, 1, 1, shared, stream, null_mut(), list)
                    }
                })
            }
            Command::Copy { to, from, bytes } => {
                // SAFETY: who copies names memory of blocks.
                context.ask(|driver| unsafe { driver.copy_within(*to, *from, *bytes, stream) })
            }
            Command::Clear { at, bytes } => {
                // SAFETY: who clears names memory of a block.
                context.ask(|driver| unsafe { driver.fill_bytes(*at, 0, *bytes, stream) })
            }
        }
    }
}

/// A capture under way.
pub(super) struct Capture {
    /// `None` since something was done that a replay would not do.
    commands: Option<Vec<Command<'static>>>,
    pool: Rc<Pool>,
}

/// Ends the capture, also if the work fails or panics.
struct UnderWay<'a>(&'a Gpu);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.capture.take();
    }
}

/// Captured work, and what it needs to be done again. Dropped in this order.
pub(crate) struct Captured {
    graph: Graph,
    /// Has the memory that the work has freed.
    _pool: Rc<Pool>,
    gpu: Rc<Gpu>,
}

impl Captured {
    /// Does the work again.
    pub(crate) fn launch(&self) -> Result<()> {
        // A graph within a graph is more than anybody needs.
        self.gpu.give_up_capture();
        self.gpu.count(|c| c.replays += 1);
        self.graph.launch()
    }
}

impl Gpu {
    /// Does `work`, and returns what does it again; `None` if that would not do the same, within another capture, and where the
    /// driver makes no graph of it.
    ///
    /// Its memory is a pool's of its own, which all captures share: what `work` frees goes to later ones. Everything is done in the
    /// order in which it was asked for, so one replay may overwrite what another has left. When the last of them is dropped, the
    /// memory is free for all.
    pub(crate) fn capture(self: &Rc<Gpu>, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Captured>> {
        if self.capture.borrow().is_some() {
            self.give_up_capture();
            work()?;
            return Ok(None);
        }
        let pool = self.captured_memory();
        *self.capture.borrow_mut() = Some(Capture { commands: Some(Vec::new()), pool: pool.clone() });
        let under_way = UnderWay(self);
        work()?;
        let commands = self.capture.take().and_then(|capture| capture.commands);
        drop(under_way);
        let Some(commands) = commands else { return Ok(None) };
        match self.graph(&commands) {
            Ok(graph) => Ok(Some(Captured { graph, _pool: pool, gpu: self.clone() })),
            Err(lost @ Error::Lost { .. }) => Err(lost),
            // The work is done, and can be launched op by op as before.
            Err(_) => Ok(None),
        }
    }

    /// A graph of these commands. It needs memory of the device.
    fn graph(&self, commands: &[Command<'_>]) -> Result<Graph> {
        let source = Source::capture(&self.context, commands)?;
        match source.instantiate() {
            Err(Error::Device { .. }) if self.pool.trim()? => source.instantiate(),
            other => other,
        }
    }

    fn captured_memory(&self) -> Rc<Pool> {
        let mut shared = self.captured.borrow_mut();
        shared.upgrade().unwrap_or_else(|| {
            let pool = Rc::new(Pool::within(&self.pool));
            *shared = Rc::downgrade(&pool);
            pool
        })
    }

    /// The pool of a capture that is under way.
    pub(super) fn capture_pool(&self) -> Option<Rc<Pool>> {
        self.capture.borrow().as_ref().map(|capture| capture.pool.clone())
    }

    /// Nothing is returned of the capture under way, if there is one.
    pub(super) fn give_up_capture(&self) {
        if let Some(capture) = self.capture.borrow_mut().as_mut() {
            capture.commands = None;
        }
    }

    /// Puts a command on the stream, and records it if a capture is under way.
    pub(super) fn put(&self, command: Command<'_>) -> Result<()> {
        command.put(&self.context)?;
        if let Some(commands) = self.capture.borrow_mut().as_mut().and_then(|c| c.commands.as_mut()) {
            commands.push(command.into_owned());
        }
        Ok(())
    }
}

/// A graph that can be instantiated.
struct Source {
    context: Rc<Context>,
    handle: Handle,
}

impl Source {
    /// Captures commands, which are not done.
    fn capture(context: &Rc<Context>, commands: &[Command<'_>]) -> Result<Source> {
        /// Calls of other threads are none of this capture's business.
        const THREAD_LOCAL: c_int = 1;
        let (stream, mut handle) = (context.stream(), null_mut());
        // SAFETY: the stream is the context's own, and captures nothing yet.
        context.ask(|driver| unsafe { driver.stream_begin_capture(stream, THREAD_LOCAL) })?;
        let put = commands.iter().try_for_each(|command| command.put(context));
        // Also if that failed: the stream would take nothing else.
        // SAFETY: the place is valid during the call, and the stream captures.
        let ended = context.ask(|driver| unsafe { driver.stream_end_capture(stream, &mut handle) });
        let source = Source { context: context.clone(), handle };
        put.and(ended).map(|()| source)
    }

    fn instantiate(&self) -> Result<Graph> {
        let mut handle = null_mut();
        // SAFETY: the place is valid during the call, and the graph lives.
        self.context.ask(|driver| unsafe { driver.graph_instantiate(&mut handle, self.handle, 0) })?;
        Ok(Graph { context: self.context.clone(), handle })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: it was made once and is destroyed once. What was instantiated from it is on its own.
            let _ = self.context.ask(|driver| unsafe { driver.graph_destroy(self.handle) });
        }
    }
}

/// A graph that can be launched.
struct Graph {
    context: Rc<Context>,
    handle: Handle,
}

impl Graph {
    fn launch(&self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: the graph lives, and so do its modules and memory: see `Captured`.
        self.context.ask(|driver| unsafe { driver.graph_launch(self.handle, stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was instantiated once and is destroyed once; the driver keeps it until a launch that is under way has ended.
        let _ = self.context.ask(|driver| unsafe { driver.graph_exec_destroy(self.handle) });
    }
}
