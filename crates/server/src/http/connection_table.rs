//! [`ConnectionTable`]: all connections, and which one is closed when there is no place for another.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A client without progress for this long in the middle of a request can be closed for another.
const STALLED: Duration = Duration::from_secs(5);
/// Minimum time between log lines that the table is full.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which a waiting connection looks for one to close.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Values of [`Seat::waits_for`].
const IDLE: u8 = 0;
const ARRIVING: u8 = 1;
const WORKING: u8 = 2;

/// All connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    capacity: usize,
    max_per_address: usize,
    begun: Instant,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    slots: HashMap<u64, Arc<ConnectionSlot>>,
    of: HashMap<IpAddr, usize>,
    evicted: u64,
    refused: u64,
    /// Time of the last log line that the table is full.
    last_logged: Option<Instant>,
}

/// State of one connection, shared by all parts of the server.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    address: IpAddr,
    waits_for: AtomicU8,
    /// True if its client does not read what it is sent.
    blocked: AtomicBool,
    /// True if the client understands interim (1xx) responses.
    has_interim: AtomicBool,
    /// True if the answer is a chunked event stream.
    is_stream: AtomicBool,
    /// True if any of the answer to the last request has been sent; true before the first request.
    is_answering: AtomicBool,
    /// True if the body of the last request has not been read to its end.
    has_unread: AtomicBool,
    begun: Instant,
    /// Time at which its client last sent or read something, in milliseconds since `begun`.
    active: AtomicU64,
    evicted: AtomicBool,
    /// True to close it only if it is still idle when it learns of that.
    only_if_idle: AtomicBool,
    evicted_signal: Notify,
}

/// Bytes that can be sent to a client without changing the answer, to probe whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    None,
    BeforeAnswer,
    WithinStream,
}

/// A place in the table; dropping it frees it.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    table: Arc<ConnectionTable>,
    id: u64,
    pub(crate) slot: Arc<ConnectionSlot>,
}

/// Occupancy of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) connections: usize,
    pub(crate) capacity: usize,
    /// Idle or stalled connections closed for new ones.
    pub(crate) evicted: u64,
    /// Connections refused because their address had too many.
    pub(crate) refused: u64,
}

impl ConnectionTable {
    /// A table for `capacity` connections, and `max_per_address` per address.
    pub(crate) fn new(capacity: usize, max_per_address: usize) -> ConnectionTable {
        let (capacity, max_per_address) = (capacity.max(1), max_per_address.max(1));
        ConnectionTable {
            capacity,
            max_per_address,
            begun: Instant::now(),
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets a place, or `None` if the address has too many connections that are all in use. If the table is full, the
    /// connection that has been idle longest is closed; if none is idle or stalled, this waits until one ends.
    pub(crate) async fn enter(self: &Arc<ConnectionTable>, address: IpAddr) -> Option<SlotGuard> {
        let address = client_of(address);
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state();
                let of_address = state.of.get(&address).copied().unwrap_or(0);
                if of_address >= self.max_per_address {
                    let has_slot = state.evict(self.begun, Some(address));
                    state.refused += u64::from(!has_slot);
                    self.log_full(&mut state);
                    if !has_slot {
                        return None;
                    }
                }
                if state.slots.len() < self.capacity {
                    return Some(self.insert(&mut state, address));
                }
                let has_slot = state.evict(self.begun, None);
                self.log_full(&mut state);
                if has_slot {
                    return Some(self.insert(&mut state, address));
                }
            }
            let _ = timeout(POLL_INTERVAL, freed).await;
        }
    }

    /// Logs that the table, or an address's share of it, is full: not for each connection, for these may be many.
    fn log_full(&self, state: &mut State) {
        let now = Instant::now();
        if state
            .last_logged
            .is_none_or(|last_logged| now.saturating_duration_since(last_logged) >= LOG_INTERVAL)
        {
            state.last_logged = Some(now);
            let State { evicted, refused, .. } = state;
            let (capacity, of_address) = (self.capacity, self.max_per_address);
            tracing::warn!(
                "connections are full ({capacity}, {of_address} of one address): {evicted} idle or stalled ones were closed for \
                 others since the start, {refused} turned away; --max-connections and --max-per-address say how many there may be"
            );
        }
    }

    fn insert(self: &Arc<ConnectionTable>, state: &mut State, address: IpAddr) -> SlotGuard {
        let (id, slot) = (state.next, Arc::new(ConnectionSlot::new(address, self.begun)));
        state.next += 1;
        state.slots.insert(id, slot.clone());
        *state.of.entry(address).or_default() += 1;
        SlotGuard { table: self.clone(), id, slot }
    }

    /// Closes the connection that has been idle longest, because there are no descriptors left.
    pub(crate) fn evict_idle(&self) {
        self.state().evict(self.begun, None);
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        let state = self.state();
        let (evicted, refused) = (state.evicted, state.refused);
        Occupancy { connections: state.slots.len(), capacity: self.capacity, evicted, refused }
    }
}

impl State {
    /// Closes the connection (of address `of`, if given) that has been idle longest, or stalled longest if none is
    /// idle. Returns whether there was one.
    fn evict(&mut self, begun: Instant, of: Option<IpAddr>) -> bool {
        let now = begun.elapsed().as_millis() as u64;
        let candidates =
            self.slots.iter().filter(|(_, slot)| of.is_none_or(|address| slot.address == address));
        let worst = candidates.filter_map(|(id, slot)| Some((slot.eviction_order(now)?, *id))).min();
        let Some((_, id)) = worst else { return false };
        if let Some(slot) = self.slots.get(&id).cloned() {
            // A request may have arrived that nobody has read yet.
            slot.only_if_idle.store(slot.is_idle(), Ordering::Relaxed);
            slot.evict();
            self.remove(id);
            self.evicted += 1;
        }
        true
    }

    fn remove(&mut self, id: u64) {
        let Some(slot) = self.slots.remove(&id) else { return };
        if let Some(count) = self.of.get_mut(&slot.address) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&slot.address);
            }
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.table.state().remove(self.id);
        self.table.freed.notify_waiters();
    }
}

impl ConnectionSlot {
    fn new(address: IpAddr, begun: Instant) -> ConnectionSlot {
        let slot = ConnectionSlot {
            address,
            waits_for: AtomicU8::new(IDLE),
            blocked: AtomicBool::new(false),
            has_interim: AtomicBool::new(false),
            is_stream: AtomicBool::new(false),
            is_answering: AtomicBool::new(true),
            has_unread: AtomicBool::new(false),
            begun,
            active: AtomicU64::new(0),
            evicted: AtomicBool::new(false),
            only_if_idle: AtomicBool::new(false),
            evicted_signal: Notify::new(),
        };
        slot.transferred();
        slot
    }

    /// Seat of a request without a connection.
    pub(crate) fn detached() -> ConnectionSlot {
        ConnectionSlot::new(Ipv6Addr::UNSPECIFIED.into(), Instant::now())
    }

    /// Its client's address, or /64 network for IPv6.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Records that its client has sent or read something.
    pub(crate) fn transferred(&self) {
        self.blocked.store(false, Ordering::Relaxed);
        self.active.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Records that its client does not read.
    pub(crate) fn blocked(&self) {
        self.blocked.store(true, Ordering::Relaxed);
    }

    /// Records a new request. HTTP/1.1 clients understand interim responses.
    pub(crate) fn begin(&self, has_interim: bool) {
        self.has_interim.store(has_interim, Ordering::Relaxed);
        self.is_stream.store(false, Ordering::Relaxed);
        self.is_answering.store(false, Ordering::Relaxed);
        self.working();
    }

    /// Records whether some of its body is still to be read.
    pub(crate) fn set_unread(&self, unread: bool) {
        self.has_unread.store(unread, Ordering::Relaxed);
    }

    /// True if its client may still be sending the body of a request.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed)
    }

    /// Records that its answer is an event stream.
    pub(crate) fn streaming(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    /// Records that its answer is being sent.
    pub(crate) fn answering(&self) {
        self.is_answering.store(true, Ordering::Relaxed);
    }

    /// True if no request waits for its answer to begin.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Bytes to send to find out whether its client is still there.
    pub(crate) fn probe(&self) -> Probe {
        let [interim, stream, answering] =
            [&self.has_interim, &self.is_stream, &self.is_answering].map(|flag| flag.load(Ordering::Relaxed));
        match (interim, stream, answering) {
            (true, _, false) => Probe::BeforeAnswer,
            (true, true, true) => Probe::WithinStream,
            _ => Probe::None,
        }
    }

    /// Enters `WORKING`: the server has the request's body.
    pub(crate) fn working(&self) {
        self.waits_for.store(WORKING, Ordering::Release);
    }

    /// Enters `ARRIVING`: its body is being read.
    pub(crate) fn arriving(&self) {
        self.waits_for.store(ARRIVING, Ordering::Release);
    }

    /// Enters `IDLE`: the request was answered.
    pub(crate) fn idle(&self) {
        self.waits_for.store(IDLE, Ordering::Release);
    }

    /// True if the server works on a request whose body it has.
    pub(crate) fn is_working(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == WORKING
    }

    /// True if a body is being read.
    pub(crate) fn is_arriving(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == ARRIVING
    }

    /// True if there is no request.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == IDLE
    }

    /// True if it can be closed for another; the lowest goes first: idle ones, then the one without progress for
    /// longest.
    fn eviction_order(&self, now: u64) -> Option<(bool, u64)> {
        let active = self.active.load(Ordering::Relaxed);
        let stalled = now.saturating_sub(active) > STALLED.as_millis() as u64;
        match self.waits_for.load(Ordering::Acquire) {
            IDLE => Some((false, active)),
            ARRIVING if stalled => Some((true, active)),
            _ if self.blocked.load(Ordering::Relaxed) && stalled => Some((true, active)),
            _ => None,
        }
    }

    /// Closes the connection.
    pub(crate) fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.evicted_signal.notify_one();
    }

    /// Resolves when the connection is to be closed. At most one task may wait.
    pub(crate) async fn evicted(&self) {
        loop {
            while !self.evicted.swap(false, Ordering::AcqRel) {
                self.evicted_signal.notified().await;
            }
            if !self.only_if_idle.swap(false, Ordering::Relaxed) || self.is_idle() {
                return;
            }
        }
    }
}

/// The client of an address: the /64 network for IPv6.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    async fn later(ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn is_evicted(guard: &SlotGuard) -> bool {
        guard.slot.evicted.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_goes_first_and_those_at_work_stay() {
        let table = Arc::new(ConnectionTable::new(3, 3));
        let working = table.enter(address(1)).await.unwrap();
        working.slot.working();
        later(10).await;
        let (older, newer) = (table.enter(address(2)).await.unwrap(), table.enter(address(3)).await.unwrap());
        later(10).await;
        newer.slot.transferred();
        let fourth = table.enter(address(4)).await.unwrap();
        assert_eq!([is_evicted(&working), is_evicted(&older), is_evicted(&newer)], [false, true, false]);
        fourth.slot.working();
        newer.slot.arriving();
        // A stalled body goes too, but not at once.
        let begun = Instant::now();
        let fifth = table.enter(address(5)).await.unwrap();
        assert!(is_evicted(&newer) && begun.elapsed() >= STALLED, "{:?}", begun.elapsed());
        fifth.slot.working();
        let sixth = tokio::spawn({
            let table = table.clone();
            async move { table.enter(address(6)).await }
        });
        later(60_000).await;
        assert!(!sixth.is_finished(), "all are at work");
        drop(working);
        assert!(sixth.await.unwrap().is_some());
        drop((older, newer));
        assert_eq!(table.occupancy(), Occupancy { connections: 3 - 1, capacity: 3, evicted: 2, refused: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_gives_up_its_own() {
        let table = Arc::new(ConnectionTable::new(10, 2));
        let (one, two) = (table.enter(address(1)).await.unwrap(), table.enter(address(1)).await.unwrap());
        let other = table.enter(address(2)).await.unwrap();
        one.slot.working();
        let three = table.enter(address(1)).await.unwrap();
        assert!(is_evicted(&two) && !is_evicted(&one) && !is_evicted(&other));
        three.slot.working();
        assert!(table.enter(address(1)).await.is_none(), "both of its connections are in use");
        drop(one);
        assert!(table.enter(address(1)).await.is_some());
        assert_eq!(table.occupancy().refused, 1);
    }

    #[test]
    fn a_network_of_the_sixth_version_is_one_client() {
        let of = |text: &str| client_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
