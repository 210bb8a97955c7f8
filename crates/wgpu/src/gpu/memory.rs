//! Pool of device memory blocks. They are reused, since each step asks for the same sizes as the one before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tallow_core::{Error, Result};
use wgpu::BufferUsages;

use super::fault::Faults;

/// A block of device memory, returned to the pool when its last clone is dropped. Recorded work may still use it after
/// that, because everything runs in the order of recording.
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

    /// Identifies the buffer on this device.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    /// True if both are the same memory.
    pub(crate) fn is(&self, other: &Block) -> bool {
        self.0.id == other.0.id
    }

    /// Size in bytes: at least what was asked for.
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

/// Free blocks by size.
#[derive(Debug)]
pub(crate) struct Pool {
    free: RefCell<BTreeMap<u64, Vec<(u64, wgpu::Buffer)>>>,
    next_id: Rc<Cell<u64>>,
    /// Largest block in bytes: what one binding can hold.
    most: u64,
    /// A free block is used for a smaller one if it is at most so many times its size.
    slack: u64,
}

/// Larger blocks are weights and KV caches, which are rounded up only a little.
const LARGE: u64 = 4 << 20;

/// Rounds a size up so that freed blocks can be reused: eight sizes per power of two.
fn rounded(bytes: u64) -> u64 {
    let step = if bytes > LARGE { 64 << 10 } else { (bytes.next_power_of_two() / 16).max(256) };
    bytes.max(1).next_multiple_of(step)
}

impl Pool {
    pub(super) fn new(most: u64) -> Pool {
        Pool { free: RefCell::default(), next_id: Rc::default(), most, slack: 1 }
    }

    /// A pool of the same device for steps of different sizes that run one after another: small ones use the blocks of
    /// large ones.
    pub(super) fn shared(&self) -> Pool {
        Pool { free: RefCell::default(), next_id: self.next_id.clone(), slack: 4, ..*self }
    }

    /// Largest block in bytes.
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
        let large_enough = size..=size.saturating_mul(self.slack);
        let found = self.free.borrow_mut().range_mut(large_enough).find_map(|(_, blocks)| blocks.pop());
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

    /// Frees all unused blocks. Returns whether there were any.
    pub(super) fn trim(&self) -> bool {
        !self.free.take().is_empty()
    }
}
