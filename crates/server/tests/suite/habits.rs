//! Compatibility: other servers' fields and routes, cache isolation between API keys, and browsers that open the
//! address.

use std::fmt::Write as _;
use std::sync::mpsc::Receiver;

use crate::common::bodies::{CHAT, TEXT, both_refuse, chat, refused, taken, text};
use crate::common::client::{ask, post};
use crate::common::{ServerBuilder, TestServer, hello, info, recording_engine, start_server};
use serde_json::{Value, json};
use tallow_engine::handle::Request;
use tallow_server::Settings;

fn recorded(settings: Settings) -> (TestServer, Receiver<Request>) {
    let (handle, requests) = recording_engine(info());
    (ServerBuilder { settings, ..ServerBuilder::new(handle) }.start(), requests)
}

#[test]
fn fields_of_other_servers_mean_the_same_here() {
    let (server, requests) = recorded(Settings::default());
    let theirs = json!({"n_predict": 9, "repeat_penalty": 1.5, "random_seed": 4, "stop_sequences": ["x"]});
    for path in [CHAT, TEXT] {
        let mut body = if path == CHAT { chat(theirs.clone()) } else { text(theirs.clone()) };
        body.as_object_mut().unwrap().remove("max_tokens");
        taken(&server, path, &body);
        let Request { max_new, sampling, stops, .. } = requests.recv().unwrap();
        assert_eq!((max_new, sampling.repetition_penalty, sampling.seed), (9, 1.5, 4));
        assert_eq!(stops, ["x"]);
        // If given under both names, the values must agree.
        taken(&server, path, &crate::common::bodies::with(body.clone(), json!({"max_tokens": 9})));
        let message =
            refused(&server, path, &crate::common::bodies::with(body, json!({"max_tokens": 8})), "n_predict");
        assert_eq!(message, "n_predict and max_tokens mean the same, and differ; give one of them");
        drop(requests.try_recv());
    }
    for unlimited in [json!({"n_predict": -1}), json!({"num_predict": -2})] {
        let mut body = text(unlimited);
        body.as_object_mut().unwrap().remove("max_tokens");
        taken(&server, TEXT, &body);
        assert_eq!(requests.recv().unwrap().max_new, 256 - 3, "until the context is full");
    }
    let message = refused(&server, TEXT, &json!({"prompt": "x", "n_predict": "many"}), "n_predict");
    assert_eq!(message, "n_predict should be a whole number, and is text");
}

#[test]
fn fields_of_other_servers_that_change_nothing_are_taken() {
    let server = start_server(&hello());
    for more in [
        json!({"cache_prompt": true, "id_slot": -1, "n_keep": 0, "n_probs": 0, "mirostat": 0, "mirostat_tau": 5.0}),
        json!({"tfs_z": 1.0, "repeat_last_n": 64, "dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0.0}),
        json!({"min_tokens": 0, "skip_special_tokens": true, "use_beam_search": false, "priority": 0}),
        json!({"keep_alive": "5m", "repeat_penalty": 1.0, "penalty_last_n": 256, "format": "", "options": {}}),
        json!({"timings_per_token": false, "return_progress": false, "guided_json": null, "best_of": 1}),
    ] {
        taken(&server, CHAT, &chat(more.clone()));
        taken(&server, TEXT, &text(more));
    }
}

#[test]
fn fields_of_other_servers_that_have_no_meaning_say_what_to_do() {
    let server = start_server(&hello());
    let mut all = String::new();
    for more in [
        json!({"mirostat": 2}),
        json!({"num_ctx": 8192}),
        json!({"options": {"temperature": 0}}),
        json!({"keep_alive": 0}),
        json!({"format": "json"}),
        json!({"min_tokens": 5}),
        json!({"skip_special_tokens": false}),
        json!({"repeat_last_n": 64, "repeat_penalty": 1.1}),
        json!({"n_probs": 5}),
        json!({"extra_body": {"top_k": 1}}),
        json!({"system": "Be brief."}),
        json!({"do_sample": false}),
        json!({"best_of": 2}),
        json!({"suffix": "x"}),
        json!({"store": true}),
    ] {
        let (name, value) =
            more.as_object().unwrap().iter().next().map(|(k, v)| (k.clone(), v.clone())).unwrap();
        let body = if ["suffix", "best_of"].contains(&name.as_str()) {
            refused(&server, TEXT, &text(json!({&name: value})), &name)
        } else {
            both_refuse(&server, more.clone(), &name)
        };
        writeln!(all, "{body}").unwrap();
    }
    insta::assert_snapshot!(all, @r#"
    mirostat with this value is not supported: there is temperature with top_k, top_p, min_p and typical_p
    num_ctx with this value is not supported: the context is set when the server starts: tallow serve --context TOKENS
    options with this value is not supported: give its members as fields of the body: temperature, top_k, top_p, min_p, repeat_penalty, num_predict, seed, stop and others; the context is set by `tallow serve --context`
    keep_alive with this value is not supported: the model stays loaded as long as the server runs
    format with this value is not supported: response_format holds an answer to JSON or to a JSON Schema
    min_tokens with this value is not supported: set ignore_eos with max_tokens, or say in the prompt how long the answer should be
    skip_special_tokens with this value is not supported: special tokens are not part of an answer's text; logprobs show them
    repeat_last_n with this value is not supported: repetition_penalty looks at the whole prompt and answer
    n_probs with this value is not supported: set logprobs, and in chats top_logprobs
    extra_body with this value is not supported: its members should be fields of the body
    system with this value is not supported: begin messages with one of the role system
    do_sample with this value is not supported: set temperature to 0, which always takes the most likely token
    best_of with this value is not supported: ask for n answers with logprobs, and take the best
    suffix cannot be honoured: the model has no tokens for filling in the middle; leave it out
    store with this value is not supported: answers are not stored here; leave it out
    "#);
    refused(&server, CHAT, &chat(json!({"prompt": "x"})), "prompt");
    refused(&server, TEXT, &text(json!({"messages": []})), "messages");
}

#[test]
fn who_wants_no_cache_shares_with_nobody() {
    let (server, requests) = recorded(Settings::default());
    let salt = |more: Value| {
        let is_cached = more["cache_prompt"] != json!(false);
        taken(&server, CHAT, &chat(more));
        let request = requests.recv().unwrap();
        assert_eq!(request.unsaved, !is_cached);
        request.salt
    };
    let one = salt(json!({"cache_prompt": false})).unwrap();
    assert_ne!(salt(json!({"cache_prompt": false})).unwrap(), one);
    assert_eq!(salt(json!({"cache_prompt": true, "cache_salt": "mine"})).as_deref(), Some("mine"));
    assert_eq!(salt(json!({})), None);
}

#[test]
fn callers_with_different_keys_share_no_cache() {
    let keys = |keys: &[&str]| Settings {
        api_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..Settings::default()
    };
    let (server, requests) = recorded(keys(&["alice", "bob", "alice"]));
    let salt = |key: &str, more: Value| {
        for (path, body) in [(CHAT, chat(more.clone())), (TEXT, text(more.clone()))] {
            let reply = post(path, body).with("x-api-key", key).get(&server);
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        let (one, other) = (requests.recv().unwrap().salt, requests.recv().unwrap().salt);
        assert_eq!(one, other, "chats and completions alike");
        one.unwrap()
    };
    let alice = salt("alice", json!({}));
    assert_eq!(salt("alice", json!({})), alice, "who has the same key shares");
    let bob = salt("bob", json!({}));
    assert_ne!(bob, alice);
    // No `cache_salt` of a client's own leads to another key's pages.
    let forged = alice.rsplit(':').next().unwrap().to_owned();
    for guess in ["", &alice, &forged, "key 0", ":", "0"] {
        let more = if guess.is_empty() { json!({}) } else { json!({"cache_salt": guess}) };
        assert_ne!(salt("bob", more), alice, "{guess}");
    }
    assert_ne!(salt("alice", json!({"cache_salt": "x"})), salt("bob", json!({"cache_salt": "x"})));
    // With only one key there is nobody to isolate from, so there is no salt.
    let (server, requests) = recorded(keys(&["alice", "alice"]));
    assert_eq!(post(CHAT, chat(json!({}))).with("api-key", "alice").get(&server).status, 200);
    assert_eq!(requests.recv().unwrap().salt, None);
}

#[test]
fn routes_of_other_servers_say_which_to_use() {
    let server = start_server(&hello());
    let mut all = String::new();
    for path in ["/v1/v1/models", "/embedding", "/api/push", "/healthz", "/v1/images/generations", "/nowhere"]
    {
        for method in ["POST", "GET"] {
            let reply = ask(method, path).with("content-type", "application/json").body("{}").get(&server);
            assert_eq!(reply.status, 404, "{method} {path}");
            if method == "POST" {
                let error = reply.json()["error"].clone();
                let message = error.as_str().or(error["message"].as_str());
                writeln!(all, "{}", message.unwrap()).unwrap();
            }
        }
    }
    insta::assert_snapshot!(all, @r#"
    there is nothing at "/v1/v1/models": /v1 is there twice: the base URL of the client should end in one
    there is nothing at "/embedding": embeddings are computed at POST /v1/embeddings, by servers of an embedding model
    there is nothing at "/api/push": models are those of the hub, by /api/pull and /api/delete, and what a folder has
    there is nothing at "/healthz": it is GET /health
    there is nothing at "/v1/images/generations": no model of that kind is supported
    there is nothing at "/nowhere"
    "#);
}

#[test]
fn a_browser_gets_a_page() {
    let site_ = start_server(&hello());
    let page = ask("GET", "/").with("accept", "text/html,application/xhtml+xml,*/*;q=0.8").get(&site_);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
    // What it is made of is there, under the same policy, and nothing else is.
    let files = page.text();
    let files: Vec<&str> =
        files.split("=\"page/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(files, ["icon.svg", "style.css", "main.js"]);
    for file in files {
        let part = ask("GET", &format!("/page/{file}")).get(&site_);
        assert_eq!((part.status, part.header("content-security-policy")), (200, Some(policy)), "{file}");
    }
    assert_eq!(ask("GET", "/page/index.html").get(&site_).status, 404);
    let plain = ask("GET", "/").get(&site_);
    assert_eq!((plain.status, plain.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert!(plain.text().contains("is running") && plain.text().contains("/v1/chat/completions"));
    // With API keys the page is there, and shows no model before it has one.
    let (closed, _requests) = recorded(Settings { api_keys: vec!["secret".into()], ..Settings::default() });
    for path in ["/", "/page/main.js"] {
        let page = ask("GET", path).with("accept", "text/html").get(&closed);
        assert!(page.status == 200 && !page.text().contains("tiny"), "{}", page.text());
    }
    let plain = ask("GET", "/").get(&closed);
    assert!(plain.status == 200 && !plain.text().contains("tiny"), "{}", plain.text());
    assert_eq!(ask("GET", "/v1/models").get(&closed).status, 401);
}

#[test]
fn a_mark_of_utf_8_in_front_is_no_harm() {
    let server = start_server(&hello());
    let body = [b"\xef\xbb\xbf".to_vec(), chat(json!({})).to_string().into_bytes()].concat();
    let send = |body: Vec<u8>| {
        ask("POST", CHAT).with("content-type", "application/json").body(body).get(&server).status
    };
    assert_eq!(send(body.clone()), 200);
    assert_eq!(send([b"\xef\xbb\xbf".to_vec(), body].concat()), 400);
}
