//! Blocks of device memory, used again and again: a step asks for the same sizes as the one before.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use tallow_core::{Error, Result};
use wgpu::BufferUsages;

use super::fault::Faults;

/// A piece of device memory. It goes back to the pool with its last clone; work that is recorded sees it until then and
/// after, because everything runs in the order of recording.
#[derive(Clone)]
pub(crate) struct Block(Rc<Lent>);

struct Lent {
    id: u64,
    buffer: wgpu::Buffer,
    pool: Rc<Pool>,
}

impl Block {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Tells its buffer from all others of the device.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    /// Is it the same memory?
    pub(crate) fn is(&self, other: &Block) -> bool {
        self.0.id == other.0.id
    }

    /// Bytes that it has: at least as many as were asked for.
    pub(crate) fn size(&self) -> u64 {
        self.0.buffer.size()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of {} bytes", self.0.id, self.size())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (id, buffer) = (self.id, self.buffer.clone());
        self.pool.free.borrow_mut().entry(buffer.size()).or_default().push((id, buffer));
    }
}

/// Blocks that nobody uses now.
#[derive(Debug)]
pub(crate) struct Pool {
    free: RefCell<HashMap<u64, Vec<(u64, wgpu::Buffer)>>>,
    next_id: Cell<u64>,
    /// Bytes that a kernel can see of one block.
    most: u64,
}

/// Blocks above this are weights and caches: they are not rounded up by much.
const LARGE: u64 = 4 << 20;

/// A size that many requests share, so that blocks are found again: eight sizes to each doubling.
fn rounded(bytes: u64) -> u64 {
    let step = if bytes > LARGE { 64 << 10 } else { (bytes.next_power_of_two() / 16).max(256) };
    bytes.max(1).next_multiple_of(step)
}

impl Pool {
    pub(super) fn new(most: u64) -> Pool {
        Pool { free: RefCell::default(), next_id: Cell::new(0), most }
    }

    /// Bytes that one block may have.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn alloc(
        self: &Rc<Pool>,
        device: &wgpu::Device,
        faults: &Faults,
        bytes: u64,
    ) -> Result<Block> {
        if bytes > self.most {
            let asked = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(Error::OutOfMemory { device: "one binding of the device".into(), asked });
        }
        let size = rounded(bytes).min(self.most);
        let found = self.free.borrow_mut().get_mut(&size).and_then(Vec::pop);
        let (id, buffer) = match found {
            Some(found) => found,
            None => {
                let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
                let buffer = faults.buffer(device, size, usage)?;
                let id = self.next_id.get();
                self.next_id.set(id + 1);
                (id, buffer)
            }
        };
        Ok(Block(Rc::new(Lent { id, buffer, pool: self.clone() })))
    }

    /// Gives up what nobody uses. Was there something?
    pub(super) fn trim(&self) -> bool {
        !self.free.take().is_empty()
    }
}
