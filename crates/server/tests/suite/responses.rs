//! OpenAI's Responses API: what a request becomes, how it is answered, and responses that are kept.

use serde_json::{Value, json};
use tallow_engine::sim;
use tallow_server::Settings;

use crate::common::agent::{
    ANSWER, answering, may_answer, named_events, pretty, prompt, refusals, request, templates,
};
use crate::common::bodies::with;
use crate::common::client::{Reply, ask, post};
use crate::common::{END, ServerBuilder, TestServer, bytes, hello, info, script, wait};

const PATH: &str = "/v1/responses";

fn body(input: impl Into<Value>, more: Value) -> Value {
    with(json!({"model": "tiny", "input": input.into()}), more)
}

fn weather() -> Value {
    json!([{"type": "function", "name": "weather", "description": "d", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}])
}

#[test]
fn a_request_becomes_a_chat() {
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": text});
    let part = |kind: &str, text: &str| json!({"type": kind, "text": text});
    let items = json!([
        message("developer", "Be kind."),
        {"role": "user", "content": [part("input_text", "One"), part("input_text", "Two")]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part("reasoning_text", "Hm.")]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": "commentary",
         "content": [{"type": "output_text", "text": "See:", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "weather", "arguments": "{\"city\": \"Bern\"}"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "Sun"},
        {"type": "function_call_output", "call_id": "b", "output": [part("input_text", "Rain")]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        message("user", "Well?"),
    ]);
    insta::assert_snapshot!(prompt(PATH, &body(items, json!({"instructions": "S", "tools": weather()}))), @r#"
    [[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]]
    <system>S<system>Be kind.<user>One
    Two<assistant>(Hm.)See:<tool_call>#a {"name": "weather", "arguments": {"city": "Bern"}}</tool_call><tool_call>#b {"name": "weather", "arguments": {}}</tool_call><tool #a>Sun<tool #b>Rain<user>Well?<assistant>
    "#);
    insta::assert_snapshot!(prompt(PATH, &body("Hi", json!({"reasoning": {"effort": "none"}}))), @"<user>Hi<assistant>False");
    let two = json!([weather()[0], {"type": "function", "name": "other"}]);
    let only =
        json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]});
    insta::assert_snapshot!(prompt(PATH, &body("Hi", json!({"tools": two, "tool_choice": only}))), @r#"
    [[{"type": "function", "function": {"name": "other"}}]]
    <user>Hi<assistant>
    "#);
}

#[test]
fn fields_reach_the_engine() {
    let request =
        request(PATH, &body("Hi", json!({"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 7})));
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.25, 0.5));
    assert_eq!(request.max_new, 7);
}

/// Ids and times of a response, which are different each time, are taken out.
fn steady(mut response: Value) -> Value {
    for name in ["id", "created_at", "completed_at"] {
        response[name].take();
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"].take();
        if let Some(id) = item.get_mut("call_id") {
            assert_eq!(id.take().as_str().unwrap().len(), 9);
        }
    }
    response
}

#[test]
fn answers_are_responses() {
    let server = answering(ANSWER);
    let more = json!({"tools": weather(), "metadata": {"a": "b"}, "temperature": 0.7});
    let whole = post(PATH, body("Hi", more.clone())).get(&server).json();
    insta::assert_snapshot!(pretty(&steady(whole.clone())));

    let reply = post(PATH, body("Hi", with(more, json!({"stream": true})))).get(&server);
    let events = named_events(&reply.text());
    for (i, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(i)));
    }
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last.0, "response.completed");
    let response = &last.1["response"];
    assert_eq!(steady(response.clone()), steady(whole));
    // Each item is what its deltas make, and what the response has.
    let mut texts = std::collections::BTreeMap::<u64, String>::new();
    let mut done = Vec::new();
    for (name, data) in rest {
        let at = data["output_index"].as_u64();
        match name.as_str() {
            "response.output_item.added" => {
                assert_eq!(at, Some(done.len() as u64));
                assert_eq!(data["item"]["status"], "in_progress");
            }
            _ if name.ends_with(".delta") => {
                assert_eq!(data["item_id"], response["output"][done.len()]["id"]);
                *texts.entry(at.unwrap()).or_default() += data["delta"].as_str().unwrap();
            }
            "response.output_item.done" => {
                let item = &data["item"];
                let text = texts.remove(&at.unwrap()).unwrap();
                let of = item["arguments"].as_str().or(item["content"][0]["text"].as_str());
                assert_eq!(of, Some(text.as_str()));
                done.push(item.clone());
            }
            _ => {}
        }
    }
    assert_eq!(Value::Array(done), response["output"]);
}

#[test]
fn what_is_cut_off_is_incomplete() {
    let more = json!({"max_output_tokens": 3});
    let response = post(PATH, body("Hi", more.clone())).get(&answering("Yes, Sir.")).json();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&response["output"][0]["status"], &response["completed_at"]),
        (&json!("incomplete"), &Value::Null)
    );
    let stream = post(PATH, body("Hi", with(more, json!({"stream": true})))).get(&answering("Yes, Sir."));
    assert_eq!(named_events(&stream.text()).pop().unwrap().0, "response.incomplete");
}

#[test]
fn log_probabilities_are_included() {
    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let response = post(PATH, body("Hi", more)).get(&answering("Yes.")).json();
    let tokens = response["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "Yes.");
}

#[test]
fn calls_and_structures_are_forced() {
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (right, wrong) = (call("{\"city\": \"Bern\"}"), call("{\"city\": 5}"));
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let body = body("Hi", json!({"tools": weather(), "tool_choice": choice}));
        assert!(may_answer(PATH, &body, &right) && !may_answer(PATH, &body, &wrong));
        assert!(!may_answer(PATH, &body, "No."));
    }
    let format = json!({"format": {"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "integer"}}});
    let body = body("Hi", json!({"text": format}));
    assert!(may_answer(PATH, &body, "12") && !may_answer(PATH, &body, "twelve"));
}

fn created(server: &TestServer, body: Value) -> Value {
    let reply = post(PATH, &body).get(server);
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    reply.json()
}

fn at(id: &Value, more: &str) -> String {
    format!("{PATH}/{}{more}", id.as_str().unwrap())
}

#[test]
fn a_response_is_gone_on_from() {
    let server = answering("Yes.");
    let first = created(&server, body("One", json!({"instructions": "not kept"})));
    let second = created(&server, body("Two", json!({"previous_response_id": first["id"]})));
    assert_eq!(second["previous_response_id"], first["id"]);
    let third = body("Three", json!({"previous_response_id": second["id"], "instructions": "New."}));
    // The conversation, with the newest instructions in front.
    let counted = created(&server, third)["usage"]["input_tokens"].as_u64().unwrap();
    let text = "<system>New.<user>One<assistant>Yes.<user>Two<assistant>Yes.<user>Three<assistant>";
    // A token for each byte, and one that begins the prompt.
    assert_eq!(counted, text.len() as u64 + 1);
    assert_eq!(ask("GET", &at(&first["id"], "")).get(&server).json(), first);
    let items = ask("GET", &at(&second["id"], "/input_items?order=asc")).get(&server).json();
    assert_eq!(items["data"][0]["content"], json!([{"type": "input_text", "text": "Two"}]));
    assert_eq!((&items["first_id"], &items["has_more"]), (&items["data"][0]["id"], &json!(false)));
    // What is deleted or was not kept is not there.
    let gone = ask("DELETE", &at(&first["id"], "")).get(&server).json();
    assert_eq!(gone, json!({"id": first["id"], "object": "response", "deleted": true}));
    let unstored = created(&server, body("One", json!({"store": false})));
    for id in [&first["id"], &unstored["id"], &json!("resp_x")] {
        assert_eq!(ask("GET", &at(id, "")).get(&server).status, 404);
        let next = post(PATH, body("Two", json!({"previous_response_id": id}))).get(&server);
        assert_eq!((next.status, next.error().3.as_deref()), (404, Some("response_not_found")));
    }
    // The second one goes on from the first.
    let next = post(PATH, body("Three", json!({"previous_response_id": second["id"]}))).get(&server);
    assert_eq!(next.status, 404);
}

#[test]
fn streamed_responses_are_kept() {
    let server = answering("Yes.");
    let text = post(PATH, body("One", json!({"stream": true}))).get(&server).text();
    let response = named_events(&text).pop().unwrap().1["response"].clone();
    assert_eq!(ask("GET", &at(&response["id"], "")).get(&server).json(), response);
}

#[test]
fn responses_are_their_callers() {
    let settings = Settings { api_keys: vec!["a".into(), "b".into()], ..Settings::default() };
    let reply: Vec<u32> = bytes("Yes.").into_iter().chain([END]).collect();
    let engine = sim::start(info(), script(&reply));
    let server = ServerBuilder { settings, templates: templates(), ..ServerBuilder::new(engine) }.start();
    let mine = post(PATH, body("One", json!({}))).with("x-api-key", "a").get(&server).json();
    let path = at(&mine["id"], "");
    let status = |method: &str, key: &str| ask(method, &path).with("x-api-key", key).get(&server).status;
    assert_eq!((status("GET", "b"), status("DELETE", "b"), status("GET", "a")), (404, 404, 200));
    // A client's request id is not the id of its response.
    let named = post(PATH, body("One", json!({}))).with("x-api-key", "b").with("x-request-id", "mine");
    assert_ne!(named.get(&server).json()["id"], "resp_mine");
}

#[test]
fn responses_in_the_background_are_polled_and_cancelled() {
    let server = answering("Yes.");
    let begun = created(&server, body("One", json!({"background": true})));
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)));
    let get = |id: &Value| ask("GET", &at(id, "")).get(&server).json();
    wait(|| get(&begun["id"])["status"] != "in_progress", "it is complete");
    let ended = get(&begun["id"]);
    assert_eq!(
        (&ended["status"], &ended["output"][0]["content"][0]["text"]),
        (&json!("completed"), &json!("Yes."))
    );
    // It can be gone on from, and cancelled to no effect.
    created(&server, body("Two", json!({"previous_response_id": begun["id"]})));
    assert_eq!(post(&at(&begun["id"], "/cancel"), "{}").get(&server).json(), ended);
    let plain = created(&server, body("One", json!({})));
    assert_eq!(post(&at(&plain["id"], "/cancel"), "{}").get(&server).status, 400);

    let endless = sim::Script { reply: vec![256], ..script(&hello()) };
    let server = ServerBuilder::new(sim::start(info(), endless)).start();
    let begun = created(&server, body("One", json!({"background": true})));
    wait(|| server.handle.taken() == 1, "it runs");
    let next = post(PATH, body("Two", json!({"previous_response_id": begun["id"]}))).get(&server);
    assert_eq!(next.status, 404, "it is not complete");
    let cancelled = post(&at(&begun["id"], "/cancel"), "{}").get(&server).json();
    assert_eq!(cancelled["status"], "cancelled");
    server.wait_free();
    assert_eq!(ask("GET", &at(&begun["id"], "")).get(&server).json()["status"], "cancelled");
    // A deleted one ends, too.
    let begun = created(&server, body("One", json!({"background": true})));
    wait(|| server.handle.taken() == 1, "it runs");
    assert_eq!(ask("DELETE", &at(&begun["id"], "")).get(&server).status, 200);
    server.wait_free();

    let breaks = sim::Script { breaks_after: Some(2), ..script(&hello()) };
    let server = ServerBuilder::new(sim::start(info(), breaks)).start();
    let begun = created(&server, body("One", json!({"background": true})));
    let get = || ask("GET", &at(&begun["id"], "")).get(&server).json();
    wait(|| get()["status"] != "in_progress", "it has failed");
    assert_eq!((&get()["status"], get()["error"]["message"].is_string()), (&json!("failed"), true));
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let said = |reply: &Value| reply["error"]["message"].as_str().unwrap().to_owned();
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    let format = |format: Value| json!({"text": {"format": format}});
    let all = [
        json!({"model": "tiny"}),
        body("Hi", json!({"background": true, "store": false})),
        body("Hi", json!({"background": true, "stream": true})),
        body(json!([{"type": "item_reference", "id": "x"}]), json!({})),
        body(json!([{"role": "tool", "content": "x"}]), json!({})),
        body(json!([{"role": "user"}]), json!({})),
        body(json!([{"type": "function_call", "name": "f"}]), json!({})),
        body(image, json!({})),
        body("Hi", json!({"tools": [{"type": "web_search"}]})),
        body("Hi", json!({"tool_choice": "required"})),
        body("Hi", json!({"tools": weather(), "tool_choice": "some"})),
        body("Hi", json!({"tools": weather(), "tool_choice": {"type": "function", "name": "other"}})),
        body(
            "Hi",
            json!({"tools": weather(), "tool_choice": {"type": "allowed_tools", "mode": "auto",
            "tools": [{"type": "function", "name": "other"}]}}),
        ),
        body("Hi", format(json!({"type": "xml"}))),
        body("Hi", format(json!({"type": "json_schema", "name": "n"}))),
        body(
            "Hi",
            format(json!({"type": "json_schema", "name": "n",
            "schema": {"type": "object", "properties": {"a": {"type": "string", "contentSchema": {}}}}})),
        ),
        body("Hi", json!({"include": ["thoughts"]})),
        body("Hi", json!({"top_logprobs": 2})),
        body("Hi", json!({"conversation": "x"})),
        body("Hi", json!({"truncation": "auto"})),
        body("Hi", json!({"n": 2})),
        body("Hi", json!({"unknown": 2})),
    ];
    insta::assert_snapshot!(refusals(PATH, &all, said));
    let server = answering("Yes.");
    let id = created(&server, body("One", json!({})))["id"].clone();
    let refused = |query: &str| {
        let reply: Reply = ask("GET", &at(&id, query)).get(&server);
        assert_eq!(reply.status, 400, "{query}");
        said(&reply.json())
    };
    let queries = ["?stream=true", "/input_items?order=up", "/input_items?after=x", "/input_items?limit=0"];
    insta::assert_snapshot!(queries.map(refused).join("\n"), @r#"
    a response that is kept is given as a whole; leave stream out
    order should be asc or desc
    there is no item "x"
    limit should be from 1 to 100
    "#);
}

#[test]
fn a_failure_ends_a_stream_with_an_error() {
    let breaks = sim::Script { breaks_after: Some(2), ..script(&hello()) };
    let server = ServerBuilder::new(sim::start(info(), breaks)).start();
    let text = post(PATH, body("Hi", json!({"stream": true}))).get(&server).text();
    let (name, data) = named_events(&text).pop().unwrap();
    assert_eq!((name.as_str(), &data["response"]["status"]), ("response.failed", &json!("failed")), "{text}");
    assert!(data["response"]["error"]["message"].is_string());
}
