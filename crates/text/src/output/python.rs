//! [`PythonScan`]: finds the end of a call in Python's syntax as it comes. [`arguments`] reads its literals.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::json::{MOST_DEPTH, Scanned};

/// Longest name of a function.
const MOST_NAME: usize = 256;

/// Finds the end of `name(...)`, in pieces of any size. What is between the parentheses is only read when it is there.
#[derive(Debug, Clone, Default)]
pub(super) struct PythonScan {
    /// Bytes of the name.
    pub(super) name: usize,
    /// Closing brackets that are to come, innermost last.
    open: Vec<u8>,
    quote: Option<Quote>,
    /// Quotes in a row at the beginning of a string, or within one that three of them end.
    quotes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quote {
    mark: u8,
    state: Quoted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoted {
    /// Behind the first one or two quotes.
    Begun,
    Plain {
        triple: bool,
        escaped: bool,
    },
}

impl PythonScan {
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

    fn byte(&mut self, byte: u8) -> Option<bool> {
        if self.open.is_empty() {
            return self.name(byte).map(|()| false);
        }
        if let Some(quote) = self.quote {
            return self.string(quote, byte);
        }
        match byte {
            b'\'' | b'"' => {
                self.quote = Some(Quote { mark: byte, state: Quoted::Begun });
                self.quotes = 1;
            }
            b'(' | b'[' | b'{' if self.open.len() >= MOST_DEPTH => return None,
            b'(' => self.open.push(b')'),
            b'[' => self.open.push(b']'),
            b'{' => self.open.push(b'}'),
            b')' | b']' | b'}' if self.open.pop() != Some(byte) => return None,
            b')' | b']' | b'}' => return Some(self.open.is_empty()),
            // A comment: no literal has one.
            b'#' => return None,
            _ => {}
        }
        Some(false)
    }

    fn name(&mut self, byte: u8) -> Option<()> {
        let begins = byte.is_ascii_alphabetic() || byte == b'_';
        match byte {
            b'(' if self.name > 0 => self.open.push(b')'),
            _ if self.name == MOST_NAME => return None,
            _ if begins || (self.name > 0 && (byte.is_ascii_digit() || matches!(byte, b'.' | b'-'))) => {
                self.name += 1;
            }
            _ => return None,
        }
        Some(())
    }

    fn string(&mut self, quote: Quote, byte: u8) -> Option<bool> {
        let Quote { mark, state } = quote;
        let plain = |triple, escaped| Some(Quote { mark, state: Quoted::Plain { triple, escaped } });
        match state {
            Quoted::Begun if byte == mark && self.quotes == 1 => self.quotes = 2,
            Quoted::Begun if byte == mark => (self.quote, self.quotes) = (plain(true, false), 0),
            // Two quotes were an empty string.
            Quoted::Begun if self.quotes == 2 => {
                self.quote = None;
                return self.byte(byte);
            }
            Quoted::Begun => {
                self.quote = plain(false, false);
                return self.byte(byte);
            }
            Quoted::Plain { triple, escaped: true } => self.quote = plain(triple, false),
            Quoted::Plain { triple, .. } if byte == b'\\' => {
                (self.quote, self.quotes) = (plain(triple, true), 0)
            }
            Quoted::Plain { triple: false, .. } if byte == mark => self.quote = None,
            Quoted::Plain { triple: false, .. } if byte == b'\n' => return None,
            Quoted::Plain { triple: false, .. } => {}
            Quoted::Plain { triple: true, .. } if byte == mark => {
                self.quotes += 1;
                if self.quotes == 3 {
                    self.quote = None;
                }
            }
            Quoted::Plain { triple: true, .. } => self.quotes = 0,
        }
        Some(false)
    }
}

/// The keyword arguments between the parentheses of a call, as a JSON object.
pub(super) fn arguments(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text };
    let mut members: Vec<(String, String)> = Vec::new();
    reader.space();
    while !reader.rest.is_empty() {
        let name = reader.identifier()?;
        reader.space();
        reader.take("=")?;
        let value = reader.value(0)?;
        members.push((name.to_owned(), value));
        if reader.take(",").is_none() && !reader.rest.is_empty() {
            return None;
        }
        reader.space();
    }
    Some(object(&members))
}

/// A JSON object of these members, whose values are JSON already. The last of a name counts.
pub(super) fn object(members: &[(String, String)]) -> String {
    let last: HashMap<&str, usize> =
        members.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
    let counts = |(i, (name, _)): &(usize, &(String, String))| last.get(name.as_str()) == Some(i);
    let members = members.iter().enumerate().filter(counts);
    let members = members.map(|(_, (name, value))| format!("{}: {value}", string(name)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

/// A JSON string.
pub(super) fn string(text: &str) -> String {
    Json::from(text).to_string()
}

/// Reads Python's literals.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, wanted: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    /// The text as long as its characters are of a kind.
    fn while_is(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let name = self.while_is(|c| c.is_alphanumeric() || c == '_');
        (!name.is_empty() && !name.starts_with(|c: char| c.is_numeric())).then_some(name)
    }

    /// A literal as JSON, with the whitespace around it.
    fn value(&mut self, depth: usize) -> Option<String> {
        if depth >= MOST_DEPTH {
            return None;
        }
        self.space();
        let json = match self.rest.chars().next()? {
            '\'' | '"' => string(&self.text()?),
            '[' => self.list('[', ']', depth)?,
            '(' => self.list('(', ')', depth)?,
            '{' => self.dict(depth)?,
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number()?,
            _ => match self.identifier()? {
                "True" | "true" => "true".to_owned(),
                "False" | "false" => "false".to_owned(),
                "None" | "null" => "null".to_owned(),
                _ => return None,
            },
        };
        self.space();
        Some(json)
    }

    /// A list, or a tuple: JSON has one kind of both.
    fn list(&mut self, open: char, close: char, depth: usize) -> Option<String> {
        self.rest = self.rest.strip_prefix(open)?;
        let (mut items, mut commas) = (Vec::new(), 0);
        self.space();
        while !self.rest.starts_with(close) {
            items.push(self.value(depth + 1)?);
            match self.take(",") {
                Some(()) => commas += 1,
                None if self.rest.starts_with(close) => break,
                None => return None,
            }
            self.space();
        }
        self.rest = self.rest.strip_prefix(close)?;
        // One value in parentheses is that value.
        match (open, items.as_slice()) {
            ('(', [one]) if commas == 0 => Some(one.clone()),
            _ => Some(format!("[{}]", items.join(", "))),
        }
    }

    fn dict(&mut self, depth: usize) -> Option<String> {
        self.take("{")?;
        let mut members: Vec<(String, String)> = Vec::new();
        self.space();
        while !self.rest.starts_with('}') {
            let name = self.text()?;
            self.space();
            self.take(":")?;
            let value = self.value(depth + 1)?;
            members.push((name, value));
            if self.take(",").is_none() && !self.rest.starts_with('}') {
                return None;
            }
            self.space();
        }
        self.take("}")?;
        Some(object(&members))
    }

    /// A number, as JSON writes it.
    fn number(&mut self) -> Option<String> {
        let text = self.while_is(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-'));
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = digits.replace('_', "");
        let digits = if digits.starts_with('.') { format!("0{digits}") } else { digits };
        let whole = digits.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').is_empty();
        let digits = if whole && digits.ends_with('.') { format!("{digits}0") } else { digits };
        let number = format!("{sign}{digits}");
        matches!(serde_json::from_str(&number), Ok(Json::Number(_))).then_some(number)
    }

    /// A string, with its escapes resolved.
    fn text(&mut self) -> Option<String> {
        let mark = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let triple: String = [mark; 3].iter().collect();
        let end = if self.rest.starts_with(&triple) { triple } else { mark.to_string() };
        self.take(&end)?;
        let mut text = String::new();
        while self.take(&end).is_none() {
            let c = self.char()?;
            match c {
                '\\' => self.escape(&mut text)?,
                '\n' if end.len() == 1 => return None,
                c => text.push(c),
            }
        }
        Some(text)
    }

    fn char(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        Some(c)
    }

    /// What is behind a backslash. A backslash that begins no escape stands for itself, as in Python.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.char()?;
        let plain = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '\n' => return Some(()),
            '\\' | '\'' | '"' => c,
            'x' => self.code(2)?,
            'U' => self.code(8)?,
            'u' => return self.unit(text),
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.rest.chars().next().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    self.char()?;
                }
                char::from_u32(code)?
            }
            c => {
                text.push('\\');
                c
            }
        };
        text.push(plain);
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let (code, rest) = self.rest.split_at_checked(digits)?;
        let code = Some(code).filter(|code| code.bytes().all(|c| c.is_ascii_hexdigit()))?;
        self.rest = rest;
        u32::from_str_radix(code, 16).ok()
    }

    fn code(&mut self, digits: usize) -> Option<char> {
        char::from_u32(self.hex(digits)?)
    }

    /// A character of four digits, or of a surrogate pair, as models that know JSON write it.
    fn unit(&mut self, text: &mut String) -> Option<()> {
        let first = self.hex(4)?;
        let code = match first {
            0xd800..0xdc00 => {
                self.take("\\u")?;
                let second = self.hex(4).filter(|second| (0xdc00..0xe000).contains(second))?;
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        text.push(char::from_u32(code)?);
        Some(())
    }
}
