//! Pulling a model under failures: servers that cut off, stall, lie or refuse, and a full disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::stand_in::*;
use tallow_hub::{Cache, Event, HubError, ModelRef};

const FILE: &str = "m.gguf";

fn blob(folder: &Path, content: &[u8]) -> PathBuf {
    folder.join("models--org--m/blobs").join(etag(content))
}

fn partial(folder: &Path, content: &[u8]) -> PathBuf {
    folder.join("models--org--m/blobs").join(format!("{}.incomplete", etag(content)))
}

/// Leaves the first bytes of a download in an empty cache.
fn leave_partial(folder: &Path, of: &[u8], bytes: &[u8]) {
    let path = partial(folder, of);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// The pull fails, and nothing in the cache looks complete.
fn fails(stand_in: &StandIn, cache: &Cache) -> String {
    let error = stand_in.pull(cache, "org/m").unwrap_err();
    assert_eq!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap(), None);
    text(error, stand_in)
}

fn succeeds(stand_in: &StandIn, cache: &Cache, content: &[u8]) {
    let snapshot = stand_in.pull(cache, "org/m").unwrap();
    assert!(fs::read(&snapshot.path).unwrap() == content);
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let content = noise(3_000_000);
    let stand_in = StandIn::twisted(&[(FILE, &content)], |ask, say, n| match n {
        1 if ask.path.starts_with("/signed") => say.stop(1_200_000, Then::Close),
        2 if ask.path.starts_with("/signed") => say.stop(800_000, Then::Close),
        _ => say,
    });
    let (folder, cache) = cache();
    succeeds(&stand_in, &cache, &content);
    let ranges = stand_in.ranges(FILE);
    assert_eq!(ranges, [None, Some("bytes=1200000-".into()), Some("bytes=2000000-".into())]);
    assert!(!partial(folder.path(), &content).exists());
}

#[test]
fn what_an_earlier_pull_left_is_used() {
    let content = noise(10_000);
    let stand_in = StandIn::new(&[(FILE, &content)]);
    let (folder, cache) = cache();
    leave_partial(folder.path(), &content, &content[..4000]);
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.ranges(FILE), [Some("bytes=4000-".into())]);
}

#[test]
fn what_is_whole_already_is_only_checked() {
    let content = noise(10_000);
    let stand_in = StandIn::new(&[(FILE, &content)]);
    let (folder, cache) = cache();
    leave_partial(folder.path(), &content, &content);
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.downloads(FILE), 0);
}

#[test]
fn a_server_that_ignores_ranges_sends_all_again() {
    let content = noise(10_000);
    let whole = content.clone();
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, answer, _| {
        if ask.path.starts_with("/signed") { say(200, whole.clone()) } else { answer }
    });
    let (folder, cache) = cache();
    leave_partial(folder.path(), &content, &noise(4001)[1..]);
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.ranges(FILE), [Some("bytes=4000-".into())]);
}

#[test]
fn a_server_that_sends_another_range_is_asked_for_all() {
    let content = noise(10_000);
    for wrong in ["bytes 0-9999/10000", "bytes 4001-9999/10000", "nonsense", ""] {
        let stand_in = StandIn::twisted(&[(FILE, &content)], move |_, answer, _| {
            if answer.status == 206 { answer.with("Content-Range", wrong) } else { answer }
        });
        let (folder, cache) = cache();
        leave_partial(folder.path(), &content, &content[..4000]);
        succeeds(&stand_in, &cache, &content);
        assert_eq!(stand_in.ranges(FILE), [Some("bytes=4000-".into()), None], "{wrong}");
    }
}

#[test]
fn a_partial_file_that_is_too_long_starts_afresh() {
    let content = noise(10_000);
    let stand_in = StandIn::new(&[(FILE, &content)]);
    let (folder, cache) = cache();
    leave_partial(folder.path(), &content, &noise(20_000));
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.ranges(FILE), [None]);
}

#[test]
fn a_wrong_hash_is_noticed_and_the_next_pull_is_clean() {
    let content = noise(10_000);
    for size in [500, 10_000] {
        let content = &content[..size];
        let stand_in = StandIn::new(&[(FILE, content)]);
        let (folder, cache) = cache();
        // The partial file is from another content.
        leave_partial(folder.path(), content, &noise(400)[100..]);
        let error = fails(&stand_in, &cache);
        let kind = if size < 1000 { "git SHA-1" } else { "SHA-256" };
        assert!(error.starts_with(&format!("m.gguf is damaged: its {kind} is ")), "{error}");
        assert!(error.contains(&format!(", not {}.", etag(content))), "{error}");
        assert!(error.contains("It was removed; run the same command to fetch it again."), "{error}");
        assert!(!partial(folder.path(), content).exists() && !blob(folder.path(), content).exists());
        succeeds(&stand_in, &cache, content);
    }
}

#[test]
fn a_wrong_length_is_noticed() {
    let content = noise(10_000);
    let stand_in = |change: fn(Say) -> Say| {
        StandIn::twisted(&[(FILE, &content)], move |ask, answer, _| {
            if ask.path.starts_with("/signed") { change(answer) } else { answer }
        })
    };
    let shorter = stand_in(|s| Say { body: s.body[..9000].to_vec(), ..s });
    let longer = stand_in(|s| Say { body: [&s.body[..], b"x"].concat(), lengthless: true, ..s });
    let other_total =
        stand_in(|s| if s.status == 206 { s.with("Content-Range", "bytes 4000-9999/10001") } else { s });
    for (stand_in, want) in [
        (
            shorter,
            "m.gguf should have 10000 bytes, but the server sends 9000. It was removed; run the same command to fetch it again",
        ),
        (
            longer,
            "m.gguf should have 10000 bytes, but more arrived. It was removed; run the same command to fetch it again",
        ),
        (
            other_total,
            "m.gguf should have 10000 bytes, but the server has 10001. It was removed; run the same command to fetch it again",
        ),
    ] {
        let (folder, cache) = cache();
        if want.contains("10001") {
            leave_partial(folder.path(), &content, &content[..4000]);
        }
        assert_eq!(fails(&stand_in, &cache), want);
        assert!(!partial(folder.path(), &content).exists() && !blob(folder.path(), &content).exists());
    }
}

#[test]
fn a_body_without_a_length_that_ends_early_is_resumed() {
    let content = noise(10_000);
    let stand_in = StandIn::twisted(&[(FILE, &content)], |ask, say, n| match n {
        1 if ask.path.starts_with("/signed") => {
            Say { body: say.body[..6000].to_vec(), lengthless: true, ..say }
        }
        _ => Say { lengthless: ask.path.starts_with("/signed"), ..say },
    });
    let (_folder, cache) = cache();
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.ranges(FILE), [None, Some("bytes=6000-".into())]);
}

#[test]
fn a_server_that_cuts_for_ever_is_given_up() {
    let content = noise(10_000);
    // Each try brings 100 bytes more: progress, but too little to ever finish.
    let stand_in =
        StandIn::twisted(&[(FILE, &content)], |ask, say, _| match ask.path.starts_with("/signed") {
            true => say.stop(100, Then::Close),
            false => say,
        });
    let (folder, cache) = cache();
    insta::assert_snapshot!(fails(&stand_in, &cache), @"cannot get m.gguf of org/m: the connection was cut (tried 3 times). What has arrived is kept; run the same command to go on");
    assert_eq!(stand_in.ranges(FILE).len(), 3);
    assert_eq!(fs::read(partial(folder.path(), &content)).unwrap(), content[..300]);
}

#[test]
fn a_server_that_stalls_is_given_up_and_resumed_later() {
    let content = noise(10_000);
    let stalls = AtomicUsize::new(3);
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |ask, say, _| {
        let left = ask.path.starts_with("/signed")
            && stalls.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        if left { say.stop(1000, Then::Hang) } else { say }
    });
    let (folder, cache) = cache();
    let mut settings = stand_in.settings();
    settings.timing.idle = Duration::from_millis(200);
    let start = Instant::now();
    let error = text(pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err(), &stand_in);
    insta::assert_snapshot!(error, @"cannot get m.gguf of org/m: nothing more arrived in time (tried 3 times). What has arrived is kept; run the same command to go on");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(fs::metadata(partial(folder.path(), &content)).unwrap().len(), 3000);
    succeeds(&stand_in, &cache, &content);
    assert_eq!(stand_in.ranges(FILE).last().unwrap().as_deref(), Some("bytes=3000-"));
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let stand_in = StandIn::twisted(&[(FILE, b"x")], |_, _, _| {
        std::thread::sleep(Duration::from_secs(2));
        say(200, "")
    });
    let (_folder, cache) = cache();
    let mut settings = stand_in.settings();
    (settings.timing.idle, settings.timing.tries) = (Duration::from_millis(100), 2);
    let error = text(pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err(), &stand_in);
    insta::assert_snapshot!(error, @"cannot get the files of org/m: 127.0.0.1 did not answer in time (tried 2 times). Nothing was downloaded; check the connection and run the same command again");
}

#[test]
fn a_list_that_drips_in_for_ever_is_given_up() {
    let stand_in =
        StandIn::twisted(&[(FILE, b"x")], |_, say, _| Say { lengthless: true, ..say.stop(20, Then::Drip) });
    let (_folder, cache) = cache();
    let mut settings = stand_in.settings();
    (settings.timing.idle, settings.timing.tries) = (Duration::from_millis(100), 1);
    let error = text(pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err(), &stand_in);
    insta::assert_snapshot!(error, @"cannot get the files of org/m: 127.0.0.1 is too slow (tried once). Nothing was downloaded; check the connection and run the same command again");
}

#[test]
fn a_proxy_is_used_where_it_is_wanted() {
    let stand_in = StandIn::new(&[(FILE, b"x")]);
    let proxy = Server::start(|_| say(502, ""));
    let (_folder, cache) = cache();
    let mut settings = stand_in.settings();
    (settings.proxy, settings.timing.tries) = (Some(proxy.url.clone()), 1);
    let error = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err();
    assert!(error.is_network(), "{error}");
    let asked = proxy.asked();
    assert_eq!(asked[0].method, "CONNECT");
    assert!(!format!("{asked:?}").contains(TOKEN));
    assert_eq!(stand_in.hub.asked().len(), 0);
    settings.no_proxy = vec!["127.0.0.1".to_owned()];
    pull(&settings, &cache, "org/m", &mut |_| ()).unwrap();
    assert_eq!(proxy.asked().len(), 1);
}

#[test]
fn a_proxy_that_cannot_be_reached_is_named() {
    let stand_in = StandIn::new(&[(FILE, b"x")]);
    // A port where nobody listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_folder, cache) = cache();
    let mut settings = stand_in.settings();
    settings.timing.tries = 1;
    settings.names.proxy = "HTTPS_PROXY".to_owned();
    for (scheme, user) in [("http", ""), ("http", "me:secret@"), ("socks5", "")] {
        settings.proxy = Some(format!("{scheme}://{user}{closed}"));
        let error = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap_err().to_string();
        let error = error.replace(&closed.port().to_string(), "PORT");
        let want = format!(
            "cannot get the files of org/m: no connection to the proxy {scheme}://127.0.0.1:PORT (HTTPS_PROXY): Connection \
             refused (os error 111) (on the way to 127.0.0.1) (tried once). Nothing was downloaded; check the connection and \
             run the same command again"
        );
        assert_eq!(error, want);
    }
    assert_eq!(stand_in.hub.asked().len(), 0);
}

#[test]
fn busy_servers_are_asked_again_when_they_say() {
    let content = noise(2000);
    let faults = |n: usize| match n {
        1 => Some(say(500, "oops")),
        2 => Some(say(429, "").with("Retry-After", 1)),
        _ => None,
    };
    let stand_in = StandIn::twisted(&[(FILE, &content)], move |_, answer, n| faults(n).unwrap_or(answer));
    let (_folder, cache) = cache();
    let mut waits = Vec::new();
    let mut settings = stand_in.settings();
    // The content is requested from both servers, and both fail.
    settings.timing.tries = 5;
    let start = Instant::now();
    pull(&settings, &cache, "org/m", &mut |event| {
        if let Event::Retrying { why, wait, .. } = event {
            waits.push((why.to_owned(), wait));
        }
    })
    .unwrap();
    // The file list, the HEAD request, the redirect and its target: each fails twice.
    let told = |status, wait: u64| (format!("127.0.0.1 answered {status}"), Duration::from_millis(wait));
    assert_eq!(waits[..4], [told(500, 5), told(429, 1000), told(500, 5), told(429, 1000)]);
    assert!(start.elapsed() >= Duration::from_secs(3));
}

#[test]
fn too_long_a_pause_is_left_to_the_user() {
    for header in [("Retry-After", "3600"), ("RateLimit", "\"api\";r=0;t=3600")] {
        let stand_in =
            StandIn::twisted(&[(FILE, b"x")], move |_, _, _| say(429, "").with(header.0, header.1));
        let (_folder, cache) = cache();
        insta::allow_duplicates! {
            insta::assert_snapshot!(fails(&stand_in, &cache), @"the server refuses the files of org/m for now (127.0.0.1 answered 429): come back in 3600 s. With HF_TOKEN set the hub allows more");
        }
        assert_eq!(stand_in.hub.asked().len(), 1);
    }
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |name: &str, answer: Say| {
        let stand_in = StandIn::twisted(&[(FILE, b"x")], move |_, _, _| answer.clone());
        let (_folder, cache) = cache();
        let error = stand_in.pull(&cache, name).unwrap_err();
        assert_eq!(stand_in.hub.asked().len(), 1, "asking again does not help");
        text(error, &stand_in)
    };
    let code = |status, code| say(status, "").with("X-Error-Code", code);
    insta::assert_snapshot!(refused("org/m", code(401, "GatedRepo")), @"org/m is gated: its owner gives access on request. Accept the licence at http://HUB/org/m, create a token at http://HUB/settings/tokens and set HF_TOKEN to it");
    assert_eq!(refused("org/m", say(403, "")), refused("org/m", code(401, "GatedRepo")));
    insta::assert_snapshot!(refused("org/m", say(401, "")), @"there is no model org/m at http://HUB, or it is private. Check the spelling; for a private model, set HF_TOKEN to a token that may read it");
    assert_eq!(refused("org/m", code(404, "RepoNotFound")), refused("org/m", say(401, "")));
    assert_eq!(refused("org/m", say(404, "")), refused("org/m", say(401, "")));
    let token = say(401, "").with("X-Error-Message", "Invalid credentials in Authorization header");
    insta::assert_snapshot!(refused("org/m", token), @"http://HUB does not accept the token. Create a new one at http://HUB/settings/tokens and set HF_TOKEN to it");
    insta::assert_snapshot!(refused("org/m@nope", code(404, "RevisionNotFound")), @"org/m has no revision nope. Its branches, tags and commits are at http://HUB/org/m/tree/main");
    let words = say(403, "").with("X-Error-Message", format!("Fine-grained\ttokens {}", "x".repeat(1000)));
    let error = refused("org/m", words);
    assert!(error.starts_with("127.0.0.1 answered 403 to the files of org/m: Fine-grained"), "{error}");
    assert!(error.len() < 500 && !error.contains('\t'), "{error}");
}

#[test]
fn a_gated_model_lists_its_files_but_keeps_them() {
    let stand_in = StandIn::twisted(&[(FILE, b"x")], |ask, answer, _| {
        if ask.path.contains("/resolve/") { say(403, "").with("X-Error-Code", "GatedRepo") } else { answer }
    });
    let (_folder, cache) = cache();
    assert!(fails(&stand_in, &cache).starts_with("org/m is gated: its owner gives access on request."));
}

#[test]
fn a_file_that_is_listed_but_gone_is_named() {
    for place in ["/resolve/", "/signed/"] {
        let stand_in = StandIn::twisted(&[(FILE, &noise(2000))], move |ask, answer, _| {
            if ask.path.contains(place) { say(404, "") } else { answer }
        });
        let (_folder, cache) = cache();
        let want = match place {
            "/resolve/" => {
                "the hub lists m.gguf in org/m, but does not have it. Try again; the model may just be changing"
            }
            _ => "127.0.0.1 answered 404 to m.gguf of org/m",
        };
        assert_eq!(fails(&stand_in, &cache), want);
    }
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let with = |answer: Say| {
        let stand_in = StandIn::twisted(&[(FILE, b"x")], move |_, _, _| answer.clone());
        let (folder, cache) = cache();
        let error = fails(&stand_in, &cache);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
        error
    };
    insta::assert_snapshot!(with(say(200, "<html>")), @"the answer about the files of org/m cannot be used: it is no list of files: it is not JSON. If you set another endpoint, check that it is a hub");
    insta::assert_snapshot!(with(say(200, r#"{"sha":"../../x","siblings":[]}"#)), @r#"the answer about the files of org/m cannot be used: "../../x" is no commit. If you set another endpoint, check that it is a hub"#);
    insta::assert_snapshot!(with(say(200, vec![b' '; (16 << 20) + 1])), @"the answer about the files of org/m cannot be used: it is longer than 16 MiB. If you set another endpoint, check that it is a hub");
    insta::assert_snapshot!(with(say(200, format!("{{\"x\":{}", "[".repeat(100_000)))), @"the answer about the files of org/m cannot be used: it is no list of files: it is JSON that ends too early. If you set another endpoint, check that it is a hub");
    insta::assert_snapshot!(with(say(302, "").with("Location", "file:///etc/passwd")), @"the answer about the files of org/m cannot be used: it redirects to something that is not a web address. If you set another endpoint, check that it is a hub");
    insta::assert_snapshot!(with(say(302, "")), @"the answer about the files of org/m cannot be used: it redirects to nowhere. If you set another endpoint, check that it is a hub");
    insta::assert_snapshot!(with(say(302, "").with("Location", "/again")), @"the answer about the files of org/m cannot be used: it redirects in circles. If you set another endpoint, check that it is a hub");
}

#[test]
fn heads_that_make_no_sense_are_refused() {
    for (header, value, want) in [
        ("X-Linked-ETag", "\"../../x\"", "it has no ETag to name the file by"),
        ("X-Linked-Size", "many", "it does not tell the file's length"),
        ("X-Repo-Commit", "f".repeat(40).leak(), "it is for another commit"),
    ] {
        let stand_in = StandIn::twisted(&[(FILE, &noise(2000))], move |ask, answer, _| {
            if ask.method == "HEAD" { answer.with(header, value) } else { answer }
        });
        let (_folder, cache) = cache();
        let error = fails(&stand_in, &cache);
        assert!(
            error.starts_with(&format!("the answer about m.gguf of org/m cannot be used: {want}")),
            "{error}"
        );
    }
}

#[test]
fn file_names_that_lead_elsewhere_are_refused() {
    for name in [
        "../../../evil.gguf",
        "/evil.gguf",
        "a\\..\\evil.gguf",
        "evil\0.gguf",
        "a/./evil.gguf",
        "\u{1b}[2J.gguf",
        &"e".repeat(300),
    ] {
        let stand_in = StandIn::twisted(&[], {
            let list = listing(["config.json", name]);
            move |_, _, _| say(200, list.clone())
        });
        let (folder, cache) = cache();
        let error = fails(&stand_in, &cache);
        assert!(error.starts_with("org/m has a file named ") && !error.contains(['\0', '\u{1b}']), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(stand_in.hub.asked().len(), 1);
    }
}

#[test]
fn links_that_lead_out_of_the_cache_are_refused() {
    let stand_in = StandIn::new(&[("sub/m.gguf", b"tiny")]);
    let (folder, cache) = cache();
    let outside = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("models--org--m/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    // A symlinked folder that would redirect the file outside.
    symlink(outside.path(), snapshot.join("sub")).unwrap();
    let error = stand_in.pull(&cache, "org/m").unwrap_err();
    assert!(matches!(&error, HubError::Outside { path, .. } if path.ends_with("sub")), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // A symlink whose content is outside.
    fs::remove_file(snapshot.join("sub")).unwrap();
    fs::create_dir(snapshot.join("sub")).unwrap();
    fs::write(outside.path().join("secret"), "x").unwrap();
    symlink(outside.path().join("secret"), snapshot.join("sub/m.gguf")).unwrap();
    let error = stand_in.pull(&cache, "org/m").unwrap_err();
    assert!(matches!(&error, HubError::Outside { path, .. } if path.ends_with("sub/m.gguf")), "{error}");
}

#[test]
fn a_link_to_the_wrong_content_is_replaced() {
    let content = noise(2000);
    let stand_in = StandIn::new(&[(FILE, &content)]);
    let (folder, cache) = cache();
    let snapshot = folder.path().join("models--org--m/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/gone", snapshot.join(FILE)).unwrap();
    succeeds(&stand_in, &cache, &content);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_the_download_kept() {
    let content = noise(10_000);
    let stand_in = StandIn::new(&[(FILE, &content)]);
    let (folder, cache) = cache();
    // Writing to this device fails as on a full disk.
    let part = partial(folder.path(), &content);
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    symlink("/dev/full", &part).unwrap();
    let error = stand_in.pull(&cache, "org/m").unwrap_err();
    assert!(matches!(error, HubError::DiskFull { needed: 10_000, .. }), "{error}");
    assert!(part.is_symlink(), "kept");
    let error = HubError::DiskFull { path: "/cache".into(), needed: 4_200_000_000, free: 17 };
    insta::assert_snapshot!(error, @"the disk is full: 3.9 GiB more are needed at /cache, where 17 bytes are free. What has arrived is kept; make room (`tallow rm`) and run the same command to go on");
}

#[test]
fn room_is_checked_before() {
    let stand_in = StandIn::twisted(&[(FILE, &noise(2000))], |ask, answer, _| {
        if ask.method == "HEAD" { answer.with("X-Linked-Size", 1u64 << 60) } else { answer }
    });
    let (_folder, cache) = cache();
    let error = stand_in.pull(&cache, "org/m").unwrap_err();
    assert!(
        matches!(error, HubError::DiskFull { needed, free, .. } if needed == 1 << 60 && free > 0),
        "{error}"
    );
    assert_eq!(stand_in.downloads(FILE), 0);
}
