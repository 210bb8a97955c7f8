//! Pool of device memory. Blocks are reused, since each step asks for the same sizes as the one before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tallow_core::Result;

use super::context::Context;
use crate::driver::code;

/// A block of device memory, returned to the pool when its last clone is dropped. Work that was asked for before may still use it
/// after that, because everything is done in order.
#[derive(Clone)]
pub(crate) struct Block(Rc<Lent>);

struct Lent {
    address: u64,
    size: u64,
    pool: Rc<Pool>,
}

impl Block {
    /// Its first byte's address.
    pub(crate) fn address(&self) -> u64 {
        self.0.address
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.0.size, self.0.address)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.take_back(self.address, self.size);
    }
}

/// Free blocks by size.
pub(super) struct Pool {
    context: Rc<Context>,
    /// Bytes of the device: no block has more.
    most: u64,
    free: RefCell<BTreeMap<u64, Vec<u64>>>,
    /// A free block is used for a smaller one if it is at most so many times its size.
    slack: u64,
    /// The pool that its blocks come from and go back to at its end; `None` where that is the driver.
    parent: Option<Rc<Pool>>,
    /// False in tests of kernels, where each block is new and ends where it should, so that reads of what nobody wrote and accesses
    /// past the end are found.
    reuses: Cell<bool>,
}

/// Larger blocks are weights and KV caches, which are rounded up only a little.
const LARGE: u64 = 4 << 20;

/// Rounds a size up so that freed blocks can be reused: eight sizes per power of two.
fn rounded(bytes: u64) -> u64 {
    let step = if bytes > LARGE { 64 << 10 } else { (bytes.next_power_of_two() / 16).max(256) };
    bytes.max(1).next_multiple_of(step)
}

impl Pool {
    pub(super) fn new(context: Rc<Context>, most: u64) -> Pool {
        Pool { context, most, free: RefCell::default(), slack: 1, parent: None, reuses: Cell::new(true) }
    }

    /// A pool of memory of another one's, which keeps all of it until its end, for steps of different sizes that run one after another:
    /// small ones use the blocks of large ones.
    pub(super) fn within(parent: &Rc<Pool>) -> Pool {
        Pool {
            context: parent.context.clone(),
            most: parent.most,
            free: RefCell::default(),
            slack: 4,
            parent: Some(parent.clone()),
            reuses: parent.reuses.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn stop_reuse(&self) {
        self.reuses.set(false);
    }

    /// A block of at least so many bytes. Its contents are whatever its last user left.
    pub(super) fn alloc(self: &Rc<Pool>, bytes: u64) -> Result<Block> {
        self.context.check()?;
        if bytes > self.most {
            return Err(self.context.out_of_memory(bytes));
        }
        let size = if self.reuses.get() { rounded(bytes) } else { bytes.max(1) };
        let (size, address) = self.find(size)?.ok_or_else(|| self.context.out_of_memory(bytes))?;
        Ok(Block(Rc::new(Lent { address, size, pool: self.clone() })))
    }

    /// Memory that nobody has, of this size or, within the slack, more: its size and address. `None` if there is no room.
    fn find(&self, size: u64) -> Result<Option<(u64, u64)>> {
        let found = self.reuses.get().then(|| {
            let mut free = self.free.borrow_mut();
            if let Some(address) = free.get_mut(&size).and_then(Vec::pop) {
                return Some((size, address));
            }
            let mut blocks = free.range_mut(size..=size.saturating_mul(self.slack));
            blocks.find_map(|(size, addresses)| Some((*size, addresses.pop()?)))
        });
        match (found.flatten(), &self.parent) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(parent)) => parent.find(size),
            (None, None) => Ok(self.fresh(size)?.map(|address| (size, address))),
        }
    }

    /// Memory that was not used before; `None` if there is no room.
    fn fresh(&self, size: u64) -> Result<Option<u64>> {
        let mut address = 0;
        let mut alloc = || {
            self.context.ask_unless(code::OUT_OF_MEMORY, |driver| {
                // SAFETY: the place is valid during the call.
                unsafe { driver.mem_alloc(&mut address, usize::try_from(size).unwrap_or(usize::MAX)) }
            })
        };
        let has_room = alloc()? || self.trim()? && alloc()?;
        Ok(has_room.then_some(address))
    }

    fn take_back(&self, address: u64, size: u64) {
        match self.reuses.get() || self.parent.is_some() {
            true => self.free.borrow_mut().entry(size).or_default().push(address),
            // Of a device that is lost nothing needs to be freed.
            false => drop(self.release(address)),
        }
    }

    fn release(&self, address: u64) -> Result<()> {
        // SAFETY: it was allocated, and is freed once: nobody has it any more. The driver waits for the work that uses it.
        self.context.ask(|driver| unsafe { driver.mem_free(address) })
    }

    /// Frees all unused blocks. Returns whether there were any.
    pub(super) fn trim(&self) -> Result<bool> {
        let free = self.free.take();
        if free.is_empty() {
            return Ok(false);
        }
        self.context.wait()?;
        free.into_values().flatten().try_for_each(|address| self.release(address))?;
        Ok(true)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Some(parent) = &self.parent else {
            let _ = self.trim();
            return;
        };
        for (size, addresses) in self.free.take() {
            addresses.into_iter().for_each(|address| parent.take_back(address, size));
        }
    }
}
