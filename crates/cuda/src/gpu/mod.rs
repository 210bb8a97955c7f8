//! [`Gpu`]: everything this crate needs of the driver.
//!
//! A device has one stream. Launches and copies are handed over when they are asked for and done in that order, so that memory
//! may be freed, and given to the next, while the device still uses it. The host waits for what it reads and nothing else.

mod capture;
mod context;
mod find;
mod memory;
mod modules;
mod primary;
mod staging;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fmt;
use std::rc::{Rc, Weak};

use tallow_core::{Error, Result};

pub use find::{Device, Found, devices, devices_through};

use crate::args::Args;
use crate::kernels::Kernel;
use capture::{Capture, Command};
use context::Context;
pub(crate) use memory::Block;
use memory::Pool;
use modules::Modules;
use staging::{Event, Room, Staging};

/// Counters of device activity. Differences give the cost of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernel launches, without those of replays.
    pub launches: usize,
    /// Launches of captured work, each of one CUDA graph.
    pub replays: usize,
    /// Times that results were waited for and read back.
    pub reads: usize,
    /// Pieces of host memory that the system did not let be pinned, so that copies through them are slower.
    pub pageable: usize,
}

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub kernel: Kernel,
    /// CTAs. If there are none, nothing is launched.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: u32,
    /// Bytes of shared memory of each, beside what the kernel declares.
    pub shared: u32,
    pub args: Args,
}

/// Ranges of memory on their way to the host; `None` if there are none.
pub(crate) struct Transfer(Option<(Room, usize)>);

/// A device that is open.
pub(crate) struct Gpu {
    about: Device,
    modules: Modules,
    pool: Rc<Pool>,
    /// Memory of captured work, as long as there is any.
    captured: RefCell<Weak<Pool>>,
    capture: RefCell<Option<Capture>>,
    staging: Rc<Staging>,
    clock: RefCell<Option<Clock>>,
    counts: Cell<Counts>,
    context: Rc<Context>,
}

/// The device's clock: when it was last read, and what it showed. Times are differences of two events, in few digits: between
/// those that follow each other they are small.
struct Clock {
    last: Event,
    seconds: f64,
}

/// Bytes of a write that are copied at a time, while the device takes those before.
const CHUNK: usize = 4 << 20;

impl Gpu {
    pub(crate) fn open(found: &Found) -> Result<Gpu> {
        let about = found.about().clone();
        let context = Rc::new(Context::open(found)?);
        Ok(Gpu {
            modules: Modules::new(context.clone(), about.capability),
            pool: Rc::new(Pool::new(context.clone(), about.memory)),
            captured: RefCell::default(),
            capture: RefCell::default(),
            staging: Rc::new(Staging::new(context.clone())),
            clock: RefCell::default(),
            counts: Cell::default(),
            about,
            context,
        })
    }

    pub(crate) fn about(&self) -> &Device {
        &self.about
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { pageable: self.staging.pageable(), ..self.counts.get() }
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Total and free bytes of device memory.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are valid during the call.
        self.context.ask(|driver| unsafe { driver.memory_info(&mut free, &mut total) })?;
        Ok((total as u64, free as u64))
    }

    /// Allocates a block of at least so many bytes.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Block> {
        self.capture_pool().as_ref().unwrap_or(&self.pool).alloc(bytes)
    }

    /// An error of an operand too large for the device.
    pub(crate) fn out_of_memory(&self, asked: usize) -> Error {
        self.context.out_of_memory(asked as u64)
    }

    /// Copies from the host, which may change the bytes at once.
    pub(crate) fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // A replay would not write again.
        self.give_up_capture();
        self.context.check()?;
        for (i, part) in bytes.chunks(CHUNK).enumerate() {
            let room = self.staging.take(part.len())?;
            // SAFETY: the room has that many bytes, and neither the device nor anybody else uses them now.
            unsafe { room.at().copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            let (to, stream) = (to + (i * CHUNK) as u64, self.context.stream());
            // SAFETY: the caller names memory of a block. The room is not used again until the event is past.
            self.context.ask(|driver| unsafe {
                driver.copy_up(to, room.at().cast::<c_void>(), part.len(), stream)
            })?;
            room.done().record()?;
        }
        Ok(())
    }

    /// Asks for ranges of memory, given as (address, length), at once.
    pub(crate) fn fetch(&self, wanted: &[(u64, usize)]) -> Result<Transfer> {
        self.context.check()?;
        let bytes = wanted.iter().map(|(_, len)| len).sum();
        if bytes == 0 {
            return Ok(Transfer(None));
        }
        self.give_up_capture();
        let (room, stream, mut at) = (self.staging.take(bytes)?, self.context.stream(), 0);
        let copied = wanted.iter().copied().filter(|(_, len)| *len > 0).try_for_each(|(from, len)| {
            // SAFETY: the room has bytes for all ranges.
            let to = unsafe { room.at().add(at) };
            at += len;
            // SAFETY: the caller names memory of a block. The room is not used again until the event is past.
            self.context.ask(|driver| unsafe { driver.copy_down(to.cast::<c_void>(), from, len, stream) })
        });
        // Where one of them fails, those before it are under way.
        room.done().record()?;
        copied?;
        Ok(Transfer(Some((room, bytes))))
    }

    /// Waits for a transfer, and calls `then` with its ranges, one after the other.
    pub(crate) fn receive<T>(&self, transfer: &Transfer, then: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.give_up_capture();
        self.context.check()?;
        let Some((room, bytes)) = &transfer.0 else { return Ok(then(&[])) };
        self.count(|c| c.reads += 1);
        room.done().wait()?;
        // SAFETY: the device has written so many bytes, and is done with them; the room is the transfer's alone.
        Ok(then(unsafe { std::slice::from_raw_parts(room.at(), *bytes) }))
    }

    /// Copies bytes between memory that does not overlap.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.put(Command::Copy { to, from, bytes })
    }

    /// Sets bytes to zero.
    pub(crate) fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return self.context.check();
        }
        self.put(Command::Clear { at, bytes })
    }

    /// Launches a kernel; nothing, if its grid is empty.
    pub(crate) fn launch(&self, launch: &Launch) -> Result<()> {
        if launch.grid.contains(&0) {
            return self.context.check();
        }
        let Launch { kernel, block, shared, ref args, .. } = *launch;
        let function = match self.modules.function(kernel, shared) {
            // Its code needs room on the device.
            Err(Error::OutOfMemory { .. }) if self.pool.trim()? => self.modules.function(kernel, shared),
            other => other,
        }?;
        let bytes = args.bytes().len();
        if (function.entry.parameters, function.entry.threads) != (bytes, block) {
            let why = format!(
                "{} of {} takes {} bytes of arguments and {} threads, not {bytes} and {block}",
                kernel.name, kernel.module, function.entry.parameters, function.entry.threads
            );
            return Err(Error::Device { device: self.context.label().to_owned(), why });
        }
        let launched = self.put(Command::Launch(function.handle, Cow::Borrowed(launch)));
        self.count(|c| c.launches += 1);
        launched.map_err(|e| match e {
            Error::Device { device, why } => {
                Error::Device { device, why: format!("{} of {}: {why}", kernel.name, kernel.module) }
            }
            other => other,
        })
    }

    /// Waits until all work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.give_up_capture();
        self.context.wait()
    }

    /// Fails if the device is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.context.check()
    }

    /// Seconds on the device's clock since it was first asked, when all work is done.
    pub(crate) fn clock(&self) -> Result<f64> {
        self.give_up_capture();
        let now = Event::new(&self.context, true)?;
        now.record()?;
        now.wait()?;
        let mut clock = self.clock.borrow_mut();
        let seconds = match &*clock {
            Some(Clock { last, seconds }) => seconds + now.since(last)?.max(0.0),
            None => 0.0,
        };
        *clock = Some(Clock { last: now, seconds });
        Ok(seconds)
    }

    /// From now on work that takes longer loses the device.
    #[cfg(test)]
    pub(crate) fn wait_at_most(&self, patience: std::time::Duration) {
        self.context.wait_at_most(patience);
    }

    /// From now on each block is new, and ends where it should.
    #[cfg(test)]
    pub(crate) fn stop_reuse(&self) {
        self.pool.stop_reuse();
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.about)
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.as_ref().map_or(0, |(_, bytes)| *bytes))
    }
}
