//! [`ecma`]: a pattern as JSON Schema means it (ECMA-262) in the syntax of Rust's `regex` crate.
//!
//! `\d` and `\w` are ASCII, `.` leaves out line ends, a bracket may stand for itself. What finite automata cannot do
//! (look-around, back references, word boundaries) is refused by name.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum of a count in braces: beyond it, automata do not fit into memory.
const MOST_REPETITIONS: u64 = 10_000;
const SPACES: &str =
    r"\t\n\x0b\x0c\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";

/// The pattern in the syntax of `regex-syntax`, or why there is none.
pub(crate) fn ecma(pattern: &str) -> Result<String, String> {
    let mut reader =
        Reader { rest: pattern.chars().peekable(), out: String::with_capacity(pattern.len() + 8) };
    reader.alternatives()?;
    Ok(reader.out)
}

/// Checks that an expression can be compiled.
pub(crate) fn check(regex: &str) -> Result<(), String> {
    let made = llguidance::derivre::RegexBuilder::new().mk_regex_for_serach(regex);
    // The engine repeats the expression in its message, which is not what the client wrote.
    made.map(|_| ()).map_err(|e| match e.to_string() {
        e if e.contains("lookarounds") => "`^` and `$` may stand at the start and the end alone".into(),
        e => e.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

impl Reader<'_> {
    fn alternatives(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.group()?,
                '.' => self.out.push_str(r"[^\n\r\u{2028}\u{2029}]"),
                '{' => self.braces()?,
                '}' | ']' => self.literal(c),
                '*' | '+' | '?' => {
                    self.out.push(c);
                    self.quantified();
                }
                '|' | ')' | '^' | '$' => self.out.push(c),
                c => self.literal(c),
            }
        }
        Ok(())
    }

    /// Lazy quantifiers match the same texts.
    fn quantified(&mut self) {
        self.rest.next_if_eq(&'?');
    }

    fn literal(&mut self, c: char) {
        // `\<` and `\>` are word boundaries.
        if c.is_ascii_punctuation() && !matches!(c, '<' | '>' | '_') {
            self.out.push('\\');
            self.out.push(c);
        } else if c.is_ascii_control() {
            self.out.push_str(&format!(r"\x{:02x}", c as u32));
        } else {
            self.out.push(c);
        }
    }

    fn group(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_none() {
            self.out.push_str("(?:");
            return Ok(());
        }
        match self.rest.next() {
            Some(':') => {}
            Some('=' | '!') => return Err("look-ahead `(?=` or `(?!` cannot be enforced".into()),
            Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => {
                return Err("look-behind `(?<=` or `(?<!` cannot be enforced".into());
            }
            Some('<') => while self.rest.next().is_some_and(|c| c != '>') {},
            _ => return Err("the group `(?` has a kind that ECMA-262 does not know".into()),
        }
        self.out.push_str("(?:");
        Ok(())
    }

    /// A count, or a brace that stands for itself.
    fn braces(&mut self) -> Result<(), String> {
        let inside: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let closed = self.rest.clone().nth(inside.chars().count()) == Some('}');
        let (min, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !closed || !number(min) || !(most.is_empty() || number(most)) {
            self.literal('{');
            return Ok(());
        }
        for count in [min, most] {
            if !count.is_empty() && count.parse::<u64>().map_or(true, |n| n > MOST_REPETITIONS) {
                return Err(format!("the count {{{inside}}} is larger than {MOST_REPETITIONS}"));
            }
        }
        self.out.push_str(&format!("{{{inside}}}"));
        self.rest.nth(inside.chars().count());
        self.quantified();
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        match self.rest.peek() {
            Some('b' | 'B') => return Err(r"the word boundary \b cannot be enforced".into()),
            Some('1'..='9' | 'k') => return Err("back references cannot be enforced".into()),
            _ => {}
        }
        match self.escaped()? {
            Escaped::Char(c) => self.literal(c),
            Escaped::Set(set) => self.out.push_str(&set),
        }
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.next_if_eq(&']').is_some() {
            // `[]` matches nothing, `[^]` everything.
            self.out.push_str(if negated { r"[\x00-\u{10ffff}]" } else { r"[a&&b]" });
            return Ok(());
        }
        self.out.push_str(if negated { "[^" } else { "[" });
        loop {
            let c = self.rest.next().ok_or("the bracket `[` is not closed")?;
            match c {
                ']' => break,
                '\\' => match self.escaped()? {
                    Escaped::Char(c) => self.literal(c),
                    Escaped::Set(set) => {
                        self.out.push_str(&set);
                        // A range cannot begin with a set: the hyphen stands for itself.
                        if self.rest.next_if_eq(&'-').is_some() {
                            self.out.push_str(r"\-");
                        }
                    }
                },
                '-' => self.hyphen(),
                c => self.literal(c),
            }
        }
        self.out.push(']');
        Ok(())
    }

    /// A hyphen between two characters is a range, and stands for itself elsewhere.
    fn hyphen(&mut self) {
        let mut next = self.rest.clone();
        let closes = matches!(next.next(), Some(']') | None);
        let set = self.rest.peek() == Some(&'\\')
            && self.rest.clone().nth(1).is_some_and(|c| "dDwWsSpP".contains(c));
        let opened = self.out.ends_with('[') && !self.out.ends_with(r"\[")
            || self.out.ends_with("[^") && !self.out.ends_with(r"\[^");
        self.out.push_str(if closes || set || opened { r"\-" } else { "-" });
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text: String = self.rest.clone().take(digits).collect();
        let value = (text.len() == digits).then(|| u32::from_str_radix(&text, 16).ok()).flatten()?;
        self.rest.nth(digits - 1);
        Some(value)
    }

    fn unicode(&mut self) -> Result<char, String> {
        let bad = || r"\u needs four hexadecimal digits, or some in braces".to_owned();
        if self.rest.next_if_eq(&'{').is_some() {
            let text: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
            return u32::from_str_radix(&text, 16).ok().and_then(char::from_u32).ok_or_else(bad);
        }
        let high = self.hex(4).ok_or_else(bad)?;
        if let Some(c) = char::from_u32(high) {
            return Ok(c);
        }
        let pair = self.rest.next() == Some('\\') && self.rest.next() == Some('u');
        let low = if pair { self.hex(4) } else { None };
        let both = low.and_then(|low| char::decode_utf16([high as u16, low as u16]).next()?.ok());
        both.ok_or_else(|| r"half of a surrogate pair (\uD800 to \uDFFF) cannot be enforced".into())
    }

    fn escaped(&mut self) -> Result<Escaped, String> {
        let c = self.rest.next().ok_or("it ends with a backslash")?;
        Ok(Escaped::Char(match c {
            'd' => return Ok(Escaped::Set("[0-9]".into())),
            'D' => return Ok(Escaped::Set("[^0-9]".into())),
            'w' => return Ok(Escaped::Set("[0-9A-Za-z_]".into())),
            'W' => return Ok(Escaped::Set("[^0-9A-Za-z_]".into())),
            's' => return Ok(Escaped::Set(format!("[{SPACES}]"))),
            'S' => return Ok(Escaped::Set(format!("[^{SPACES}]"))),
            'p' | 'P' => {
                if self.rest.next_if_eq(&'{').is_none() {
                    return Err(format!(r"\{c} needs a name in braces"));
                }
                let name: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
                return Ok(Escaped::Set(format!(r"\{c}{{{name}}}")));
            }
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'v' => '\x0b',
            'f' => '\x0c',
            'b' => '\x08',
            '0' => '\0',
            'c' => {
                let letter = self.rest.next().filter(char::is_ascii_alphabetic);
                let letter = letter.ok_or(r"\c needs a letter")?;
                char::from(letter as u8 & 0x1f)
            }
            'x' => self.hex(2).and_then(char::from_u32).ok_or(r"\x needs two hexadecimal digits")?,
            'u' => self.unicode()?,
            c if c.is_ascii_alphanumeric() => return Err(format!(r"ECMA-262 knows no \{c}")),
            c => c,
        }))
    }
}

enum Escaped {
    Char(char),
    Set(String),
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::*;
    use crate::rules::matches;

    fn found(pattern: &str, text: &str) -> bool {
        matches(&RegexAst::SearchRegex(ecma(pattern).unwrap()), text).unwrap()
    }

    #[test]
    fn ecma_means_what_it_does_in_ecma() {
        for (pattern, yes, no) in [
            (r"^\d+$", "12", "१२"),
            (r"^\w$", "_", "é"),
            (r"^\s$", "\u{feff}", "x"),
            (r"^[\d-x]$", "-", "y"),
            (r"^[a\-z]$", "-", "b"),
            (r"^[-a]$", "-", "b"),
            (r"^[^-a]$", "b", "-"),
            (r"^[a-]$", "-", "b"),
            (r"^[[]$", "[", "]"),
            (r"^a{,2}$", "a{,2}", "a"),
            (r"^a{2}$", "aa", "a"),
            (r"^x{2,}?$", "xxx", "x"),
            (r"^.$", "a", "\n"),
            (r"^[^]$", "\n", "ab"),
            (r"a|^b$", "xax", "xb"),
            (r"^(?<year>\d{4})$", "2026", "20"),
            (r"^\/\-\.$", "/-.", "x-."),
            (r"^\u0041\x42\cJ$", "AB\n", "AB"),
            (r"^\ud83d\udc32$", "🐲", "x"),
            (r"^\p{L}+$", "éa", "1"),
            (r"^a&&b~~[a&&b]$", "a&&b~~&", "b"),
            (r"^\W[\W]$", "é ", "ab"),
            (r"^]}$", "]}", "]"),
            (r"^#x y$", "#x y", "#xy"),
        ] {
            assert!(found(pattern, yes), "{pattern} {yes} {:?}", ecma(pattern));
            assert!(!found(pattern, no), "{pattern} {no} {:?}", ecma(pattern));
        }
    }

    #[test]
    fn automata_have_no_memory() {
        for pattern in [
            r"(?=a)",
            r"(?!a)",
            r"(?<=a)",
            r"(?<!a)",
            r"(a)\1",
            r"\bx",
            "a{1,1000000000}",
            r"\ud83d",
            "[a",
            r"\",
        ] {
            assert!(ecma(pattern).is_err(), "{pattern}");
        }
    }
}
