//! Chats that send an answer's text back: the prompt has the tokens that were generated, and the same text.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::common::bodies::{CHAT, TEXT, with};
use crate::common::client::{ask, post};
use crate::common::{
    BOS, END, START, ServerBuilder, TestServer, bytes, done, info, script, scripted_engine, tokenizer, wait,
};
use serde_json::{Value, json};
use tallow_engine::handle::{Event, Finish, Info, Request};
use tallow_engine::sampler::Choice;
use tallow_engine::sim::{self, Script};
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Shown;

/// "Hello world!!" in tokens that this text is not tokenized to.
const HELLO: [u32; 3] = [256, 257, 258];

/// A server whose model answers with these tokens, and the requests that its engine receives. A stop string is in the
/// last token.
fn recorded(
    reply: &'static [u32],
    change: impl FnOnce(&mut ServerBuilder),
) -> (TestServer, Receiver<Request>) {
    let (send, requests) = std::sync::mpsc::channel();
    let handle = scripted_engine(Info { context: 1024, ..info() }, move |request| {
        let _ = send.send(request.clone());
        let mut text = tokenizer().stream_after(&request.prompt, Shown::Text).showing(request.shown.clone());
        let piece = |token: &u32| {
            let choice = Choice { token: *token, logprob: None, top: Vec::new() };
            Event::Piece { text: text.push(*token).unwrap_or_default().into(), choice }
        };
        let mut events: Vec<Event> = reply.iter().map(piece).collect();
        let mut end = done(request.prompt.len());
        if let Some(stop) = request.stops.first() {
            // What the client sees is shorter than what was generated.
            let Some(Event::Piece { text, .. }) = events.last_mut() else { panic!("{events:?}") };
            *text = text.split(stop.as_str()).next().unwrap().to_owned();
            end.reason = Finish::Stop(stop.clone());
        }
        events.push(Event::Done(end));
        events
    });
    let mut builder = ServerBuilder::new(handle);
    change(&mut builder);
    (builder.start(), requests)
}

fn usual(_: &mut ServerBuilder) {}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The content of an answer, and the tokens of its prompt.
fn said(server: &TestServer, requests: &Receiver<Request>, body: &Value) -> (String, Vec<u32>) {
    let reply = post(CHAT, body).get(server);
    assert_eq!(reply.status, 200, "{body} {}", reply.text());
    let content = match body["stream"] == true {
        true => {
            let chunks = reply.chunks();
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
        }
        false => reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
    };
    (content, requests.recv().unwrap().prompt)
}

/// Two messages with an answer between them.
fn second(question: &str, answer: &str, more: Value) -> Value {
    with(
        json!({"messages": [message("user", question), message("assistant", answer), message("user", "And?")]}),
        more,
    )
}

fn first(question: &str, more: Value) -> Value {
    with(json!({"messages": [message("user", question)]}), more)
}

/// The tokens of [`second`] as the template and the tokenizer give them, with these for the answer.
fn tokens(question: &str, answer: &[u32]) -> Vec<u32> {
    let turn = |role: &str, content: &[u32]| [&[START][..], &bytes(&format!("{role}\n")), content].concat();
    let asked = |question: &str| [turn("user", &bytes(question)), vec![END]].concat();
    let answered = [turn("assistant", answer), vec![END]].concat();
    [vec![BOS], asked(question), answered, asked("And?"), turn("assistant", &[])].concat()
}

#[test]
fn an_answer_that_is_sent_back_has_the_tokens_that_were_generated() {
    for stream in [false, true] {
        let (server, requests) = recorded(&HELLO, usual);
        let more = json!({ "stream": stream });
        let (mut messages, mut prompt) = (Vec::new(), Vec::new());
        for turn in 0..4 {
            messages.push(message("user", &format!("Question {turn}")));
            let body = with(json!({ "messages": messages }), more.clone());
            let (content, of_turn) = said(&server, &requests, &body);
            assert_eq!(content, "Hello world!!");
            prompt.extend(if turn == 0 { vec![BOS] } else { [&HELLO[..], &[END]].concat() });
            prompt.extend([&[START][..], &bytes(&format!("user\nQuestion {turn}")), &[END]].concat());
            prompt.extend([&[START][..], &bytes("assistant\n")].concat());
            assert_eq!(of_turn, prompt, "turn {turn}, stream: {stream}");
            messages.push(message("assistant", &content));
        }
        let metrics = ask("GET", "/metrics").get(&server).text();
        let reused = metrics.lines().find(|line| line.starts_with("vllm:reused_answer_tokens_total"));
        assert_eq!(reused.unwrap().rsplit_once(' ').unwrap().1, (3 * (1 + 2 + 3)).to_string());
    }
}

#[test]
fn only_the_text_that_is_the_same_has_its_tokens() {
    let (server, requests) = recorded(&HELLO, usual);
    said(&server, &requests, &first("Hi", json!({})));
    for (answer, ids) in [
        ("Hello world!!", HELLO.to_vec()),
        ("Hello world", HELLO[..2].to_vec()),
        ("Hello worlds", [&HELLO[..2], &bytes("s")].concat()),
        ("Hello work", [&HELLO[..1], &bytes(" work")].concat()),
        ("Hello world!! How", [&HELLO[..], &bytes(" How")].concat()),
        ("hello world!!", bytes("hello world!!")),
        // Trimmed by the client or the template.
        ("world!!", bytes("world!!")),
        ("", Vec::new()),
    ] {
        let (_, prompt) = said(&server, &requests, &second("Hi", answer, json!({})));
        assert_eq!(prompt, tokens("Hi", &ids), "{answer}");
    }
    // After another question it is another answer.
    let (_, prompt) = said(&server, &requests, &second("Ho", "Hello world!!", json!({})));
    assert_eq!(prompt, tokens("Ho", &bytes("Hello world!!")));
}

#[test]
fn special_tokens_that_were_generated_are_no_text() {
    // The model goes on beyond its turn; the client sees the text only.
    let (server, requests) = recorded(&[256, BOS, 257, START, 257], usual);
    let (content, _) = said(&server, &requests, &first("Hi", json!({"ignore_eos": true})));
    assert_eq!(content, "Hello world world");
    for (answer, ids) in [
        (content.as_str(), [&[256][..], &bytes(" world world")].concat()),
        ("Hello<s> world", [&[256][..], &bytes("<s> world")].concat()),
    ] {
        let (_, prompt) = said(&server, &requests, &second("Hi", answer, json!({})));
        assert_eq!(prompt, tokens("Hi", &ids), "{answer}");
    }
}

#[test]
fn an_answer_that_a_stop_string_ended_is_kept_as_far_as_it_was_sent() {
    let (server, requests) = recorded(&HELLO, usual);
    for (stop, ids) in [("!!", HELLO[..2].to_vec()), ("!", HELLO[..2].to_vec())] {
        let (content, _) = said(&server, &requests, &first("Hi", json!({ "stop": [stop] })));
        assert_eq!(content, "Hello world");
        let (_, prompt) = said(&server, &requests, &second("Hi", &content, json!({})));
        assert_eq!(prompt, tokens("Hi", &ids));
    }
}

#[test]
fn answers_of_which_the_thinking_is_left_out_change_nothing() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\
                  {% endfor %}<|im_start|>";
    for opened in ["", "<think>\n"] {
        let config = json!({"chat_template": format!("{source}{{{{ 'assistant\n{opened}' }}}}")});
        let thinks = |builder: &mut ServerBuilder| {
            builder.templates = ChatTemplates::from_config(Path::new("c"), &config, None).unwrap();
        };
        // "Hello", thought, and then " world!!".
        let begins = if opened.is_empty() { bytes("<think>") } else { Vec::new() };
        let reply = [begins, vec![256], bytes("</think>"), HELLO[1..].to_vec()].concat();
        let (server, requests) = recorded(reply.leak(), thinks);
        let (content, _) = said(&server, &requests, &first("Hi", json!({})));
        let (_, prompt) = said(&server, &requests, &second("Hi", &content, json!({})));
        let shown = content.rsplit("</think>").next().unwrap();
        assert_eq!(prompt, [tokens("Hi", &bytes(shown)), bytes(opened)].concat());
    }
}

#[test]
fn each_of_several_answers_can_be_sent_back() {
    let replies: [&[u32]; 2] = [&[256, 257], &[258, 259]];
    let (send, requests) = std::sync::mpsc::channel();
    let count = AtomicUsize::new(0);
    let handle = scripted_engine(info(), move |request| {
        let _ = send.send(request.prompt.clone());
        let reply = replies[count.fetch_add(1, Ordering::Relaxed) % 2];
        let piece = |token: &u32| {
            let text = String::from_utf8(tokenizer().token_bytes(*token).unwrap()).unwrap();
            Event::Piece { text, choice: Choice { token: *token, logprob: None, top: Vec::new() } }
        };
        reply.iter().map(piece).chain([Event::Done(done(request.prompt.len()))]).collect()
    });
    let server = ServerBuilder::new(handle).start();
    let reply = post(CHAT, first("Hi", json!({"n": 2}))).get(&server).json();
    requests.iter().take(2).for_each(drop);
    for (index, ids) in replies.iter().enumerate() {
        let content = reply["choices"][index]["message"]["content"].as_str().unwrap();
        assert_eq!(post(CHAT, second("Hi", content, json!({}))).get(&server).status, 200);
        assert_eq!(requests.recv().unwrap(), tokens("Hi", ids), "{content}");
    }
}

#[test]
fn who_shares_no_cache_shares_no_answers() {
    let (server, requests) =
        recorded(&HELLO, |builder| builder.settings.api_keys = vec!["alice".into(), "bob".into()]);
    let ask = |key: &str, body: Value| {
        let reply = post(CHAT, body).with("x-api-key", key).get(&server);
        assert_eq!(reply.status, 200, "{}", reply.text());
        requests.recv().unwrap().prompt
    };
    let (kept, anew) = (tokens("Hi", &HELLO), tokens("Hi", &bytes("Hello world!!")));
    let (mine, salted) = (json!({}), json!({"cache_salt": "mine"}));
    let next = |more: &Value| second("Hi", "Hello world!!", more.clone());
    ask("alice", first("Hi", mine.clone()));
    assert_eq!(ask("alice", next(&mine)), kept);
    for (key, more) in
        [("bob", &mine), ("alice", &salted), ("bob", &salted), ("alice", &json!({"cache_prompt": false}))]
    {
        assert_eq!(ask(key, next(more)), anew, "{key} {more}");
    }
    ask("alice", first("Hi", salted.clone()));
    assert_eq!(ask("alice", next(&salted)), kept);
    assert_eq!(ask("bob", next(&salted)), anew);
    // Nor is anything kept of those who want no cache.
    ask("bob", first("Hi", json!({"cache_prompt": false})));
    assert_eq!(ask("bob", next(&mine)), anew);
}

#[test]
fn texts_profit_too_but_not_tokens_that_were_given() {
    let (server, requests) = recorded(&HELLO, usual);
    let ask = |body: Value| {
        let reply = post(TEXT, body).get(&server);
        assert_eq!(reply.status, 200, "{}", reply.text());
        requests.recv().unwrap().prompt
    };
    ask(json!({"prompt": "Once upon a time"}));
    let begun = [&[BOS][..], &bytes("Once upon a time")].concat();
    let next = "Once upon a timeHello world!! And";
    assert_eq!(ask(json!({ "prompt": next })), [&begun, &HELLO[..], &bytes(" And")].concat());
    let anew = [&[BOS][..], &bytes(next)].concat();
    assert_eq!(ask(json!({ "prompt": anew })), anew);
    assert_eq!(ask(json!({ "prompt": next, "echo": true })), anew);
}

/// A client that leaves in the middle of an answer may send back what it has seen.
#[test]
fn what_a_client_has_seen_before_it_left_is_kept() {
    let pace = Duration::from_millis(20);
    let script = Script { pace, ..script(&[257]) };
    let info = Info { context: 1024, ..info() };
    let server = ServerBuilder::new(sim::start(info, script)).start();
    let stream = post(CHAT, first("Hi", json!({"stream": true}))).send(&server);
    let mut seen = String::new();
    let mut reader = BufReader::new(stream);
    while seen.matches(" world").count() < 5 {
        reader.read_line(&mut seen).unwrap();
    }
    drop(reader);
    server.wait_free();
    let count = |answer: &str, more: Value| {
        let body = second("Hi", answer, with(json!({"max_tokens": 1}), more));
        let reply = post(CHAT, body).get(&server).json();
        reply["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let answer = " world".repeat(5);
    let anew = count(&answer, json!({"cache_prompt": false}));
    wait(|| count(&answer, json!({})) == anew - 5 * 5, "the answer's tokens are kept");
}
