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
use crate::table::ConnectionSlot;

/// Claims up to this many bytes are small and may use the share kept for small ones.
pub(crate) const SMALL: usize = 256 << 10;
/// 1 / `KEPT_FOR_SMALL` of the budget is kept for small claims.
const KEPT_FOR_SMALL: usize = 4;
/// How long a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a waiting request looks for slow clients to evict.
const LOOK: Duration = Duration::from_millis(200);
/// Time a claim has in a stage before it can be evicted.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes per second below which a client is slow, if others wait for its memory.
const SLOW: usize = 64 << 10;
/// Unread bytes an answer may have even when the budget is spent: what a client that does read has not had time for.
const ALWAYS_UNREAD: usize = 64 << 10;

/// Memory budget of all requests.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
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
    /// Of those, bytes of unread events.
    unread: usize,
    stage: Stage,
    /// Start of the stage, bytes that the client has sent or read since, and when it last did.
    since: Instant,
    moved: usize,
    last: Instant,
    seat: Arc<ConnectionSlot>,
    given_up: Arc<GivenUp>,
}

/// Who has to act next.
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
struct GivenUp {
    is: AtomicBool,
    changed: Notify,
}

/// Memory claimed by one request; dropping it frees all of it.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    id: u64,
    given_up: Arc<GivenUp>,
}

/// Memory claimed for a part of a request's work.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    claim: &'a Claim,
    bytes: usize,
}

/// Why a claim cannot grow.
#[derive(Debug, PartialEq, Eq)]
enum Lack {
    /// Other requests hold the memory.
    Now,
    /// More than large claims may ever hold.
    Ever,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Budget {
        Budget { most, state: Mutex::default(), freed: Notify::new() }
    }

    /// An empty claim for a request of this connection.
    pub(crate) fn claim(self: &Arc<Budget>, seat: Arc<ConnectionSlot>) -> Claim {
        let mut state = self.state();
        let (id, given_up) = (state.next, Arc::<GivenUp>::default());
        state.next += 1;
        let entry = Entry {
            bytes: 0,
            unread: 0,
            stage: Stage::Working,
            since: Instant::now(),
            moved: 0,
            last: Instant::now(),
            seat,
            given_up: given_up.clone(),
        };
        state.entries.insert(id, entry);
        drop(state);
        Claim { budget: self.clone(), id, given_up }
    }

    /// Size of the budget in bytes.
    pub(crate) fn most(&self) -> usize {
        self.most
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
        self.most - self.most / KEPT_FOR_SMALL
    }

    fn take(&self, id: u64, bytes: usize) -> Result<(), Lack> {
        let mut state = self.state();
        let used = state.used;
        let Some(entry) = state.entries.get_mut(&id) else { return Ok(()) };
        let whole = entry.bytes.saturating_add(bytes);
        let room = if whole <= SMALL { self.most } else { self.for_large() };
        if whole > room {
            return Err(Lack::Ever);
        }
        if used.saturating_add(bytes) > room {
            return Err(Lack::Now);
        }
        entry.bytes = whole;
        state.used += bytes;
        Ok(())
    }

    /// Evicts slow clients until `bytes` will be free or no slow one is left.
    fn give_up_slow(&self, bytes: usize) {
        let mut state = self.state();
        let now = Instant::now();
        let leaving: usize =
            state.entries.values().filter(|e| e.given_up.is.load(Ordering::Relaxed)).map(|e| e.bytes).sum();
        let mut slow: Vec<&mut Entry> = state.entries.values_mut().filter(|e| e.is_slow(now)).collect();
        slow.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        let mut soon = leaving;
        for entry in slow {
            if soon >= bytes {
                break;
            }
            soon += entry.bytes;
            entry.given_up.is.store(true, Ordering::Relaxed);
            entry.given_up.changed.notify_waiters();
            if entry.stage == Stage::Leaving {
                // Nobody polls the body of an answer whose client does not read, so the connection is closed.
                entry.seat.give_up();
            }
        }
    }
}

impl Entry {
    fn is_slow(&self, now: Instant) -> bool {
        let time = now.saturating_duration_since(self.since);
        let expected = time.saturating_sub(GRACE).as_secs_f64() * SLOW as f64;
        let stands_still = now.saturating_duration_since(self.last) > GRACE;
        self.stage != Stage::Working
            && self.bytes > 0
            && !self.given_up.is.load(Ordering::Relaxed)
            && time > GRACE
            && (stands_still || (self.moved as f64) < expected)
    }
}

impl Claim {
    /// Claims `bytes` more, and waits for them if necessary.
    pub(crate) async fn grow(&self, bytes: usize) -> Result<(), ApiError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let freed = self.budget.freed.notified();
            match self.budget.take(self.id, bytes) {
                Ok(()) => return Ok(()),
                Err(Lack::Ever) => return Err(self.too_much(bytes)),
                Err(Lack::Now) if Instant::now() >= until => {
                    let (used, most) = (self.budget.used() >> 20, self.budget.most >> 20);
                    tracing::info!("a request found no memory: {used} of {most} MiB are in flight");
                    return Err(busy());
                }
                Err(Lack::Now) => self.budget.give_up_slow(bytes),
            }
            let look = (Instant::now() + LOOK).min(until);
            tokio::select! {
                _ = timeout_at(look, freed) => {}
                () = self.given_up() => return Err(given_up()),
            }
        }
    }

    fn too_much(&self, bytes: usize) -> ApiError {
        let (mib, most) = (bytes.div_ceil(1 << 20), self.budget.most >> 20);
        let why = format!(
            "the request needs {mib} MiB of memory at once, which is more than this server gives to one (it has {most} \
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
            (entry.stage, entry.since, entry.moved, entry.last) = (stage, now, 0, now);
        }
    }

    /// Records that the client has sent or read `bytes`.
    pub(crate) fn moved(&self, bytes: usize) {
        if let Some(entry) = self.budget.state().entries.get_mut(&self.id) {
            entry.moved += bytes;
            entry.last = Instant::now();
        }
    }

    /// Releases `bytes` of events that were read from the channel.
    pub(crate) fn taken(&self, bytes: usize) {
        let mut state = self.budget.state();
        let Some(entry) = state.entries.get_mut(&self.id) else { return };
        let bytes = bytes.min(entry.unread);
        entry.unread -= bytes;
        entry.bytes -= bytes;
        state.used -= bytes;
        drop(state);
        self.budget.freed.notify_waiters();
    }

    /// Whether the request is evicted because others need its memory.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.is.load(Ordering::Relaxed)
    }

    /// Resolves once the request is evicted.
    pub(crate) async fn given_up(&self) {
        loop {
            let changed = self.given_up.changed.notified();
            if self.is_given_up() {
                return;
            }
            // A notification missed before the await is seen at the next look.
            let _ = timeout_at(Instant::now() + LOOK, changed).await;
        }
    }
}

impl Claim {
    /// Adds `bytes` of unread events. Returns whether the request may go on.
    pub(crate) fn told(&self, bytes: usize) -> bool {
        let mut state = self.budget.state();
        let used = state.used + bytes;
        let Some(entry) = state.entries.get_mut(&self.id) else { return true };
        entry.bytes += bytes;
        entry.unread += bytes;
        let unread = entry.unread;
        state.used = used;
        drop(state);
        if used <= self.budget.most || unread <= ALWAYS_UNREAD {
            return true;
        }
        self.budget.give_up_slow(used - self.budget.most);
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

/// No memory was free for [`PATIENCE`].
fn busy() -> ApiError {
    let why = "requests that are under way have all the memory that there is for them; try again in a while";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, why).code("server_busy")
}

/// Others needed the memory of a slow client.
pub(crate) fn given_up() -> ApiError {
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

/// Bytes per second at which a body must arrive on average, after [`LEEWAY`].
const LEAST_RATE: usize = 4 << 10;
/// Time before the average rate counts.
const LEEWAY: Duration = Duration::from_secs(15);
/// Longest gap in a body.
const SILENCE: Duration = Duration::from_secs(30);

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
        let average = Duration::from_secs_f64(self.bytes as f64 / LEAST_RATE as f64);
        let until = (self.begun + LEEWAY + average).min(self.last + SILENCE);
        sleep_until(until).await;
        let (bytes, seconds) = (self.bytes, self.begun.elapsed().as_secs());
        let why = format!(
            "the body arrives too slowly: {bytes} bytes in {seconds} s; send at least {LEAST_RATE} a second, and leave no \
             gap of {} s",
            SILENCE.as_secs()
        );
        ApiError::new(StatusCode::REQUEST_TIMEOUT, why).code("too_slow")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(most: usize) -> (Arc<Budget>, impl Fn() -> Claim) {
        let budget = Arc::new(Budget::new(most));
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
            slow.moved(if slow.is_given_up() { 0 } else { 1 });
            quick.moved(MIB);
            tokio::time::sleep(GRACE / 2).await;
        }
        assert!(slow.is_given_up());
        assert!(!quick.is_given_up() && !working.is_given_up());
        drop(slow);
        wants.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_reads_end_when_the_room_is_spent() {
        let (budget, claim) = claims(16 * MIB);
        let (piling, read) = (claim(), claim());
        let told = (0..).take_while(|_| piling.told(1 << 10)).count();
        let most = (16 * MIB) >> 10;
        assert!((most - 1..=most).contains(&told), "{told}");
        for _ in 0..1000 {
            assert!(read.told(1 << 10), "what is taken at once has room");
            read.taken(1 << 10);
        }
        drop(piling);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_keep_arriving() {
        let begun = Instant::now();
        let mut pace = Pace::new();
        assert_eq!(pace.too_slow().await.status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(begun.elapsed().as_secs(), LEEWAY.as_secs());
        // A body above the minimum rate may take as long as it needs.
        let begun = Instant::now();
        pace = Pace::new();
        while begun.elapsed() < Duration::from_secs(3600) {
            pace.arrived(2 * LEAST_RATE);
            let next = tokio::time::timeout(Duration::from_secs(2), pace.too_slow());
            assert!(next.await.is_err(), "after {:?}", begun.elapsed());
        }
        let (begun, _) = (Instant::now(), pace.too_slow().await);
        assert!(begun.elapsed() <= SILENCE);
    }
}
