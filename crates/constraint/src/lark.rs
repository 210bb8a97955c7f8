//! [`check`]: what of Lark is refused before `llguidance` reads it.

use crate::refused::Refused;

/// Maximum nesting of brackets, and maximum definitions: the engine reads both by recursion.
const MOST_DEPTH: usize = 50;
const MOST_DEFINITIONS: usize = 1000;

/// Checks that a Lark grammar has nothing that leaves its text: tokens by name or number, JSON Schema that is not
/// checked here, and bytes that are no text.
pub(crate) fn check(grammar: &str) -> Result<(), Refused> {
    let mut scanner = Scanner { rest: grammar, line: 1, column: 1 };
    let (mut depth, mut definitions) = (0usize, 0);
    while let Some(c) = scanner.rest.chars().next() {
        match c {
            '"' | '/' if scanner.rest.starts_with("//") => scanner.comment(),
            '"' => scanner.quoted('"'),
            '/' => scanner.quoted('/'),
            '#' => scanner.comment(),
            '<' => {
                return Err(scanner.refused(
                    "tokens (`<name>` or `<[number]>`) cannot be part of a grammar: write their text as a string",
                ));
            }
            '%' if scanner.rest.starts_with("%json") => {
                return Err(scanner
                    .refused("`%json` is not enforced inside of Lark: send the schema as `json_schema`"));
            }
            '%' if scanner.rest.starts_with("%llguidance") => {
                return Err(scanner.refused("`%llguidance` options are set by the server: leave them out"));
            }
            c => {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    ':' => definitions += 1,
                    _ => {}
                }
                if depth > MOST_DEPTH || definitions > MOST_DEFINITIONS {
                    let why = format!(
                        "at most {MOST_DEFINITIONS} definitions, and brackets {MOST_DEPTH} deep, are read: use fewer"
                    );
                    return Err(scanner.refused(&why));
                }
                scanner.next();
            }
        }
    }
    Ok(())
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl Scanner<'_> {
    fn refused(&self, why: &str) -> Refused {
        Refused::at(format!("{}:{}", self.line, self.column), why)
    }

    fn next(&mut self) {
        let Some(c) = self.rest.chars().next() else { return };
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '\n' => (self.line, self.column) = (self.line + 1, 1),
            _ => self.column += 1,
        }
    }

    fn comment(&mut self) {
        while !self.rest.is_empty() && !self.rest.starts_with('\n') {
            self.next();
        }
    }

    /// A string or expression, which ends in the same line.
    fn quoted(&mut self, mark: char) {
        self.next();
        while let Some(c) = self.rest.chars().next().filter(|c| *c != '\n') {
            self.next();
            match c {
                '\\' => self.next(),
                c if c == mark => return,
                _ => {}
            }
        }
    }
}

/// The place in the engine's message, and the message without it.
pub(crate) fn place(message: &str) -> Option<(String, String)> {
    let first = message.lines().next()?;
    let at = first.strip_prefix("at ").unwrap_or(first);
    let (line, rest) = at.split_once('(')?;
    let (column, why) = rest.split_once("):")?;
    let numbers = line.parse::<usize>().is_ok() && column.parse::<usize>().is_ok();
    numbers.then(|| (format!("{line}:{column}"), why.trim().to_owned()))
}
