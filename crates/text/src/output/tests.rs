//! Cases of all formats, in every cutting; cost; templates.

mod cost;
mod random;
mod reasoning;
mod scans;
mod templates;
mod tools;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Event, OutputFormat, OutputParser, ToolCall, ToolFormat, Tools};

/// Events with neighbours of a kind joined.
fn joined(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Event::Content(text)), Event::Content(more)) => *text += &more,
            (Some(Event::Reasoning(text)), Event::Reasoning(more)) => *text += &more,
            (_, event) => all.push(event),
        }
    }
    all
}

/// The events of a text that comes in these pieces.
fn parse<'t>(mut parser: OutputParser, pieces: impl IntoIterator<Item = &'t str>) -> Vec<Event> {
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    joined(events)
}

/// The text in pieces of so many characters; the counts are taken in turn.
fn pieces(text: &str, counts: impl IntoIterator<Item = usize>) -> Vec<&str> {
    let (mut rest, mut all) = (text, Vec::new());
    let mut counts = counts.into_iter();
    while !rest.is_empty() {
        let count = counts.next().unwrap_or(usize::MAX);
        let end = rest.char_indices().nth(count.max(1)).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        all.push(piece);
        rest = behind;
    }
    all
}

/// Numbers of a linear congruential generator.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let next = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(next(&seed), next).map(|state| state >> 33)
}

/// The result of the whole text, which must be that of every cutting.
fn always(parser: &OutputParser, text: &str, name: &str) -> Vec<Event> {
    let whole = parse(parser.clone(), [text]);
    let check =
        |cut: Vec<&str>| assert_eq!(parse(parser.clone(), cut.iter().copied()), whole, "{name}: {cut:?}");
    for size in [1, 2, 3, 7] {
        check(pieces(text, std::iter::repeat(size)));
    }
    for (at, _) in text.char_indices() {
        check(vec![&text[..at], &text[at..]]);
    }
    for seed in 0..8 {
        check(pieces(text, numbers(seed).map(|n| 1 + n as usize % 17)));
    }
    whole
}

fn cases(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/output/cases/{name}.json"))
}

fn json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tools of a case: names of those in `tools.json`, or tools.
fn tools(case: &Json, known: &Json) -> Option<Arc<Tools>> {
    let tool = |tool: &Json| match tool.as_str() {
        Some(name) => {
            known.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == name).unwrap().clone()
        }
        None => tool.clone(),
    };
    let list: Vec<Json> = case.get("tools")?.as_array().unwrap().iter().map(tool).collect();
    Some(Arc::new(Tools::from_json(&list.into()).unwrap()))
}

fn all(events: &[Event], pick: impl Fn(&Event) -> Option<&String>) -> String {
    events.iter().filter_map(pick).map(String::as_str).collect()
}

/// Why the events are not those of a case.
fn difference(case: &Json, events: &[Event]) -> Option<String> {
    let text = |key: &str| case.get(key).and_then(Json::as_str).unwrap_or_default();
    let reasoning = all(events, |event| match event {
        Event::Reasoning(text) => Some(text),
        _ => None,
    });
    let content = all(events, |event| match event {
        Event::Content(text) => Some(text),
        _ => None,
    });
    let calls: Vec<&ToolCall> = events
        .iter()
        .filter_map(|event| match event {
            Event::Call(call) => Some(call),
            _ => None,
        })
        .collect();
    let wanted = case["calls"].as_array().unwrap();
    let is = |(call, wanted): (&&ToolCall, &Json)| {
        let arguments: Json = serde_json::from_str(&call.arguments).unwrap();
        assert!(arguments.is_object());
        let same = match &wanted["arguments"] {
            Json::String(text) => *text == call.arguments,
            value => *value == arguments,
        };
        same && wanted["name"] == call.name.as_str() && wanted["id"].as_str() == call.id.as_deref()
    };
    let same = calls.len() == wanted.len() && calls.iter().zip(wanted).all(is);
    let nothing = reasoning.is_empty() && calls.is_empty() && case["text"] == content.as_str();
    match () {
        () if reasoning != text("reasoning") => Some(format!("reasoning {reasoning:?}")),
        () if content != text("content") => Some(format!("content {content:?}")),
        () if !same => Some(format!("calls {calls:?}")),
        // Without calls and reasoning no character may be lost, unless the case says that markers are.
        () if wanted.is_empty() && reasoning.is_empty() && text("content") == text("text") && !nothing => {
            Some("lost text".to_owned())
        }
        () => None,
    }
}

#[test]
fn every_case_of_every_format_in_every_cutting() {
    let known = json(&cases("tools"));
    let mut wrong = Vec::new();
    for format in ToolFormat::ALL {
        let file = json(&cases(format.name()));
        let list = file.as_array().unwrap();
        assert!(list.len() >= 30, "{}", format.name());
        for case in list {
            let text = |key: &str| case.get(key).and_then(Json::as_str).unwrap_or_default();
            let parser = OutputFormat::new(format).parser(text("prefix"), tools(case, &known));
            let name = format!("{}: {}", format.name(), text("case"));
            let events = always(&parser, text("text"), &name);
            if let Some(why) = difference(case, &events) {
                wrong.push(format!("{name}\n  text {:?}\n  is {why}\n  not {case}", text("text")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn formats_have_names_and_are_found_by_them() {
    for format in ToolFormat::ALL {
        assert!(ToolFormat::named(format.name()).is_some_and(|found| std::ptr::eq(found, *format)));
        assert!(!format.models().is_empty());
    }
    assert!(ToolFormat::named("other").is_none());
    let files = std::fs::read_dir(cases("json").parent().unwrap()).unwrap();
    assert_eq!(files.count(), ToolFormat::ALL.len() + 1, "a file of cases for each format, and tools.json");
}

#[test]
fn formats_are_found_by_their_names() {
    let whole = ToolFormat::ALL.iter().map(|format| OutputFormat::new(format));
    for format in whole.chain([OutputFormat::plain()]) {
        for format in [format, format.inline()] {
            let again = OutputFormat::named(&format.name()).unwrap();
            assert_eq!((again.tools().name(), again.marks), (format.tools().name(), format.marks));
        }
    }
    for name in ["", "hermes", "hermes none none", "nobody none"] {
        assert!(OutputFormat::named(name).is_none(), "{name}");
    }
}
