//! Tools: what a template is told of them, and calls in answers, whole and in streams.

use std::path::Path;

use crate::common::bodies::{CHAT, chat, refused, with};
use crate::common::client::post;
use crate::common::{END, ServerBuilder, TestServer, bytes, info, recording_engine, script, tokenizer};
use serde_json::{Value, json};
use tallow_engine::handle::Info;
use tallow_engine::sampler::{Allowed, Constraint};
use tallow_engine::sim;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Shown;

/// Writes calls as Hermes does.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>\
    {% if m.tool_calls %}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\
    {% else %}{{ m.content }}{% endif %}{% endfor %}";

fn model(template: &str, answer: &str) -> TestServer {
    let reply: Vec<u32> = bytes(answer).into_iter().chain([END]).collect();
    let templates =
        ChatTemplates::from_config(Path::new("c"), &json!({"chat_template": template}), None).unwrap();
    let info = Info { context: 1024, ..info() };
    ServerBuilder { templates, ..ServerBuilder::new(sim::start(info, script(&reply))) }.start()
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}])
}

fn asked(more: Value) -> Value {
    with(chat(json!({"max_tokens": 200, "tools": weather()})), more)
}

/// Content, calls (name, arguments) and finish reason of an answer, which must be the same whole and streamed.
fn answered(server: &TestServer, body: &Value) -> (Value, Vec<(String, String)>, String) {
    let whole = post(CHAT, body).get(server).json();
    let (choice, none) = (&whole["choices"][0], Vec::new());
    let of = |call: &Value, name: &str| call["function"][name].as_str().unwrap().to_owned();
    let all = choice["message"]["tool_calls"].as_array().unwrap_or(&none);
    let mut ids: Vec<&str> = all.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len());
    assert!(all.iter().all(|call| call["type"] == "function" && call.get("index").is_none()), "{whole}");
    let calls: Vec<_> = all.iter().map(|call| (of(call, "name"), of(call, "arguments"))).collect();
    let (content, finish) = (&choice["message"]["content"], choice["finish_reason"].as_str().unwrap());

    let chunks = post(CHAT, with(body.clone(), json!({"stream": true}))).get(server).chunks();
    let mut streamed: Vec<(String, String)> = Vec::new();
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        for call in delta["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            // The name and the id come once, in the first piece of a call.
            let index = call["index"].as_u64().unwrap() as usize;
            match call["id"].as_str() {
                Some(_) => {
                    assert_eq!(index, streamed.len());
                    streamed.push((of(call, "name"), of(call, "arguments")));
                }
                None => streamed[index].1 += call["function"]["arguments"].as_str().unwrap(),
            }
        }
    }
    assert_eq!(streamed, calls);
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, content.as_str().unwrap_or_default());
    let ends: Vec<&str> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(ends, [finish]);
    (content.clone(), calls, finish.to_owned())
}

fn call(city: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>")
}

fn called(city: &str) -> (String, String) {
    ("weather".into(), format!("{{\"city\": \"{city}\"}}"))
}

#[test]
fn calls_have_a_field_of_their_own() {
    let one = model(TEMPLATE, &call("Bern"));
    assert_eq!(answered(&one, &asked(json!({}))), (Value::Null, vec![called("Bern")], "tool_calls".into()));
    let two = model(TEMPLATE, &format!("Both.\n{}\n{}", call("Bern"), call("Zürich </tool_call>")));
    let calls = vec![called("Bern"), called("Zürich </tool_call>")];
    assert_eq!(answered(&two, &asked(json!({}))), (json!("Both."), calls, "tool_calls".into()));
    // The older fields mean the same.
    let functions = with(chat(json!({"max_tokens": 200})), json!({"functions": [weather()[0]["function"]]}));
    assert_eq!(answered(&one, &functions).1, [called("Bern")]);
}

/// Text that calls no tool that was offered stays content, as does all text without tools.
#[test]
fn what_is_no_call_is_content() {
    let text = |answer: &str, body: &Value| {
        let (content, calls, finish) = answered(&model(TEMPLATE, answer), body);
        assert_eq!((calls, finish.as_str()), (Vec::new(), "stop"));
        content.as_str().unwrap().to_owned()
    };
    for answer in [
        "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": }}</tool_call>",
        "<tool_call>{\"name\": \"weather\", \"argu",
        "Nothing to call.",
    ] {
        assert_eq!(text(answer, &asked(json!({}))), answer);
    }
    for off in [json!({"tools": []}), json!({"tools": null}), json!({"tool_choice": "none"})] {
        assert_eq!(text(&call("Bern"), &asked(off)), call("Bern"));
    }
}

#[test]
fn a_template_is_told_of_tools_and_of_earlier_calls() {
    let prompt = |template: &str, body: &Value| {
        let (handle, requests) = recording_engine(info());
        let templates =
            ChatTemplates::from_config(Path::new("c"), &json!({"chat_template": template}), None).unwrap();
        let server = ServerBuilder { templates, ..ServerBuilder::new(handle) }.start();
        let reply = post(CHAT, body).get(&server);
        assert_eq!(reply.status, 200, "{}", reply.text());
        tokenizer().decode(&requests.recv().unwrap().prompt, Shown::All)
    };
    let id = "abcdefghi";
    let history = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"b\": [1, 2.50]}"}}]},
        {"role": "tool", "tool_call_id": id, "content": "c"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": [{"type": "text", "text": "d"}]},
    ]});
    let body = with(chat(json!({})), history);
    insta::assert_snapshot!(prompt(TEMPLATE, &body));
    // A template that puts the arguments in as they are gets them as text.
    let as_text = TEMPLATE.replace(
        "{{ call.function | tojson }}",
        "{{ call.function.name }}: {{ '' + call.function.arguments }}",
    );
    insta::assert_snapshot!(prompt(&as_text, &body));
}

/// The constraint that the engine is told of.
fn constraint_of(body: &Value) -> Option<Box<dyn Constraint>> {
    let (handle, requests) = recording_engine(Info { context: 1024, ..info() });
    let templates =
        ChatTemplates::from_config(Path::new("c"), &json!({"chat_template": TEMPLATE}), None).unwrap();
    let server = ServerBuilder { templates, ..ServerBuilder::new(handle) }.start();
    let reply = post(CHAT, body).get(&server);
    assert_eq!(reply.status, 200, "{}", reply.text());
    requests.recv().unwrap().constraint
}

/// True if the engine is told to give this answer, all others if it is told nothing.
fn may_answer(body: &Value, answer: &str) -> bool {
    let Some(mut constraint) = constraint_of(body) else { return true };
    let follows = bytes(answer).into_iter().all(|token| {
        let allowed = constraint.allowed().unwrap().contains(token);
        allowed == constraint.accept(token).is_ok() && allowed
    });
    follows && constraint.allowed().unwrap().contains(END)
}

#[test]
fn calls_are_forced_and_held_to_their_schemas() {
    let strict = |strict: bool| {
        let mut tools = weather();
        tools[0]["function"]["strict"] = strict.into();
        tools.as_array_mut().unwrap().push(json!({"type": "function", "function": {"name": "clock"}}));
        json!({"tools": tools})
    };
    let choose = |choice: Value| with(strict(false), json!({"tool_choice": choice}));
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"type": "integer"}},
        "required": ["a"], "type": "object"}}});
    let weather = |city: &str| call("Bern").replace("\"Bern\"", city);
    let clock = "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let free = "Let me see.\n";
    for (body, can, cannot) in [
        (
            choose(json!("required")),
            vec![call("Bern"), clock.into(), format!("{clock}\n{}", call("Z\u{fc}rich"))],
            vec![
                "Hello".into(),
                String::new(),
                weather("5"),
                // Templates write earlier calls with one space there.
                weather("\"Bern\" "),
                // The tool names its parameters.
                weather("\"Bern\", \"more\": 1"),
                format!("{free}{clock}"),
                format!("{clock}\nDone."),
            ],
        ),
        (choose(named("clock")), vec![clock.into()], vec![call("Bern"), format!("{clock}\n{clock}")]),
        (choose(json!({"name": "weather"})), vec![call("Bern")], vec![clock.into()]),
        (
            with(choose(json!("required")), json!({"parallel_tool_calls": false})),
            vec![clock.into()],
            vec![format!("{clock}\n{clock}")],
        ),
        (
            with(choose(json!("required")), json!({"response_format": format})),
            vec![clock.into()],
            vec!["{\"a\": 1}".into()],
        ),
        (strict(false), vec!["Hello".into(), call("Bern"), weather("5")], vec![]),
        (
            strict(true),
            vec!["Hello".into(), call("Bern"), format!("{free}{}\n{clock}\nDone.", call("Bern"))],
            vec![weather("5"), format!("{free}{}", weather("5")), "<tool_call>x".into()],
        ),
        (
            with(strict(true), json!({"parallel_tool_calls": false})),
            vec!["Hello".into(), format!("{free}{clock}")],
            vec![format!("{clock}{clock}")],
        ),
        (
            with(strict(false), json!({"response_format": format})),
            vec![clock.into(), "{\"a\": 1}".into()],
            vec!["Hello".into(), weather("5"), "{\"a\": \"b\"}".into(), format!("{free}{clock}")],
        ),
    ] {
        let body = with(chat(json!({"max_tokens": 200})), body);
        for answer in can {
            assert!(may_answer(&body, &answer), "{body}: {answer}");
        }
        for answer in cannot {
            assert!(!may_answer(&body, &answer), "{body}: {answer}");
        }
    }
    // What all calls begin with is told at once.
    let mut constraint =
        constraint_of(&with(chat(json!({"max_tokens": 200})), choose(named("clock")))).unwrap();
    let Allowed::Forced { token, then } = constraint.allowed().unwrap() else { panic!("{constraint:?}") };
    let all = [&[token], &then[..]].concat();
    assert!(bytes(clock).starts_with(&all) && all.len() > 30, "{all:?}");
    let forced = answered(&model(TEMPLATE, &call("Bern")), &asked(json!({"tool_choice": "required"})));
    assert_eq!(forced, (Value::Null, vec![called("Bern")], "tool_calls".into()));
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let server = model(TEMPLATE, "");
    let f =
        |more: Value| json!({"tools": [{"type": "function", "function": with(json!({"name": "f"}), more)}]});
    let called = |call: Value| json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    let mut all = String::new();
    for (more, param) in [
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (f(json!({"name": ""})), "tools[0].function.name"),
        (f(json!({"parameters": []})), "tools[0].function.parameters"),
        (f(json!({"strict": 1})), "tools[0].function.strict"),
        (f(json!({"more": 1})), "tools[0].function.more"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice.name"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            "tool_choice.function.name",
        ),
        (json!({"tool_choice": "required", "tools": []}), "tool_choice"),
        (json!({"tool_choice": "required", "ignore_eos": true}), "ignore_eos"),
        (
            with(
                f(json!({"parameters": {"properties": {"a": {"contentSchema": {}}}}})),
                json!({"tool_choice": "required"}),
            ),
            "tools[0].function.parameters",
        ),
        (
            f(json!({"parameters": {"properties": {"a": {"contentSchema": {}}}}, "strict": true})),
            "tools[0].function.parameters",
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": {"properties": {"a": {"contentSchema": {}}}}}}),
            "response_format",
        ),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (called(json!({"id": "a", "type": "function"})), "messages[0].tool_calls[0].function"),
        (called(json!({"function": {"arguments": "{}"}})), "messages[0].tool_calls[0].function.name"),
        (
            called(json!({"function": {"name": "f", "arguments": 1}})),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        all += &format!("{}\n", refused(&server, CHAT, &asked(more), param));
    }
    let deaf = model("{% for m in messages %}{{ m.content }}{% endfor %}", "");
    all += &format!("{}\n", refused(&deaf, CHAT, &asked(json!({})), "tools"));
    let gemma = model("{{ tools }}<|tool_call>call:f{<tool_call|>", "");
    for more in [json!({"tool_choice": "required"}), json!({"response_format": {"type": "json_object"}})] {
        let param = if more.get("tool_choice").is_some() { "tool_choice" } else { "response_format" };
        all += &format!("{}\n", refused(&gemma, CHAT, &asked(more), param));
    }
    let many: Vec<Value> =
        (0..1025).map(|i| json!({"type": "function", "function": {"name": format!("f{i}")}})).collect();
    all += &refused(&server, CHAT, &asked(json!({"tools": many})), "tools");
    insta::assert_snapshot!(all);
}
