//! Structured output of a real model: whatever it would say, its answers conform.

use serde_json::{Value, json};

use crate::common::Home;
use crate::common::server::{Server, answer, whole};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

/// Checks an answer to [`schema`] by the words of the standard.
fn conforms(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let members = value.as_object().unwrap();
    assert_eq!(members.len(), 3, "{text}");
    assert!(members["name"].as_str().unwrap().chars().count() <= 12, "{text}");
    assert!((0..=120).contains(&members["age"].as_i64().unwrap()), "{text}");
    let tags = members["tags"].as_array().unwrap();
    assert!(tags.len() <= 2 && tags.iter().all(|tag| tag == "a" || tag == "b"), "{text}");
}

#[test]
fn an_answer_is_held_to_a_schema_a_grammar_or_a_regular_expression() {
    let home = Home::new();
    let run = |args: &[&str]| {
        home.run(&[&["run", "demo", "--device", "cpu", "-n", "400", "-p", "A person:"], args].concat())
    };
    for temperature in ["0", "1.5"] {
        let temperature = ["--temp", temperature, "--seed", "3"];
        conforms(&run(&[&temperature[..], &["--json-schema", &schema().to_string()]].concat()).ok());
        let file = home.file("schema.json", schema().to_string());
        conforms(&run(&[&temperature[..], &["-j", &file]].concat()).ok());
        let date = run(&[&temperature[..], &["--regex", "[12][0-9]{3}-[01][0-9]"]].concat()).ok();
        let digits: Vec<bool> = date.trim().chars().map(|c| c.is_ascii_digit()).collect();
        assert_eq!(digits, [true, true, true, true, false, true, true], "{date}");
        let grammar = "root ::= (\"yes\" | \"no\") \", \" [a-c]{2}";
        let said = run(&[&temperature[..], &["--grammar", grammar]].concat()).ok();
        let (word, rest) = said.trim().split_once(", ").unwrap();
        assert!(["yes", "no"].contains(&word) && rest.len() == 2, "{said}");
    }
    let refused: Vec<String> = [
        &["--json-schema", "{"][..],
        &["--json-schema", "{\"not\": {}}"],
        &["--json-schema", "{\"type\": \"string\", \"uniqueItems\": true, \"dependentRequired\": {}}"],
        &["--grammar", "root ::= nothing"],
        &["--regex", "("],
    ]
    .into_iter()
    .map(|args| run(args).failed())
    .collect();
    insta::assert_snapshot!(refused.concat());
}

/// An answer does not depend on what else is computed, and the other ways of asking compose with a schema.
#[test]
fn a_server_holds_answers_to_schemas_in_any_company() {
    let server = Server::start(&["--device", "cpu", "--slots", "8"]);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema(), "strict": true}});
    let body = |seed: u64, more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "A person"}],
            "max_tokens": 400, "seed": seed, "temperature": 1.0, "response_format": format,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let ask = |body: &Value| server.request("POST", "/v1/chat/completions", &body.to_string());
    let content = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let alone: Vec<String> = (0..8).map(|seed| content(&whole(ask(&body(seed, json!({})))))).collect();
    alone.iter().for_each(|text| conforms(text));
    assert!(alone.iter().any(|text| *text != alone[0]));
    let free = json!({"prompt": "Once upon a time", "max_tokens": 60, "seed": 1, "ignore_eos": true});
    let free_alone = whole(server.complete(&free))["choices"][0]["text"].clone();
    let at_once: Vec<_> = (0..8).map(|seed| ask(&body(seed, json!({})))).collect();
    let beside = server.complete(&free);
    let together: Vec<String> = at_once.into_iter().map(|stream| content(&whole(stream))).collect();
    assert_eq!(together, alone);
    assert_eq!(whole(beside)["choices"][0]["text"], free_alone);

    let several = whole(ask(&body(5, json!({"n": 4, "logprobs": true, "top_logprobs": 2}))));
    for choice in several["choices"].as_array().unwrap() {
        conforms(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
        assert!(choice["logprobs"]["content"].as_array().unwrap().len() > 5);
    }
    // The first answer's seed is the request's own.
    assert_eq!(content(&several), alone[5]);
    let greedy = json!({"temperature": 0, "frequency_penalty": 0.5, "stop": ["no such text"]});
    conforms(&content(&whole(ask(&body(0, greedy)))));
    let (status, streamed) = answer(ask(&body(2, json!({"stream": true}))));
    let pieces =
        streamed.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let text: String = pieces
        .map(|data| serde_json::from_str::<Value>(data).unwrap())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!((status, text), (200, alone[2].clone()));
    // Cut off by its length, an answer is the beginning of one.
    let cut = whole(ask(&body(3, json!({"max_tokens": 4}))));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(alone[3].starts_with(&content(&cut)), "{cut}");
    let completed = whole(server.complete(&json!({
        "prompt": "Is it so? ", "guided_choice": ["yes", "no"], "temperature": 2.0, "seed": 4})));
    assert!(["yes", "no"].contains(&completed["choices"][0]["text"].as_str().unwrap()), "{completed}");
    server.comes_to_rest();
}

/// Templates of two ways of writing calls: objects, and arguments one by one.
const TEMPLATES: [&str; 2] = [
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<tool_call>x</tool_call>",
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<tool_call><function=f><parameter=p>",
];

#[test]
fn a_model_is_made_to_call() {
    let Some(folder) = tallow_support::shared("stories260K-hf") else { return };
    for template in TEMPLATES {
        let home = Home::new();
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            home.file(name, std::fs::read(folder.join(name)).unwrap());
        }
        home.file("tokenizer_config.json", json!({"chat_template": template}).to_string());
        let model = home.path().to_str().unwrap().to_owned();
        let command = home.command(&["serve", &model, "--port", "0", "--device", "cpu"]);
        let server = Server::of(home, command);
        let forecast = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "maxLength": 9},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "units": {"enum": ["C", "F"]},
            },
            "required": ["city", "days"],
            "additionalProperties": false,
        });
        let tools = json!([
            {"type": "function", "function": {"name": "forecast", "parameters": forecast, "strict": true}},
            {"type": "function", "function": {"name": "clock"}},
        ]);
        let call = |choice: Value, seed: u64| {
            let body = json!({"messages": [{"role": "user", "content": "Sun?"}], "tools": tools, "tool_choice": choice,
                "parallel_tool_calls": false, "temperature": 1.5, "seed": seed, "max_tokens": 250});
            let answered = whole(server.request("POST", "/v1/chat/completions", &body.to_string()));
            let choice = &answered["choices"][0];
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &Value::Null)
            );
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            let text = |name: &str| calls[0]["function"][name].as_str().unwrap().to_owned();
            let arguments: Value = serde_json::from_str(&text("arguments")).unwrap();
            match text("name").as_str() {
                "clock" => assert_eq!(arguments, json!({})),
                name => {
                    assert_eq!(name, "forecast");
                    let city = arguments["city"].as_str().unwrap().chars().count();
                    assert!((1..=9).contains(&city), "{arguments}");
                    assert!((1..=7).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
                    assert!(
                        arguments.get("units").is_none_or(|units| units == "C" || units == "F"),
                        "{arguments}"
                    );
                }
            }
            text("name")
        };
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        let names: Vec<String> = (0..12).map(|seed| call(json!("required"), seed)).collect();
        assert!(
            names.iter().any(|name| name == "clock") && names.iter().any(|name| name == "forecast"),
            "{names:?}"
        );
        assert_eq!([call(named("clock"), 1), call(named("forecast"), 1)], ["clock", "forecast"]);
    }
}
