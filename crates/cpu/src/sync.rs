//! Atomics, locks and waiting of the pool's threads. [`pool_checked`](crate::pool_checked) has a model checker's in their place.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::thread::{Builder, JoinHandle, park, yield_now};

/// Spins of who waits before it yields. About ten microseconds.
pub(crate) const SPINS: u32 = 2_000;
/// Yields of a waiting worker before it sleeps: well past the gap between two steps.
pub(crate) const YIELDS: u32 = 2_000;
