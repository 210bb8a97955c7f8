//! From PTX text to a tree: modules, entries, instructions. It knows the grammar, and of instructions no more than how they
//! are written; `lower` knows what they mean.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::fault::Error;

/// A module as text has it.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    pub version: (u32, u32),
    pub target: &'a str,
    pub entries: Vec<Entry<'a>>,
}

/// A kernel.
#[derive(Debug, Default)]
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    /// Names of parameters and their places among the parameters' bytes.
    pub params: Vec<(&'a str, Range<usize>)>,
    /// Names of shared variables and their places.
    pub shared: Vec<(&'a str, Range<usize>)>,
    /// The shared variable whose size the launch decides.
    pub dynamic_shared: Option<&'a str>,
    /// Most threads of a CTA, if it says so.
    pub max_threads: Option<usize>,
    /// The types of its registers.
    pub registers: Vec<Kind>,
    /// The 16-bit registers among them.
    pub narrow: HashSet<usize>,
    pub code: Vec<Statement<'a>>,
    /// Labels, as indices into `code`.
    pub labels: HashMap<&'a str, usize>,
}

/// Register types, as the interpreter tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Predicate,
    /// 32 bits, or fewer with zeros above.
    Word,
    /// 64 bits.
    Wide,
}

/// An instruction.
#[derive(Debug)]
pub(crate) struct Statement<'a> {
    pub line: u32,
    /// The predicate that it is executed under, and whether that must be false.
    pub guard: Option<(usize, bool)>,
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, by its number.
    Register(usize),
    /// The complement of a predicate.
    Not(usize),
    /// A number, as its bits (a float of 32 bits has 32).
    Number(u64),
    /// `%tid.x` and its like.
    Special(&'a str),
    /// A variable's address, or a label.
    Symbol(&'a str),
    /// `[base + offset]`
    Memory(Box<Operand<'a>>, i64),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `a|b`
    Pair(usize, usize),
    /// `_`
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Number(u64),
    Text,
    Mark(char),
}

/// Divides text into tokens with their lines.
fn tokens(text: &str) -> Result<Vec<(Token<'_>, u32)>, Error> {
    let mut tokens = Vec::new();
    let mut inside_comment = false;
    for (i, line) in text.lines().enumerate() {
        let number = i as u32 + 1;
        let mut rest = line;
        loop {
            if inside_comment {
                let Some((_, after)) = rest.split_once("*/") else { break };
                (inside_comment, rest) = (false, after);
            }
            rest = rest.trim_start();
            let Some(first) = rest.chars().next() else { break };
            if rest.starts_with("//") {
                break;
            }
            if let Some(after) = rest.strip_prefix("/*") {
                (inside_comment, rest) = (true, after);
                continue;
            }
            let is_name = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
            if first == '"' {
                let end =
                    rest[1..].find('"').ok_or_else(|| Error::parse(number, "a string without an end"))?;
                tokens.push((Token::Text, number));
                rest = &rest[end + 2..];
            } else if first.is_ascii_digit() {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let value = literal(&rest[..end])
                    .ok_or_else(|| Error::parse(number, format!("the number {}", &rest[..end])))?;
                tokens.push((Token::Number(value), number));
                rest = &rest[end..];
            } else if is_name(first) {
                let mut end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
                // ld.global.L1::no_allocate.f32
                while let Some(after) = rest[end..].strip_prefix("::") {
                    end += 2 + after.find(|c: char| !is_name(c)).unwrap_or(after.len());
                }
                tokens.push((Token::Word(&rest[..end]), number));
                rest = &rest[end..];
            } else if first.is_ascii() {
                tokens.push((Token::Mark(first), number));
                rest = &rest[1..];
            } else {
                return Err(Error::parse(number, format!("the character {first:?}")));
            }
        }
    }
    Ok(tokens)
}

/// The bits of a number: decimal, hexadecimal, or a float by its bits (`0f3F800000`, `0d3FF0000000000000`).
fn literal(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    match text.get(..2) {
        Some("0x" | "0X" | "0f" | "0F" | "0d" | "0D") => u64::from_str_radix(&text[2..], 16).ok(),
        _ => text.parse().ok(),
    }
}

/// Bits of a type's name: `.f32` has 32.
fn bits_of(name: &str) -> Option<usize> {
    match name {
        "pred" => Some(1),
        "f16x2" | "bf16x2" => Some(32),
        _ => name.trim_start_matches("bf").trim_start_matches(['b', 'u', 's', 'f']).parse().ok(),
    }
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    /// Names and alignments of shared variables outside of kernels.
    outside: Vec<(&'a str, usize)>,
}

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))).map_or(0, |(_, line)| *line)
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::parse(self.line(), what)
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn next(&mut self) -> Result<Token<'a>, Error> {
        let token = self.peek().ok_or_else(|| self.error("the text ends early"))?;
        self.at += 1;
        Ok(token)
    }

    fn take(&mut self, token: Token<'a>) -> bool {
        let is = self.peek() == Some(token);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, mark: char) -> Result<(), Error> {
        match self.take(Token::Mark(mark)) {
            true => Ok(()),
            false => Err(self.error(format!("{mark:?} is missing before {:?}", self.peek()))),
        }
    }

    fn word(&mut self) -> Result<&'a str, Error> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(self.error(format!("{other:?} in place of a name"))),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        let negative = self.take(Token::Mark('-'));
        match self.next()? {
            Token::Number(n) if negative => Ok(n.wrapping_neg()),
            Token::Number(n) => Ok(n),
            other => Err(self.error(format!("{other:?} in place of a number"))),
        }
    }

    fn count(&mut self) -> Result<usize, Error> {
        let count = self.number()?;
        usize::try_from(count)
            .ok()
            .filter(|n| *n < 1 << 31)
            .ok_or_else(|| self.error(format!("the size {count}")))
    }

    fn module(&mut self) -> Result<Tree<'a>, Error> {
        let mut tree = Tree { version: (0, 0), target: "", entries: Vec::new() };
        while self.peek().is_some() {
            match self.word()? {
                ".version" => {
                    // The tokens are a number, and a name that begins with a point.
                    let major = self.count()? as u32;
                    let minor = self.word()?.trim_start_matches('.').parse();
                    tree.version = (major, minor.map_err(|_| self.error("the version"))?);
                }
                ".target" => tree.target = self.word()?,
                ".address_size" => match self.number()? {
                    64 => {}
                    other => return Err(self.error(format!("addresses of {other} bits"))),
                },
                ".visible" | ".weak" => {}
                // Shared memory whose size the launch decides: every kernel has it, behind what it declares itself.
                ".extern" => {
                    let space = self.word()?;
                    let (name, align, size) = self.variable()?;
                    if space != ".shared" || size.is_some() {
                        return Err(self.error(format!("{name}, which is defined elsewhere")));
                    }
                    self.expect(';')?;
                    self.outside.push((name, align));
                }
                ".entry" => {
                    let entry = self.entry()?;
                    tree.entries.push(entry);
                }
                other => return Err(self.error(format!("{other} outside of a kernel"))),
            }
        }
        Ok(tree)
    }

    /// `.align 8 .b8 name[24]`, `.u32 name`, `.b8 name[]`: its name, alignment and bytes (none if the launch decides).
    fn variable(&mut self) -> Result<(&'a str, usize, Option<usize>), Error> {
        let (mut align, mut size) = (None, None);
        let name = loop {
            match self.word()? {
                ".align" => align = Some(self.count()?),
                word => match word.strip_prefix('.') {
                    Some(of) => {
                        let bits = bits_of(of).ok_or_else(|| self.error(format!("the type .{of}")))?;
                        size = Some(bits / 8);
                    }
                    None => break word,
                },
            }
        };
        let each = size.ok_or_else(|| self.error(format!("{name} has no type")))?;
        let align = align.unwrap_or(each).max(1);
        if !self.take(Token::Mark('[')) {
            return Ok((name, align, Some(each)));
        }
        if self.take(Token::Mark(']')) {
            return Ok((name, align, None));
        }
        let count = self.count()?;
        self.expect(']')?;
        Ok((name, align, Some(each * count)))
    }

    fn entry(&mut self) -> Result<Entry<'a>, Error> {
        let mut entry = Entry { name: self.word()?, ..Entry::default() };
        if self.take(Token::Mark('(')) {
            let mut end = 0;
            while !self.take(Token::Mark(')')) {
                match self.word()? {
                    ".param" => {}
                    other => return Err(self.error(format!("{other} among parameters"))),
                }
                let (name, align, size) = self.variable()?;
                let size = size.ok_or_else(|| self.error(format!("the parameter {name} has no size")))?;
                let start = usize::next_multiple_of(end, align);
                end = start + size;
                entry.params.push((name, start..end));
                self.take(Token::Mark(','));
            }
        }
        loop {
            match self.next()? {
                Token::Word(".maxntid" | ".reqntid") => {
                    let mut threads = self.count()?;
                    while self.take(Token::Mark(',')) {
                        threads *= self.count()?;
                    }
                    entry.max_threads = Some(threads);
                }
                Token::Word(".minnctapersm" | ".maxnreg") => {
                    self.count()?;
                }
                Token::Mark('{') => break,
                other => return Err(self.error(format!("{other:?} before the kernel's code"))),
            }
        }
        self.body(&mut entry)?;
        Ok(entry)
    }

    fn body(&mut self, entry: &mut Entry<'a>) -> Result<(), Error> {
        // Inline assembly opens a scope with registers of its own.
        let mut scopes: Vec<Scope<'a>> = vec![Scope::default()];
        let mut shared_end = 0;
        loop {
            let line = self.line();
            match self.next()? {
                Token::Mark('{') => scopes.push(Scope::default()),
                Token::Mark('}') => {
                    scopes.pop();
                    if scopes.is_empty() {
                        for (name, align) in &self.outside {
                            let start = usize::next_multiple_of(shared_end, *align);
                            entry.shared.push((name, start..start));
                            entry.dynamic_shared = Some(name);
                        }
                        return Ok(());
                    }
                }
                Token::Word(".reg") => {
                    let of = self.word()?;
                    let bits = bits_of(of.trim_start_matches('.'));
                    let kind = match bits {
                        Some(1) => Kind::Predicate,
                        Some(16 | 32) => Kind::Word,
                        Some(64) => Kind::Wide,
                        _ => return Err(self.error(format!("registers of type {of}"))),
                    };
                    loop {
                        let name = self.word()?;
                        let count = match self.take(Token::Mark('<')) {
                            true => {
                                let count = self.count()?;
                                self.expect('>')?;
                                Some(count)
                            }
                            false => None,
                        };
                        let first = entry.registers.len();
                        let end = first + count.unwrap_or(1);
                        entry.registers.resize(end, kind);
                        if bits == Some(16) {
                            entry.narrow.extend(first..end);
                        }
                        if let Some(scope) = scopes.last_mut() {
                            scope.names.push((name, first, count));
                        }
                        if !self.take(Token::Mark(',')) {
                            break;
                        }
                    }
                    self.expect(';')?;
                }
                Token::Word(".shared") => {
                    let (name, align, size) = self.variable()?;
                    let start = usize::next_multiple_of(shared_end, align);
                    match size {
                        Some(size) => shared_end = start + size,
                        None => entry.dynamic_shared = Some(name),
                    }
                    entry.shared.push((name, start..start + size.unwrap_or(0)));
                    self.expect(';')?;
                }
                Token::Word(".pragma") => {
                    self.next()?;
                    self.expect(';')?;
                }
                Token::Word(name) if self.take(Token::Mark(':')) => {
                    entry.labels.insert(name, entry.code.len());
                }
                Token::Mark('@') => {
                    let negated = self.take(Token::Mark('!'));
                    let name = self.word()?;
                    let register = self.register(&scopes, name)?;
                    let opcode = self.word()?;
                    let statement = self.statement(&scopes, line, Some((register, negated)), opcode)?;
                    entry.code.push(statement);
                }
                Token::Word(opcode) => {
                    let statement = self.statement(&scopes, line, None, opcode)?;
                    entry.code.push(statement);
                }
                other => return Err(self.error(format!("{other:?} in place of an instruction"))),
            }
        }
    }

    fn register(&self, scopes: &[Scope<'a>], name: &str) -> Result<usize, Error> {
        let known = scopes.iter().rev().find_map(|scope| scope.find(name));
        known.ok_or_else(|| self.error(format!("no register is called {name}")))
    }

    fn statement(
        &mut self,
        scopes: &[Scope<'a>],
        line: u32,
        guard: Option<(usize, bool)>,
        opcode: &'a str,
    ) -> Result<Statement<'a>, Error> {
        let mut operands = Vec::new();
        while !self.take(Token::Mark(';')) {
            operands.push(self.operand(scopes)?);
            self.take(Token::Mark(','));
        }
        Ok(Statement { line, guard, opcode, operands })
    }

    fn operand(&mut self, scopes: &[Scope<'a>]) -> Result<Operand<'a>, Error> {
        match self.next()? {
            Token::Number(n) => Ok(Operand::Number(n)),
            Token::Mark('-') => Ok(Operand::Number(self.number()?.wrapping_neg())),
            Token::Mark('!') => {
                let name = self.word()?;
                Ok(Operand::Not(self.register(scopes, name)?))
            }
            Token::Mark('{') => {
                let mut parts = Vec::new();
                while !self.take(Token::Mark('}')) {
                    parts.push(self.operand(scopes)?);
                    self.take(Token::Mark(','));
                }
                Ok(Operand::Vector(parts))
            }
            Token::Mark('[') => {
                let base = self.operand(scopes)?;
                let mut offset = 0i64;
                if self.take(Token::Mark('+')) || self.peek() == Some(Token::Mark('-')) {
                    offset = self.number()? as i64;
                }
                self.expect(']')?;
                Ok(Operand::Memory(Box::new(base), offset))
            }
            Token::Word("_") => Ok(Operand::Ignored),
            Token::Word(name) => {
                let Some(first) = scopes.iter().rev().find_map(|scope| scope.find(name)) else {
                    return Ok(match name.starts_with('%') {
                        true => Operand::Special(name),
                        false => Operand::Symbol(name),
                    });
                };
                if !self.take(Token::Mark('|')) {
                    return Ok(Operand::Register(first));
                }
                let second = self.word()?;
                Ok(Operand::Pair(first, self.register(scopes, second)?))
            }
            other => Err(self.error(format!("{other:?} in place of an operand"))),
        }
    }
}

/// The registers that a pair of braces declares: name, first number, and how many share the name.
#[derive(Default)]
struct Scope<'a> {
    names: Vec<(&'a str, usize, Option<usize>)>,
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().find_map(|&(prefix, first, count)| match count {
            None => (name == prefix).then_some(first),
            Some(count) => {
                let index: usize = name.strip_prefix(prefix)?.parse().ok()?;
                (index < count).then_some(first + index)
            }
        })
    }
}

/// Reads a module.
pub(crate) fn parse(text: &str) -> Result<Tree<'_>, Error> {
    Parser { tokens: tokens(text)?, at: 0, outside: Vec::new() }.module()
}
