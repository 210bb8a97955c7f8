//! `tallow serve` with a real engine: shared prefixes, disconnecting clients, signals under load.

#![cfg(unix)]

use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::server::{Server, answer, whole};
use crate::common::{HUB, Home, gpu};
use serde_json::{Value, json};
use tallow_models::Model;
use tallow_support::{PATIENCE, golden, root};

/// `words` words, about one token each, the same each time.
fn text(words: usize) -> String {
    const WORDS: [&str; 8] = ["the", "king", "and", "his", "daughter", "went", "into", "the forest,"];
    (0..words).map(|i| WORDS[i * i % 8]).collect::<Vec<_>>().join(" ")
}

/// An explicit decode budget is used as given. By default it is chosen within bounds by how long steps take.
#[test]
fn steps_beside_answers_are_as_asked_or_chosen() {
    const TOKENS: &str = "vllm:decode_budget_tokens";
    assert_eq!(Server::start(&["--batch", "48"]).metric(TOKENS), 48.0);
    let chosen = Server::start(&[]).metric(TOKENS);
    assert!((16.0..=256.0).contains(&chosen), "{chosen}");
}

/// Clients remove downloaded models, but not the one that is served.
#[test]
fn clients_remove_models_that_are_not_served() {
    let home = Home::new();
    ["name", "other"].iter().for_each(|name| home.caches(name));
    let (hub, flags) =
        (home.path().join(HUB), ["serve", "org/name", "--port", "0", "--allow-pull", "--offline"]);
    let command = home.command(&flags);
    let server = Server::of(home, command);
    let say = |method: &str, path: &str, model: &str| {
        let (status, body) = answer(server.request(method, path, &json!({"model": model}).to_string()));
        format!("{status} {body}").trim_end().to_owned() + "\n"
    };
    let delete = |model: &str| say("DELETE", "/api/delete", model);
    let mut all = delete("org/name") + &delete("org/name:q8_0") + &say("POST", "/api/pull", "org/third");
    assert!(hub.join("models--org--other").exists());
    all += &(delete("org/other:Q8_0") + &delete("org/other:Q8_0") + &delete("demo") + &delete("../../etc"));
    assert!(hub.join("models--org--name/refs/main").exists());
    insta::assert_snapshot!(all, @r#"
    400 {"error":"org/name is served here; it can be removed when the server has stopped"}
    400 {"error":"org/name:q8_0 is served here; it can be removed when the server has stopped"}
    400 {"error":"nothing is downloaded here: --offline is given: leave it out to download models"}
    200
    404 {"error":"org/other:Q8_0 is not in the cache. `tallow list` shows what is"}
    400 {"error":"demo is part of the program, and cannot be removed"}
    400 {"error":"\"../../etc\" is not a model name: '-' and '.' may neither begin nor end a part, nor be doubled. Names look like org/name, org/name:Q4_K_M or org/name@revision; `tallow search TEXT` finds short ones"}
    "#);
}

/// The default soft limit of file descriptors is low, and each connection takes one.
#[test]
#[cfg(target_os = "linux")]
fn the_server_takes_all_the_descriptors_that_it_may_have() {
    let home = Home::new();
    let served = home.command(&["serve", "demo", "--port", "0"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 100; exec \"$0\" \"$@\""]);
    command.arg(served.get_program()).args(served.get_args());
    for (name, value) in served.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let server = Server::of(home, command);
    assert!(server.metric("process_max_fds") > 100.0);
    assert!(server.metric("vllm:connections_max") > 100.0);
}

/// A shared prefix is computed once, whether the requests come one after another or all at once.
#[test]
fn a_shared_prefix_is_computed_once() {
    let server = Server::start(&["--slots", "8"]);
    let prompt = text(700);
    let body = |end: usize| json!({"prompt": format!("{prompt} {end}"), "max_tokens": 4, "temperature": 0});
    let cached = |v: &Value| v["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first_token = |v: &Value| v["timings"]["prompt_ms"].as_f64().unwrap();

    let cold = whole(server.complete(&body(1)));
    let tokens = cold["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&cold), 0);
    let streams: Vec<TcpStream> = (2..10).map(|i| server.complete(&body(i))).collect();
    let warm: Vec<Value> = streams.into_iter().map(whole).collect();
    for w in &warm {
        assert!(cached(w) + 32 >= tokens, "{} of {tokens} tokens came from the cache", cached(w));
    }
    let mean = warm.iter().map(first_token).sum::<f64>() / 8.0;
    println!(
        "{tokens} tokens: cold {:.1} ms to the first token; 8 at once, prefix shared: {mean:.1} ms",
        first_token(&cold)
    );

    // All at once with an unseen prefix: one request computes it, the others wait for it.
    let prompt = format!("Far away, {prompt}");
    let body = |end: usize| json!({"prompt": format!("{prompt} {end}"), "max_tokens": 4, "temperature": 0});
    let (before, hits) =
        (server.metric("vllm:prefix_cache_queries"), server.metric("vllm:prefix_cache_hits"));
    let streams: Vec<TcpStream> = (0..8).map(|i| server.complete(&body(i))).collect();
    let all: Vec<Value> = streams.into_iter().map(whole).collect();
    let fresh: u64 = all.iter().map(|v| v["usage"]["prompt_tokens"].as_u64().unwrap() - cached(v)).sum();
    let tokens = all[0]["usage"]["prompt_tokens"].as_u64().unwrap();
    let (asked, hit) =
        (server.metric("vllm:prefix_cache_queries") - before, server.metric("vllm:prefix_cache_hits") - hits);
    println!(
        "8 at once, new: {fresh} tokens computed for {} asked ({hit} of {asked} looked up were there)",
        8 * tokens
    );
    assert!(fresh < 2 * tokens, "{fresh} tokens were computed, and {tokens} would do");
}

/// An answer that a client sends back as text is found in the cache with all the tokens that were generated, although the
/// tokenizer makes others of it; and the next answer is what a server says that is given these tokens.
#[test]
fn an_answer_that_is_sent_back_is_in_the_cache() {
    let tokenizer = Model::open(&root().join("assets/demo.gguf")).unwrap().tokenizer().unwrap();
    let bytes = |id: u32| tokenizer.token_bytes(id).unwrap();
    // Any text, as long as it is text: no part of a character, and no special token.
    let vocab = 0..tokenizer.vocab_size() as u32;
    let (plain, other): (Vec<u32>, Vec<u32>) =
        vocab.partition(|id| bytes(*id).is_ascii() && !tokenizer.is_special(*id));
    let bias: Value =
        other.iter().map(|id| (id.to_string(), json!(-100))).collect::<serde_json::Map<_, _>>().into();
    let (server, cold) = (Server::start(&[]), Server::start(&[]));
    let chat = |messages: &[Value], more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 40, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        whole(server.request("POST", "/v1/chat/completions", &body.to_string()))
    };
    let tokens = |messages: &[Value]| -> Vec<u32> {
        let body = json!({ "messages": messages }).to_string();
        serde_json::from_value(whole(server.request("POST", "/tokenize", &body))["tokens"].clone()).unwrap()
    };
    let message = |role: &str, content: &Value| json!({ "role": role, "content": content });
    let mut messages = vec![message("user", &json!("Tell me a story about a fox and a hen"))];
    let mut prompt = tokens(&messages);
    for turn in 0..3 {
        let hot =
            json!({"temperature": 3, "seed": turn, "max_tokens": 100, "logit_bias": bias, "logprobs": true});
        let hot = chat(&messages, hot);
        let generated = hot["choices"][0]["logprobs"]["content"].as_array().unwrap().iter().map(|scored| {
            let wanted: Vec<u8> = serde_json::from_value(scored["bytes"].clone()).unwrap();
            *plain.iter().find(|id| bytes(**id) == wanted).unwrap()
        });
        prompt.extend(generated);
        messages.push(message("assistant", &hot["choices"][0]["message"]["content"]));
        messages.push(message("user", &json!("And then?")));
        let anew = tokens(&messages);
        let (kept, of_anew) = tokenizer.same_text(prompt.iter().copied(), anew.iter().copied());
        assert_eq!(kept, prompt.len());
        let same = prompt.iter().zip(&anew).take_while(|(a, b)| a == b).count();
        assert!(same + 50 < kept, "this answer would be tokenized as it was generated");
        let computed = (prompt.len() - 1) as u64;
        prompt.extend(&anew[of_anew..]);

        let next = chat(&messages, json!({}));
        let (usage, (cached, _)) = (&next["usage"], said(&next));
        assert_eq!(usage["prompt_tokens"], prompt.len());
        assert_eq!(cached, computed / 16 * 16, "all whole pages");
        let given = json!({ "prompt": prompt, "max_tokens": 40, "temperature": 0 });
        let given = whole(cold.complete(&given));
        assert_eq!(given["choices"][0]["text"], next["choices"][0]["message"]["content"]);
        // Who wants nothing of the cache gets the tokenizer's tokens.
        let alone = chat(&messages, json!({"cache_prompt": false}));
        assert_eq!((&alone["usage"]["prompt_tokens"], said(&alone).0), (&json!(anew.len()), 0));
    }
}

/// A model with recurrent state goes on from a snapshot of it, and answers as if it had computed the whole prompt: a salt
/// of its own keeps a request from all that others have computed.
#[test]
fn a_recurrent_model_goes_on_from_its_state() {
    let home = Home::new();
    let model = golden("gguf-models/qwen3.5-bf16.gguf");
    let command = home.command(&["serve", model.to_str().unwrap(), "--port", "0"]);
    let server = Server::of(home, command);
    let ask = |prompt: &[u32], more: Value| {
        let mut body = json!({ "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        whole(server.complete(&body))
    };
    let cached = |v: &Value| v["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt: Vec<u32> = (0..100).map(|i| 4 + i * 7 % 80).collect();
    for (tokens, from_cache) in [(50, 0), (50, 48), (90, 48), (100, 80)] {
        let warm = ask(&prompt[..tokens], json!({}));
        assert_eq!(cached(&warm), from_cache, "of {tokens} tokens");
        let cold = ask(&prompt[..tokens], json!({ "cache_salt": format!("{tokens}, {from_cache}") }));
        assert_eq!((cached(&cold), &cold["choices"]), (0, &warm["choices"]));
    }
}

/// Eight concurrent clients on a GPU get what each gets alone on the CPU.
#[test]
fn a_gpu_serves_what_the_cpu_does() {
    let Some(device) = gpu() else { return };
    // In full precision, so that rounding differences between the devices do not change a token.
    let (cpu, gpu) = (
        Server::start(&["--kv", "f32", "--device", "cpu", "--arithmetic", "exact"]),
        Server::start(&["--kv", "f32", "--slots", "128", "--device", &device]),
    );
    let body = |i: usize| {
        let prompt = ["Once upon a time", "The king said", "In the forest", "There was an old"][i % 4];
        json!({"prompt": format!("{prompt} {}", text(i)), "max_tokens": 24, "temperature": 0})
    };
    let said = |v: &Value| v["choices"][0]["text"].as_str().unwrap().to_owned();
    let alone: Vec<String> = (0..8).map(|i| said(&whole(cpu.complete(&body(i))))).collect();
    let streams: Vec<TcpStream> = (0..8).map(|i| gpu.complete(&body(i))).collect();
    let together: Vec<String> = streams.into_iter().map(|s| said(&whole(s))).collect();
    assert_eq!(together, alone);
    assert_eq!(gpu.metric("vllm:kv_cache_usage_perc"), 0.0);
    vanish(&gpu, 40);
}

/// Asks for more than the buffers on the way can hold, so that it runs for as long as nobody reads it.
fn endless(prompt: &str) -> Value {
    json!({"prompt": prompt, "n": 32, "logprobs": 5, "max_tokens": 1000, "ignore_eos": true, "stream": true})
}

/// A disconnected client frees its slot and its pages.
#[test]
fn clients_that_vanish_free_their_pages() {
    vanish(&Server::start(&["--slots", "128"]), 300);
}

fn vanish(server: &Server, words: usize) {
    let body = endless(&text(words));
    let ask = || (0..4).map(|_| server.complete(&body)).collect::<Vec<TcpStream>>();
    let mut first = ask();
    for stream in &mut first {
        // It is running; later ones wait for slots.
        stream.read_exact(&mut [0; 64]).unwrap();
    }
    let streams = [first, ask()];
    assert!(server.metric("vllm:kv_cache_usage_perc") > 0.0);
    drop(streams);
    let begun = Instant::now();
    server.comes_to_rest();
    println!("pages were free {:?} after 8 clients had gone", begun.elapsed());
    // Other clients are not affected.
    let after = whole(server.complete(&json!({"prompt": "Once", "max_tokens": 3})));
    assert_eq!(after["usage"]["completion_tokens"], 3);
}

/// Signals the server while eight streams are running, and returns what they receive until their end.
fn ends(server: &mut Server, body: &Value) -> Vec<String> {
    let mut streams: Vec<TcpStream> = (0..8).map(|_| server.complete(body)).collect();
    for stream in &mut streams {
        stream.read_exact(&mut [0; 64]).unwrap();
    }
    server.signal(libc::SIGTERM);
    let rest = |mut stream: TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let texts = streams.into_iter().map(rest).collect();
    assert_eq!(server.ended(PATIENCE), Some(0));
    texts
}

#[test]
fn a_signal_lets_answers_finish() {
    let mut server = Server::start(&["--slots", "8", "--drain", "60"]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": true, "stream": true});
    for text in ends(&mut server, &body) {
        assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
    }
}

#[test]
fn answers_that_take_too_long_end_with_an_error() {
    let mut server = Server::start(&["--slots", "256", "--drain", "0"]);
    for text in ends(&mut server, &endless("Once")) {
        assert!(text.contains("data: {\"error\"") && text.contains("shutting down"), "{text}");
        assert!(!text.contains("[DONE]"), "{text}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut server = Server::start(&["--drain", "60"]);
    let mut stream = server.complete(&endless("Once"));
    stream.read_exact(&mut [0; 64]).unwrap();
    server.signal(libc::SIGTERM);
    // While draining, the server reports not ready or refuses connections.
    let begun = Instant::now();
    while TcpStream::connect(&server.address).is_ok() && server.get("/ready").0 == 200 {
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    server.signal(libc::SIGTERM);
    assert_eq!(server.ended(Duration::from_secs(5)), Some(130));
}

#[test]
fn a_port_that_is_taken_is_said_so() {
    let server = Server::start(&[]);
    let port = server.address.rsplit(':').next().unwrap();
    let why = Home::new().run(&["serve", "demo", "--port", port]).failed().replace(port, "PORT");
    insta::assert_snapshot!(why, @"error: cannot listen on 127.0.0.1, port PORT: Address already in use (os error 98); take another --port, or 0 for any that is free");
}

#[test]
fn keys_are_asked_for_everywhere() {
    let home = Home::new();
    let keys = home.file("keys", "# ours\nsecret-one\nsecret-two\n");
    let server = Server::start(&["--api-key-file", &keys]);
    for path in ["/v1/models", "/metrics", "/version", "/nothing"] {
        assert_eq!(server.get(path).0, 401, "{path}");
    }
    let none = home.file("none", "# none yet\n");
    assert!(home.run(&["serve", "demo", "--api-key-file", &none]).failed().contains("has no keys"));
}

/// Prompt tokens from the cache, and the answer with its log-probabilities.
fn said(answer: &Value) -> (u64, Value) {
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (cached, answer["choices"].clone())
}

/// Segments of a disk cache.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|e| e == "pages")).collect()
}

/// With `--cache-disk` a server goes on where the last one ended, whether that was stopped or killed; and a damaged file
/// costs time alone.
#[test]
fn a_restart_finds_what_was_computed() {
    let kept = Home::new();
    let folder = kept.path().join("cache");
    let start = || Server::start(&["--cache-disk", folder.to_str().unwrap(), "--cache-disk-size", "100"]);
    let body = json!({"prompt": text(300), "max_tokens": 16, "temperature": 0, "logprobs": 2});
    let (none, cold) = said(&whole(Server::start(&[]).complete(&body)));
    let mut server = start();
    assert_eq!((none, said(&whole(server.complete(&body)))), (0, (0, cold.clone())));
    // Another server gets on without it.
    let other = start();
    assert!(
        other.log.contains("is in use by another process; this one keeps no pages on disk"),
        "{}",
        other.log
    );
    assert_eq!(said(&whole(other.complete(&body))), (0, cold.clone()));
    drop(other);
    server.signal(libc::SIGTERM);
    assert_eq!(server.ended(PATIENCE), Some(0));

    let server = start();
    assert!(server.log.contains("pages of 16 tokens are on disk"), "{}", server.log);
    let (cached, warm) = said(&whole(server.complete(&body)));
    assert!(cached >= 256 && warm == cold, "{cached} tokens: {warm}, not {cold}");
    assert_eq!(server.metric("vllm:external_prefix_cache_hits"), cached as f64);
    assert!(server.metric("vllm:disk_cache_loaded_bytes") > 0.0);
    assert_eq!(server.metric("vllm:disk_cache_refused_bytes"), 0.0);
    // Killed, which drop does.
    drop(server);
    let server = start();
    assert_eq!(said(&whole(server.complete(&body))), (cached, cold.clone()));
    drop(server);

    for path in segments(&folder) {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let server = start();
    let (damaged, answer) = said(&whole(server.complete(&body)));
    assert!(damaged < cached && answer == cold, "{damaged} tokens");
    assert!(server.metric("vllm:disk_cache_refused_bytes") > 0.0);
}

/// So it does with a model that has recurrent state: each turn of a conversation is answered by another server.
#[test]
fn a_restarted_recurrent_model_goes_on_from_its_state() {
    let (kept, model) = (Home::new(), golden("gguf-models/qwen3.5-bf16.gguf"));
    let folder = kept.path().join("cache");
    let start = |flags: &[&str]| {
        let home = Home::new();
        let command = home.command(&[&["serve", model.to_str().unwrap(), "--port", "0"], flags].concat());
        Server::of(home, command)
    };
    let in_folder = ["--cache-disk", folder.to_str().unwrap(), "--cache-disk-size", "100"];
    let prompt: Vec<u32> = (0..110).map(|i| 4 + i * 7 % 80).collect();
    let ask = |server: &Server, tokens: usize| {
        let prompt = &prompt[..tokens];
        let body =
            json!({"prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 2, "ignore_eos": true});
        said(&whole(server.complete(&body)))
    };
    let plain = start(&[]);
    for (tokens, from_cache) in [(50, 0), (90, 48), (90, 80), (110, 80)] {
        let mut server = start(&in_folder);
        let (_, cold) = ask(&plain, tokens);
        assert_eq!(ask(&server, tokens), (from_cache, cold), "{tokens} tokens");
        assert_eq!(server.metric("vllm:external_prefix_cache_hits"), from_cache as f64);
        server.signal(libc::SIGTERM);
        assert_eq!(server.ended(PATIENCE), Some(0));
    }
}

/// Killed at any time while it saves pages, it leaves none that is wrong.
#[test]
fn a_server_killed_while_it_saves_leaves_no_wrong_page() {
    let kept = Home::new();
    let folder = kept.path().join("cache");
    let start = || Server::start(&["--cache-disk", folder.to_str().unwrap()]);
    let body = |i: usize| json!({"prompt": format!("{i} {}", text(250)), "max_tokens": 4, "temperature": 0, "logprobs": 2});
    let plain = Server::start(&[]);
    let cold: Vec<Value> = (0..4).map(|i| said(&whole(plain.complete(&body(i)))).1).collect();
    for milliseconds in [5, 30, 90] {
        let server = start();
        let streams: Vec<TcpStream> = (0..4).map(|i| server.complete(&body(i))).collect();
        std::thread::sleep(Duration::from_millis(milliseconds));
        drop(server);
        drop(streams);
        let server = start();
        for (i, cold) in cold.iter().enumerate() {
            assert_eq!(&said(&whole(server.complete(&body(i)))).1, cold, "after {milliseconds} ms");
        }
        assert_eq!(server.metric("vllm:disk_cache_refused_bytes"), 0.0);
    }
}

/// Callers with different keys share nothing, also if the next server gets the keys in another order.
#[test]
fn callers_with_different_keys_share_no_disk_cache() {
    let kept = Home::new();
    let folder = kept.path().join("cache");
    let ask = |keys: &str, key: &str| {
        let keys = kept.file("keys", keys);
        let mut server = Server::start(&["--api-key-file", &keys, "--cache-disk", folder.to_str().unwrap()]);
        let body = json!({"prompt": text(100), "max_tokens": 4, "temperature": 0}).to_string();
        let (cached, _) = said(&whole(server.request_as(key, "POST", "/v1/completions", &body)));
        server.signal(libc::SIGTERM);
        assert_eq!(server.ended(PATIENCE), Some(0));
        cached
    };
    assert_eq!(ask("one\ntwo\n", "one"), 0);
    assert_eq!(ask("one\ntwo\n", "two"), 0);
    assert!(ask("one\ntwo\n", "one") > 0);
    assert_eq!(ask("two\none\n", "two"), 0);
    assert_eq!(ask("two\n", "two"), 0);
    assert!(ask("one\ntwo\n", "two") > 0);
}

/// With `--cache-ram` a GPU's evicted pages are loaded back, and a small cache answers as a large one does.
#[test]
fn what_a_gpu_evicts_comes_back_from_ram() {
    let Some(device) = gpu() else { return };
    let small = ["--device", &device, "--slots", "1", "--context", "192"];
    let server = Server::start(&[&small[..], &["--cache-ram", "64"]].concat());
    assert!(server.log.contains("RAM cache 64.0 MiB"), "{}", server.log);
    let ask = |server: &Server, i: usize| {
        let prompt = format!("{i} {}", text(90));
        let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 2});
        said(&whole(server.complete(&body)))
    };
    let cold: Vec<(u64, Value)> = (0..3).map(|i| ask(&server, i)).collect();
    let (cached, answer) = ask(&server, 0);
    assert!(cached >= 80 && answer == cold[0].1, "{cached} tokens: {answer}, not {}", cold[0].1);
    assert!(server.metric("vllm:external_prefix_cache_hits") > 0.0);
    assert!(server.metric("vllm:ram_cache_loaded_bytes") > 0.0);
    assert!((1.0..=f64::from(64 << 20)).contains(&server.metric("vllm:ram_cache_bytes")));
    // Without it they are computed again.
    let server = Server::start(&small);
    (0..3).for_each(|i| assert_eq!(ask(&server, i).1, cold[i].1));
    assert!(ask(&server, 0).0 < cached);
}

#[test]
fn a_ram_cache_that_cannot_be_is_refused_or_ignored() {
    // The CPU's KV cache is in that memory already.
    let server = Server::start(&["--device", "cpu", "--cache-ram", "64"]);
    assert!(server.log.contains("--cache-ram is for GPUs, and ignored"), "{}", server.log);
    assert!(!server.log.contains("RAM cache 64.0 MiB"), "{}", server.log);
    let home = Home::new();
    let refused = |args: &[&str]| home.run(&[&["serve"], args, &["--port", "0"]].concat()).failed();
    let path = golden("bert");
    let path = path.to_str().unwrap();
    let encoder = refused(&[path, "--cache-ram", "64"]);
    assert!(encoder.contains("--cache-ram: the model has an encoder"), "{encoder}");
    // A variable may be there for other models: it goes on, to the tokenizer that this one lacks.
    let mut command = home.command(&["serve", path, "--port", "0"]);
    let output = command.env("TALLOW_CACHE_RAM", "64").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("cache-ram are ignored: the model has an encoder"), "{log}");
    assert!(log.contains("tokenizer.json: is missing"), "{log}");
    let Some(device) = gpu() else { return };
    let large = refused(&["demo", "--device", &device, "--cache-ram", "1000000000"]);
    assert!(large.contains("--cache-ram: 954 TiB are asked for"), "{large}");
}

#[test]
fn a_disk_cache_that_cannot_be_is_refused() {
    let home = Home::new();
    let file = home.file("file", "");
    let refused = |args: &[&str]| {
        let why = home.run(&[&["serve", "demo", "--port", "0"], args].concat()).failed();
        why.replace(home.path().to_str().unwrap(), "HOME")
    };
    assert!(refused(&["--cache-disk", &file]).contains("error: --cache-disk: HOME/file: "));
    let small = refused(&["--cache-disk", "cache", "--cache-disk-size", "0"]);
    assert!(small.contains("0 bytes are too few for this model's pages"), "{small}");
    let encoder = golden("bert");
    let encoder =
        home.run(&["serve", encoder.to_str().unwrap(), "--port", "0", "--cache-disk", "cache"]).failed();
    assert!(encoder.contains("--cache-disk: the model has an encoder"), "{encoder}");
}
