//! Lexer: template source to tokens of literal text and of the contents of tags.
//!
//! White space around tags is handled as with `trim_blocks` and `lstrip_blocks`: a newline right after a block is
//! removed, and so are blanks before a block that starts a line.

use super::value::is_space;
use super::{Failure, TemplateError};

/// A token and its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Text(String),
    BlockStart,
    BlockEnd,
    PrintStart,
    PrintEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Mark(&'static str),
    End,
}

/// Punctuation inside tags, longer ones first.
const MARKS: [&str; 28] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", ">", "<", "=", ".", ":", "|", ",", ";",
    "[", "]", "(", ")", "{", "}", "!", "&",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Block,
    Print,
    Comment,
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    /// True if the last thing read ended a line.
    at_line_start: bool,
    out: Vec<Token>,
}

/// The tokens of a source.
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, TemplateError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, at_line_start: true, out: Vec::new() };
    while lexer.at < lexer.source.len() {
        lexer.part()?;
    }
    lexer.push(Kind::End);
    Ok(lexer.out)
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Kind) {
        self.out.push(Token { kind, line: self.line });
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError { line: self.line, failure: Failure::Syntax(why.into()) })
    }

    /// Advances by `len` bytes.
    fn skip(&mut self, len: usize) {
        let passed = &self.rest()[..len];
        self.line += passed.matches('\n').count() as u32;
        if len > 0 {
            self.at_line_start = passed.ends_with('\n');
        }
        self.at += len;
    }

    /// Reads text up to the next tag, and the tag.
    fn part(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let found = rest.match_indices('{').find_map(|(at, _)| match rest.as_bytes().get(at + 1) {
            Some(b'%') => Some((at, Tag::Block)),
            Some(b'{') => Some((at, Tag::Print)),
            Some(b'#') => Some((at, Tag::Comment)),
            _ => None,
        });
        let Some((at, tag)) = found else {
            self.push(Kind::Text(rest.into()));
            self.skip(rest.len());
            return Ok(());
        };
        let sign = rest.as_bytes().get(at + 2).copied();
        self.text(&rest[..at], sign, tag != Tag::Print);
        self.skip(at + 2 + usize::from(matches!(sign, Some(b'-' | b'+'))));
        match tag {
            Tag::Comment => self.comment(),
            Tag::Block if self.raw()? => Ok(()),
            Tag::Block => self.inside(Kind::BlockStart, Kind::BlockEnd, "%}"),
            Tag::Print => self.inside(Kind::PrintStart, Kind::PrintEnd, "}}"),
        }
    }

    /// Emits the text before a tag, without the white space that the tag strips.
    fn text(&mut self, text: &str, sign: Option<u8>, takes_blanks: bool) {
        let line_start = text.rfind('\n').map_or(0, |at| at + 1);
        let kept = match sign {
            Some(b'-') => text.trim_end_matches(is_space),
            Some(b'+') => text,
            _ if takes_blanks
                && (line_start > 0 || self.at_line_start)
                && text[line_start..].chars().all(is_space) =>
            {
                &text[..line_start]
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Kind::Text(kept.into()));
        }
    }

    /// Length of a tag's end mark, with the white space that it strips from the text after it. `None` if there is none
    /// here.
    fn end(&self, mark: &str) -> Option<usize> {
        let rest = self.rest();
        let (sign, after) = match rest.as_bytes().first()? {
            b'-' if rest[1..].starts_with(mark) => (b'-', &rest[1 + mark.len()..]),
            b'+' if mark != "}}" && rest[1..].starts_with(mark) => (b'+', &rest[1 + mark.len()..]),
            _ => (b' ', rest.strip_prefix(mark)?),
        };
        let taken = match sign {
            b'-' => after.len() - after.trim_start_matches(is_space).len(),
            b' ' if mark != "}}" => usize::from(after.starts_with('\n')),
            _ => 0,
        };
        Some(rest.len() - after.len() + taken)
    }

    fn comment(&mut self) -> Result<(), TemplateError> {
        loop {
            if let Some(len) = self.end("#}") {
                self.skip(len);
                return Ok(());
            }
            let Some(c) = self.rest().chars().next() else { return self.fail("a comment is not closed") };
            self.skip(c.len_utf8());
        }
    }

    /// Reads a `raw` block: literal text up to `endraw`. False if this is another block.
    fn raw(&mut self) -> Result<bool, TemplateError> {
        let word = |text: &'s str, word: &str| {
            let text = text.trim_start_matches(is_space);
            Some(text.strip_prefix(word)?.trim_start_matches(is_space))
        };
        let Some(after) = word(self.rest(), "raw") else { return Ok(false) };
        let Some(body) = after
            .strip_prefix("%}")
            .or_else(|| after.strip_prefix("-%}").map(|body| body.trim_start_matches(is_space)))
        else {
            return Ok(false);
        };
        self.skip(self.rest().len() - body.len());
        for (at, _) in body.match_indices("{%") {
            let inside = &body[at + 2..];
            let sign = inside.as_bytes().first().copied();
            let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
            let Some(close) = word(inside, "endraw") else { continue };
            let before = self.at;
            self.at = self.source.len() - close.len();
            let Some(len) = self.end("%}") else {
                self.at = before;
                continue;
            };
            self.at = before;
            self.text(&body[..at], sign, true);
            self.skip(body.len() - close.len() + len);
            return Ok(true);
        }
        self.fail("a raw block is not closed")
    }

    /// Reads the contents of a tag.
    fn inside(&mut self, start: Kind, end: Kind, mark: &str) -> Result<(), TemplateError> {
        self.push(start);
        let mut open = Vec::new();
        loop {
            let blank = self.rest().len() - self.rest().trim_start_matches(is_space).len();
            self.skip(blank);
            if open.is_empty()
                && let Some(len) = self.end(mark)
            {
                self.push(end);
                self.skip(len);
                return Ok(());
            }
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return self.fail("a tag is not closed") };
            if c.is_ascii_digit() {
                self.number()?;
            } else if c.is_alphanumeric() || c == '_' {
                let name =
                    rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(rest, |end| &rest[..end]);
                self.push(Kind::Name(name.into()));
                self.skip(name.len());
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else {
                let Some(found) = MARKS.iter().find(|mark| rest.starts_with(**mark)) else {
                    return self.fail(format!("{c:?} means nothing here"));
                };
                match *found {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(found) => {
                        return self.fail(format!("{found:?} closes nothing"));
                    }
                    _ => {}
                }
                self.push(Kind::Mark(found));
                self.skip(found.len());
            }
        }
    }

    fn number(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let digits =
            |text: &str| text.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(text.len());
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        if radix != 10 {
            let len = rest[2..].find(|c: char| !(c.is_digit(radix) || c == '_')).unwrap_or(rest.len() - 2);
            return self.int(&rest[2..2 + len], radix, 2 + len);
        }
        let whole = digits(rest);
        let mut len = whole;
        if rest[len..].starts_with('.') && rest[len + 1..].starts_with(|c: char| c.is_ascii_digit()) {
            len += 1 + digits(&rest[len + 1..]);
        }
        if rest[len..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[len + 1..].starts_with(['+', '-']));
            let power = digits(&rest[len + 1 + sign..]);
            if power > 0 {
                len += 1 + sign + power;
            }
        }
        if len == whole {
            return self.int(&rest[..len], 10, len);
        }
        match rest[..len].replace('_', "").parse() {
            Ok(number) => self.push(Kind::Float(number)),
            Err(_) => return self.fail(format!("{:?} is no number", &rest[..len])),
        }
        self.skip(len);
        Ok(())
    }

    fn int(&mut self, digits: &str, radix: u32, len: usize) -> Result<(), TemplateError> {
        match i128::from_str_radix(&digits.replace('_', ""), radix) {
            Ok(number) => self.push(Kind::Int(number)),
            Err(_) => return self.fail(format!("{digits:?} is no number that is taken")),
        }
        self.skip(len);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), TemplateError> {
        let rest = &self.rest()[1..];
        let mut text = String::new();
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Kind::Str(text));
                self.skip(1 + at + 1);
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((_, escaped)) = chars.next() else { break };
            let digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escaped {
                'x' | 'u' | 'U' => {
                    let hex: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                    let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
                    match code.and_then(char::from_u32) {
                        Some(c) => text.push(c),
                        None => return self.fail(format!("\\{escaped}{hex} is no character")),
                    }
                }
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'a' => text.push('\u{7}'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'v' => text.push('\u{b}'),
                '\n' => {}
                '0'..='7' => {
                    let mut code = escaped as u32 - '0' as u32;
                    let mut ahead = chars.clone();
                    for _ in 0..2 {
                        let Some(digit) = ahead.next().and_then(|(_, c)| c.to_digit(8)) else { break };
                        code = code * 8 + digit;
                        chars.next();
                    }
                    text.extend(char::from_u32(code));
                }
                '\\' | '\'' | '"' => text.push(escaped),
                // An unknown escape stands for its two characters.
                other => text.extend(['\\', other]),
            }
        }
        self.fail("a string is not closed")
    }
}
