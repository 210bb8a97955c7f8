//! Filters for HTML.

use super::Failure;
use super::run::{Done, Run};
use super::value::{Value, is_space};

impl Run<'_> {
    /// `striptags`: text without comments and tags, its white space collapsed to single spaces and its character
    /// references decoded.
    pub(super) fn without_tags(&mut self, text: &str) -> Done<Value> {
        let mut text = text.to_owned();
        for (open, close) in [("<!--", "-->"), ("<", ">")] {
            while let Some(start) = text.find(open)
                && let Some(end) = text[start..].find(close)
            {
                self.spend(text.len())?;
                text.replace_range(start..start + end + close.len(), "");
            }
        }
        self.spend(text.len())?;
        let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
        let text = unescaped(&words.join(" "))?;
        self.text(text)
    }

    /// `xmlattr`: an object as the attributes of a tag.
    pub(super) fn attributes(&mut self, value: &Value, space: bool) -> Done<Value> {
        let Value::Dict(dict) = value else { return Err(Failure::operand("xmlattr", value)) };
        let mut out = String::new();
        for (key, value) in &dict.of.entries {
            if matches!(value, Value::None | Value::Undefined(_)) {
                continue;
            }
            let (key, value) = (self.as_text(key)?, self.as_text(value)?);
            let (Value::Str(key), Value::Str(value)) = (&key, &value) else { continue };
            let wrong = |c: char| c.is_ascii_whitespace() || c == '\u{b}' || matches!(c, '/' | '>' | '=');
            if key.of.contains(wrong) {
                return Err(Failure::wrong(format!("Invalid character in attribute name: {:?}", &*key.of)));
            }
            self.spend(key.of.len() + value.of.len())?;
            self.room(out.len() + 5 * (key.of.len() + value.of.len()))?;
            let part = |text: &super::value::Text| if text.safe { text.text.clone() } else { escaped(text) };
            out.push_str(if space || !out.is_empty() { " " } else { "" });
            out.extend([&part(&key.of), "=\"", &part(&value.of), "\""]);
        }
        self.text(out)
    }
}

/// Decodes character references: numeric ones, and the most common named ones.
fn unescaped(text: &str) -> Done<String> {
    const NAMES: [(&str, &str); 6] =
        [("amp", "&"), ("lt", "<"), ("gt", ">"), ("quot", "\""), ("apos", "'"), ("nbsp", "\u{a0}")];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '#')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let closed = after.starts_with(';');
        let number = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        });
        if let Some(number) = number {
            out.push(char::from_u32(number).filter(|c| *c != '\0').unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = after.strip_prefix(';').unwrap_or(after);
        } else if let Some((_, with)) = NAMES.iter().find(|(known, _)| closed && *known == name) {
            out.push_str(with);
            rest = &after[1..];
        } else if closed && !name.is_empty() && !name.starts_with('#') {
            return Err(Failure::wrong(format!("striptags does not know the character reference &{name};")));
        } else {
            out.push('&');
        }
    }
    Ok(out + rest)
}

/// `filesizeformat`: a number of bytes with a unit.
pub(super) fn file_size(bytes: f64, binary: bool) -> String {
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    let units = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    if bytes == 1.0 {
        return "1 Byte".into();
    }
    if bytes < base {
        return format!("{} Bytes", bytes as i128);
    }
    let power = (2..9).find(|power| bytes < base.powi(*power)).unwrap_or(9);
    format!("{:.1} {}", base * bytes / base.powi(power), units[power as usize - 2])
}

/// Text with the characters escaped that HTML reserves.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
