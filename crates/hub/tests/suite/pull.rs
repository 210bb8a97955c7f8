//! Pulling a model without failures: which requests are made, and what the cache contains afterwards.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::stand_in::*;
use tallow_hub::{Event, Hub, HubError, ModelRef};

/// Every file below a folder, and the targets of symlinks.
fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let name = entry.path().strip_prefix(root).unwrap().display().to_string();
            match fs::read_link(entry.path()) {
                Ok(to) => found.push(format!("{name} -> {}", to.display())),
                Err(_) if entry.path().is_dir() => folders.push(entry.path()),
                Err(_) => found.push(format!("{name} ({} bytes)", entry.metadata().unwrap().len())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_safetensors_model_lies_as_other_programs_expect() {
    let weights = noise(5000);
    let stand_in = StandIn::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"[]"),
        ("1_Pooling/config.json", b"{}"),
        ("model.safetensors", &weights),
        ("pytorch_model.bin", &weights),
        ("README.md", b"hello"),
    ]);
    let (folder, cache) = cache();
    let snapshot = stand_in.pull(&cache, "org/m").unwrap();
    // The names of `{}` and `[]` are their `git hash-object` ids; the weights' name is from `sha256sum`.
    insta::assert_snapshot!(tree(folder.path()).join("\n"), @r"
    .locks/models--org--m/0637a088a01e8ddab3bf3fa98dbe804cbde1a0dc.lock (0 bytes)
    .locks/models--org--m/9e26dfeeb6e641a33dae4961196235bdb965b21b.lock (0 bytes)
    .locks/models--org--m/c3c53ce3556ad549b5580c532f923bd1ecdb751cc06905cea640a0b3a6d1c558.lock (0 bytes)
    models--org--m/blobs/0637a088a01e8ddab3bf3fa98dbe804cbde1a0dc (2 bytes)
    models--org--m/blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b (2 bytes)
    models--org--m/blobs/c3c53ce3556ad549b5580c532f923bd1ecdb751cc06905cea640a0b3a6d1c558 (5000 bytes)
    models--org--m/refs/main (40 bytes)
    models--org--m/snapshots/0123456789abcdef0123456789abcdef01234567/1_Pooling/config.json -> ../../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b
    models--org--m/snapshots/0123456789abcdef0123456789abcdef01234567/config.json -> ../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b
    models--org--m/snapshots/0123456789abcdef0123456789abcdef01234567/model.safetensors -> ../../blobs/c3c53ce3556ad549b5580c532f923bd1ecdb751cc06905cea640a0b3a6d1c558
    models--org--m/snapshots/0123456789abcdef0123456789abcdef01234567/tokenizer.json -> ../../blobs/0637a088a01e8ddab3bf3fa98dbe804cbde1a0dc
    ");
    assert_eq!(fs::read(snapshot.path.join("model.safetensors")).unwrap(), weights);
    assert_eq!(fs::read_to_string(folder.path().join("models--org--m/refs/main")).unwrap(), COMMIT);
    assert_eq!(snapshot.commit, COMMIT);
    assert_eq!(snapshot.files.len(), 4);
    assert!(snapshot.files.iter().all(|f| f.is_file()));
    assert_eq!(stand_in.downloads("pytorch_model.bin"), 0);
}

#[test]
fn the_token_stays_with_the_hub() {
    let weights = noise(5000);
    let stand_in =
        StandIn::new(&[("config.json", b"{}"), ("tokenizer.json", b"[]"), ("model.safetensors", &weights)]);
    let (_folder, cache) = cache();
    stand_in.pull(&cache, "org/m").unwrap();
    let (hub, cdn) = (stand_in.hub.asked(), stand_in.cdn.asked());
    assert!(hub.len() >= 5 && cdn.len() == 1, "{hub:?} {cdn:?}");
    for ask in hub {
        assert_eq!(ask.header("authorization"), Some("Bearer hf_secret"), "{ask:?}");
        assert_eq!(ask.header("accept-encoding"), Some("identity"));
    }
    for ask in cdn {
        assert_eq!(ask.header("authorization"), None);
        assert!(!format!("{ask:?}").contains(TOKEN));
    }
}

#[test]
fn the_token_does_not_come_back_with_a_second_redirect() {
    // hub -> elsewhere -> hub: the last address was chosen by the other server, so the request carries no token.
    let (evil_url, hub_url) =
        (Arc::new(std::sync::Mutex::new(String::new())), Arc::new(std::sync::Mutex::new(String::new())));
    let target = hub_url.clone();
    let evil =
        Server::start(move |_| say(302, "").with("Location", format!("{}/steal", target.lock().unwrap())));
    let next = evil_url.clone();
    let hub = Server::start(move |ask| match ask.path.as_str() {
        "/steal" => say(200, listing(["m.gguf"])),
        _ => say(307, "").with("Location", next.lock().unwrap()),
    });
    *evil_url.lock().unwrap() = evil.url.clone();
    *hub_url.lock().unwrap() = hub.url.clone();
    let (_folder, cache) = cache();
    // The pull then fails for other reasons.
    pull(&settings(&hub.url), &cache, "org/m", &mut |_| ()).unwrap_err();
    let stolen: Vec<_> = hub.asked().into_iter().filter(|a| a.path == "/steal").collect();
    assert!(!stolen.is_empty());
    assert!(stolen.iter().all(|a| a.header("authorization").is_none()));
    assert!(hub.asked()[0].header("authorization").is_some());
}

#[test]
fn redirects_on_the_hub_itself_are_followed_with_the_token() {
    // Renamed models and small files: the redirect is relative, and the metadata comes with the last answer.
    let stand_in = StandIn::twisted(
        &[("config.json", b"{}"), ("tokenizer.json", b"[]"), ("model.safetensors", b"tiny")],
        |ask, answer, _| match ask.path.strip_suffix("?moved=1") {
            None => say(307, "").with("Location", format!("{}?moved=1", ask.path)).with("ETag", "\"no\""),
            Some(_) => answer,
        },
    );
    let (_folder, cache) = cache();
    let snapshot = stand_in.pull(&cache, "org/m").unwrap();
    assert_eq!(fs::read_to_string(snapshot.path.join("model.safetensors")).unwrap(), "tiny");
    let asked = stand_in.hub.asked();
    assert!(asked.iter().all(|a| a.header("authorization").is_some()));
    assert_eq!(asked.iter().filter(|a| a.path.ends_with("?moved=1")).count() * 2, asked.len());
}

#[test]
fn a_quantization_is_picked_with_all_its_parts() {
    let (one, two, other) = (noise(2000), noise(3000), noise(4000));
    let stand_in = StandIn::new(&[
        ("m-Q8_0-00001-of-00002.gguf", &one),
        ("m-Q8_0-00002-of-00002.gguf", &two),
        ("m-Q4_K_M.gguf", &other),
    ]);
    let (_folder, cache) = cache();
    let snapshot = stand_in.pull(&cache, "org/m:q8_0").unwrap();
    assert_eq!(snapshot.files.len(), 2);
    assert!(snapshot.path.ends_with("m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(fs::read(&snapshot.files[1]).unwrap(), two);
    assert_eq!(stand_in.downloads("m-Q4_K_M.gguf"), 0);
    let snapshot = stand_in.pull(&cache, "org/m").unwrap();
    assert!(snapshot.path.ends_with("m-Q4_K_M.gguf"));
}

#[test]
fn a_second_pull_downloads_nothing() {
    let weights = noise(5000);
    let stand_in =
        StandIn::new(&[("config.json", b"{}"), ("tokenizer.json", b"[]"), ("model.safetensors", &weights)]);
    let (_folder, cache) = cache();
    let first = stand_in.pull(&cache, "org/m").unwrap();
    let before = stand_in.hub.asked().len();
    let mut events = 0;
    assert_eq!(pull(&stand_in.settings(), &cache, "org/m", &mut |_| events += 1).unwrap(), first);
    // One request, to see whether it has changed.
    assert_eq!(stand_in.hub.asked().len(), before + 1);
    assert_eq!((events, stand_in.downloads("model.safetensors")), (0, 1));
    // A commit cannot change.
    assert_eq!(stand_in.pull(&cache, &format!("org/m@{COMMIT}")).unwrap(), first);
    assert_eq!(stand_in.hub.asked().len(), before + 1);
}

#[test]
fn revisions_are_kept_by_name() {
    let stand_in = StandIn::new(&[("m.gguf", b"tiny")]);
    let (folder, cache) = cache();
    for (revision, path) in [("v1", "refs/v1"), ("refs/pr/1", "refs/refs/pr/1")] {
        let name = format!("org/m@{revision}");
        assert_eq!(cache.find(&ModelRef::parse(&name).unwrap()).unwrap(), None);
        let snapshot = stand_in.pull(&cache, &name).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("models--org--m").join(path)).unwrap(), COMMIT);
        assert_eq!(cache.find(&ModelRef::parse(&name).unwrap()).unwrap(), Some(snapshot));
    }
    // A commit needs no ref, and `main` was never requested.
    let commit = format!("org/m@{COMMIT}");
    stand_in.pull(&cache, &commit).unwrap();
    assert!(!folder.path().join("models--org--m/refs").join(COMMIT).exists());
    assert_eq!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap(), None);
}

#[test]
fn progress_is_told() {
    let weights = noise(1_000_000);
    let stand_in =
        StandIn::new(&[("config.json", b"{}"), ("tokenizer.json", b"[]"), ("model.safetensors", &weights)]);
    let (_folder, cache) = cache();
    let (mut missing, mut last, mut ended) = (None, 0, Vec::new());
    pull(&stand_in.settings(), &cache, "org/m", &mut |event| match event {
        Event::Missing { files, bytes } => missing = Some((files, bytes)),
        Event::Progress { file, done, total } => {
            assert!(missing.is_some() && (done > last || done == 0));
            last = done;
            if done == total {
                ended.push((file.to_owned(), total));
            }
        }
        other => panic!("{other:?}"),
    })
    .unwrap();
    assert_eq!(missing, Some((3, 1_000_004)));
    let want = [("tokenizer.json", 2), ("config.json", 2), ("model.safetensors", 1_000_000)];
    assert_eq!(ended, want.map(|(name, bytes)| (name.to_owned(), bytes)));
}

/// A pull that is stopped, in one stream or in pieces, keeps what has arrived for the next one.
#[test]
fn a_pull_can_be_stopped() {
    let weights = noise(1_000_000);
    let stand_in = StandIn::new(&[("m.gguf", &weights)]);
    let model = ModelRef::parse("org/m").unwrap();
    for settings in [stand_in.settings(), in_pieces(&stand_in.hub.url)] {
        let (_folder, cache) = cache();
        let hub = Hub::new(cache.clone(), &settings).unwrap();
        let mut stop = |event: Event<'_>| match event {
            Event::Progress { done: 300_000.., .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let error = hub.pull(&model, &mut stop).unwrap_err();
        assert!(matches!(error, HubError::Stopped), "{error}");
        assert_eq!(cache.find(&model).unwrap(), None);
        let mut began = None;
        let mut go_on = |event: Event<'_>| {
            if let Event::Progress { done, .. } = event {
                began = began.or(Some(done));
            }
            ControlFlow::Continue(())
        };
        let snapshot = hub.pull(&model, &mut go_on).unwrap();
        // The first piece may be late.
        assert!(began.unwrap() > 0 || settings.ranges.connections == 4, "{began:?}");
        assert!(fs::read(snapshot.path).unwrap() == weights);
    }
}

#[test]
fn without_a_network_the_cache_serves() {
    let stand_in = StandIn::new(&[("m.gguf", b"tiny")]);
    let (_folder, cache) = cache();
    let first = stand_in.pull(&cache, "org/m").unwrap();
    let mut settings = stand_in.settings();
    drop(stand_in);
    // Nobody listens on the port of a stopped server.
    std::thread::sleep(Duration::from_millis(50));
    let mut notice = String::new();
    let again = pull(&settings, &cache, "org/m", &mut |event| match event {
        Event::Offline { why } => notice = why.to_string(),
        other => panic!("{other:?}"),
    });
    assert_eq!(again.unwrap(), first);
    assert!(notice.contains("cannot get the files of org/m") && notice.contains("tried once"), "{notice}");
    // A model that is not cached cannot be used offline.
    settings.timing.tries = 2;
    let error = pull(&settings, &cache, "org/other", &mut |_| ()).unwrap_err();
    assert!(error.is_network(), "{error}");
    assert!(error.to_string().contains("no connection to 127.0.0.1"), "{error}");
}

#[test]
fn a_new_version_shares_what_did_not_change() {
    let weights = noise(5000);
    let newer = "f".repeat(40);
    let moved = newer.clone();
    let stand_in = StandIn::twisted(
        &[("config.json", b"{}"), ("tokenizer.json", b"[]"), ("model.safetensors", &weights)],
        move |ask, say, n| {
            let then = |s: &Say| String::from_utf8_lossy(&s.body).replace(COMMIT, &moved).into_bytes();
            if ask.path.contains("/api/") && n > 1 { Say { body: then(&say), ..say } } else { say }
        },
    );
    let (folder, cache) = cache();
    stand_in.pull(&cache, "org/m").unwrap();
    // The stand-in does not serve the new commit, as if the hub failed in between.
    stand_in.pull(&cache, "org/m").unwrap_err();
    let main = folder.path().join("models--org--m/refs/main");
    assert_eq!(fs::read_to_string(&main).unwrap(), COMMIT, "the old version stays in use");
    assert!(cache.find(&ModelRef::parse("org/m").unwrap()).unwrap().is_some());
    assert_eq!(stand_in.downloads("model.safetensors"), 1);
}

#[test]
fn a_model_without_a_tokenizer_is_refused_before_its_weights_come() {
    let weights = noise(5000);
    let all = |more: &[&'static str]| {
        let mut files = vec![("config.json", &b"{}"[..]), ("model.safetensors", &weights)];
        files.extend(more.iter().map(|name| (*name, &b"x"[..])));
        StandIn::new(&files)
    };
    for none in [&["vocab.json"][..], &["merges.txt"], &["sentencepiece.bpe.model"], &["sub/tokenizer.json"]]
    {
        let stand_in = all(none);
        let (_folder, cache) = cache();
        let error = stand_in.pull(&cache, "org/m").unwrap_err();
        insta::allow_duplicates! {
            insta::assert_snapshot!(error, @"org/m has no tokenizer that can be read: none of tokenizer.json, tokenizer.model, spiece.model, tekken.json, a tiktoken file, vocab.txt, or vocab.json with merges.txt. Nothing was downloaded; look for a copy of the model that has one, or for GGUF files");
        }
        assert_eq!(stand_in.downloads("model.safetensors"), 0);
    }
    for some in [
        &["tokenizer.model"][..],
        &["tekken.json"],
        &["tiktoken.model"],
        &["qwen.tiktoken"],
        &["spiece.model"],
        &["vocab.txt"],
        &["vocab.json", "merges.txt"],
    ] {
        let (_folder, cache) = cache();
        let snapshot = all(some).pull(&cache, "org/m").unwrap();
        assert!(some.iter().all(|name| snapshot.path.join(name).is_file()), "{some:?}");
    }
}

#[test]
fn socks_proxies_are_used() {
    let content = noise(5000);
    let stand_in = StandIn::new(&[("m.gguf", &content)]);
    let proxy = Socks::start();
    let mut settings = stand_in.settings();
    settings.proxy = Some(format!("socks5://{}", proxy.address));
    let (_folder, cache) = cache();
    let snapshot = pull(&settings, &cache, "org/m", &mut |_| ()).unwrap();
    assert_eq!(fs::read(&snapshot.path).unwrap(), content);
    assert!(proxy.connections() >= 2, "both servers are reached by it");
}
