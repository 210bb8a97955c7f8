//! [`Trace`]: the record of launched ops, for launch tables and trace snapshots, and of their times.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::OpTimes;

/// One launched op. An op directly followed by deeper ones was composed of them; any other ran natively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The op's name.
    pub op: &'static str,
    /// Nesting depth: number of ops in progress when it started.
    pub depth: usize,
}

/// A backend's op recorder. Recording costs nothing while it is off.
#[derive(Debug, Default)]
pub struct Trace {
    depth: Cell<usize>,
    log: RefCell<Option<Vec<Launch>>>,
    times: RefCell<Option<OpTimes>>,
}

impl Trace {
    /// Starts recording and discards the previous record.
    pub fn start(&self) {
        *self.log.borrow_mut() = Some(Vec::new());
    }

    /// True if ops are recorded or timed.
    pub fn is_on(&self) -> bool {
        self.log.borrow().is_some() || self.is_timing()
    }

    /// Stops recording and returns the record.
    pub fn stop(&self) -> Vec<Launch> {
        self.log.borrow_mut().take().unwrap_or_default()
    }

    /// Starts to time ops. Times are those of ops alone where the device computes an op when it is launched.
    pub fn start_timing(&self) {
        *self.times.borrow_mut() = Some(OpTimes::default());
    }

    /// True if ops are timed.
    pub fn is_timing(&self) -> bool {
        self.times.borrow().is_some()
    }

    /// Stops timing and returns the times.
    pub fn stop_timing(&self) -> OpTimes {
        self.times.borrow_mut().take().unwrap_or_default()
    }

    /// Says that a part of the op in progress was shared out among threads: how long it took, and how long the threads worked,
    /// as a mean over all of them.
    pub fn add_parallel(&self, took: Duration, worked: Duration) {
        if let Some(times) = self.times.borrow_mut().as_mut() {
            times.add_parallel(took, worked);
        }
    }

    pub(crate) fn enter(&self, op: &'static str) -> Entered<'_> {
        let depth = self.depth.get();
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.push(Launch { op, depth });
        }
        if let Some(times) = self.times.borrow_mut().as_mut() {
            times.enter(op);
        }
        self.depth.set(depth + 1);
        Entered(self)
    }
}

/// Guard that keeps the nesting depth of an op until dropped, also when the op fails or panics.
pub(crate) struct Entered<'a>(&'a Trace);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.depth.set(self.0.depth.get() - 1);
        if let Some(times) = self.0.times.borrow_mut().as_mut() {
            times.leave();
        }
    }
}

/// The launch table: each op, whether the device ran it natively or composed it, and how often.
pub fn launch_table(log: &[Launch]) -> String {
    let mut rows: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for (i, launch) in log.iter().enumerate() {
        let composed = log.get(i + 1).is_some_and(|next| next.depth > launch.depth);
        *rows.entry((launch.op, composed)).or_default() += 1;
    }
    let mut table = String::from("op             how       launches\n");
    for ((op, composed), count) in rows {
        let how = if composed { "composed" } else { "native" };
        let _ = writeln!(table, "{op:<14} {how:<9} {count:>8}");
    }
    table
}
