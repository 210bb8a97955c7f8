//! [`PreparePool`]: permits for turning bodies into prompts, which takes a whole core for a while.
//!
//! Clients take turns, so that one client's bodies delay another by at most one turn, however many they are. Large
//! bodies never hold all permits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_engine::scheduler::ClientId;
use tokio::sync::oneshot;

/// Most permits for large bodies: each takes far more memory than its body.
const MAX_LARGE: usize = 4;

/// A fair semaphore.
#[derive(Debug)]
pub(crate) struct PreparePool(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Permits that large bodies may take.
    free_for_large: usize,
    /// Clients with waiting bodies. The first has the next turn.
    turns: VecDeque<Waiting>,
}

/// A client, and whether the body is large: large and small bodies of a client take turns too.
type Flow = (ClientId, bool);

#[derive(Debug)]
struct Waiting {
    flow: Flow,
    waiting: VecDeque<oneshot::Sender<PreparePermit>>,
}

/// A permit; dropping it passes it on.
#[derive(Debug)]
pub(crate) struct PreparePermit {
    pool: Option<Arc<PreparePool>>,
    large: bool,
}

impl PreparePool {
    /// A pool of `processors` permits, at least two, so that one is left while the other has a large body.
    pub(crate) fn new(processors: usize) -> PreparePool {
        let all = processors.max(2);
        let free_for_large = (all / 2).clamp(1, MAX_LARGE);
        PreparePool(Mutex::new(State { free: all, free_for_large, turns: VecDeque::new() }))
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(self: &Arc<PreparePool>, client: ClientId, large: bool) -> PreparePermit {
        let (give, given) = oneshot::channel();
        self.queue(client, large, give);
        // Senders are only dropped after use.
        given.await.unwrap_or(PreparePermit { pool: None, large })
    }

    fn queue(self: &Arc<PreparePool>, client: ClientId, large: bool, give: oneshot::Sender<PreparePermit>) {
        let mut state = self.state();
        match state.turns.iter_mut().find(|turn| turn.flow == (client, large)) {
            Some(turn) => turn.waiting.push_back(give),
            None => state.turns.push_back(Waiting { flow: (client, large), waiting: VecDeque::from([give]) }),
        }
        self.grant(&mut state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free permits to those whose turn it is.
    fn grant(self: &Arc<PreparePool>, state: &mut State) {
        while state.free > 0 {
            let may = |turn: &Waiting| !turn.flow.1 || state.free_for_large > 0;
            let Some(at) = state.turns.iter().position(may) else { return };
            let Some(mut turn) = state.turns.remove(at) else { return };
            let large = turn.flow.1;
            // Requests that were dropped meanwhile have no turn.
            let next = std::iter::from_fn(|| turn.waiting.pop_front()).find(|give| !give.is_closed());
            if let Some(give) = next {
                match give.send(PreparePermit { pool: Some(self.clone()), large }) {
                    Ok(()) => {
                        state.free -= 1;
                        state.free_for_large -= usize::from(large);
                    }
                    // It was not counted as taken, and so its drop must not release it.
                    Err(mut permit) => permit.pool = None,
                }
            }
            if !turn.waiting.is_empty() {
                state.turns.push_back(turn);
            }
        }
    }
}

impl Drop for PreparePermit {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let mut state = pool.state();
        state.free += 1;
        state.free_for_large += usize::from(self.large);
        pool.grant(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(made) => Some(made),
            Poll::Pending => None,
        }
    }

    #[test]
    fn clients_take_turns_however_many_requests_one_has() {
        let pool = Arc::new(PreparePool::new(2));
        let (greedy, other) = (ClientId(1), ClientId(2));
        let enter = |client| Box::pin(pool.acquire(client, false));
        let held: Vec<PreparePermit> = (0..2).map(|_| poll(enter(greedy).as_mut()).unwrap()).collect();
        let mut queue: Vec<_> = (0..100).map(|_| enter(greedy)).collect();
        assert!(queue.iter_mut().all(|one| poll(one.as_mut()).is_none()));
        let mut late = enter(other);
        assert!(poll(late.as_mut()).is_none());
        let mut held = held.into_iter();
        drop(held.next());
        let first = poll(queue[0].as_mut()).expect("who came first has the first turn");
        drop(held.next());
        let second = poll(late.as_mut()).expect("and then it is the other's");
        // Those who stop waiting are skipped.
        queue.drain(1..99);
        drop(first);
        assert!(poll(queue[1].as_mut()).is_some());
        drop(second);
    }

    #[test]
    fn large_bodies_leave_a_permit_to_small_ones() {
        let pool = Arc::new(PreparePool::new(1));
        let client = ClientId(1);
        let first = poll(pin!(pool.acquire(client, true))).unwrap();
        let mut large = Box::pin(pool.acquire(client, true));
        assert!(poll(large.as_mut()).is_none());
        for _ in 0..10 {
            assert!(poll(pin!(pool.acquire(client, false))).is_some());
        }
        drop(first);
        assert!(poll(large.as_mut()).is_some());
    }
}
