//! [`parse`]: the notation's rules, with their places.

use crate::refused::Refused;

/// Maximum nesting of groups.
const MOST_DEPTH: usize = 100;
/// Maximum of repetitions of repetitions.
const MOST_OPERATORS: usize = 8;
/// Maximum of a count in braces, as in llama.cpp.
const MOST_REPETITIONS: u64 = 2000;

/// Line and column, from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    line: usize,
    column: usize,
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// `name ::= alternatives`
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) alternatives: Vec<Vec<Item>>,
    at: At,
}

impl Rule {
    pub(super) fn at(&self) -> String {
        self.at.to_string()
    }
}

/// A part of an alternative.
#[derive(Debug)]
pub(super) enum Item {
    Text(String),
    /// One character, as an expression.
    Class(String),
    Name(String, At),
    Group(Vec<Vec<Item>>),
    Repeat(Box<Item>, u64, Option<u64>),
}

/// The rules of a grammar.
pub(super) fn parse(text: &str) -> Result<Vec<Rule>, Refused> {
    let mut parser = Parser { rest: text, at: At { line: 1, column: 1 } };
    let mut rules = Vec::new();
    parser.blanks(true);
    while !parser.rest.is_empty() {
        rules.push(parser.rule()?);
        parser.blanks(true);
    }
    if rules.is_empty() {
        return Err(Refused::whole("the grammar is empty: it needs a rule `root ::= …`"));
    }
    Ok(rules)
}

struct Parser<'a> {
    rest: &'a str,
    at: At,
}

impl Parser<'_> {
    fn refused(&self, why: impl Into<String>) -> Refused {
        Refused::at(self.at.to_string(), why)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '\n' => self.at = At { line: self.at.line + 1, column: 1 },
            _ => self.at.column += 1,
        }
        Some(c)
    }

    fn skip(&mut self, characters: usize) {
        for _ in 0..characters {
            self.next();
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest.starts_with(text);
        if found {
            self.skip(text.chars().count());
        }
        found
    }

    /// Blanks and comments, in the next lines too if these belong to the same thing.
    fn blanks(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.skip(1),
                '\n' | '\r' if lines => self.skip(1),
                '#' => while self.peek().is_some_and(|c| c != '\n' && c != '\r') && self.next().is_some() {},
                _ => return,
            }
        }
    }

    fn name(&mut self) -> String {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let length = self.rest.find(|c| !word(c)).unwrap_or(self.rest.len());
        let name = self.rest[..length].to_owned();
        self.skip(length);
        name
    }

    fn rule(&mut self) -> Result<Rule, Refused> {
        let at = self.at;
        let name = self.name();
        if name.is_empty() {
            return Err(self.refused("the name of a rule is expected: `name ::= …`"));
        }
        self.blanks(false);
        if !self.take("::=") {
            return Err(self.refused(format!("`::=` is expected behind the name `{name}` of a rule")));
        }
        self.blanks(true);
        let alternatives = self.alternatives(0)?;
        if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
            let found = self.peek().unwrap_or_default();
            return Err(
                self.refused(format!("`{found}` is not expected here: the rule `{name}` ends before it"))
            );
        }
        Ok(Rule { name, alternatives, at })
    }

    fn alternatives(&mut self, depth: usize) -> Result<Vec<Vec<Item>>, Refused> {
        if depth > MOST_DEPTH {
            return Err(self.refused(format!("groups may be nested {MOST_DEPTH} deep: use rules")));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.take("|") {
            self.blanks(true);
            all.push(self.sequence(depth)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Item>, Refused> {
        let nested = depth > 0;
        let mut items: Vec<Item> = Vec::new();
        while let Some(c) = self.peek() {
            let item = match c {
                '"' => self.text()?,
                '[' => self.class()?,
                '.' => {
                    self.next();
                    Item::Class("(?s:.)".into())
                }
                '(' => {
                    self.next();
                    self.blanks(true);
                    let alternatives = self.alternatives(depth + 1)?;
                    if !self.take(")") {
                        return Err(self.refused("the bracket `(` is not closed: add `)`"));
                    }
                    Item::Group(alternatives)
                }
                '<' | '!' => {
                    let why = "tokens (`<name>`, `<[number]>`) cannot be part of a grammar: write their text in quotes";
                    return Err(self.refused(why));
                }
                c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                    let at = self.at;
                    Item::Name(self.name(), at)
                }
                '*' | '+' | '?' | '{' => {
                    return Err(
                        self.refused(format!("`{c}` repeats what stands before it, and nothing does"))
                    );
                }
                _ => return Ok(items),
            };
            let item = self.repeated(item)?;
            items.push(item);
            self.blanks(nested);
        }
        Ok(items)
    }

    /// An item with the repetitions behind it.
    fn repeated(&mut self, mut item: Item) -> Result<Item, Refused> {
        for _ in 0..MOST_OPERATORS {
            self.blanks(false);
            let (min, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let counts = self.counts()?;
                    item = Item::Repeat(Box::new(item), counts.0, counts.1);
                    continue;
                }
                _ => return Ok(item),
            };
            self.next();
            item = Item::Repeat(Box::new(item), min, most);
        }
        Err(self
            .refused(format!("more than {MOST_OPERATORS} repetitions of one another: use brackets or rules")))
    }

    fn counts(&mut self) -> Result<(u64, Option<u64>), Refused> {
        let bad =
            |parser: &Self, why: &str| parser.refused(format!("{why}: write `{{m}}`, `{{m,}}` or `{{m,n}}`"));
        let Some(end) = self.rest.find('}') else { return Err(bad(self, "the brace `{` is not closed")) };
        let inside: String = self.rest[1..end].chars().filter(|c| !c.is_whitespace()).collect();
        let (min, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        let number = |text: &str| text.parse::<u64>().ok();
        let min = if min.is_empty() && inside.contains(',') { Some(0) } else { number(min) };
        let most = if most.is_empty() { Some(None) } else { number(most).map(Some) };
        let (Some(min), Some(most)) = (min, most) else { return Err(bad(self, "a count is expected")) };
        if min > MOST_REPETITIONS || most.is_some_and(|most| most > MOST_REPETITIONS) {
            return Err(
                self.refused(format!("counts may be {MOST_REPETITIONS} at most: use `*`, or a smaller one"))
            );
        }
        if most.is_some_and(|most| most < min) {
            return Err(bad(self, "the second count is below the first"));
        }
        let length = self.rest[..=end].chars().count();
        self.skip(length);
        Ok((min, most))
    }

    fn text(&mut self) -> Result<Item, Refused> {
        let at = self.at;
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(Refused::at(at.to_string(), "the quote `\"` is not closed")),
                Some('"') => {
                    self.next();
                    return Ok(Item::Text(text));
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    /// A character, which may be escaped.
    fn character(&mut self) -> Result<char, Refused> {
        let at = self.at;
        let bad = |why: String| Refused::at(at.to_string(), why);
        match self.next() {
            Some('\\') => {}
            Some(c) => return Ok(c),
            None => return Err(bad("a character is expected".into())),
        }
        let escaped =
            self.next().ok_or_else(|| bad("a character is expected behind the backslash".into()))?;
        let digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'n' => return Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escaped),
            other => {
                return Err(bad(format!(
                    r"the escape \{other} is not known: use \n, \r, \t, \\, \x, \u or \U"
                )));
            }
        };
        let text: String = self.rest.chars().take(digits).collect();
        let code = if text.len() == digits { u32::from_str_radix(&text, 16).ok() } else { None };
        let c = code.and_then(char::from_u32);
        let c =
            c.ok_or_else(|| bad(format!(r"\{escaped} needs {digits} hexadecimal digits of a character")))?;
        self.skip(digits);
        Ok(c)
    }

    fn class(&mut self) -> Result<Item, Refused> {
        let at = self.at;
        self.next();
        let mut class = String::from("[");
        if self.take("^") {
            class.push('^');
        }
        let empty = class.len();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    return Err(Refused::at(at.to_string(), "the bracket `[` is not closed"));
                }
                Some(']') => {
                    self.next();
                    break;
                }
                Some(_) => {}
            }
            let first = self.character()?;
            let range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = if range {
                self.next();
                self.character()?
            } else {
                first
            };
            if last < first {
                let why = format!("the range from {first:?} to {last:?} goes backwards");
                return Err(Refused::at(at.to_string(), why));
            }
            class.push_str(&format!(r"\u{{{:x}}}-\u{{{:x}}}", first as u32, last as u32));
        }
        if class.len() == empty {
            return Err(Refused::at(at.to_string(), "the brackets `[]` are empty: no character is in them"));
        }
        class.push(']');
        Ok(Item::Class(class))
    }
}
