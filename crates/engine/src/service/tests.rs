//! The loop with a worker that doubles numbers.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Numbers at which a step fails in each way.
const FAILS: u32 = 1;
const PANICS: u32 = 2;
const GIVES_NOTHING: u32 = 3;
const LOST: u32 = 4;

/// A number, and where its double is sent.
type Request = (u32, Ticket<Sender<Result<u32, Failure>>>);
type Shared = SharedOf<Doubling>;

/// Doubles the numbers of all requests in one step.
struct Doubling {
    waiting: Vec<Request>,
    /// True if it computes when a step is finished, and not when it is launched.
    computes_late: bool,
    shared: Shared,
    /// Dropped last, like the devices of other workers.
    _device: Option<Device>,
}

/// Takes a while to be freed.
struct Device(Arc<AtomicBool>);

impl Drop for Device {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.0.store(true, Ordering::Release);
    }
}

fn doubling(device: Option<Device>, shared: Shared) -> Doubling {
    Doubling { waiting: Vec::new(), computes_late: false, shared, _device: device }
}

impl Reply for Sender<Result<u32, Failure>> {
    type Done = u32;

    fn is_gone(&self) -> bool {
        false
    }

    fn end(self, how: Result<u32, Failure>) {
        self.send(how).unwrap();
    }
}

impl Worker for Doubling {
    type Command = Request;
    type Info = Sender<&'static str>;
    type Stats = AtomicUsize;

    fn take(&mut self, request: Request) {
        self.waiting.push(request);
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn step(&mut self) -> Result<(), Lost> {
        let numbers = self.waiting.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        run_batch(self, numbers)
    }

    fn check(&self) {
        self.shared.info.send("checks").unwrap();
    }

    fn stop(&mut self) {
        self.shared.info.send("stops").unwrap();
    }
}

impl Batch for Vec<u32> {
    const ITEMS: &'static str = "numbers";

    fn items(&self) -> usize {
        self.len()
    }

    fn tokens(&self) -> usize {
        self.len()
    }

    fn split(self) -> Vec<Vec<u32>> {
        self.into_iter().map(|number| vec![number]).collect()
    }
}

fn double(batch: &[u32]) -> Result<Vec<u32>, StepError> {
    let double = |number: &u32| match *number {
        FAILS => Some(Err(StepError::Failed("it fails".into()))),
        GIVES_NOTHING => None,
        // Only when alone: at the second try.
        LOST if batch.len() == 1 => Some(Err(StepError::Lost(Lost("it is lost".into())))),
        number => {
            assert_ne!(number, PANICS, "it panics");
            Some(Ok(2 * number))
        }
    };
    batch.iter().filter_map(double).collect()
}

impl BatchWorker for Doubling {
    type Batch = Vec<u32>;
    /// `None` if the rest is left to `finish`.
    type Launched = Option<Vec<u32>>;
    type Output = u32;

    fn steps(&self) -> &StepCounts {
        &self.shared.steps
    }

    fn launch(&self, batch: &Vec<u32>) -> Result<Option<Vec<u32>>, StepError> {
        if self.computes_late { Ok(None) } else { double(batch).map(Some) }
    }

    fn finish(&self, batch: &Vec<u32>, launched: Option<Vec<u32>>) -> Result<Vec<u32>, StepError> {
        launched.map_or_else(|| double(batch), Ok)
    }

    fn commit(&mut self, batch: Vec<u32>, outputs: Vec<u32>) {
        for (number, output) in batch.into_iter().zip(outputs) {
            let at = self.waiting.iter().position(|(waiting, _)| *waiting == number).unwrap();
            self.waiting.remove(at).1.end(Ok(output));
        }
    }

    fn fail(&mut self, batch: Vec<u32>, why: &str) {
        for number in batch {
            let at = self.waiting.iter().position(|(waiting, _)| *waiting == number).unwrap();
            self.waiting.remove(at).1.fail(why.into());
        }
    }
}

/// Ends of requests with these numbers that are in one step; the counts of steps run and failed; whether the
/// service still runs.
fn ends(numbers: &[u32]) -> Ends {
    let [early, late] = [false, true].map(|computes_late| ends_of(numbers, computes_late));
    assert_eq!(early, late);
    early
}

type Ends = (Vec<Result<u32, String>>, [u64; 2], bool);

fn ends_of(numbers: &[u32], computes_late: bool) -> Ends {
    let (tell, _told) = channel();
    let (handle, messages, guard) = HandleOf::<Doubling>::new(tell);
    let submit = |number: &u32| {
        let (reply, end) = channel();
        handle.send((*number, handle.admit(numbers.len(), reply).unwrap()));
        end
    };
    let receivers: Vec<_> = numbers.iter().map(submit).collect();
    assert_eq!(handle.admit(numbers.len(), channel().0).err(), Some(Failure::Full(numbers.len())));
    let worker = |shared| Doubling { computes_late, ..doubling(None, shared) };
    let mut service = Service::new(messages, guard, worker);
    assert!(service.listen());
    let lost = service.step();
    let runs = lost.is_ok();
    if let Err(Lost(why)) = lost {
        service.guard.end(Failure::Broken(why));
    }
    drop(service);
    assert_eq!(handle.taken(), 0);
    let end = |receiver: Receiver<Result<u32, Failure>>| {
        let end = receiver.recv().unwrap();
        assert!(receiver.recv().is_err(), "a second end");
        end.map_err(|why| why.to_string())
    };
    let steps = [&handle.steps().run, &handle.steps().failed].map(|n| n.load(Ordering::Relaxed));
    (receivers.into_iter().map(end).collect(), steps, runs)
}

#[test]
fn the_item_at_fault_fails_alone() {
    assert_eq!(ends(&[10, 11]), (vec![Ok(20), Ok(22)], [1, 0], true));
    for (bad, why) in [
        (FAILS, "it fails"),
        (
            PANICS,
            "an internal error, please report it: assertion `left != right` failed: it panics\n  left: 2\n right: 2",
        ),
        (GIVES_NOTHING, "a step of 1 numbers gave 0 results, please report it"),
    ] {
        assert_eq!(ends(&[10, bad, 11]), (vec![Ok(20), Err(why.into()), Ok(22)], [1, 1], true));
        assert_eq!(ends(&[bad]), (vec![Err(why.into())], [1, 1], true));
    }
}

#[test]
fn a_lost_device_ends_what_is_left() {
    let lost = || Err("it is lost".into());
    assert_eq!(ends(&[LOST]), (vec![lost()], [1, 0], false));
    // At the second try.
    let own = Err("it fails".into());
    assert_eq!(ends(&[10, FAILS, LOST, 11]), (vec![Ok(20), own, lost(), lost()], [1, 1], false));
}

#[test]
fn a_service_checks_itself_when_idle_and_stops() {
    let (tell, told) = channel();
    let (handle, messages, guard) = HandleOf::<Doubling>::new(tell);
    let service = move || Service::new(messages, guard, |shared| doubling(None, shared)).run();
    let thread = std::thread::spawn(service);
    assert_eq!(told.recv(), Ok("checks"));
    assert!(handle.is_alive());
    handle.drain(Duration::from_secs(600));
    assert_eq!(told.recv(), Ok("stops"));
    thread.join().unwrap();
    assert_eq!((handle.ready(), handle.is_alive()), (Err(Failure::ShuttingDown), false));
}

/// A program that ended earlier could crash in its driver.
#[test]
fn a_device_is_freed_before_the_caller_goes_on() {
    let (tell, _told) = channel();
    let wrong = || std::io::Error::other("wrong");
    for (info, fails) in [(Ok(tell), false), (Err(wrong()), true)] {
        let freed = Arc::new(AtomicBool::new(false));
        let device = Device(freed.clone());
        let load = || Ok(Some(device));
        let running = spawn::<Doubling, _, std::io::Error>("doubling", || info, load, doubling);
        assert_eq!((running.is_err(), freed.load(Ordering::Acquire)), (fails, fails));
        drop(running);
        assert!(freed.load(Ordering::Acquire));
    }
}

/// Counts its steps down, and notes when another worker of its kind computes at the same time.
struct Counting {
    left: usize,
    pause: Duration,
    computes: Arc<AtomicBool>,
    order: Arc<std::sync::Mutex<Vec<Duration>>>,
}

impl Worker for Counting {
    type Command = usize;
    type Info = ();
    type Stats = ();

    fn take(&mut self, steps: usize) {
        self.left += steps;
    }

    fn is_idle(&self) -> bool {
        self.left == 0
    }

    fn step(&mut self) -> Result<(), Lost> {
        assert!(!self.computes.swap(true, Ordering::SeqCst), "two compute at once");
        std::thread::sleep(self.pause);
        self.order.lock().unwrap().push(self.pause);
        self.left -= 1;
        self.computes.store(false, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn services_that_share_the_cpu_take_turns() {
    let (lock, computes, order) = (StepLock::default(), Arc::default(), Arc::default());
    let first = lock.turn();
    let [long, short] = [(30, 10), (2, 40)].map(|(pause, steps)| {
        let (computes, order): (Arc<AtomicBool>, Arc<_>) = (Arc::clone(&computes), Arc::clone(&order));
        let pause = Duration::from_millis(pause);
        let (handle, messages, guard) = HandleOf::<Counting>::new(());
        handle.take_turns(lock.clone());
        handle.send(steps);
        let worker = move |_| Counting { left: 0, pause, computes, order };
        let thread = std::thread::spawn(move || Service::new(messages, guard, worker).run());
        (handle, thread)
    });
    // They begin when both have asked for a turn.
    while lock.asked() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(first);
    // Dropped handles end a service once it is idle; one that is idle and stays keeps no turn.
    let (idle, thread) = short;
    drop(long.0);
    long.1.join().unwrap();
    drop(idle);
    thread.join().unwrap();
    let order: Vec<u64> = order.lock().unwrap().iter().map(|pause| pause.as_millis() as u64).collect();
    assert_eq!((order.len(), order.iter().filter(|pause| **pause == 30).count()), (50, 10));
    // Several short steps are one turn, and a long one is one by itself, as long as both have some left.
    let both = &order[..order.iter().rposition(|pause| *pause == 2).unwrap()];
    let turns: Vec<&[u64]> = both.chunk_by(|a, b| a == b).collect();
    let short = turns.iter().filter(|turn| turn[0] == 2).map(|turn| turn.len()).max().unwrap();
    assert!(short > 1 && short < 40, "{order:?}");
}
