//! [`Gpu`]: everything this crate needs of wgpu.
//!
//! Work is recorded and submitted at once, when a step begins, when something is waited for, or written while recorded
//! work may still read the old contents. A step is one submission.

mod fault;
mod find;
mod memory;
mod record;
mod replay;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use tallow_core::{Error, Result};
use wgpu::{BufferUsages, CommandEncoderDescriptor};

#[cfg(test)]
use crate::preprocess::Program;

pub use find::{Api, Device, Found, devices};

use fault::Faults;
pub(crate) use memory::{Block, Pool};
pub(crate) use record::{Access, Arg, Kernel, Launch, Param};
use record::{Pipeline, Recorded};
use replay::{Ahead, Capture};

/// Counters of device activity. Differences give the cost of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernel launches.
    pub dispatches: usize,
    /// Submissions to the queue.
    pub submits: usize,
    /// Times that results were waited for and read back.
    pub reads: usize,
    /// Replays of captured launches.
    pub replays: usize,
    /// Of these, replays whose commands had been encoded while the device worked.
    pub encoded_ahead: usize,
}

/// A device, its queue, and the work recorded for it.
pub(crate) struct Gpu {
    about: Device,
    device: wgpu::Device,
    limits: wgpu::Limits,
    queue: wgpu::Queue,
    faults: Faults,
    pool: Rc<Pool>,
    /// Memory of launches that are captured: nothing else uses it, since they are done again.
    captured_pool: Rc<Pool>,
    /// The capture under way.
    capture: RefCell<Option<Capture>>,
    /// Replays, so that their commands are encoded while the device works.
    encoded_ahead: RefCell<Ahead>,
    pipelines: RefCell<HashMap<Kernel, Rc<Pipeline>>>,
    groups: RefCell<HashMap<(usize, Vec<u64>), wgpu::BindGroup>>,
    recorded: RefCell<Vec<Recorded>>,
    /// Parameters of the recorded launches, aligned to the device's uniform offset alignment.
    params: RefCell<Vec<u8>>,
    params_buffer: wgpu::Buffer,
    /// Multiplications in the recorded launches.
    work: Cell<u64>,
    /// Bytes written that the device may not have taken yet.
    ahead: Cell<usize>,
    /// Submissions that may not be finished, oldest first: at most [`IN_FLIGHT`].
    in_flight: RefCell<VecDeque<(u64, wgpu::SubmissionIndex)>>,
    /// Number of the last submission.
    submitted: Cell<u64>,
    /// Staging buffer for reads.
    staging: RefCell<Option<wgpu::Buffer>>,
    counts: Cell<Counts>,
}

/// Ranges of blocks on their way to the host; `None` if there are none.
#[derive(Debug)]
pub(crate) struct Transfer(Option<Staged>);

/// The buffer that receives them.
#[derive(Debug)]
struct Staged {
    buffer: wgpu::Buffer,
    bytes: u64,
    /// Number of the submission that fills it.
    submission: u64,
}

/// Bytes of parameters per submission.
const PARAMS: u64 = 1 << 20;
/// Bind groups that are cached. A step of a large model has a few thousand.
const GROUPS: usize = 1 << 14;
/// Bytes written before waiting for the device.
const AHEAD: usize = 64 << 20;
/// Multiplications per submission. Systems with a display reset a GPU that is busy for seconds; a slow GPU needs about
/// 0.1 s for this many.
const WORK: u64 = 50_000_000_000;
/// Submissions that run or wait to run while the next one is recorded: as few as keep the device busy, so that a cancelled
/// request does not have to wait for many.
const IN_FLIGHT: u64 = 2;

impl Gpu {
    /// Opens a device with all the limits that it offers.
    pub(crate) fn open(found: &Found) -> Result<Gpu> {
        Gpu::within(found, u64::MAX)
    }

    /// Same, with blocks of at most `most` bytes.
    pub(crate) fn within(found: &Found, most: u64) -> Result<Gpu> {
        let about = found.about().clone();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("tallow"),
            required_limits: found.limits(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = now(found.adapter().request_device(&descriptor));
        let (device, queue) =
            opened.map_err(|e| Error::Device { device: about.name.clone(), why: e.to_string() })?;
        let faults = Faults::watch(&device, about.name.clone());
        let limits = device.limits();
        let params_buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: PARAMS,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let pool = Pool::new(limits.max_storage_buffer_binding_size.min(most));
        let gpu = Gpu {
            captured_pool: Rc::new(pool.shared()),
            capture: RefCell::default(),
            encoded_ahead: RefCell::default(),
            pool: Rc::new(pool),
            limits,
            about,
            device,
            queue,
            faults,
            pipelines: RefCell::default(),
            groups: RefCell::default(),
            recorded: RefCell::default(),
            params: RefCell::default(),
            params_buffer,
            work: Cell::default(),
            ahead: Cell::default(),
            in_flight: RefCell::default(),
            submitted: Cell::default(),
            staging: RefCell::default(),
            counts: Cell::default(),
        };
        gpu.faults.check()?;
        Ok(gpu)
    }

    pub(crate) fn about(&self) -> &Device {
        &self.about
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Pairs of blocks (K and V) that a kernel can bind besides `others` other buffers.
    pub(crate) fn pairs_beside(&self, others: u32) -> usize {
        (self.limits.max_storage_buffers_per_shader_stage.saturating_sub(others) / 2) as usize
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Allocates one block of at least `bytes` bytes. Fails if a binding cannot hold it: tensors are split before.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Block> {
        let pool = if self.capture.borrow().is_some() { &self.captured_pool } else { &self.pool };
        let full = match pool.alloc(&self.device, &self.faults, bytes) {
            Err(full @ Error::OutOfMemory { .. }) if bytes <= self.pool.most() => full,
            other => return other,
        };
        // Out of memory: free unused blocks, and the recorded work and bind groups that still reference them.
        self.submit()?;
        self.groups.borrow_mut().clear();
        self.encoded_ahead.take();
        // Captured launches keep the buffers that they use.
        let trimmed = [self.pool.trim(), self.captured_pool.trim()];
        if trimmed == [false, false] {
            return Err(full);
        }
        self.wait()?;
        pool.alloc(&self.device, &self.faults, bytes)
    }

    /// Largest block in bytes.
    pub(crate) fn most(&self) -> u64 {
        self.pool.most()
    }

    /// Writes bytes into a block; `at` and the length are multiples of four.
    pub(crate) fn write(&self, to: &Block, at: u64, bytes: &[u8]) -> Result<()> {
        // A replay would not write again.
        self.give_up_capture();
        // Writes take effect before later submissions, so recorded work has to be submitted first.
        self.submit()?;
        for (i, part) in bytes.chunks(AHEAD).enumerate() {
            self.queue.write_buffer(to.buffer(), at + (i * AHEAD) as u64, part);
            // wgpu keeps a copy of written data until the device has taken it.
            self.ahead.set(self.ahead.get() + part.len());
            if self.ahead.get() >= AHEAD {
                self.queue.submit([]);
                self.ahead.set(0);
                self.wait()?;
            }
        }
        self.faults.check()
    }

    /// Zeroes a whole block.
    pub(crate) fn clear(&self, block: &Block) {
        self.recorded.borrow_mut().push(Recorded::Clear(block.buffer().clone()));
    }

    /// Reads ranges of several blocks, given as (block, start, length), at once. Starts and lengths are multiples of
    /// four.
    pub(crate) fn read(&self, wanted: &[(&Block, u64, u64)]) -> Result<Vec<u8>> {
        self.receive(self.fetch(wanted)?)
    }

    /// Records the copying of such ranges to the host.
    pub(crate) fn fetch(&self, wanted: &[(&Block, u64, u64)]) -> Result<Transfer> {
        let bytes = wanted.iter().map(|(_, _, len)| len).sum();
        if bytes == 0 {
            return Ok(Transfer(None));
        }
        self.give_up_capture();
        let staging = self.staging(bytes)?;
        let mut at = 0;
        for (block, start, len) in wanted.iter().filter(|(_, _, len)| *len > 0) {
            let (from, to) = (block.buffer().clone(), staging.clone());
            self.recorded.borrow_mut().push(Recorded::Copy { from, start: *start, to, at, len: *len });
            at += len;
        }
        Ok(Transfer(Some(Staged { buffer: staging, bytes, submission: self.submitted.get() + 1 })))
    }

    /// Copies bytes between different blocks; places and the length are multiples of four.
    pub(crate) fn copy(&self, (from, start): (&Block, u64), (to, at): (&Block, u64), len: u64) {
        let (from, to) = (from.buffer().clone(), to.buffer().clone());
        self.recorded.borrow_mut().push(Recorded::Copy { from, start, to, at, len });
    }

    /// Waits for a transfer, and returns its ranges, one after the other.
    pub(crate) fn receive(&self, transfer: Transfer) -> Result<Vec<u8>> {
        let Some(Staged { buffer: staging, bytes, submission }) = transfer.0 else { return Ok(Vec::new()) };
        if submission > self.submitted.get() {
            self.submit()?;
        }
        self.count(|c| c.reads += 1);
        let (tell, told) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, 0..bytes, move |mapped| drop(tell.send(mapped)));
        self.encode_ahead();
        if !self.wait_for(submission)? {
            self.wait()?;
        }
        let failed = |why: String| Error::Device { device: self.about.name.clone(), why };
        match told.try_recv() {
            Ok(Ok(())) => {}
            _ => return Err(failed("its results could not be fetched".into())),
        }
        let received = staging.get_mapped_range(0..bytes).map_err(|e| failed(e.to_string()))?.to_vec();
        staging.unmap();
        // Kept only on success: a buffer that a failure left mapped cannot be used again.
        *self.staging.borrow_mut() = Some(staging);
        self.faults.check()?;
        Ok(received)
    }

    /// A host-readable buffer: the cached one if it is large enough.
    fn staging(&self, bytes: u64) -> Result<wgpu::Buffer> {
        if let Some(buffer) = self.staging.take().filter(|b| b.size() >= bytes) {
            return Ok(buffer);
        }
        let (size, usage) = (bytes.next_power_of_two(), BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        self.faults.buffer(&self.device, size, usage)
    }

    /// Waits until the device has finished all submitted work.
    pub(crate) fn wait(&self) -> Result<()> {
        self.in_flight.borrow_mut().clear();
        self.poll(wgpu::PollType::wait_indefinitely())
    }

    /// Waits until the device has finished a submission. Returns whether it had to: not for one that was waited for before.
    fn wait_for(&self, submission: u64) -> Result<bool> {
        let mut in_flight = self.in_flight.borrow_mut();
        let finished = in_flight.iter().take_while(|(number, _)| *number <= submission).count();
        let Some((_, index)) = in_flight.drain(..finished).next_back() else { return Ok(false) };
        self.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None })?;
        Ok(true)
    }

    fn poll(&self, until: wgpu::PollType) -> Result<()> {
        let polled = self.device.poll(until);
        self.faults.check()?;
        let failed =
            |e: wgpu::PollError| Error::Device { device: self.about.name.clone(), why: e.to_string() };
        polled.map(|_| ()).map_err(failed)
    }

    fn encode(&self, recorded: &[Recorded]) -> wgpu::CommandBuffer {
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        record::encode(&mut encoder, recorded);
        encoder.finish()
    }

    /// Submits the recorded work, as soon as fewer than [`IN_FLIGHT`] submissions are left before it.
    pub(crate) fn submit(&self) -> Result<()> {
        // Taken before anything can fail, so that failed work is not repeated by the next step.
        let recorded = std::mem::take(&mut *self.recorded.borrow_mut());
        let params = std::mem::take(&mut *self.params.borrow_mut());
        let work = self.work.take();
        if let Some(capture) = self.capture.borrow_mut().as_mut() {
            capture.add(&recorded, &params, work);
        }
        let replay = self.encoded_ahead.borrow_mut().next.take();
        if recorded.is_empty() && replay.is_none() {
            return self.faults.check();
        }
        let (before, replay) = replay.map_or((0, None), |(before, replay)| (before, Some(replay)));
        let (before, after) = recorded.split_at(before);
        let encode = |recorded: &[Recorded]| (!recorded.is_empty()).then(|| self.encode(recorded));
        let commands: Vec<_> = [encode(before), replay, encode(after)].into_iter().flatten().collect();
        let number = self.submitted.get() + 1;
        if !self.wait_for(number.saturating_sub(IN_FLIGHT))? {
            // Without a wait a lost device would not say so here.
            self.poll(wgpu::PollType::Poll)?;
        }
        if !params.is_empty() {
            self.queue.write_buffer(&self.params_buffer, 0, &params);
        }
        let index = self.queue.submit(commands);
        self.in_flight.borrow_mut().push_back((number, index));
        self.submitted.set(number);
        self.ahead.set(0);
        self.count(|c| c.submits += 1);
        self.faults.check()
    }
}

#[cfg(test)]
impl Gpu {
    /// Calls `f` with every compiled kernel, the WGSL of its declarations, and its own.
    pub(crate) fn each_program(&self, mut f: impl FnMut(&Kernel, &str, &Program)) {
        for (kernel, pipeline) in self.pipelines.borrow().iter() {
            f(kernel, &pipeline.declarations, &pipeline.program);
        }
    }

    /// Simulates the loss of the device.
    pub(crate) fn destroy(&self) {
        self.device.destroy();
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.about.name)
    }
}

/// Polls a future of wgpu to completion. On native systems these are ready at once, or soon after on another thread.
fn now<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}
