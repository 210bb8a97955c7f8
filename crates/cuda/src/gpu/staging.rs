//! Host memory that the device copies to and from: pinned, so that a copy is done while the host goes on, and each piece with an
//! event that says when. A system that refuses to pin more memory gives pageable memory, through which the driver copies more slowly.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_uint;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use tallow_core::{Error, Result};

use super::context::Context;
use crate::driver::{Handle, code};

/// A point in the stream.
pub(super) struct Event {
    context: Rc<Context>,
    handle: Handle,
}

impl Event {
    /// One that takes the time, or only says when it is past.
    pub(super) fn new(context: &Rc<Context>, takes_time: bool) -> Result<Event> {
        const WITHOUT_TIME: c_uint = 2;
        let mut handle = null_mut();
        let flags = if takes_time { 0 } else { WITHOUT_TIME };
        // SAFETY: the place is valid during the call.
        context.ask(|driver| unsafe { driver.event_create(&mut handle, flags) })?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Puts it behind all work that was asked for so far.
    pub(super) fn record(&self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: the event and the stream are of one context, and live.
        self.context.ask(|driver| unsafe { driver.event_record(self.handle, stream) })
    }

    /// Whether it is past. One that was never recorded is.
    fn is_past(&self) -> Result<bool> {
        // SAFETY: the event lives.
        self.context.ask_unless(code::NOT_READY, |driver| unsafe { driver.event_query(self.handle) })
    }

    /// Waits until it is past.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.context.wait_until(|driver| unsafe { driver.event_query(self.handle) })
    }

    /// Seconds from an earlier one; both are past.
    pub(super) fn since(&self, earlier: &Event) -> Result<f64> {
        let (mut milliseconds, from, to) = (0.0, earlier.handle, self.handle);
        // SAFETY: the place is valid during the call, and the events live.
        self.context.ask(|driver| unsafe { driver.event_elapsed(&mut milliseconds, from, to) })?;
        Ok(f64::from(milliseconds) / 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created once and is destroyed once.
        let _ = self.context.ask(|driver| unsafe { driver.event_destroy(self.handle) });
    }
}

/// Memory for copies, and when the device is done with it.
struct Piece {
    at: NonNull<u8>,
    size: usize,
    /// The layout that it was allocated with, if the driver did not pin it.
    pageable: Option<Layout>,
    done: Event,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let is_done = self.done.wait().is_ok();
        match self.pageable {
            None => {
                let at = self.at.as_ptr().cast();
                // SAFETY: it was allocated once and is freed once, and no copy uses it any more.
                let _ = self.done.context.ask(|driver| unsafe { driver.host_free(at) });
            }
            // SAFETY: it was allocated with this layout and is freed once, and no copy uses it any more.
            Some(layout) if is_done => unsafe { dealloc(self.at.as_ptr(), layout) },
            // Whether a device that is lost still writes to it, nobody knows.
            Some(_) => {}
        }
    }
}

/// Memory for copies of some size, which goes back when this is dropped, whether or not the device is done with it.
pub(super) struct Room {
    piece: Rc<Piece>,
    staging: Rc<Staging>,
}

impl Room {
    /// Its first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.piece.at.as_ptr()
    }

    /// The event behind the copies that use it.
    pub(super) fn done(&self) -> &Event {
        &self.piece.done
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.staging.take_back(self.piece.clone());
    }
}

/// Memory for copies that is free, or will be once the device is done with it: by size, that of the oldest copy first.
pub(super) struct Staging {
    context: Rc<Context>,
    free: RefCell<BTreeMap<usize, VecDeque<Rc<Piece>>>>,
    /// Pieces so far that could not be pinned.
    pageable: Cell<usize>,
}

/// The smallest piece.
const LEAST: usize = 4 << 10;
/// Larger pieces are not kept.
const MOST: usize = 64 << 20;
/// Alignment of a piece.
const ALIGN: usize = 4 << 10;
/// Pieces of a size that are kept: with more copies in flight the host waits for the oldest.
const KEPT: usize = 8;

impl Staging {
    pub(super) fn new(context: Rc<Context>) -> Staging {
        Staging { context, free: RefCell::default(), pageable: Cell::default() }
    }

    /// Room for so many bytes, which the device does not use any more.
    pub(super) fn take(self: &Rc<Staging>, bytes: usize) -> Result<Room> {
        self.context.check()?;
        let size = bytes.checked_next_power_of_two().ok_or_else(|| self.full(bytes))?.max(LEAST);
        let piece = match self.find(size)? {
            Some(piece) => piece,
            None => Rc::new(self.fresh(size)?),
        };
        Ok(Room { piece, staging: self.clone() })
    }

    /// Pieces so far that could not be pinned.
    pub(super) fn pageable(&self) -> usize {
        self.pageable.get()
    }

    fn find(&self, size: usize) -> Result<Option<Rc<Piece>>> {
        let mut free = self.free.borrow_mut();
        let Some(pieces) = free.get_mut(&size) else { return Ok(None) };
        let Some(oldest) = pieces.front() else { return Ok(None) };
        if !oldest.done.is_past()? {
            if pieces.len() < KEPT {
                return Ok(None);
            }
            oldest.done.wait()?;
        }
        Ok(pieces.pop_front())
    }

    fn fresh(&self, size: usize) -> Result<Piece> {
        let done = Event::new(&self.context, false)?;
        let mut at = null_mut();
        // SAFETY: the place is valid during the call.
        let pinned = self.context.ask(|driver| unsafe { driver.host_alloc(&mut at, size, 0) });
        match (pinned, NonNull::new(at.cast())) {
            (Ok(()), Some(at)) => Ok(Piece { at, size, pageable: None, done }),
            (Err(lost @ Error::Lost { .. }), _) => Err(lost),
            // A limit on locked memory, of the system or of a container, or no room.
            (Ok(()) | Err(_), _) => {
                let layout = Layout::from_size_align(size, ALIGN).map_err(|_| self.full(size))?;
                // SAFETY: no piece is empty.
                let at = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| self.full(size))?;
                self.pageable.set(self.pageable.get() + 1);
                Ok(Piece { at, size, pageable: Some(layout), done })
            }
        }
    }

    fn full(&self, asked: usize) -> Error {
        Error::OutOfMemory { device: format!("the host's memory for {}", self.context.label()), asked }
    }

    fn take_back(&self, piece: Rc<Piece>) {
        if piece.size <= MOST {
            self.free.borrow_mut().entry(piece.size).or_default().push_back(piece);
        }
    }
}
