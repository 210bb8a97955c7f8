//! [`MemoryLedger`]: what the models of a server take of each device.
//!
//! What is free on a device is not what another model may take: caches are planned, and filled later. So the plans of the
//! models that are loaded are added up, and taken off what was free before the first of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_server::MakeRoom;

use crate::devices::Device;
use crate::fit::Host;
use crate::memory::Plan;
use crate::notice::Notice;

/// See the [module](self). Clones are the same ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryLedger(Arc<Mutex<BTreeMap<String, Account>>>);

/// A device's memory.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Bytes that were free before any model was loaded.
    free: u64,
    /// Bytes that the models take by their plans.
    taken: u64,
}

/// Bytes of a device that a model takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    ledger: MemoryLedger,
    pub(super) device: String,
    pub(super) bytes: u64,
}

impl MemoryLedger {
    fn accounts(&self) -> MutexGuard<'_, BTreeMap<String, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a device that one more model may take, of those that are free now.
    fn available(&self, device: &str, free: u64) -> u64 {
        let mut accounts = self.accounts();
        let account = accounts.entry(device.to_owned()).or_insert(Account { free, taken: 0 });
        free.min(account.free.saturating_sub(account.taken))
    }

    fn reserve(&self, device: String, bytes: u64) -> Reservation {
        if let Some(account) = self.accounts().get_mut(&device) {
            account.taken = account.taken.saturating_add(bytes);
        }
        Reservation { ledger: self.clone(), device, bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(account) = self.ledger.accounts().get_mut(&self.device) {
            account.taken = account.taken.saturating_sub(self.bytes);
        }
    }
}

/// A server with other models, for which a model is loaded.
pub(super) struct SharingHost<'a, 'b> {
    ledger: &'a MemoryLedger,
    make_room: RefCell<&'a mut MakeRoom<'b>>,
    reservation: RefCell<Option<Reservation>>,
    /// True if it is put on the CPU.
    is_on_cpu: Cell<bool>,
    /// Its context, in tokens.
    context: Cell<usize>,
}

impl<'a, 'b> SharingHost<'a, 'b> {
    pub(super) fn new(ledger: &'a MemoryLedger, make_room: &'a mut MakeRoom<'b>) -> SharingHost<'a, 'b> {
        SharingHost {
            ledger,
            make_room: RefCell::new(make_room),
            reservation: RefCell::default(),
            is_on_cpu: Cell::default(),
            context: Cell::default(),
        }
    }

    /// What the model takes, whether that is on the CPU, and its context; `None` if it was put nowhere.
    pub(super) fn placed(self) -> Option<(Reservation, bool, usize)> {
        Some((self.reservation.into_inner()?, self.is_on_cpu.get(), self.context.get()))
    }
}

impl Host for SharingHost<'_, '_> {
    fn say(&self, notice: &Notice) {
        notice.log();
    }

    fn available(&self, device: &Device, free: u64) -> u64 {
        self.ledger.available(&device.to_string(), free)
    }

    fn make_room(&self, device: &Device, missing: u64) -> bool {
        (self.make_room.borrow_mut())(&device.to_string(), missing)
    }

    fn taken(&self, device: &Device, plan: &Plan) {
        // One that was tried before, and failed, is given back first.
        drop(self.reservation.take());
        *self.reservation.borrow_mut() = Some(self.ledger.reserve(device.to_string(), plan.total()));
        self.is_on_cpu.set(device.is_cpu());
        self.context.set(plan.context.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planned_is_not_free() {
        let ledger = MemoryLedger::default();
        assert_eq!(ledger.available("cpu", 1000), 1000);
        let first = ledger.reserve("cpu".into(), 600);
        // Little of it is filled.
        assert_eq!(ledger.available("cpu", 990), 400);
        // Other programs take memory, too.
        assert_eq!(ledger.available("cpu", 300), 300);
        assert_eq!(ledger.available("cuda:0", 500), 500);
        let second = ledger.reserve("cpu".into(), 500);
        assert_eq!(ledger.available("cpu", 800), 0);
        drop(first);
        assert_eq!(ledger.available("cpu", 1000), 500);
        drop(second);
        assert_eq!(ledger.available("cpu", 2000), 1000, "no more than there was before");
    }
}
