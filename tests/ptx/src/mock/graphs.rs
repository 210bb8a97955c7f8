//! Stream capture and graphs: what is put on a stream that captures is named and not done, and a graph does it whenever it is
//! launched. A call that the driver forbids while a stream captures fails, and nothing becomes of the capture.
//!
//! # Safety
//!
//! As in `functions`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use super::calls::{call, put};
use super::{Outcome, Work, code};

/// Graphs of a context, and its streams that capture.
#[derive(Default)]
pub(super) struct Graphs {
    captures: BTreeMap<usize, Capture>,
    graphs: BTreeMap<usize, Rc<[Work]>>,
    executables: BTreeMap<usize, Rc<[Work]>>,
}

/// A stream's capture.
struct Capture {
    work: Vec<Work>,
    /// True if calls are allowed that may wait for the device.
    is_relaxed: bool,
    is_valid: bool,
}

impl Graphs {
    /// Work for a stream: names it if that captures, which is true then.
    pub(super) fn takes(&mut self, stream: usize, work: &Work) -> Result<bool, c_int> {
        let Some(capture) = self.captures.get_mut(&stream) else { return Ok(false) };
        if !capture.is_valid {
            return Err(code::CAPTURE_INVALIDATED);
        }
        capture.work.push(work.clone());
        Ok(true)
    }

    /// True if a stream captures.
    pub(super) fn captures(&self, stream: usize) -> bool {
        self.captures.contains_key(&stream)
    }

    /// A call that waits for this stream.
    pub(super) fn waits(&mut self, stream: usize) -> Outcome {
        match self.captures.get_mut(&stream) {
            None => Ok(()),
            Some(capture) => {
                capture.is_valid = false;
                Err(code::CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// A call that may wait for the device: allocations, queries of events, modules.
    pub(super) fn may_wait(&mut self) -> Outcome {
        let mut captures = self.captures.values_mut().filter(|capture| !capture.is_relaxed).peekable();
        if captures.peek().is_none() {
            return Ok(());
        }
        captures.for_each(|capture| capture.is_valid = false);
        Err(code::CAPTURE_UNSUPPORTED)
    }
}

#[unsafe(export_name = "cuStreamBeginCapture_v2")]
pub(super) unsafe extern "C" fn stream_begin_capture(stream: *mut c_void, mode: c_int) -> c_int {
    call("cuStreamBeginCapture_v2", |state| {
        let (context, _) = state.context()?;
        // The stream of those who have none of their own captures nothing.
        if stream.is_null() {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        if !context.streams.contains(&(stream as usize)) {
            return Err(code::INVALID_HANDLE);
        }
        // For calls of all threads, of this one, and without restrictions. There is but one thread here.
        if !(0..=2).contains(&mode) {
            return Err(code::INVALID_VALUE);
        }
        let capture = Capture { work: Vec::new(), is_relaxed: mode == 2, is_valid: true };
        match context.graphs.captures.contains_key(&(stream as usize)) {
            true => Err(code::ILLEGAL_STATE),
            false => {
                context.graphs.captures.insert(stream as usize, capture);
                Ok(())
            }
        }
    })
}

#[unsafe(export_name = "cuStreamEndCapture")]
pub(super) unsafe extern "C" fn stream_end_capture(stream: *mut c_void, graph: *mut *mut c_void) -> c_int {
    call("cuStreamEndCapture", |state| {
        let handle = state.handle();
        let graphs = &mut state.context()?.0.graphs;
        let capture = graphs.captures.remove(&(stream as usize)).ok_or(code::ILLEGAL_STATE)?;
        if !capture.is_valid {
            // SAFETY: the caller gives a place.
            unsafe { put(graph, null_mut()) }?;
            return Err(code::CAPTURE_INVALIDATED);
        }
        graphs.graphs.insert(handle, capture.work.into());
        // SAFETY: the caller gives a place.
        unsafe { put(graph, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuGraphInstantiateWithFlags")]
pub(super) unsafe extern "C" fn graph_instantiate(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    _flags: u64,
) -> c_int {
    call("cuGraphInstantiateWithFlags", |state| {
        let handle = state.handle();
        let graphs = &mut state.context()?.0.graphs;
        graphs.may_wait()?;
        let work = graphs.graphs.get(&(graph as usize)).ok_or(code::INVALID_HANDLE)?.clone();
        graphs.executables.insert(handle, work);
        // SAFETY: the caller gives a place.
        unsafe { put(executable, handle as *mut c_void) }
    })
}

#[unsafe(export_name = "cuGraphLaunch")]
pub(super) unsafe extern "C" fn graph_launch(executable: *mut c_void, stream: *mut c_void) -> c_int {
    call("cuGraphLaunch", |state| {
        let (context, _) = state.context()?;
        context.graphs.waits(stream as usize)?;
        if !stream.is_null() && !context.streams.contains(&(stream as usize)) {
            return Err(code::INVALID_HANDLE);
        }
        let work =
            context.graphs.executables.get(&(executable as usize)).ok_or(code::INVALID_HANDLE)?.clone();
        let is_there = |work: &Work| match work {
            Work::Launch { module, .. } => context.modules.contains_key(module),
            _ => true,
        };
        if !work.iter().all(is_there) {
            return Err(code::INVALID_HANDLE);
        }
        work.iter().try_for_each(|work| state.perform(work))
    })
}

#[unsafe(export_name = "cuGraphExecDestroy")]
pub(super) unsafe extern "C" fn graph_exec_destroy(executable: *mut c_void) -> c_int {
    call("cuGraphExecDestroy", |state| {
        let was = state.context()?.0.graphs.executables.remove(&(executable as usize));
        was.map(drop).ok_or(code::INVALID_HANDLE)
    })
}

#[unsafe(export_name = "cuGraphDestroy")]
pub(super) unsafe extern "C" fn graph_destroy(graph: *mut c_void) -> c_int {
    call("cuGraphDestroy", |state| {
        let was = state.context()?.0.graphs.graphs.remove(&(graph as usize));
        was.map(drop).ok_or(code::INVALID_HANDLE)
    })
}

/// `cuStreamQuery`: says if a stream is done.
#[unsafe(export_name = "cuStreamQuery")]
pub(super) unsafe extern "C" fn stream_query(stream: *mut c_void) -> c_int {
    call("cuStreamQuery", |state| {
        let (context, _) = state.context()?;
        if !context.streams.contains(&(stream as usize)) {
            return Err(code::INVALID_HANDLE);
        }
        context.graphs.waits(stream as usize)?;
        if context.hangs { Err(code::NOT_READY) } else { Ok(()) }
    })
}
