//! Output: bodies, streams, choices, stop strings, logprobs, usage.

use crate::common::client::post;
use crate::common::{END, ServerBuilder, TestServer, bytes, hello, info, script, start_server};
use serde_json::{Value, json};
use tallow_engine::handle::{Done, Event, Info};
use tallow_engine::sampler::{Choice, Scored};
use tallow_engine::sim;
use tallow_text::tokenizer::Tokenizer;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A chat request with additional fields.
fn chat(more: Value) -> Value {
    let mut body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "prompt": "Hi", "max_tokens": 20});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Replaces what differs between runs.
fn normal(text: &str) -> String {
    let mut out = String::new();
    for event in text.split_inclusive("\n\n") {
        let value = event.trim_end().strip_prefix("data: ").unwrap_or(event);
        let Ok(value) = serde_json::from_str::<Value>(value) else {
            out += event;
            continue;
        };
        let mut event = event.to_owned();
        for (name, to) in [("id", json!("ID")), ("created", json!(0)), ("timings", json!("TIMINGS"))] {
            if let Some(was) = value.get(name) {
                let start = event.find(&format!("\"{name}\":")).unwrap() + name.len() + 3;
                let mut values = serde_json::Deserializer::from_str(&event[start..]).into_iter::<Value>();
                assert_eq!(values.next().unwrap().unwrap(), *was);
                let end = start + values.byte_offset();
                event.replace_range(start..end, &to.to_string());
            }
        }
        out += &event;
    }
    out
}

fn streamed_text(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str())).collect()
}

#[test]
fn a_streamed_chat_byte_by_byte() {
    let server = start_server(&hello());
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = post(CHAT, body).get(&server);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    insta::assert_snapshot!(normal(&reply.text()), @r#"
    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"delta":{"content":" world"},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"delta":{"content":"!!"},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

    data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[],"usage":{"prompt_tokens":21,"completion_tokens":4,"total_tokens":25,"prompt_tokens_details":{"cached_tokens":0}},"timings":"TIMINGS"}

    data: [DONE]
    "#);
}

#[test]
fn a_streamed_completion_byte_by_byte() {
    let reply = post(TEXT, text(json!({"stream": true}))).get(&start_server(&hello()));
    insta::assert_snapshot!(normal(&reply.text()), @r#"
    data: {"id":"ID","object":"text_completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"text":"Hello","logprobs":null,"finish_reason":null}]}

    data: {"id":"ID","object":"text_completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"text":" world","logprobs":null,"finish_reason":null}]}

    data: {"id":"ID","object":"text_completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"text":"!!","logprobs":null,"finish_reason":null}]}

    data: {"id":"ID","object":"text_completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"timings":"TIMINGS"}

    data: [DONE]
    "#);
}

#[test]
fn whole_bodies_byte_by_byte() {
    let server = start_server(&hello());
    let reply = post(CHAT, chat(json!({}))).get(&server);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    insta::assert_snapshot!(normal(&reply.text()), @r#"{"id":"ID","object":"chat.completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"message":{"role":"assistant","content":"Hello world!!","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":21,"completion_tokens":4,"total_tokens":25,"prompt_tokens_details":{"cached_tokens":0}},"timings":"TIMINGS"}"#);
    let reply = post(TEXT, text(json!({}))).get(&server);
    insta::assert_snapshot!(normal(&reply.text()), @r#"{"id":"ID","object":"text_completion","created":0,"model":"tiny","system_fingerprint":"tallow-0.1.0","choices":[{"index":0,"text":"Hello world!!","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}},"timings":"TIMINGS"}"#);
}

#[test]
fn timings_are_there_and_are_numbers() {
    let server = start_server(&hello());
    let streamed = post(CHAT, chat(json!({"stream": true}))).get(&server).chunks();
    let (last, rest) = streamed.split_last().unwrap();
    assert!(rest.iter().all(|chunk| chunk.get("timings").is_none() && chunk.get("usage").is_none()));
    let whole = post(CHAT, chat(json!({}))).get(&server).json();
    for timings in [&last["timings"], &whole["timings"]] {
        let names = ["queue_ms", "prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second"];
        assert!(names.iter().all(|name| timings[name].is_f64()), "{timings}");
        // One of the four tokens is the end-of-sequence token.
        assert_eq!((&timings["predicted_n"], &timings["cache_n"]), (&json!(4), &json!(0)));
        assert_eq!(timings["prompt_n"], whole["usage"]["prompt_tokens"]);
    }
}

#[test]
fn streamed_and_whole_texts_are_the_same() {
    // Multi-byte characters in pieces, special tokens, and an incomplete stop string.
    let mut reply = bytes("Grüße, 世界 🦀! ");
    reply.extend([256, 262, 257, 258]);
    reply.extend(bytes("STO and more"));
    reply.push(END);
    let server = start_server(&reply);
    for (path, body) in [(CHAT, chat as fn(Value) -> Value), (TEXT, text)] {
        let more = json!({"max_tokens": 200, "stop": ["STOP", "more and"]});
        let whole = post(path, body(more.clone())).get(&server).json();
        let choice = &whole["choices"][0];
        let expected = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
        assert_eq!(expected, "Grüße, 世界 🦀! Hello world!!STO and more");
        let mut more = more;
        more["stream"] = true.into();
        let chunks = post(path, body(more)).get(&server).chunks();
        assert_eq!(streamed_text(&chunks, 0), expected);
        let reasons = chunks.iter().filter(|c| c["choices"][0]["finish_reason"].is_string());
        assert_eq!(reasons.count(), 1);
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn no_part_of_a_stop_is_ever_shown() {
    let mut reply = bytes("one two three");
    reply.push(END);
    let server = start_server(&reply);
    for (stop, left, reason) in [
        (json!("two"), "one ", "stop"),
        (json!(["three", "e t"]), "on", "stop"),
        (json!(["zzz", "one"]), "", "stop"),
        (json!("threes"), "one two three", "stop"),
        (json!(" two threee"), "one two three", "stop"),
    ] {
        let more = json!({"stop": stop, "logprobs": true, "stream": true});
        let chunks = post(CHAT, chat(more)).get(&server).chunks();
        assert_eq!(streamed_text(&chunks, 0), left, "{stop}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], reason);
        let tokens =
            chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array()).flatten();
        let spoken: String = tokens.map(|token| token["token"].as_str().unwrap()).collect();
        assert_eq!(spoken, left, "tokens of the stop are not told either");
        let whole = post(CHAT, chat(json!({"stop": stop}))).get(&server).json();
        assert_eq!(whole["choices"][0]["message"]["content"], left);
    }
    let whole = post(CHAT, chat(json!({"max_tokens": 5}))).get(&server).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "one t");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    // Text held back for a stop string that was never completed is not lost.
    let whole = post(CHAT, chat(json!({"max_tokens": 5, "stop": "two"}))).get(&server).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "one t");
}

#[test]
fn several_choices_come_in_one_answer() {
    let server = start_server(&hello());
    let reply = post(CHAT, chat(json!({"n": 2}))).get(&server).json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]["content"]), (&json!(i), &json!("Hello world!!")));
    }
    // The prompt counts once, each answer separately.
    let one = post(CHAT, chat(json!({}))).get(&server).json();
    assert_eq!(reply["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(reply["usage"]["completion_tokens"], 8);
    let chunks = post(CHAT, chat(json!({"n": 3, "stream": true}))).get(&server).chunks();
    for i in 0..3 {
        assert_eq!(streamed_text(&chunks, i), "Hello world!!");
        let of = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == i).collect::<Vec<_>>();
        assert_eq!(of[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(of.last().unwrap()["choices"][0]["finish_reason"], "stop");
        assert_eq!(of.iter().filter(|c| c["choices"][0]["finish_reason"].is_string()).count(), 1);
    }
    let reply = post(TEXT, text(json!({"n": 2, "prompt": ["a", "bc"], "echo": true}))).get(&server).json();
    let texts: Vec<_> = reply["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect();
    assert_eq!(texts, ["aHello world!!", "aHello world!!", "bcHello world!!", "bcHello world!!"]);
    // Including each prompt's BOS.
    assert_eq!(reply["usage"]["prompt_tokens"], 2 + 3);
    server.wait_free();
}

#[test]
fn log_probabilities_of_a_chat() {
    let server = start_server(&hello());
    let more = json!({"logprobs": true, "top_logprobs": 2});
    let reply = post(CHAT, chat(more.clone())).get(&server).json();
    let logprobs = &reply["choices"][0]["logprobs"];
    insta::assert_snapshot!(logprobs.to_string(), @r#"{"content":[{"token":"Hello","logprob":-0.5,"bytes":[72,101,108,108,111],"top_logprobs":[{"token":"Hello","logprob":-0.5,"bytes":[72,101,108,108,111]},{"token":" world","logprob":-1.5,"bytes":[32,119,111,114,108,100]}]},{"token":" world","logprob":-0.5,"bytes":[32,119,111,114,108,100],"top_logprobs":[{"token":" world","logprob":-0.5,"bytes":[32,119,111,114,108,100]},{"token":"!!","logprob":-1.5,"bytes":[33,33]}]},{"token":"!!","logprob":-0.5,"bytes":[33,33],"top_logprobs":[{"token":"!!","logprob":-0.5,"bytes":[33,33]},{"token":" How","logprob":-1.5,"bytes":[32,72,111,119]}]}],"refusal":null}"#);
    let mut more = more;
    more["stream"] = true.into();
    let chunks = post(CHAT, chat(more)).get(&server).chunks();
    let streamed = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(json!(streamed.collect::<Vec<_>>()), logprobs["content"]);
    let reply = post(CHAT, chat(json!({"logprobs": true}))).get(&server).json();
    assert_eq!(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    let reply = post(CHAT, chat(json!({}))).get(&server).json();
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn log_probabilities_of_a_completion() {
    let server = start_server(&hello());
    let reply = post(TEXT, text(json!({"logprobs": 1}))).get(&server).json();
    insta::assert_snapshot!(reply["choices"][0]["logprobs"].to_string(), @r#"{"tokens":["Hello"," world","!!"],"token_logprobs":[-0.5,-0.5,-0.5],"top_logprobs":[{"Hello":-0.5},{" world":-0.5},{"!!":-0.5}],"text_offset":[0,5,11]}"#);
    let reply = post(TEXT, text(json!({"logprobs": 0}))).get(&server).json();
    assert_eq!(reply["choices"][0]["logprobs"]["top_logprobs"][0], json!({"Hello": -0.5}));
}

#[test]
fn prompts_are_texts_tokens_or_lists_of_either() {
    let server = start_server(&hello());
    for (prompt, tokens, echoed) in [
        (json!("ab"), 3, vec!["ab"]),
        // Literal special tokens are parsed, and BOS is added only once.
        (json!("<s>ab<|im_end|>"), 4, vec!["<s>ab<|im_end|>"]),
        (json!([97, 98]), 2, vec!["ab"]),
        (json!(["ab", "c"]), 5, vec!["ab", "c"]),
        (json!([[97], [98, 99]]), 3, vec!["a", "bc"]),
    ] {
        let reply =
            post(TEXT, text(json!({"prompt": prompt, "echo": true, "max_tokens": 1}))).get(&server).json();
        assert_eq!(reply["usage"]["prompt_tokens"], tokens, "{prompt}");
        let texts: Vec<_> =
            reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(texts, echoed.iter().map(|t| format!("{t}Hello")).collect::<Vec<_>>());
    }
    let reply = post(TEXT, text(json!({"echo": true, "max_tokens": 0}))).get(&server).json();
    assert_eq!(
        (&reply["choices"][0]["text"], &reply["usage"]["completion_tokens"]),
        (&json!("Hi"), &json!(0))
    );
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[test]
fn lengths_where_a_request_does_not_say() {
    let endless = bytes("x");
    let count = |server: &TestServer, path, body: &Value| {
        post(path, body).get(server).json()["usage"]["completion_tokens"].as_u64().unwrap() as usize
    };
    let server = start_server(&endless);
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let prompt = post(CHAT, chat(json!({}))).get(&server).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(count(&server, CHAT, &messages), 256 - prompt as usize, "a chat may fill the context");
    assert_eq!(count(&server, TEXT, &json!({"prompt": "Hi"})), 16, "a completion has 16 tokens");
    let mut builder = ServerBuilder::new(sim::start(info(), script(&endless)));
    builder.max_tokens = Some(7);
    let server = builder.start();
    assert_eq!(count(&server, CHAT, &messages), 7);
    assert_eq!(count(&server, TEXT, &json!({"prompt": "Hi"})), 7);
    assert_eq!(count(&server, CHAT, &chat(json!({"max_tokens": 3}))), 3);
    // It caps every answer, and a request for more ends with `length`.
    for (path, body) in
        [(CHAT, chat(json!({"max_tokens": 50}))), (TEXT, json!({"prompt": "Hi", "max_tokens": 50}))]
    {
        let reply = post(path, &body).get(&server).json();
        let (tokens, finish) = (&reply["usage"]["completion_tokens"], &reply["choices"][0]["finish_reason"]);
        assert_eq!((tokens, finish), (&json!(7), &json!("length")));
    }
}

#[test]
fn a_stream_says_how_far_its_prompt_is() {
    let handle = crate::common::scripted_engine(info(), |request| {
        let step = |computed| Event::Prefill { computed, cached: 16, total: 40 };
        let progress = if request.progress { vec![step(24), step(40)] } else { Vec::new() };
        let done = Done { cached_tokens: 16, new_tokens: 0, ..crate::common::done(request.prompt.len()) };
        std::iter::once(Event::Started { cached: 16 }).chain(progress).chain([Event::Done(done)]).collect()
    });
    let server = ServerBuilder::new(handle).start();
    for (path, body) in [(CHAT, chat(json!({}))), (TEXT, json!({"prompt": "Hi"}))] {
        let request = |wanted: bool| {
            let mut body = body.clone();
            body["stream"] = true.into();
            body["return_progress"] = wanted.into();
            post(path, body).get(&server).chunks()
        };
        let chunks = request(true);
        let reported: Vec<_> = chunks.iter().filter(|chunk| chunk.get("prompt_progress").is_some()).collect();
        let processed: Vec<_> = reported.iter().map(|chunk| &chunk["prompt_progress"]["processed"]).collect();
        assert_eq!(processed, [&json!(24), &json!(40)]);
        let first = &reported[0]["prompt_progress"];
        assert_eq!((&first["total"], &first["cache"]), (&json!(40), &json!(16)));
        assert!(first["time_ms"].is_u64() && reported[0]["choices"][0]["finish_reason"].is_null());
        assert!(request(false).iter().all(|chunk| chunk.get("prompt_progress").is_none()));
        let mut whole = body.clone();
        whole["return_progress"] = true.into();
        assert_eq!(post(path, whole).get(&server).param().as_deref(), Some("return_progress"));
    }
}

#[test]
fn tokens_from_the_cache_are_reported() {
    let handle = crate::common::scripted_engine(info(), |request| {
        let n = request.prompt.len();
        let done = Done { cached_tokens: 16, new_tokens: 3, ..crate::common::done(n) };
        vec![Event::Started { cached: 16 }, Event::Done(done)]
    });
    let server = ServerBuilder::new(handle).start();
    let reply = post(CHAT, chat(json!({"n": 2}))).get(&server).json();
    assert_eq!(
        reply["usage"],
        json!({"prompt_tokens": 21, "completion_tokens": 6, "total_tokens": 27,
               "prompt_tokens_details": {"cached_tokens": 16}})
    );
    assert_eq!((&reply["timings"]["cache_n"], &reply["timings"]["prompt_n"]), (&json!(32), &json!(10)));
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = post(CHAT, chat(more)).get(&server).chunks();
    let last = chunks.last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]["prompt_tokens_details"]["cached_tokens"]),
        (&json!([]), &json!(16))
    );
    assert!(last["timings"].is_object());
}

/// An engine that scores prompts in chunks and then generates one token.
fn scorer() -> TestServer {
    let scored = |token: u32, logprob: f32| Choice {
        token,
        logprob: Some(logprob),
        top: vec![Scored { token: 98, logprob: f32::NEG_INFINITY }],
    };
    let handle = crate::common::scripted_engine(info(), move |request| {
        assert!(request.score_prompt);
        let mut events = vec![Event::Started { cached: 0 }];
        events.extend(request.prompt[1..].iter().map(|token| Event::Prompt(vec![scored(*token, -1.0)])));
        if request.max_new > 0 {
            events.push(Event::Piece { text: "!!".into(), choice: scored(258, -2.0) });
        }
        events.push(Event::Done(crate::common::done(request.prompt.len())));
        events
    });
    ServerBuilder::new(handle).start()
}

#[test]
fn prompts_are_scored() {
    let server = scorer();
    let more = json!({"prompt": "aé", "echo": true, "logprobs": 1, "max_tokens": 0});
    let reply = post(TEXT, text(more)).get(&server).json();
    assert_eq!(reply["choices"][0]["text"], "aé");
    insta::assert_snapshot!(reply["choices"][0]["logprobs"].to_string(), @r#"{"tokens":["<s>","a","�","�"],"token_logprobs":[null,-1.0,-1.0,-1.0],"top_logprobs":[null,{"a":-1.0,"b":-9999.0},{"b":-9999.0,"�":-1.0},{"b":-9999.0,"�":-1.0}],"text_offset":[0,0,1,1]}"#);
    let more = json!({"prompt": "aé", "echo": true, "logprobs": 1, "max_tokens": 1});
    let whole = post(TEXT, text(more.clone())).get(&server).json();
    assert_eq!(whole["choices"][0]["text"], "aé!!");
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 5);
    let mut more = more;
    more["stream"] = true.into();
    let chunks = post(TEXT, text(more)).get(&server).chunks();
    assert_eq!(streamed_text(&chunks, 0), "aé!!");
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"][name].as_array()).flatten();
        assert_eq!(json!(streamed.collect::<Vec<_>>()), whole["choices"][0]["logprobs"][name]);
    }
    let more = json!({"prompt": "<s>a", "echo": true, "logprobs": 0, "max_tokens": 0});
    let begun = post(TEXT, text(more)).get(&server).json();
    assert_eq!(begun["choices"][0]["logprobs"]["text_offset"], json!([0, 3]), "here the text has it");
    let one = post(TEXT, text(json!({"prompt": [97], "echo": true, "logprobs": 0, "max_tokens": 0})));
    assert_eq!(one.get(&server).json()["choices"][0]["logprobs"]["tokens"], json!(["a"]));
}

/// The tokens of [`spaced`].
const ONCE: [u32; 5] = [3, 4, 5, 6, 7];

/// SentencePiece-style vocabulary: a space is part of the following word, and a text's first space is not shown.
fn spaced() -> Tokenizer {
    let vocab = json!({"<unk>": 0, "<s>": 1, "</s>": 2, "▁Once": 3, "▁upon": 4, "▁a": 5, "▁time": 6, "<0x0A>": 7, "▁": 8, "u": 9});
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    };
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let file = json!({
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": false},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "Sequence", "decoders": [
            replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>", "byte_fallback": true,
                  "ignore_merges": true}
    });
    Tokenizer::from_json(std::path::Path::new("tokenizer.json"), file.to_string().as_bytes(), None).unwrap()
}

fn spaced_info() -> Info {
    Info { tokenizer: spaced(), vocab: 10, ..info() }
}

#[test]
fn the_space_between_a_prompt_and_its_answer_is_kept() {
    let server =
        ServerBuilder::new(sim::start(spaced_info(), script(&[ONCE[1], ONCE[2], 7, ONCE[3], 2]))).start();
    let answers = |more: Value| {
        let reply = post(TEXT, text(more)).get(&server).json();
        let texts =
            reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap().to_owned());
        texts.collect::<Vec<_>>()
    };
    assert_eq!(answers(json!({"prompt": "Once"})), [" upon a\n time"]);
    assert_eq!(answers(json!({"prompt": "Once", "echo": true})), ["Once upon a\n time"]);
    assert_eq!(answers(json!({"prompt": [3, 7], "n": 2})), [" upon a\n time"; 2]);
    assert_eq!(answers(json!({"prompt": "Once", "stop": [" a"]})), [" upon"]);
    // No visible token precedes it here.
    assert_eq!(answers(json!({"prompt": [1]})), ["upon a\n time"]);
    let chunks = post(TEXT, text(json!({"prompt": "Once", "stream": true}))).get(&server).chunks();
    assert_eq!(streamed_text(&chunks, 0), " upon a\n time");
    let reply = post(TEXT, text(json!({"prompt": "Once", "logprobs": 0}))).get(&server).json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!([" upon", " a", "\n", " time"]));
    assert_eq!(logprobs["text_offset"], json!([0, 5, 7, 8]));
    let reply = post(CHAT, chat(json!({}))).get(&server).json();
    assert_eq!(reply["choices"][0]["message"]["content"], " upon a\n time", "a chat's prompt has text too");
}

#[test]
fn a_space_that_a_structure_does_not_allow_is_not_shown() {
    for (tokens, allowed) in [(&[ONCE[1], ONCE[2], 2][..], "upon a"), (&[8, ONCE[1], ONCE[2], 2], " upon a")]
    {
        let server = ServerBuilder::new(sim::start(spaced_info(), script(tokens))).start();
        let more = |stream: bool| json!({"guided_choice": [allowed], "prompt": "Once", "logprobs": 0, "stream": stream});
        let reply = post(TEXT, text(more(false))).get(&server).json();
        assert_eq!(reply["choices"][0]["text"], allowed, "{reply}");
        let offsets = reply["choices"][0]["logprobs"]["text_offset"].as_array().unwrap();
        assert_eq!(offsets.last(), Some(&json!(allowed.len() - 2)));
        let chunks = post(TEXT, text(more(true))).get(&server).chunks();
        assert_eq!(streamed_text(&chunks, 0), allowed);
        let reply = post(CHAT, chat(json!({"guided_choice": [allowed]}))).get(&server).json();
        assert_eq!(reply["choices"][0]["message"]["content"], allowed);
    }
}

#[test]
fn offsets_are_those_of_the_text_where_a_first_space_is_not_shown() {
    let scored = |token: u32| Choice { token, logprob: Some(-1.0), top: Vec::new() };
    let handle = crate::common::scripted_engine(spaced_info(), move |request| {
        let mut events = vec![Event::Started { cached: 0 }];
        events.extend(request.prompt[1..].iter().map(|token| Event::Prompt(vec![scored(*token)])));
        events.push(Event::Piece { text: " a".into(), choice: scored(ONCE[2]) });
        events.push(Event::Piece { text: " time".into(), choice: scored(ONCE[3]) });
        events.push(Event::Done(crate::common::done(request.prompt.len())));
        events
    });
    let server = ServerBuilder::new(handle).start();
    let more = json!({"prompt": "Once upon", "echo": true, "logprobs": 0});
    let choice = &post(TEXT, text(more)).get(&server).json()["choices"][0];
    assert_eq!(choice["text"], "Once upon a time");
    assert_eq!(choice["logprobs"]["tokens"], json!(["<s>", " Once", " upon", " a", " time"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 4, 9, 11]));
}
