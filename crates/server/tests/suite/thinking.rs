//! Reasoning in answers: its own field, in whole answers and in streams, and the request fields that control it.

use std::path::Path;

use crate::common::bodies::{CHAT, TEXT, chat, refused, taken, text};
use crate::common::client::post;
use crate::common::{END, ServerBuilder, TestServer, bytes, info, recording_engine, script, tokenizer};
use serde_json::{Value, json};
use tallow_engine::sim;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Shown;

/// Thinks between tags, and can be switched off.
const SWITCHED: &str = "{% for m in messages %}{{ m.content }}</think>{% endfor %}\
                        {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";
/// The prompt opens the thinking block.
const OPENED: &str = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>\n";
/// Thinks in a channel, with a `reasoning_effort`.
const CHANNELS: &str = "<|start|>system<|channel|>analysis {{ reasoning_effort }}<|start|>assistant";
const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

fn templates(source: &str) -> Option<ChatTemplates> {
    ChatTemplates::from_config(Path::new("c"), &json!({"chat_template": source}), None).unwrap()
}

/// A model with this template that answers with this text.
fn model(template: &str, answer: &str) -> TestServer {
    let reply: Vec<u32> = bytes(answer).into_iter().chain([END]).collect();
    ServerBuilder { templates: templates(template), ..ServerBuilder::new(sim::start(info(), script(&reply))) }
        .start()
}

fn long(more: Value) -> Value {
    crate::common::bodies::with(chat(json!({"max_tokens": 100})), more)
}

/// Reasoning and text of an answer, which must be the same whole and streamed.
fn answered(server: &TestServer, more: &Value) -> (Option<String>, String) {
    let whole = post(CHAT, long(more.clone())).get(server).json();
    let message = &whole["choices"][0]["message"];
    let reasoning = message.get("reasoning_content").map(|text| text.as_str().unwrap().to_owned());
    let content = message["content"].as_str().unwrap().to_owned();
    let mut body = long(more.clone());
    body["stream"] = true.into();
    let chunks = post(CHAT, body).get(server).chunks();
    let all = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!(
        (all("reasoning_content"), all("content")),
        (reasoning.clone().unwrap_or_default(), content.clone())
    );
    (reasoning, content)
}

fn both(reasoning: &str, content: &str) -> (Option<String>, String) {
    (Some(reasoning.into()), content.into())
}

#[test]
fn reasoning_has_a_field_of_its_own() {
    let tagged = "<think>\nI see.\n</think>\n\nYes.";
    assert_eq!(answered(&model(SWITCHED, tagged), &json!({})), both("I see.", "Yes."));
    assert_eq!(answered(&model(OPENED, "I see.\n</think>\n\nYes."), &json!({})), both("I see.", "Yes."));
    let channels =
        "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    assert_eq!(answered(&model(CHANNELS, channels), &json!({})), both("I see.", "Yes."));
    assert_eq!(answered(&model(SWITCHED, "Yes."), &json!({})), (None, "Yes.".into()));
    // A model that does not think may write about tags.
    assert_eq!(answered(&model(PLAIN, tagged), &json!({})), (None, tagged.into()));
    // Cut off while thinking: none of it is part of the answer.
    let whole = post(CHAT, chat(json!({"max_tokens": 12}))).get(&model(SWITCHED, tagged)).json();
    let choice = &whole["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(""), &json!("length")));
    assert_eq!(choice["message"]["reasoning_content"], "I se");
}

#[test]
fn tokens_of_reasoning_are_counted() {
    let server = model(SWITCHED, "<think>ab</think>cd");
    let usage = post(CHAT, long(json!({}))).get(&server).json()["usage"].clone();
    // One token per byte: markers count as the reasoning they delimit, and the first one is only recognised at its end.
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": 1 + 2 + 8}));
    let plain = post(CHAT, long(json!({}))).get(&model(PLAIN, "ab")).json();
    assert_eq!(plain["usage"].get("completion_tokens_details"), None);
}

#[test]
fn reasoning_can_be_left_out_or_left_in() {
    let answer = "<think>I see.</think>Yes.";
    let server = model(SWITCHED, answer);
    for more in [
        json!({"reasoning_format": "hidden"}),
        json!({"include_reasoning": false}),
        json!({"reasoning": {"exclude": true}}),
    ] {
        assert_eq!(answered(&server, &more), (None, "Yes.".into()), "{more}");
    }
    for more in [json!({"reasoning_format": "none"}), json!({"separate_reasoning": false})] {
        assert_eq!(answered(&server, &more), (None, answer.into()), "{more}");
    }
    refused(&server, CHAT, &chat(json!({"reasoning_format": "loud"})), "reasoning_format");
}

#[test]
fn logprobs_are_of_all_tokens() {
    let server = model(SWITCHED, "<think>ab</think>cd");
    let more = json!({"logprobs": true});
    let whole = post(CHAT, long(more)).get(&server).json();
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "<think>ab</think>cd");
}

/// The prompt built from a body.
fn prompt(template: &str, more: Value) -> String {
    let (handle, requests) = recording_engine(info());
    let server = ServerBuilder { templates: templates(template), ..ServerBuilder::new(handle) }.start();
    taken(&server, CHAT, &chat(more));
    tokenizer().decode(&requests.recv().unwrap().prompt, Shown::Text)
}

#[test]
fn thinking_is_switched_by_every_name_for_it() {
    for more in [
        json!({"reasoning_effort": "none"}),
        json!({"reasoning_effort": "minimal"}),
        json!({"enable_thinking": false}),
        json!({"think": false}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"reasoning": {"effort": "none"}}),
        json!({"reasoning": {"enabled": false}}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert!(prompt(SWITCHED, more.clone()).ends_with("<think></think>"), "{more}");
    }
    for more in [
        json!({}),
        json!({"reasoning_effort": "high"}),
        json!({"think": true}),
        json!({"think": "low"}),
        json!({"thinking": {"type": "enabled"}, "reasoning_effort": "medium"}),
    ] {
        assert!(!prompt(SWITCHED, more.clone()).ends_with("<think></think>"), "{more}");
    }
    for (more, level) in [
        (json!({"reasoning_effort": "high"}), "high"),
        (json!({"reasoning_effort": "minimal"}), "low"),
        (json!({"reasoning": {"effort": "medium"}}), "medium"),
        (json!({"chat_template_kwargs": {"reasoning_effort": "low"}}), "low"),
    ] {
        assert!(prompt(CHANNELS, more.clone()).contains(&format!("analysis {level}")), "{more}");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let (switched, channels) = (model(SWITCHED, "x"), model(CHANNELS, "x"));
    let (opened, plain) = (model(OPENED, "x"), model(PLAIN, "x"));
    let mut all = String::new();
    for (server, more, param) in [
        (&channels, json!({"reasoning_effort": "none"}), "reasoning_effort"),
        (&channels, json!({"think": false}), "think"),
        (&opened, json!({"reasoning_effort": "low"}), "reasoning_effort"),
        (&opened, json!({"enable_thinking": false}), "enable_thinking"),
        (&plain, json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (&plain, json!({"think": true}), "think"),
        (&switched, json!({"reasoning_effort": "extreme"}), "reasoning_effort"),
        (&plain, json!({"thinking_budget": 9}), "thinking_budget"),
        (&switched, json!({"thinking_budget": 9, "reasoning": {"max_tokens": 8}}), "thinking_budget"),
        (&switched, json!({"thinking_budget": -2}), "thinking_budget"),
        (&switched, json!({"thinking": {"type": "no"}}), "thinking.type"),
        (&switched, json!({"reasoning_effort": "none", "think": true}), "think"),
        (
            &switched,
            json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}}),
            "reasoning_effort",
        ),
    ] {
        all += &(refused(server, CHAT, &chat(more), param) + "\n");
    }
    insta::assert_snapshot!(all, @r#"
    reasoning_effort cannot be honoured: this model always thinks; the least it takes is low; leave it out
    think cannot be honoured: this model always thinks; the least it takes is low; leave it out
    reasoning_effort cannot be honoured: this model always thinks: its chat template has no variable that controls it; leave it out
    enable_thinking cannot be honoured: this model always thinks: its chat template has no variable that controls it; leave it out
    reasoning_effort cannot be honoured: this model's chat template has no variable for how much to think; leave it out
    think cannot be honoured: this model's chat template has no variable for how much to think; leave it out
    reasoning_effort should be one of none, minimal, low, medium, high, and is "extreme"
    thinking_budget cannot be honoured: the model does not mark its reasoning; leave it out
    reasoning.max_tokens and thinking_budget contradict each other; give one of them
    thinking_budget should be from -1 to 2147483647, and is -2
    thinking.type should be enabled or disabled, and is "no"
    reasoning_effort and think contradict each other; give one of them
    reasoning_effort and chat_template_kwargs.enable_thinking contradict each other
    "#);
    // For a model that does not think, `none` is accepted.
    taken(&plain, CHAT, &chat(json!({"reasoning_effort": "none"})));
    refused(&plain, TEXT, &text(json!({"reasoning_effort": "none"})), "reasoning_effort");
}

#[test]
fn marks_that_are_special_tokens_are_read_all_the_same() {
    // The tokenizer hides <|im_start|> and <|im_end|>; as thinking markers they are shown.
    let (handle, requests) = recording_engine(info());
    let server = ServerBuilder { templates: templates(CHANNELS), ..ServerBuilder::new(handle) }.start();
    taken(&server, CHAT, &chat(json!({})));
    assert!(requests.recv().unwrap().shown.is_empty(), "it has none of those tokens");
    let mut stream = tokenizer().stream(Shown::Text).showing(vec![END]);
    assert_eq!(stream.push(crate::common::START), None);
    assert_eq!(stream.push(END), Some("<|im_end|>"));
}

/// The answer to a body of a model that would write `answer`, where its constraint lets it: then it goes on behind what it is
/// made to write.
fn held(template: &str, more: Value, answer: &str) -> String {
    let (handle, requests) = recording_engine(info());
    let server = ServerBuilder { templates: templates(template), ..ServerBuilder::new(handle) }.start();
    taken(&server, CHAT, &chat(more));
    let Some(mut constraint) = requests.recv().unwrap().constraint else { return answer.to_owned() };
    let mut written = Vec::new();
    let mut wanted = bytes(answer).into_iter().peekable();
    while let Some(next) = wanted.peek().copied() {
        let allowed = constraint.allowed().unwrap();
        let token = if allowed.contains(next) {
            wanted.next();
            next
        } else {
            let all: Vec<u32> =
                (0..crate::common::VOCAB as u32).filter(|token| allowed.contains(*token)).collect();
            let [only] = all[..] else { panic!("{all:?} instead of {next}") };
            only
        };
        constraint.accept(token).unwrap();
        written.push(token);
    }
    tokenizer().decode(&written, Shown::All)
}

#[test]
fn thinking_is_closed_where_its_budget_ends() {
    // One token for each byte.
    for more in [
        json!({"thinking_budget": 3}),
        json!({"thinking_token_budget": 3}),
        json!({"thinking_budget_tokens": 3}),
        json!({"reasoning_budget": 3}),
        json!({"reasoning": {"max_tokens": 3}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 3}}),
    ] {
        assert_eq!(held(SWITCHED, more.clone(), "<think>abcdef"), "<think>abc</think>def", "{more}");
    }
    let budget = |tokens: i64| json!({"thinking_budget": tokens});
    assert_eq!(held(SWITCHED, budget(11), "<think>ab</think>cdef"), "<think>ab</think>cdef");
    assert_eq!(held(SWITCHED, budget(3), "abcdef"), "abcdef");
    assert_eq!(held(SWITCHED, budget(3), " \n<think>abcdef"), " \n<think>abc</think>def");
    assert_eq!(held(SWITCHED, budget(-1), "<think>abcdef"), "<think>abcdef");
    assert_eq!(held(SWITCHED, budget(0), "<think>abc"), "<think></think>abc");
    // The prompt has opened it.
    assert_eq!(held(OPENED, budget(3), "abcdef"), "abc</think>def");
    assert_eq!(held(OPENED, budget(0), "abc"), "</think>abc");
    let analysis = "<|channel|>analysis<|message|>";
    let to_answer = "<|end|><|start|>assistant<|channel|>final<|message|>";
    let closed = format!("{analysis}abc{to_answer}XYZ");
    assert_eq!(held(CHANNELS, budget(3), &format!("{analysis}abcXYZ")), closed);
    // A structure begins behind it.
    let more = json!({"thinking_budget": 3, "guided_choice": ["yes"]});
    assert_eq!(held(OPENED, more, "abcyes"), "abc</think>yes");
}
