//! A lost device, and whatever else ends an engine: every request gets exactly one final event, and the handle takes no
//! new ones.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{
    SLOTS, comes_to_rest, ends, faulty, info, limits, model, request, runner, start_faulty, tokens,
};
use tallow_engine::block_pool::BlockPool;
use tallow_engine::engine::serve;
use tallow_engine::handle::{EngineHandle, Event, Failure, Request};
use tallow_engine::scheduler::Scheduler;
use tokio::sync::mpsc::UnboundedReceiver;

const LOST: &str = "faulty is lost: it fell off the bus; restart the server";

fn broken(why: &str) -> Failure {
    Failure::Broken(why.into())
}

/// Runs an engine on the faulty device with these requests submitted at once, until the device is lost. Returns each
/// request's events.
fn until_lost(requests: Vec<Request>) -> (EngineHandle, Vec<Vec<Event>>) {
    let model = model();
    let (handle, commands, alive) = EngineHandle::new(info(&model, 64));
    let receivers: Vec<_> = requests.into_iter().map(|r| handle.submit(r).unwrap()).collect();
    let told = std::thread::scope(|s| {
        let listen = |mut r: UnboundedReceiver<Event>| {
            let mut got = Vec::new();
            while let Some(event) = r.blocking_recv() {
                // When a request sees this event, the handle must no longer report ready or alive, so that retries go
                // elsewhere.
                assert!(event != Event::Failed(broken(LOST)) || !(handle.is_ready() || handle.is_alive()));
                got.push(event);
            }
            got
        };
        let listeners: Vec<_> = receivers.into_iter().map(|r| s.spawn(move || listen(r))).collect();
        let pool = BlockPool::new(64, 4);
        serve(runner(&model), Scheduler::new(limits(), pool), commands, alive);
        listeners.into_iter().map(|l| l.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(told.iter().all(|got| ends(got) == 1), "{told:?}");
    assert_eq!((handle.is_ready(), handle.is_alive()), (false, false));
    assert_eq!(
        (handle.ready(), handle.submit(request(&[20], 1)).err()),
        (Err(broken(LOST)), Some(broken(LOST)))
    );
    let stats = handle.stats();
    assert_eq!([&stats.running, &stats.waiting].map(|n| n.load(Ordering::Relaxed)), [0, 0]);
    comes_to_rest(&handle);
    (handle, told)
}

#[test]
fn a_lost_device_ends_everything_once_and_clearly() {
    // Three have begun to decode when the fourth reaches the end of its prompt; the others wait for a slot.
    let late = [vec![50; 90], vec![faulty::LOST]].concat();
    let mut requests: Vec<_> = (0..SLOTS as u32 - 1).map(|i| request(&[20 + i; 3], 100)).collect();
    requests.push(request(&late, 10));
    requests.extend((0..10).map(|i| request(&[60 + i; 3], 100)));
    let (handle, told) = until_lost(requests);
    for (i, got) in told.iter().enumerate() {
        assert_eq!(got.last(), Some(&Event::Failed(broken(LOST))));
        assert_eq!((tokens(got).is_empty(), got.len() == 1), (i + 1 >= SLOTS, i >= SLOTS), "{i}: {got:?}");
    }
    // A lost device: the step was not retried part by part.
    assert_eq!(handle.steps().failed.load(Ordering::Relaxed), 0);
}

/// A step fails, and the device is lost while its parts are retried alone.
#[test]
fn a_device_lost_at_the_second_try_is_lost() {
    let prompts = [20, faulty::FAILS, faulty::LOST, 21].map(|token| [token; 3]);
    let (handle, told) = until_lost(prompts.iter().map(|prompt| request(prompt, 5)).collect());
    let last: Vec<Event> = told.iter().filter_map(|got| got.last().cloned()).collect();
    let own = broken("faulty failed: it is out of order");
    assert_eq!(last, [broken(LOST), own, broken(LOST), broken(LOST)].map(Event::Failed));
    assert_eq!(handle.steps().failed.load(Ordering::Relaxed), 1);
}

#[test]
fn a_request_that_nobody_took_up_is_told() {
    let (handle, commands, alive) = EngineHandle::new(info(&model(), 64));
    let mut receiver = handle.submit(request(&[20], 1)).unwrap();
    drop((alive, commands));
    let told = broken("the engine has stopped; restart the server");
    assert_eq!(receiver.blocking_recv(), Some(Event::Failed(told.clone())));
    assert_eq!((receiver.blocking_recv(), handle.taken()), (None, 0));
    assert_eq!(handle.submit(request(&[20], 1)).unwrap_err(), told);
}

/// Requests submitted while the engine ends are refused or get a final event.
#[test]
fn who_comes_while_it_ends_is_told() {
    let ends_by = [Failure::ShuttingDown, broken(LOST)];
    for round in 0..40 {
        let (handle, why) = (start_faulty(), &ends_by[round % 2]);
        let told = std::thread::scope(|s| {
            let asker = || {
                let mut taken = 0;
                loop {
                    match handle.submit(request(&[20; 3], 5)) {
                        Ok(mut r) => {
                            let got: Vec<Event> = std::iter::from_fn(|| r.blocking_recv()).collect();
                            assert_eq!(ends(&got), 1);
                            let last = got.last().unwrap();
                            assert!(matches!(last, Event::Done(_)) || *last == Event::Failed(why.clone()));
                            taken += 1;
                        }
                        Err(failure) => return (taken, failure),
                    }
                }
            };
            let askers: Vec<_> = (0..4).map(|_| s.spawn(asker)).collect();
            std::thread::sleep(Duration::from_micros(500 * round as u64));
            match why {
                Failure::ShuttingDown => handle.drain(Duration::ZERO),
                _ => drop(handle.submit(request(&[20, faulty::LOST], 1)).unwrap().blocking_recv()),
            }
            askers.into_iter().map(|a| a.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(told.iter().all(|(_, failure)| failure == why), "{told:?}");
        while handle.taken() > 0 {
            std::thread::yield_now();
        }
    }
}
