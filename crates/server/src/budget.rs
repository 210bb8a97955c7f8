//! [`Budget`]: the bytes that all requests together may hold, from the first of a body to the last of an answer.
//!
//! Each request has a [`Claim`]. It grows as the body arrives, as the body becomes a prompt, and as the answer waits to
//! be sent. A request that needs more than is free waits; a share is kept for small requests. While one waits, requests
//! of slow clients are evicted, the largest first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::errors::ApiError;
use crate::http::connection_table::ConnectionSlot;

/// Claims up to this many bytes are small and may use the share kept for small ones.
pub(crate) const SMALL: usize = 256 << 10;
/// 1 / `SMALL_RESERVE` of the budget is kept for small claims.
const SMALL_RESERVE: usize = 4;
/// Time that a request waits for memory.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting request looks for slow clients to evict.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time a claim has in a stage before it can be evicted.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes per second below which a client is slow, if others wait for its memory.
const SLOW: usize = 64 << 10;
/// Unread bytes an answer may have even when the budget is spent: what a client that does read has not had time for.
const ALWAYS_UNREAD: usize = 64 << 10;

/// Memory budget of all requests.
#[derive(Debug)]
pub(crate) struct Budget {
    capacity: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    next: u64,
    entries: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    bytes: usize,
    /// Bytes of those that are unread events.
    unread: usize,
    stage: Stage,
    /// Start of the stage, bytes that the client has sent or read since, and when it last did.
    since: Instant,
    transferred: usize,
    last: Instant,
    connection: Arc<ConnectionSlot>,
    evicted: Arc<Eviction>,
}

/// The side that has to act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The client sends its body.
    Arriving,
    /// The server computes.
    Working,
    /// The client reads an answer that is complete.
    Leaving,
}

/// Tells a request that it is evicted because others need its memory.
#[derive(Debug, Default)]
struct Eviction {
    is: AtomicBool,
    changed: Notify,
}

/// Memory claimed by one request; dropping it frees all of it.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    id: u64,
    evicted: Arc<Eviction>,
}

/// Memory claimed for a part of a request's work.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    claim: &'a Claim,
    bytes: usize,
}

/// Why a claim cannot grow.
#[derive(Debug, PartialEq, Eq)]
enum ClaimError {
    /// Other requests hold the memory.
    Busy,
    /// More than large claims may ever hold.
    TooLarge,
}

impl Budget {
    pub(crate) fn new(capacity: usize) -> Budget {
        Budget { capacity, state: Mutex::default(), freed: Notify::new() }
    }

    /// An empty claim for a request of this connection.
    pub(crate) fn claim(self: &Arc<Budget>, connection: Arc<ConnectionSlot>) -> Claim {
        let mut state = self.state();
        let (id, evicted) = (state.next, Arc::<Eviction>::default());
        state.next += 1;
        let entry = Entry {
            bytes: 0,
            unread: 0,
            stage: Stage::Working,
            since: Instant::now(),
            transferred: 0,
            last: Instant::now(),
            connection,
            evicted: evicted.clone(),
        };
        state.entries.insert(id, entry);
        drop(state);
        Claim { budget: self.clone(), id, evicted }
    }

    /// Size of the budget in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes claimed now.
    pub(crate) fn used(&self) -> usize {
        self.state().used
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that large claims may hold together.
    fn for_large(&self) -> usize {
        self.capacity - self.capacity / SMALL_RESERVE
    }

    fn take(&self, id: u64, bytes: usize) -> Result<(), ClaimError> {
        let mut state = self.state();
        let used = state.used;
        let Some(entry) = state.entries.get_mut(&id) else { return Ok(()) };
        let total = entry.bytes.saturating_add(bytes);
        let room = if total <= SMALL { self.capacity } else { self.for_large() };
        if total > room {
            return Err(ClaimError::TooLarge);
        }
        if used.saturating_add(bytes) > room {
            return Err(ClaimError::Busy);
        }
        entry.bytes = total;
        state.used += bytes;
        Ok(())
    }

    /// Evicts slow clients until `bytes` will be free or no slow one is left.
    fn evict_slow(&self, bytes: usize) {
        let mut state = self.state();
        let now = Instant::now();
        let leaving: usize =
            state.entries.values().filter(|e| e.evicted.is.load(Ordering::Relaxed)).map(|e| e.bytes).sum();
        let mut slow: Vec<&mut Entry> = state.entries.values_mut().filter(|e| e.is_slow(now)).collect();
        slow.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        let mut soon = leaving;
        for entry in slow {
            if soon >= bytes {
                break;
            }
            soon += entry.bytes;
            entry.evicted.is.store(true, Ordering::Relaxed);
            entry.evicted.changed.notify_waiters();
            if entry.stage == Stage::Leaving {
                // Nobody polls the body of an answer whose client does not read, so the connection is closed.
                entry.connection.evict();
            }
        }
    }
}

impl Entry {
    fn is_slow(&self, now: Instant) -> bool {
        let time = now.saturating_duration_since(self.since);
        let expected = time.saturating_sub(GRACE).as_secs_f64() * SLOW as f64;
        let is_stalled = now.saturating_duration_since(self.last) > GRACE;
        self.stage != Stage::Working
            && self.bytes > 0
            && !self.evicted.is.load(Ordering::Relaxed)
            && time > GRACE
            && (is_stalled || (self.transferred as f64) < expected)
    }
}

impl Claim {
    /// Claims `bytes` more, and waits for them if necessary.
    pub(crate) async fn grow(&self, bytes: usize) -> Result<(), ApiError> {
        let until = Instant::now() + CLAIM_TIMEOUT;
        loop {
            let freed = self.budget.freed.notified();
            match self.budget.take(self.id, bytes) {
                Ok(()) => return Ok(()),
                Err(ClaimError::TooLarge) => return Err(self.too_much(bytes)),
                Err(ClaimError::Busy) if Instant::now() >= until => {
                    let (used, capacity) = (self.budget.used() >> 20, self.budget.capacity >> 20);
                    tracing::info!("a request found no memory: {used} of {capacity} MiB are in flight");
                    return Err(busy());
                }
                Err(ClaimError::Busy) => self.budget.evict_slow(bytes),
            }
            let next_poll = (Instant::now() + POLL_INTERVAL).min(until);
            tokio::select! {
                _ = timeout_at(next_poll, freed) => {}
                () = self.evicted() => return Err(evicted()),
            }
        }
    }

    fn too_much(&self, bytes: usize) -> ApiError {
        let (mib, capacity) = (bytes.div_ceil(1 << 20), self.budget.capacity >> 20);
        let why = format!(
            "the request needs {mib} MiB of memory at once, which is more than this server gives to one (it has {capacity} \
             MiB for all); make it smaller, or start the server with a larger --max-memory-in-flight"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why).code("request_too_large")
    }

    /// Sets the claim to `bytes` plus unread events. Does not wait: it is for memory that is in use already.
    pub(crate) fn settle(&self, bytes: usize) {
        let mut state = self.budget.state();
        let Some(entry) = state.entries.get_mut(&self.id) else { return };
        let (before, after) = (entry.bytes, bytes + entry.unread);
        entry.bytes = after;
        state.used = state.used + after - before;
        drop(state);
        if after < before {
            self.budget.freed.notify_waiters();
        }
    }

    /// [`Claim::grow`] for a blocking thread, released when the [`Hold`] is dropped.
    pub(crate) fn hold(&self, bytes: usize) -> Result<Hold<'_>, ApiError> {
        tokio::runtime::Handle::current().block_on(self.grow(bytes))?;
        Ok(Hold { claim: self, bytes })
    }

    /// Enters a stage.
    pub(crate) fn stage(&self, stage: Stage) {
        let mut state = self.budget.state();
        if let Some(entry) = state.entries.get_mut(&self.id) {
            let now = Instant::now();
            (entry.stage, entry.since, entry.transferred, entry.last) = (stage, now, 0, now);
        }
    }

    /// Records that the client has sent or read `bytes`.
    pub(crate) fn transferred(&self, bytes: usize) {
        if let Some(entry) = self.budget.state().entries.get_mut(&self.id) {
            entry.transferred += bytes;
            entry.last = Instant::now();
        }
    }

    /// Releases `bytes` of events that were read from the channel.
    pub(crate) fn release_unread(&self, bytes: usize) {
        let mut state = self.budget.state();
        let Some(entry) = state.entries.get_mut(&self.id) else { return };
        let bytes = bytes.min(entry.unread);
        entry.unread -= bytes;
        entry.bytes -= bytes;
        state.used -= bytes;
        drop(state);
        self.budget.freed.notify_waiters();
    }

    /// True if the request is evicted because others need its memory.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.is.load(Ordering::Relaxed)
    }

    /// Resolves once the request is evicted.
    pub(crate) async fn evicted(&self) {
        loop {
            let changed = self.evicted.changed.notified();
            if self.is_evicted() {
                return;
            }
            // A notification missed before the await is seen at the next look.
            let _ = timeout_at(Instant::now() + POLL_INTERVAL, changed).await;
        }
    }
}

impl Claim {
    /// Adds `bytes` of unread events. Returns whether the request may go on.
    pub(crate) fn add_unread(&self, bytes: usize) -> bool {
        let mut state = self.budget.state();
        let used = state.used + bytes;
        let Some(entry) = state.entries.get_mut(&self.id) else { return true };
        entry.bytes += bytes;
        entry.unread += bytes;
        let unread = entry.unread;
        state.used = used;
        drop(state);
        if used <= self.budget.capacity || unread <= ALWAYS_UNREAD {
            return true;
        }
        self.budget.evict_slow(used - self.budget.capacity);
        false
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut state = self.claim.budget.state();
        let Some(entry) = state.entries.get_mut(&self.claim.id) else { return };
        entry.bytes -= self.bytes;
        state.used -= self.bytes;
        drop(state);
        self.claim.budget.freed.notify_waiters();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        if let Some(entry) = state.entries.remove(&self.id) {
            state.used -= entry.bytes;
        }
        drop(state);
        self.budget.freed.notify_waiters();
    }
}

/// No memory was free for [`CLAIM_TIMEOUT`].
fn busy() -> ApiError {
    let why = "requests that are under way have all the memory that there is for them; try again in a while";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, why).code("server_busy")
}

/// Others needed the memory of a slow client.
pub(crate) fn evicted() -> ApiError {
    let why =
        "the body arrived too slowly while others waited for the memory that it takes; try again in a while";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, why).code("too_slow")
}

/// Decides when a body arrives too slowly even if nobody waits for its memory.
pub(crate) struct Pace {
    begun: Instant,
    last: Instant,
    bytes: usize,
}

/// Bytes per second at which a body must arrive on average, after [`RATE_GRACE`].
const MIN_RATE: usize = 4 << 10;
/// Time before the average rate counts.
const RATE_GRACE: Duration = Duration::from_secs(15);
/// Longest gap in a body.
const MAX_GAP: Duration = Duration::from_secs(30);

impl Pace {
    pub(crate) fn new() -> Pace {
        let now = Instant::now();
        Pace { begun: now, last: now, bytes: 0 }
    }

    /// Records that `bytes` have arrived.
    pub(crate) fn arrived(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.last = Instant::now();
    }

    /// Excludes the time since `since`, in which the server let the client wait.
    pub(crate) fn excuse(&mut self, since: Instant) {
        let now = Instant::now();
        self.begun += now.saturating_duration_since(since);
        self.last = now;
    }

    /// Resolves when the body is too slow, with the error.
    pub(crate) async fn too_slow(&self) -> ApiError {
        let average = Duration::from_secs_f64(self.bytes as f64 / MIN_RATE as f64);
        let until = (self.begun + RATE_GRACE + average).min(self.last + MAX_GAP);
        sleep_until(until).await;
        let (bytes, seconds) = (self.bytes, self.begun.elapsed().as_secs());
        let why = format!(
            "the body arrives too slowly: {bytes} bytes in {seconds} s; send at least {MIN_RATE} a second, and leave no \
             gap of {} s",
            MAX_GAP.as_secs()
        );
        ApiError::new(StatusCode::REQUEST_TIMEOUT, why).code("too_slow")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(capacity: usize) -> (Arc<Budget>, impl Fn() -> Claim) {
        let budget = Arc::new(Budget::new(capacity));
        let own = budget.clone();
        (budget, move || own.claim(Arc::new(ConnectionSlot::detached())))
    }

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn small_claims_have_room_that_large_ones_cannot_take() {
        let (budget, claim) = claims(16 * MIB);
        let large = claim();
        large.grow(12 * MIB).await.unwrap();
        let (small, other) = (claim(), claim());
        small.grow(SMALL).await.unwrap();
        assert_eq!(other.grow(MIB).await.unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(budget.used(), 12 * MIB + SMALL);
        drop(large);
        other.grow(MIB).await.unwrap();
        drop((small, other));
        assert_eq!(budget.used(), 0);
        assert_eq!(claim().grow(13 * MIB).await.unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_room_of_the_slow_and_not_of_the_quick() {
        let (_budget, claim) = claims(16 * MIB);
        let (slow, quick, working) = (claim(), claim(), claim());
        for one in [&slow, &quick, &working] {
            one.grow(4 * MIB).await.unwrap();
        }
        slow.stage(Stage::Arriving);
        quick.stage(Stage::Arriving);
        let wants = claim();
        let wants = tokio::spawn(async move { wants.grow(2 * MIB).await });
        for _ in 0..8 {
            // Slow at first, then it stalls.
            slow.transferred(if slow.is_evicted() { 0 } else { 1 });
            quick.transferred(MIB);
            tokio::time::sleep(GRACE / 2).await;
        }
        assert!(slow.is_evicted());
        assert!(!quick.is_evicted() && !working.is_evicted());
        drop(slow);
        wants.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_reads_end_when_the_room_is_spent() {
        let (budget, claim) = claims(16 * MIB);
        let (piling, read) = (claim(), claim());
        let count = (0..).take_while(|_| piling.add_unread(1 << 10)).count();
        let capacity = (16 * MIB) >> 10;
        assert!((capacity - 1..=capacity).contains(&count), "{count}");
        for _ in 0..1000 {
            assert!(read.add_unread(1 << 10), "what is taken at once has room");
            read.release_unread(1 << 10);
        }
        drop(piling);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_keep_arriving() {
        let begun = Instant::now();
        let mut pace = Pace::new();
        assert_eq!(pace.too_slow().await.status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(begun.elapsed().as_secs(), RATE_GRACE.as_secs());
        // A body above the minimum rate may take as long as it needs.
        let begun = Instant::now();
        pace = Pace::new();
        while begun.elapsed() < Duration::from_secs(3600) {
            pace.arrived(2 * MIN_RATE);
            let next = tokio::time::timeout(Duration::from_secs(2), pace.too_slow());
            assert!(next.await.is_err(), "after {:?}", begun.elapsed());
        }
        let (begun, _) = (Instant::now(), pace.too_slow().await);
        assert!(begun.elapsed() <= MAX_GAP);
    }
}
