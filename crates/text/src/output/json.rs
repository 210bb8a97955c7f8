//! [`JsonScan`]: finds the end of a JSON value as it comes, and whether it is one. [`object_call`] reads a call.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::step::Members;

/// Depth at which JSON is no longer followed.
pub(super) const MOST_DEPTH: usize = 128;

/// A validator of one JSON object, list, string or word, which takes it in pieces of any size.
#[derive(Debug, Clone)]
pub(super) struct JsonScan {
    /// The open containers; true for objects.
    open: Vec<bool>,
    want: Want,
    /// True if the string that is read is a key.
    key: bool,
}

/// Result of adding bytes to a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scanned {
    /// The value goes on.
    More,
    /// The value ends after this many of the bytes.
    Done(usize),
    /// It is none, because of the byte at this place.
    Wrong(usize),
}

/// The next thing in a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    /// A comma, or the end of the container.
    Next,
    Text,
    Escape,
    /// This many hexadecimal digits.
    Hex(u8),
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// The part of a number that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl JsonScan {
    pub(super) fn new() -> JsonScan {
        JsonScan { open: Vec::new(), want: Want::Value, key: false }
    }

    /// Takes the next bytes of the text.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Scanned {
        for (at, byte) in bytes.iter().enumerate() {
            match self.byte(*byte) {
                Some(true) => return Scanned::Done(at + 1),
                Some(false) => {}
                None => return Scanned::Wrong(at),
            }
        }
        Scanned::More
    }

    /// Takes one byte: `Some(true)` if it ends the value, `None` if it cannot come here.
    fn byte(&mut self, byte: u8) -> Option<bool> {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match (self.want, byte) {
            (Want::Text, b'"') if self.key => self.want = Want::Colon,
            (Want::Text, b'"') => return Some(self.complete()),
            (Want::Text, b'\\') => self.want = Want::Escape,
            (Want::Text, 0..0x20) => return None,
            (Want::Text, _) => {}
            (Want::Escape, b'u') => self.want = Want::Hex(4),
            (Want::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.want = Want::Text,
            (Want::Hex(1), _) if byte.is_ascii_hexdigit() => self.want = Want::Text,
            (Want::Hex(left), _) if byte.is_ascii_hexdigit() => self.want = Want::Hex(left - 1),
            (Want::Word([one]), _) if byte == *one => return Some(self.complete()),
            (Want::Word([one, rest @ ..]), _) if byte == *one => self.want = Want::Word(rest),
            (Want::Number(part), _) => return self.number(part, byte),
            (Want::Escape | Want::Hex(_) | Want::Word(_), _) => return None,
            _ if space => {}
            (Want::Colon, b':') => self.want = Want::Value,
            (Want::FirstKey | Want::Key, b'"') => (self.want, self.key) = (Want::Text, true),
            (Want::Next, b',') if self.open.last() == Some(&true) => self.want = Want::Key,
            (Want::Next, b',') => self.want = Want::Value,
            (Want::FirstKey | Want::Next, b'}') => return self.close(true),
            (Want::FirstItem | Want::Next, b']') => return self.close(false),
            (Want::Value | Want::FirstItem, _) => return self.value(byte).map(|()| false),
            _ => return None,
        }
        Some(false)
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8) -> Option<()> {
        self.want = match byte {
            b'{' | b'[' if self.open.len() >= MOST_DEPTH => return None,
            b'{' => {
                self.open.push(true);
                Want::FirstKey
            }
            b'[' => {
                self.open.push(false);
                Want::FirstItem
            }
            b'"' => {
                self.key = false;
                Want::Text
            }
            b't' => Want::Word(b"rue"),
            b'f' => Want::Word(b"alse"),
            b'n' => Want::Word(b"ull"),
            // A number alone ends nowhere; it is no call, nor are its arguments.
            _ if self.open.is_empty() => return None,
            b'-' => Want::Number(Number::Minus),
            b'0' => Want::Number(Number::Zero),
            b'1'..=b'9' => Want::Number(Number::Whole),
            _ => return None,
        };
        Some(())
    }

    /// A byte within or behind a number.
    fn number(&mut self, part: Number, byte: u8) -> Option<bool> {
        use Number::{E, Exponent, Fraction, Minus, Point, Sign, Whole, Zero};
        let next = match (part, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            (Zero | Whole | Fraction | Exponent, _) => {
                self.want = Want::Next;
                return self.byte(byte);
            }
            _ => return None,
        };
        self.want = Want::Number(next);
        Some(false)
    }

    fn close(&mut self, object: bool) -> Option<bool> {
        (self.open.pop()? == object).then(|| self.complete())
    }

    /// A value is complete; returns whether it is the whole one.
    fn complete(&mut self) -> bool {
        self.want = Want::Next;
        self.open.is_empty()
    }
}

/// The name, arguments and id of a call, before the name is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) id: Option<String>,
    /// True if the object has arguments.
    pub(super) has_arguments: bool,
}

/// The call that a JSON object is.
pub(super) fn object_call(text: &str, members: &Members) -> Option<Parts> {
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let first = |keys: &[&str]| keys.iter().find_map(|key| object.get(*key)).map(|raw| raw.get());
    let id = first(members.id).and_then(id);
    if let (None, Some(key)) = (first(members.name), members.nested) {
        let inner = Members { nested: None, ..*members };
        let call = object_call(object.get(key)?.get(), &inner)?;
        return Some(Parts { id: id.or(call.id), ..call });
    }
    let name = serde_json::from_str(first(members.name)?).ok()?;
    let given = members.arguments.iter().filter_map(|key| object.get(*key)).map(|raw| raw.get());
    let raw = given.clone().find(|raw| *raw != "null").unwrap_or("null");
    let has_arguments = given.count() > 0;
    Some(Parts { name, arguments: arguments(raw)?, id, has_arguments })
}

/// An id: models write numbers, too.
fn id(raw: &str) -> Option<String> {
    match serde_json::from_str(raw).ok()? {
        Json::String(text) => Some(text).filter(|text| !text.is_empty()),
        Json::Number(_) => Some(raw.to_owned()),
        _ => None,
    }
}

/// The arguments that a JSON value is: an object, nothing, or a string that contains an object.
pub(super) fn arguments(raw: &str) -> Option<String> {
    let none = || Some("{}".to_owned());
    match raw.as_bytes().first()? {
        b'n' => none(),
        b'{' => object(raw),
        b'"' => {
            let text: String = serde_json::from_str(raw).ok()?;
            let text = text.trim();
            if text.is_empty() { none() } else { object(text) }
        }
        _ => None,
    }
}

/// The text of a JSON object, if it is one that every reader takes: with numbers in range and whole surrogate pairs.
fn object(text: &str) -> Option<String> {
    matches!(serde_json::from_str(text), Ok(Json::Object(_))).then(|| text.to_owned())
}
