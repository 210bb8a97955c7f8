//! Invalid field values: each is refused with a message that names the field.

use crate::common::bodies::{CHAT, TEXT, both_refuse, chat, refused, taken, text};
use crate::common::client::{ask, post};
use crate::common::{VOCAB, hello, start_server};
use serde_json::{Value, json};

#[test]
fn item_19_messages_and_prompts_with_nothing_in_them() {
    let server = start_server(&hello());
    for (messages, param) in [
        (json!([]), "messages"),
        (json!("Hi"), "messages"),
        (json!(null), "messages"),
        (json!([null]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user"}]), "messages[1].content"),
        (json!([{"role": "assistant", "content": null}]), "messages[0].content"),
        (json!([{"role": "user", "content": 7}]), "messages[0].content"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": "x", "tool_calls": []}]), "messages[0].tool_calls"),
        (
            json!([{"role": "assistant", "content": "x", "tool_calls": [{}]}]),
            "messages[0].tool_calls[0].function",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
            "messages[0].content[0].type",
        ),
    ] {
        refused(&server, CHAT, &json!({"messages": messages}), param);
    }
    for prompt in [json!(null), json!([]), json!([[]])] {
        refused(&server, TEXT, &json!({"prompt": prompt}), "prompt");
    }
    refused(&server, TEXT, &json!({"prompt": {}}), "prompt");
    refused(&server, TEXT, &json!({"prompt": ["a", 1]}), "prompt[1]");
    // An empty text still has a BOS token.
    taken(&server, TEXT, &json!({"prompt": ""}));
    taken(&server, CHAT, &json!({"messages": [{"role": "user", "content": ""}]}));
}

#[test]
fn item_20_tokens_that_are_none() {
    let server = start_server(&hello());
    for (prompt, param) in [
        (json!([1, -1]), "prompt[1]"),
        (json!([1, 1.5]), "prompt[1]"),
        (json!([1, 4294967296_u64]), "prompt[1]"),
        (json!([VOCAB]), "prompt"),
        (json!([[1], [VOCAB]]), "prompt"),
    ] {
        refused(&server, TEXT, &json!({"prompt": prompt}), param);
    }
    taken(&server, TEXT, &json!({"prompt": [VOCAB - 1]}));
}

#[test]
fn item_21_prompts_longer_than_the_context() {
    let server = start_server(&hello());
    let reply = post(TEXT, json!({"prompt": "x".repeat(256)})).get(&server);
    let (message, _, param, code) = reply.error();
    assert_eq!(
        (reply.status, param.as_deref(), code.as_deref()),
        (400, Some("prompt"), Some("context_length_exceeded"))
    );
    assert!(message.contains("257 tokens") && message.contains("context of 256"), "{message}");
    let message = refused(
        &server,
        CHAT,
        &json!({"messages": [{"role": "user", "content": "x".repeat(300)}]}),
        "messages",
    );
    assert!(message.contains("319 tokens"), "{message}");
    // The context has room for one more token, so one is generated.
    let reply = post(TEXT, json!({"prompt": "x".repeat(254), "max_tokens": 100})).get(&server).json();
    assert_eq!(
        (&reply["usage"]["total_tokens"], &reply["choices"][0]["finish_reason"]),
        (&json!(256), &json!("length"))
    );
    refused(&server, TEXT, &json!({"prompt": "x".repeat(255), "max_tokens": 1}), "prompt");
    taken(&server, TEXT, &json!({"prompt": "x".repeat(255), "max_tokens": 0, "echo": true}));
}

#[test]
fn item_22_a_million_of_anything() {
    let server = start_server(&hello());
    refused(&server, TEXT, &json!({"prompt": vec!["a"; 65]}), "prompt");
    refused(&server, TEXT, &json!({"prompt": vec!["a"; 100_000]}), "prompt");
    refused(&server, TEXT, &json!({"prompt": ["a", "b"], "n": 65}), "n");
    both_refuse(&server, json!({"n": 1_000_000_000}), "n");
    both_refuse(&server, json!({"n": 129}), "n");
    both_refuse(&server, json!({"n": 0}), "n");
    both_refuse(&server, json!({"n": -1}), "n");
    // More than could ever run here, so waiting would not help.
    both_refuse(&server, json!({"n": 13}), "n");
    refused(&server, TEXT, &text(json!({"best_of": 1_000_000_000})), "best_of");
    refused(
        &server,
        CHAT,
        &json!({"messages": vec![json!({"role": "user", "content": ""}); 20_000]}),
        "messages",
    );
}

#[test]
fn item_23_lengths_out_of_range() {
    let server = start_server(&hello());
    for n in [
        json!(-1),
        json!(9_223_372_036_854_775_808_u64),
        json!(1e30),
        json!(2_147_483_648_u32),
        json!("9"),
        json!(1.5),
    ] {
        let message = both_refuse(&server, json!({"max_tokens": n}), "max_tokens");
        assert!(!n.is_u64() || message.contains("from 1 to 2147483647"), "{message}");
    }
    refused(&server, CHAT, &chat(json!({"max_tokens": 0})), "max_tokens");
    refused(
        &server,
        CHAT,
        &json!({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}),
        "max_completion_tokens",
    );
    refused(&server, TEXT, &text(json!({"max_tokens": 0})), "max_tokens");
    taken(&server, CHAT, &chat(json!({"max_tokens": 2_147_483_647})));
}

#[test]
fn item_24_numbers_out_of_range() {
    let server = start_server(&hello());
    for (name, range, bad, good) in [
        ("temperature", "from 0 to 10", vec![json!(-1), json!(1e308), json!(10.1)], json!(0)),
        ("top_p", "from 0 to 1", vec![json!(2), json!(-0.5)], json!(0)),
        ("top_k", "from -1 to 2147483647", vec![json!(-5), json!(2_147_483_648_u32)], json!(0)),
        ("min_p", "from 0 to 1", vec![json!(-0.1), json!(1.1)], json!(1)),
        ("typical_p", "", vec![json!(0), json!(1.5)], json!(0.5)),
        (
            "repetition_penalty",
            "from 0.01 to 10",
            vec![json!(0), json!(-1), json!(1e308), json!(1e-300)],
            json!(1),
        ),
        ("presence_penalty", "from -2 to 2", vec![json!(1e308), json!(-2.5)], json!(-2)),
        ("frequency_penalty", "from -2 to 2", vec![json!(1e308), json!(2.5)], json!(2)),
        (
            "seed",
            "from -9223372036854775808 to 9223372036854775807",
            vec![json!(18_446_744_073_709_551_615_u64), json!(1.8446744073709552e19)],
            json!(i64::MIN),
        ),
    ] {
        for value in bad {
            let message = both_refuse(&server, json!({name: value}), name);
            assert!(message.contains(range), "{message}");
        }
        both_refuse(&server, json!({name: "1"}), name);
        both_refuse(&server, json!({name: [1]}), name);
        taken(&server, CHAT, &chat(json!({name: good})));
    }
    both_refuse(&server, json!({"n_discard": -5}), "n_discard");
    both_refuse(&server, json!({"ignore_eos": 1}), "ignore_eos");
}

#[test]
fn whole_numbers_may_be_written_as_fractions() {
    let server = start_server(&hello());
    taken(&server, CHAT, &chat(json!({"max_tokens": 4.0, "n": 2.0, "top_k": -1.0, "seed": 7.0})));
    let reply = post(TEXT, json!({"prompt": [1.0, 2.0], "max_tokens": 3e0, "n": 2.0})).get(&server).json();
    assert_eq!(
        (reply["choices"].as_array().unwrap().len(), &reply["usage"]["prompt_tokens"]),
        (2, &json!(2))
    );
    both_refuse(&server, json!({"n": 129.0}), "n");
    both_refuse(&server, json!({"max_tokens": 4.5}), "max_tokens");
}

#[test]
fn item_25_biases_and_log_probabilities() {
    let server = start_server(&hello());
    let many: serde_json::Map<String, Value> = (0..1025).map(|i| (i.to_string(), json!(1))).collect();
    both_refuse(&server, json!({"logit_bias": many}), "logit_bias");
    both_refuse(&server, json!({"logit_bias": {"-1": 1}}), "logit_bias");
    both_refuse(&server, json!({"logit_bias": {"x": 1}}), "logit_bias");
    both_refuse(&server, json!({"logit_bias": {"4294967296": 1}}), "logit_bias");
    both_refuse(&server, json!({"logit_bias": {"265": 1}}), "logit_bias.265");
    both_refuse(&server, json!({"logit_bias": {"5": 101}}), "logit_bias.5");
    both_refuse(&server, json!({"logit_bias": {"5": null}}), "logit_bias.5");
    both_refuse(&server, json!({"logit_bias": [[5, 1]]}), "logit_bias");
    refused(&server, CHAT, &chat(json!({"logprobs": true, "top_logprobs": 1_000_000})), "top_logprobs");
    refused(&server, CHAT, &chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs");
    refused(&server, CHAT, &chat(json!({"top_logprobs": 1})), "top_logprobs");
    refused(&server, CHAT, &chat(json!({"logprobs": 5})), "logprobs");
    refused(&server, TEXT, &text(json!({"logprobs": 6})), "logprobs");
    refused(&server, TEXT, &text(json!({"logprobs": true})), "logprobs");
    both_refuse(&server, json!({"stop_token_ids": [265]}), "stop_token_ids[0]");
    both_refuse(&server, json!({"stop_token_ids": [1, -1]}), "stop_token_ids[1]");
    both_refuse(&server, json!({"stop_token_ids": vec![1; 129]}), "stop_token_ids");
}

#[test]
fn item_26_stops() {
    let server = start_server(&hello());
    both_refuse(&server, json!({"stop": ""}), "stop");
    both_refuse(&server, json!({"stop": ["a", ""]}), "stop");
    both_refuse(&server, json!({"stop": vec!["a"; 17]}), "stop");
    both_refuse(&server, json!({"stop": vec!["a"; 100_000]}), "stop");
    both_refuse(&server, json!({"stop": "x".repeat(1 << 20)}), "stop");
    both_refuse(&server, json!({"stop": ["a", 1]}), "stop[1]");
    both_refuse(&server, json!({"stop": 1}), "stop");
    taken(&server, CHAT, &chat(json!({"stop": vec!["x".repeat(1024); 16]})));
}

#[test]
fn item_34_models_that_are_not_there() {
    let server = start_server(&hello());
    let long = "x".repeat(10_000);
    for name in ["../../x", "%2e%2e", "a\0b", "http://evil.example/m", "", "TINY", &long] {
        for (path, body) in [(CHAT, chat(json!({"model": name}))), (TEXT, text(json!({"model": name})))] {
            let reply = post(path, body).get(&server);
            let (message, _, param, code) = reply.error();
            assert_eq!(
                (reply.status, param.as_deref(), code.as_deref()),
                (404, Some("model"), Some("model_not_found"))
            );
            assert!(message.len() < 200 && !message.contains('\0'), "{message}");
        }
    }
    for path in ["../../x", "%2e%2e", "a%00b", "x%0Ay", &long] {
        let reply = ask("GET", &format!("/v1/models/{path}")).get(&server);
        assert_eq!(reply.status, 404, "{path}");
        reply.error();
    }
    assert_eq!(ask("GET", "/v1/models/%ff").get(&server).status, 400);
    refused(&server, CHAT, &chat(json!({"model": 7})), "model");
    for name in ["tiny", "alias"] {
        let reply = post(CHAT, chat(json!({"model": name}))).get(&server);
        assert_eq!(reply.json()["model"], name);
        assert_eq!(ask("GET", &format!("/v1/models/{name}")).get(&server).json()["id"], name);
    }
    assert_eq!(post(CHAT, chat(json!({}))).get(&server).json()["model"], "tiny");
}

#[test]
fn item_35_names_of_requests_and_salts() {
    let server = start_server(&hello());
    let ask = |id: &str| post(CHAT, chat(json!({}))).with("x-request-id", id);
    let same: Vec<_> = (0..2).map(|_| ask("mine").with("connection", "close").send(&server)).collect();
    for stream in same {
        let reply = crate::common::client::read(stream);
        assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("mine")));
    }
    for id in ["x".repeat(129), "a\tb".into(), "caf\u{e9}".into(), String::new()] {
        let reply = ask(&id).get(&server);
        let given = reply.header("x-request-id").unwrap();
        assert!(given.len() == 32 && given != id, "{given}");
    }
    assert_eq!(ask(&"x".repeat(128)).get(&server).header("x-request-id").unwrap().len(), 128);
    let refused_too = crate::common::client::ask("GET", "/nowhere").with("x-request-id", "mine").get(&server);
    assert_eq!(refused_too.header("x-request-id"), Some("mine"));
    both_refuse(&server, json!({"cache_salt": "x".repeat(257)}), "cache_salt");
    both_refuse(&server, json!({"cache_salt": "x".repeat(10_000_000)}), "cache_salt");
    both_refuse(&server, json!({"cache_salt": ""}), "cache_salt");
    both_refuse(&server, json!({"cache_salt": 5}), "cache_salt");
    taken(&server, CHAT, &chat(json!({"cache_salt": "\u{0}\u{202e}\u{1f980}"})));
    both_refuse(&server, json!({"metadata": {"a": 1}}), "metadata.a");
    both_refuse(&server, json!({"user": 1}), "user");
}
