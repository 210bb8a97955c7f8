//! [`BracesScan`]: finds the end of arguments in braces as they come, `{key:<|"|>text<|"|>,n:3}`. [`arguments`] reads
//! them.

use serde_json::Value as Json;

use super::held::{Match, View};
use super::json::MOST_DEPTH;
use super::python::{object, string};

/// Finds the closing brace. Strings have no escapes: the next quote ends them.
#[derive(Debug, Clone, Default)]
pub(super) struct BracesScan {
    open: Vec<u8>,
    quoted: bool,
}

impl BracesScan {
    /// Goes on from `at`: the position behind the closing brace and true, or that up to which the text is scanned and
    /// false. An error is the position from which on these are no such arguments.
    pub(super) fn scan(&mut self, view: View<'_>, at: usize, quote: &str) -> Result<(usize, bool), usize> {
        let mut now = at;
        while let Some(byte) = view.from(now).first() {
            view.count(1);
            if quote.as_bytes().first() == Some(byte) {
                match view.has(now, quote) {
                    Match::Yes => {
                        self.quoted = !self.quoted;
                        now += quote.len();
                        continue;
                    }
                    Match::Partial => return Ok((now, false)),
                    Match::No => {}
                }
            }
            now += 1;
            match byte {
                _ if self.quoted => {}
                b'{' | b'[' if self.open.len() >= MOST_DEPTH => return Err(now),
                b'{' => self.open.push(b'}'),
                b'[' => self.open.push(b']'),
                b'}' | b']' if self.open.pop() != Some(*byte) => return Err(now),
                b'}' | b']' if self.open.is_empty() => return Ok((now, true)),
                b'<' => return Err(now),
                _ => {}
            }
            if self.open.is_empty() {
                return Err(now);
            }
        }
        Ok((now, false))
    }
}

/// Arguments in braces as a JSON object.
pub(super) fn arguments(text: &str, quote: &str) -> Option<String> {
    let mut reader = Reader { rest: text, quote };
    let json = reader.object(0)?;
    reader.rest.is_empty().then_some(json)
}

struct Reader<'a> {
    rest: &'a str,
    quote: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, wanted: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn object(&mut self, depth: usize) -> Option<String> {
        self.take("{")?;
        let mut members: Vec<(String, String)> = Vec::new();
        self.space();
        while self.take("}").is_none() {
            let key = self.key()?;
            self.take(":")?;
            let value = self.value(depth + 1)?;
            members.push((key, value));
            self.comma('}')?;
        }
        Some(object(&members))
    }

    /// A comma before another value, or nothing before the end.
    fn comma(&mut self, end: char) -> Option<()> {
        self.space();
        match self.take(",") {
            Some(()) => self.space(),
            None if self.rest.starts_with(end) => {}
            None => return None,
        }
        Some(())
    }

    /// A key, which may be quoted.
    fn key(&mut self) -> Option<String> {
        if let Some(text) = self.quoted() {
            return Some(text.to_owned());
        }
        let end = self.rest.find([':', ',', '{', '}', '[', ']', '<', '\n'])?;
        let (key, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(key.trim().to_owned()).filter(|key| !key.is_empty())
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.strip_prefix(self.quote)?.split_once(self.quote)?;
        self.rest = rest;
        Some(text)
    }

    fn value(&mut self, depth: usize) -> Option<String> {
        if depth >= MOST_DEPTH {
            return None;
        }
        self.space();
        match self.rest.chars().next()? {
            '{' => self.object(depth),
            '[' => self.list(depth),
            _ => match self.quoted() {
                Some(text) => Some(string(text)),
                None => self.plain(),
            },
        }
    }

    fn list(&mut self, depth: usize) -> Option<String> {
        self.take("[")?;
        let mut items = Vec::new();
        self.space();
        while self.take("]").is_none() {
            items.push(self.value(depth + 1)?);
            self.comma(']')?;
        }
        Some(format!("[{}]", items.join(", ")))
    }

    /// A number, boolean or null. The template prints null as Python does.
    fn plain(&mut self) -> Option<String> {
        let end = self.rest.find([',', '}', ']'])?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = if text.trim() == "None" { "null" } else { text.trim() };
        let is_plain = matches!(serde_json::from_str(text), Ok(Json::Number(_) | Json::Bool(_) | Json::Null));
        is_plain.then(|| text.to_owned())
    }
}
