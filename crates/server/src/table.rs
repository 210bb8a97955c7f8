//! [`Table`]: all connections, and which one is closed when there is no place for another.

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
const SAY_EVERY: Duration = Duration::from_secs(60);
/// How often a waiting connection looks for one to close.
const LOOK: Duration = Duration::from_millis(200);

/// Values of [`Seat::waits_for`].
const IDLE: u8 = 0;
const ARRIVING: u8 = 1;
const WORKING: u8 = 2;

/// All connections.
#[derive(Debug)]
pub(crate) struct Table {
    most: usize,
    most_of_one: usize,
    begun: Instant,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    seats: HashMap<u64, Arc<ConnectionSlot>>,
    of: HashMap<IpAddr, usize>,
    given_up: u64,
    refused: u64,
    /// When the log was last told that the table is full.
    said: Option<Instant>,
}

/// State of one connection, shared by all parts of the server.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    address: IpAddr,
    waits_for: AtomicU8,
    /// Whether its client does not read what it is sent.
    blocked: AtomicBool,
    /// Whether the client understands interim (1xx) responses.
    has_interim: AtomicBool,
    /// Whether the answer is a chunked event stream.
    is_stream: AtomicBool,
    /// Whether any of the answer to the last request has been sent; true before the first request.
    is_answering: AtomicBool,
    begun: Instant,
    /// When its client last sent or read something, in milliseconds since `begun`.
    active: AtomicU64,
    given_up: AtomicBool,
    /// Whether to close it only if it is still idle when it learns of that.
    if_idle: AtomicBool,
    gone: Notify,
}

/// What can be sent to a client without changing the answer, to probe whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    None,
    BeforeAnswer,
    WithinStream,
}

/// A place in the table; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Table>,
    id: u64,
    pub(crate) seat: Arc<ConnectionSlot>,
}

/// Occupancy of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) connections: usize,
    pub(crate) most: usize,
    /// Idle or stalled connections closed for new ones.
    pub(crate) given_up: u64,
    /// Connections refused because their address had too many.
    pub(crate) refused: u64,
}

impl Table {
    /// A table for `most` connections, and `most_of_one` per address.
    pub(crate) fn new(most: usize, most_of_one: usize) -> Table {
        let (most, most_of_one) = (most.max(1), most_of_one.max(1));
        Table { most, most_of_one, begun: Instant::now(), state: Mutex::default(), freed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets a place, or `None` if the address has too many connections that are all in use. If the table is full, the
    /// connection that has been idle longest is closed; if none is idle or stalled, this waits until one ends.
    pub(crate) async fn enter(self: &Arc<Table>, address: IpAddr) -> Option<Place> {
        let address = client_of(address);
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state();
                let of_one = state.of.get(&address).copied().unwrap_or(0);
                if of_one >= self.most_of_one {
                    let has_place = state.give_up(self.begun, Some(address));
                    state.refused += u64::from(!has_place);
                    self.say_full(&mut state);
                    if !has_place {
                        return None;
                    }
                }
                if state.seats.len() < self.most {
                    return Some(self.seated(&mut state, address));
                }
                let has_place = state.give_up(self.begun, None);
                self.say_full(&mut state);
                if has_place {
                    return Some(self.seated(&mut state, address));
                }
            }
            let _ = timeout(LOOK, freed).await;
        }
    }

    /// Logs that the table, or an address's share of it, is full: not for each connection, for these may be many.
    fn say_full(&self, state: &mut State) {
        let now = Instant::now();
        if state.said.is_none_or(|said| now.saturating_duration_since(said) >= SAY_EVERY) {
            state.said = Some(now);
            let State { given_up, refused, .. } = state;
            let (most, of_one) = (self.most, self.most_of_one);
            tracing::warn!(
                "connections are full ({most}, {of_one} of one address): {given_up} idle or stalled ones were closed for \
                 others since the start, {refused} turned away; --max-connections and --max-per-address say how many there may be"
            );
        }
    }

    fn seated(self: &Arc<Table>, state: &mut State, address: IpAddr) -> Place {
        let (id, seat) = (state.next, Arc::new(ConnectionSlot::new(address, self.begun)));
        state.next += 1;
        state.seats.insert(id, seat.clone());
        *state.of.entry(address).or_default() += 1;
        Place { table: self.clone(), id, seat }
    }

    /// Closes the connection that has been idle longest, because there are no descriptors left.
    pub(crate) fn give_up_idle(&self) {
        self.state().give_up(self.begun, None);
    }

    pub(crate) fn filled(&self) -> Filled {
        let state = self.state();
        let (given_up, refused) = (state.given_up, state.refused);
        Filled { connections: state.seats.len(), most: self.most, given_up, refused }
    }
}

impl State {
    /// Closes the connection (of address `of`, if given) that has been idle longest, or stalled longest if none is
    /// idle. Returns whether there was one.
    fn give_up(&mut self, begun: Instant, of: Option<IpAddr>) -> bool {
        let now = begun.elapsed().as_millis() as u64;
        let those = self.seats.iter().filter(|(_, seat)| of.is_none_or(|address| seat.address == address));
        let worst = those.filter_map(|(id, seat)| Some((seat.may_go(now)?, *id))).min();
        let Some((_, id)) = worst else { return false };
        if let Some(seat) = self.seats.get(&id).cloned() {
            // A request may have arrived that nobody has read yet.
            seat.if_idle.store(seat.is_idle(), Ordering::Relaxed);
            seat.give_up();
            self.remove(id);
            self.given_up += 1;
        }
        true
    }

    fn remove(&mut self, id: u64) {
        let Some(seat) = self.seats.remove(&id) else { return };
        if let Some(count) = self.of.get_mut(&seat.address) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&seat.address);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.state().remove(self.id);
        self.table.freed.notify_waiters();
    }
}

impl ConnectionSlot {
    fn new(address: IpAddr, begun: Instant) -> ConnectionSlot {
        let seat = ConnectionSlot {
            address,
            waits_for: AtomicU8::new(IDLE),
            blocked: AtomicBool::new(false),
            has_interim: AtomicBool::new(false),
            is_stream: AtomicBool::new(false),
            is_answering: AtomicBool::new(true),
            begun,
            active: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            if_idle: AtomicBool::new(false),
            gone: Notify::new(),
        };
        seat.moved();
        seat
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
    pub(crate) fn moved(&self) {
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

    /// Records that its answer is an event stream.
    pub(crate) fn streaming(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    /// Records that its answer is being sent.
    pub(crate) fn answering(&self) {
        self.is_answering.store(true, Ordering::Relaxed);
    }

    /// Whether no request waits for its answer to begin.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// What to send to find out whether its client is still there.
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

    /// Whether the server works on a request whose body it has.
    pub(crate) fn is_working(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == WORKING
    }

    /// Whether a body is being read.
    pub(crate) fn is_arriving(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == ARRIVING
    }

    /// Whether there is no request.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_for.load(Ordering::Acquire) == IDLE
    }

    /// Whether it can be closed for another; the lowest goes first: idle ones, then the one without progress for
    /// longest.
    fn may_go(&self, now: u64) -> Option<(bool, u64)> {
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
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.gone.notify_one();
    }

    /// Resolves when the connection is to be closed. At most one task may wait.
    pub(crate) async fn gone(&self) {
        loop {
            while !self.given_up.swap(false, Ordering::AcqRel) {
                self.gone.notified().await;
            }
            if !self.if_idle.swap(false, Ordering::Relaxed) || self.is_idle() {
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

    fn is_given_up(place: &Place) -> bool {
        place.seat.given_up.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_goes_first_and_those_at_work_stay() {
        let table = Arc::new(Table::new(3, 3));
        let working = table.enter(address(1)).await.unwrap();
        working.seat.working();
        later(10).await;
        let (older, newer) = (table.enter(address(2)).await.unwrap(), table.enter(address(3)).await.unwrap());
        later(10).await;
        newer.seat.moved();
        let fourth = table.enter(address(4)).await.unwrap();
        assert_eq!([is_given_up(&working), is_given_up(&older), is_given_up(&newer)], [false, true, false]);
        fourth.seat.working();
        newer.seat.arriving();
        // A stalled body goes too, but not at once.
        let begun = Instant::now();
        let fifth = table.enter(address(5)).await.unwrap();
        assert!(is_given_up(&newer) && begun.elapsed() >= STALLED, "{:?}", begun.elapsed());
        fifth.seat.working();
        let sixth = tokio::spawn({
            let table = table.clone();
            async move { table.enter(address(6)).await }
        });
        later(60_000).await;
        assert!(!sixth.is_finished(), "all are at work");
        drop(working);
        assert!(sixth.await.unwrap().is_some());
        drop((older, newer));
        assert_eq!(table.filled(), Filled { connections: 3 - 1, most: 3, given_up: 2, refused: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_gives_up_its_own() {
        let table = Arc::new(Table::new(10, 2));
        let (one, two) = (table.enter(address(1)).await.unwrap(), table.enter(address(1)).await.unwrap());
        let other = table.enter(address(2)).await.unwrap();
        one.seat.working();
        let three = table.enter(address(1)).await.unwrap();
        assert!(is_given_up(&two) && !is_given_up(&one) && !is_given_up(&other));
        three.seat.working();
        assert!(table.enter(address(1)).await.is_none(), "both of its connections are in use");
        drop(one);
        assert!(table.enter(address(1)).await.is_some());
        assert_eq!(table.filled().refused, 1);
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
