//! Texts put together at random from parts of real ones: every cutting gives the same events, nothing fails, and no
//! character of text is lost or invented.

use std::sync::Arc;

use super::super::marks::Marks;
use super::super::{Event, OutputFormat, ToolFormat, Tools};
use super::{numbers, parse, pieces};

const PARTS: &[&str] = &[
    " ",
    "\n",
    "\n\n",
    "a",
    "é",
    "東",
    "🎉",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    "\"",
    "'",
    "\\",
    "<",
    ">",
    "|",
    "0",
    "-1.5e3",
    "true",
    "None",
    "f",
    "get_time",
    "name",
    "arguments",
    "\"name\": \"f\"",
    "\"arguments\": {}",
    "{\"name\": \"f\", \"arguments\": {}}",
    "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
    "{}",
    "```",
    "```json\n",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "f(a=1)",
    "f(a='x', b=[1, {'c': None}])",
    "to=functions.f",
    "functions.f:0",
    "function",
    "{a:1}",
    "call:f",
    "<tool_call",
    "assistant",
    "json",
    "a=",
    "_",
    "\u{a0}",
];

/// A text of parts of a format's syntax, parts of its cases, and other parts.
fn random(texts: &[&str], cases: &[String], next: &mut impl FnMut(usize) -> usize) -> String {
    let mut text = String::new();
    for _ in 0..next(16) {
        match next(4) {
            0 => text += texts[next(texts.len())],
            1 => text += PARTS[next(PARTS.len())],
            kind => {
                let case = &cases[next(cases.len())];
                let cut =
                    case.char_indices().map(|(at, _)| at).nth(next(case.len().max(1))).unwrap_or(case.len());
                text += if kind == 2 { case } else { &case[..cut] };
            }
        }
    }
    text
}

#[test]
fn random_texts_are_the_same_in_every_cutting() {
    let known = super::json(&super::cases("tools"));
    let tools = Arc::new(Tools::from_json(&known).unwrap());
    let mut calls = 0;
    for (i, format) in ToolFormat::ALL.iter().enumerate() {
        let texts = [format.texts(), format.marks.texts()].concat();
        let cases = super::json(&super::cases(format.name()));
        let cases: Vec<String> =
            cases.as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap().into()).collect();
        let mut number = numbers(i as u64);
        let mut next = |most: usize| number.next().unwrap() as usize % most;
        for _ in 0..300 {
            // A template may mark reasoning in another way than the format usually does.
            let marks = [format.marks, format.marks, Marks::None, Marks::THINK, Marks::Channels][next(5)];
            let output = OutputFormat { tools: format, marks, writing: None };
            let text = random(&texts, &cases, &mut next);
            let prompt = if next(4) == 0 { "<think>" } else { "" };
            let tools = (next(2) == 0).then(|| Arc::clone(&tools));
            let parser = output.parser(prompt, tools);
            let whole = parse(parser.clone(), [text.as_str()]);
            for size in [1, 2, 5] {
                let cut = pieces(&text, std::iter::repeat(size));
                assert_eq!(parse(parser.clone(), cut), whole, "{} {text:?}", format.name());
            }
            calls += whole.iter().filter(|event| matches!(event, Event::Call(_))).count();
            covers(&text, &whole, format.name());
        }
    }
    assert!(calls > 1000, "{calls}");
}

/// Reasoning and content are parts of the text, in order.
fn covers(text: &str, events: &[Event], name: &str) {
    let mut rest = text.chars();
    for event in events {
        let (Event::Reasoning(part) | Event::Content(part)) = event else { continue };
        for c in part.chars() {
            assert!(rest.any(|other| other == c), "{name}: {text:?} {events:?}");
        }
    }
    if let [Event::Content(content)] = events {
        assert!(content.len() <= text.len());
    }
}
