//! Concurrent pulls, and pulls that are killed: in threads and in child processes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::stand_in::*;
use tallow_hub::{Cache, Event, ModelRef};

/// File in the child's working folder with the hub's URL. Its cache is in that folder, too.
const ORDER: &str = "pull-order";

/// If this process is a child, pulls in the child's folder. A child is this very test binary running the same test in a
/// folder that contains an order.
fn is_child() -> bool {
    let Ok(url) = fs::read_to_string(ORDER) else { return false };
    // In ranges if the order says so.
    let settings = match url.strip_suffix(" in pieces") {
        Some(url) => in_pieces(url),
        None => settings(&url),
    };
    match pull(&settings, &Cache::at("cache"), "org/m", &mut |_| ()) {
        Ok(_) => println!("pulled"),
        Err(e) => println!("{e}"),
    }
    true
}

fn child(test: &str, folder: &Path, stand_in: &StandIn, how: &str) -> Child {
    let (shell, order) = if how == " in pieces" { ("", how) } else { (how, "") };
    fs::write(folder.join(ORDER), format!("{}{order}", stand_in.hub.url)).unwrap();
    let command = format!("{shell} exec \"$0\" --exact processes::{test} --nocapture");
    let program = std::env::current_exe().unwrap();
    let mut command_line = Command::new("sh");
    command_line
        .arg("-c")
        .arg(command)
        .arg(program)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn until(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn partial_len(folder: &Path, content: &[u8]) -> u64 {
    let blob = folder.join("cache/models--org--m/blobs").join(format!("{}.incomplete", etag(content)));
    fs::metadata(blob).map_or(0, |m| m.len())
}

/// Serves `m.gguf`, but hangs after `stop` bytes the first time.
fn hangs_once(content: &[u8], stop: usize) -> StandIn {
    let first = AtomicBool::new(true);
    StandIn::twisted(&[("m.gguf", content)], move |ask, say, _| {
        if ask.path.starts_with("/signed") && first.swap(false, Ordering::SeqCst) {
            say.stop(stop, Then::Hang)
        } else {
            say
        }
    })
}

#[test]
fn a_killed_pull_is_resumed() {
    if is_child() {
        return;
    }
    let content = noise(3_000_000);
    let stand_in = hangs_once(&content, 2_000_000);
    let folder = tempfile::tempdir().unwrap();
    let mut child = child("a_killed_pull_is_resumed", folder.path(), &stand_in, "");
    until("the child is half-way", || partial_len(folder.path(), &content) == 2_000_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    assert_eq!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap(), None);
    assert_eq!(cache.list().unwrap()[0].bytes, 2_000_000);
    let snapshot = stand_in.pull(&cache, "org/m").unwrap();
    assert!(fs::read(snapshot.path).unwrap() == content);
    assert_eq!(stand_in.ranges("m.gguf"), [None, Some("bytes=2000000-".into())]);
}

/// A pull over several connections, killed again and again, each time a little later.
#[test]
fn a_pull_in_pieces_may_be_killed_at_any_time() {
    if is_child() {
        return;
    }
    let content = noise(3_000_000);
    let stand_in = StandIn::twisted(&[("m.gguf", &content)], |ask, say, _| {
        if ask.path.starts_with("/signed") {
            thread::sleep(Duration::from_millis(15));
        }
        say
    });
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    let mut left = 0;
    for wait in 0..12 {
        let mut child =
            child("a_pull_in_pieces_may_be_killed_at_any_time", folder.path(), &stand_in, " in pieces");
        thread::sleep(Duration::from_millis(30 + 10 * wait));
        child.kill().unwrap();
        child.wait().unwrap();
        let done = cache.find(&ModelRef::parse("org/m").unwrap()).unwrap();
        let file =
            folder.path().join("cache/models--org--m/blobs").join(format!("{}.incomplete", etag(&content)));
        match (done, fs::read(file)) {
            (Some(snapshot), _) => {
                assert!(fs::read(snapshot.path).unwrap() == content);
                break;
            }
            (None, Ok(bytes)) => {
                assert!(bytes.len() >= left && bytes == content[..bytes.len()], "{} bytes", bytes.len());
                left = bytes.len();
            }
            (None, Err(_)) => {}
        }
    }
    let settings = in_pieces(&stand_in.hub.url);
    let snapshot = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap();
    assert!(fs::read(snapshot.path).unwrap() == content);
}

#[test]
fn a_process_waits_for_another_and_goes_on_when_that_dies() {
    if is_child() {
        return;
    }
    let content = noise(3_000_000);
    let stand_in = hangs_once(&content, 2_000_000);
    let folder = tempfile::tempdir().unwrap();
    let mut child =
        child("a_process_waits_for_another_and_goes_on_when_that_dies", folder.path(), &stand_in, "");
    until("the child is half-way", || partial_len(folder.path(), &content) == 2_000_000);
    let cache = Cache::at(folder.path().join("cache"));
    let mut waited = false;
    let snapshot = pull(&stand_in.settings(), &cache, "org/m", &mut |event| {
        if let Event::Waiting { file } = event {
            assert_eq!(file, "m.gguf");
            waited = true;
            // The lock file stays; the lock itself is released with the process.
            child.kill().unwrap();
        }
    });
    child.wait().unwrap();
    assert!(waited);
    assert!(fs::read(snapshot.unwrap().path).unwrap() == content);
    assert_eq!(stand_in.ranges("m.gguf"), [None, Some("bytes=2000000-".into())]);
}

#[test]
fn threads_and_a_process_download_once() {
    if is_child() {
        return;
    }
    let content = noise(3_000_000);
    let asked = AtomicUsize::new(0);
    let stand_in = StandIn::twisted(&[("m.gguf", &content)], move |ask, say, _| {
        // All three have decided to download before the first byte arrives.
        if ask.method == "HEAD" {
            asked.fetch_add(1, Ordering::SeqCst);
            let end = Instant::now() + Duration::from_secs(4);
            while asked.load(Ordering::SeqCst) < 3 && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
            }
        }
        say
    });
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("cache"));
    let child = child("threads_and_a_process_download_once", folder.path(), &stand_in, "");
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let one = || {
            start.wait();
            let snapshot = stand_in.pull(&cache, "org/m").unwrap();
            assert!(fs::read(snapshot.path).unwrap() == content);
        };
        scope.spawn(one);
        scope.spawn(one);
    });
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains("pulled"), "{said}");
    assert_eq!(stand_in.hub.asked().iter().filter(|a| a.method == "HEAD").count(), 3);
    assert_eq!(stand_in.downloads("m.gguf"), 1);
}

#[test]
fn a_write_that_fails_half_way_keeps_what_came() {
    if is_child() {
        return;
    }
    let content = noise(3_000_000);
    let stand_in = StandIn::new(&[("m.gguf", &content)]);
    let folder = tempfile::tempdir().unwrap();
    // The file size limit is 1000 blocks of 512 bytes; SIGXFSZ is ignored, so that the write fails instead.
    let limit = "trap '' XFSZ; ulimit -f 1000;";
    let child = child("a_write_that_fails_half_way_keeps_what_came", folder.path(), &stand_in, limit);
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        said.contains("cannot write cache/models--org--m/blobs/") && said.contains("File too large"),
        "{said}"
    );
    let have = partial_len(folder.path(), &content);
    assert!((1..=512_000).contains(&have), "{have}");
    let snapshot = stand_in.pull(&Cache::at(folder.path().join("cache")), "org/m").unwrap();
    assert!(fs::read(snapshot.path).unwrap() == content);
    assert_eq!(stand_in.ranges("m.gguf").last().unwrap().as_deref(), Some(&*format!("bytes={have}-")));
}
