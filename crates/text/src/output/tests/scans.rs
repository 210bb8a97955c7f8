//! The scan of JSON against another reader of it, on texts that are JSON and texts that nearly are.

use serde::de::IgnoredAny;

use super::super::json::{JsonScan, MOST_DEPTH, Scanned};
use super::super::python;
use super::numbers;

const PARTS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\"",
    "\"",
    "\\",
    "\\\"",
    "\\u00e9",
    "\\u12",
    "\\x",
    "0",
    "1",
    "-",
    "+",
    ".",
    "e",
    "E-",
    "12",
    "1.5",
    "-0",
    "01",
    "1e5",
    "true",
    "false",
    "null",
    "nul",
    " ",
    "\n",
    "\t",
    "é",
    "\u{1}",
    "{\"k\":",
    "[1,",
    "\"k\": \"v\"",
    "{}",
    "[]",
    "\"\"",
];

/// Length of the first JSON value of a text, if a whole object, list, string or word is there.
fn scanned(text: &str) -> Option<usize> {
    match JsonScan::new().scan(text.as_bytes()) {
        Scanned::Done(length) => Some(length),
        Scanned::More | Scanned::Wrong(_) => None,
    }
}

/// The same by another reader.
fn read(text: &str) -> Option<usize> {
    let begins = text.trim_start_matches([' ', '\n', '\t', '\r']);
    // A number alone is no value here.
    if begins.is_empty() || begins.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

#[test]
fn json_ends_where_another_reader_says() {
    let mut number = numbers(1);
    let mut next = |most: usize| number.next().unwrap() as usize % most;
    let (mut good, mut bad) = (0, 0);
    for _ in 0..200_000 {
        let count = 1 + next(10);
        let text: String = (0..count).map(|_| PARTS[next(PARTS.len())]).collect();
        // The other reader wants a separator behind a word, where a scan ends with its last letter.
        let (is, want) = (scanned(&text), read(&text));
        if want.is_none() && is.is_some_and(|end| text[..end].trim_start().starts_with(['t', 'f', 'n'])) {
            continue;
        }
        assert_eq!(is, want, "{text:?}");
        *if is.is_some() { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 5_000 && bad > 5_000, "{good} {bad}");
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(scanned(&nested(MOST_DEPTH)), Some(2 * MOST_DEPTH));
    assert_eq!(scanned(&nested(MOST_DEPTH + 1)), None);
}

#[test]
fn python_literals_are_json() {
    for (text, json) in [
        ("", Some("{}")),
        ("a = 1", Some(r#"{"a": 1}"#)),
        ("é='ü'", Some(r#"{"é": "ü"}"#)),
        ("a=((1, 2), (3))", Some(r#"{"a": [[1, 2], 3]}"#)),
        ("a={'b': {}, 'c': []}", Some(r#"{"a": {"b": {}, "c": []}}"#)),
        ("a=+5, b=-.5, c=12345678901234567890", Some(r#"{"a": 5, "b": -0.5, "c": 12345678901234567890}"#)),
        (r"a='\0\x7f'", Some(r#"{"a": "\u0000\u007f"}"#)),
        ("a=1,", Some(r#"{"a": 1}"#)),
        (",", None),
        ("a", None),
        ("a=", None),
        ("a=b", None),
        ("1=2", None),
        ("a='b", None),
        ("a='b' 'c'", None),
        ("a=f'b'", None),
        ("a=1e", None),
        ("a=1-2", None),
        ("a=0x1f", None),
        ("a=[1", None),
        ("a={'b'}", None),
        ("**a", None),
        (r"a='\xzz'", None),
        (r"a='\u12'", None),
    ] {
        let read = python::arguments(text);
        // U+007F needs no escape in JSON.
        let json = json.map(|json| json.replace("\\u007f", "\u{7f}"));
        assert_eq!(read, json, "{text}");
    }
}
