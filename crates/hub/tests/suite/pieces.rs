//! Large files over several concurrent connections, under failures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::stand_in::*;
use tallow_hub::{Cache, Event, HubError, ModelRef, Settings, Snapshot};

const FILE: &str = "m.gguf";

fn pulled(stand_in: &StandIn, cache: &Cache) -> Result<Snapshot, HubError> {
    pull(&in_pieces(&stand_in.hub.url), cache, "org/m", &mut |_| ())
}

fn succeeds(stand_in: &StandIn, cache: &Cache, content: &[u8]) {
    let snapshot = pulled(stand_in, cache).unwrap();
    assert!(fs::read(&snapshot.path).unwrap() == content);
}

fn partial(folder: &Path, content: &[u8]) -> PathBuf {
    folder.join("models--org--m/blobs").join(format!("{}.incomplete", etag(content)))
}

/// Start and end of each requested range.
fn spans(stand_in: &StandIn) -> Vec<(usize, usize)> {
    let span = |range: Option<String>| {
        let range = range.expect("every request names its piece");
        let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        (from.parse().unwrap(), last.parse::<usize>().unwrap() + 1)
    };
    let mut spans: Vec<_> = stand_in.ranges(FILE).into_iter().map(span).collect();
    spans.sort_unstable();
    spans
}

fn begins(range: &str) -> usize {
    range.strip_prefix("bytes=").unwrap().split_once('-').unwrap().0.parse().unwrap()
}

fn is_signed(ask: &Ask) -> bool {
    ask.path.starts_with("/signed")
}

#[test]
fn a_large_file_comes_over_several_connections() {
    let content = noise(3_000_000);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (under_way, peak) = (now.clone(), most.clone());
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, say, _| {
        if is_signed(ask) {
            peak.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            under_way.fetch_sub(1, Ordering::SeqCst);
        }
        say
    });
    let (folder, cache) = cache();
    let (mut last, mut began) = (0, None);
    let snapshot = pull(&in_pieces(&stand_in.hub.url), &cache, "org/m", &mut |event| {
        if let Event::Progress { done, total, .. } = event {
            assert!(done >= last && total == 3_000_000);
            (last, began) = (done, began.or(Some(done)));
        }
    });
    assert!(fs::read(snapshot.unwrap().path).unwrap() == content);
    assert_eq!((began, last), (Some(0), 3_000_000));
    let peak = most.load(Ordering::SeqCst);
    assert!((2..=4).contains(&peak), "{peak} at once");
    // Each byte once, in ranges that grow while they arrive quickly.
    let spans = spans(&stand_in);
    assert!(spans.windows(2).all(|two| two[0].1 == two[1].0), "{spans:?}");
    assert!(spans[0] == (0, 50_000) && spans.iter().any(|s| s.1 - s.0 == 200_000), "{spans:?}");
    // The hub's redirect is reused, not requested for each range.
    assert!(stand_in.downloads(FILE) <= 4, "{}", stand_in.downloads(FILE));
    assert!(!partial(folder.path(), &content).exists());
}

#[test]
fn pieces_that_are_cut_are_gone_on_with() {
    let content = noise(3_000_000);
    let count = AtomicUsize::new(0);
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, say, _| {
        let n = if is_signed(ask) { count.fetch_add(1, Ordering::SeqCst) } else { 0 };
        match n % 7 {
            3 => {
                let half = say.body.len() / 2;
                say.stop(half, Then::Close)
            }
            5 if n < 12 => say_busy(),
            _ => say,
        }
    });
    let (_folder, cache) = cache();
    let mut settings = in_pieces(&stand_in.hub.url);
    settings.timing.tries = 10;
    let snapshot = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap();
    assert!(fs::read(snapshot.path).unwrap() == content);
}

fn say_busy() -> Say {
    say(503, "")
}

#[test]
fn a_server_without_ranges_is_asked_for_all() {
    let content = noise(1_000_000);
    let whole = content.clone();
    let stand_in =
        StandIn::twisted(
            &[(FILE, &content)],
            move |ask, answer, _| {
                if is_signed(ask) { say(200, whole.clone()) } else { answer }
            },
        );
    let (_folder, cache) = cache();
    succeeds(&stand_in, &cache, &content);
    assert!(stand_in.ranges(FILE).contains(&None));
}

#[test]
fn a_server_that_sends_other_pieces_is_asked_for_all() {
    let content = noise(1_000_000);
    for wrong in ["bytes 7-49999/1000000", "nonsense", ""] {
        let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, answer, _| {
            let piece = is_signed(ask) && ask.header("range").is_some_and(|range| !range.ends_with('-'));
            if piece { answer.with("Content-Range", wrong) } else { answer }
        });
        let (_folder, cache) = cache();
        succeeds(&stand_in, &cache, &content);
    }
}

#[test]
fn a_length_or_a_content_that_is_wrong_is_noticed() {
    let content = noise(1_000_000);
    let longer = StandIn::twisted(&[(FILE, &content)], |ask, answer, _| {
        if is_signed(ask) { answer.with("Content-Range", "bytes 0-9/1000001") } else { answer }
    });
    let (folder, cache) = cache();
    let error = pulled(&longer, &cache).unwrap_err().to_string();
    assert!(error.starts_with("m.gguf should have 1000000 bytes, but the server has 1000001."), "{error}");
    assert!(!partial(folder.path(), &content).exists());
    // Flip one bit in one byte of one range.
    let damaged = StandIn::twisted(&[(FILE, &content)], |ask, mut answer, _| {
        if is_signed(ask) && ask.header("range").is_some_and(|r| r.starts_with("bytes=150000-")) {
            answer.body[77] ^= 1;
        }
        answer
    });
    let error = pulled(&damaged, &cache).unwrap_err().to_string();
    assert!(error.starts_with("m.gguf is damaged: its SHA-256 is "), "{error}");
    assert!(!partial(folder.path(), &content).exists());
    assert_eq!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap(), None);
    succeeds(&StandIn::new(&[(FILE, &content)]), &cache, &content);
}

#[test]
fn an_address_that_runs_out_is_asked_for_again() {
    let content = noise(2_000_000);
    let refused = AtomicBool::new(false);
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, answer, _| {
        // The first ranges all go through the hub, so only a later one uses an address that was given before.
        let late = is_signed(ask) && ask.header("range").is_some_and(|r| begins(r) > 1_000_000);
        // Once only: requests that come back from the hub succeed, however many others are running.
        if late && !refused.swap(true, Ordering::SeqCst) { say(403, "") } else { answer }
    });
    let (_folder, cache) = cache();
    succeeds(&stand_in, &cache, &content);
    assert!(stand_in.downloads(FILE) > 1);
}

/// The file on disk is always a prefix of the content, in whatever order the ranges arrive, and is resumed.
#[test]
fn what_is_left_is_always_a_beginning_of_the_file() {
    let content = noise(3_000_000);
    for stuck in [0, 50_000, 150_000] {
        // One range never completes; all others do.
        let hangs = format!("bytes={stuck}-");
        let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, say, _| {
            let stuck = is_signed(ask) && ask.header("range").is_some_and(|r| r.starts_with(&hangs));
            if stuck { say.stop(20_000, Then::Hang) } else { say }
        });
        let (folder, cache) = cache();
        let settings = Settings {
            timing: tallow_hub::Timing { idle: Duration::from_millis(300), tries: 1, ..in_pieces("").timing },
            ..in_pieces(&stand_in.hub.url)
        };
        let begun = Instant::now();
        let error = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err().to_string();
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(
            error.contains("nothing more arrived in time (tried once). What has arrived is kept"),
            "{error}"
        );
        let left = fs::read(partial(folder.path(), &content)).unwrap();
        assert_eq!(left.len(), stuck + 20_000);
        assert!(left == content[..left.len()]);
        assert_eq!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap(), None);
        let healthy = StandIn::new(&[(FILE, &content)]);
        succeeds(&healthy, &cache, &content);
        assert_eq!(spans(&healthy)[0].0, left.len(), "nothing is fetched twice");
    }
}

#[test]
fn an_outage_counts_once_however_many_connections_it_cuts() {
    let content = noise(1_000_000);
    let stand_in = StandIn::twisted(&[(FILE, &content)], |ask, answer, _| {
        if is_signed(ask) { answer.stop(0, Then::Close) } else { answer }
    });
    let (_folder, cache) = cache();
    let mut retries = 0;
    let error = pull(&in_pieces(&stand_in.hub.url), &cache, "org/m", &mut |event| {
        retries += usize::from(matches!(event, Event::Retrying { .. }));
    });
    let error = text(error.unwrap_err(), &stand_in);
    insta::assert_snapshot!(error, @"cannot get m.gguf of org/m: the connection was cut (tried 3 times). Nothing was downloaded; check the connection and run the same command again");
    assert_eq!(retries, 2);
    // Fewer connections each time: four, two, one.
    assert_eq!(stand_in.ranges(FILE).len(), 7);
}
