//! Parser: tokens to the syntax tree.

use std::sync::Arc;

use super::ast::{Arguments, Body, Call, Expr, Link, Loop, Macro, Statement, Target, What};
use super::lex::{Kind, Token};
use super::{Failure, TemplateError};

pub(super) type Parsed<T> = Result<T, TemplateError>;

/// Deepest nesting of blocks and of expressions. Real templates reach about ten.
const MOST_NESTED: u32 = 100;

/// Parses the tokens of a template.
pub(super) fn parse(tokens: Vec<Token>) -> Parsed<Body> {
    let mut parser = Parser { tokens, at: 0, depth: 0, loops: 0, blocks: Vec::new() };
    let body = parser.body(&[])?;
    match parser.kind() {
        Kind::End => Ok(body),
        _ => parser.fail("this block was not opened"),
    }
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    pub(super) at: usize,
    depth: u32,
    /// Number of enclosing loops.
    loops: u32,
    /// Names of the blocks so far.
    blocks: Vec<Arc<str>>,
}

impl Parser {
    pub(super) fn kind(&self) -> &Kind {
        self.tokens.get(self.at).map_or(&Kind::End, |token| &token.kind)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |token| token.line)
    }

    pub(super) fn next(&mut self) -> Kind {
        let kind = self
            .tokens
            .get_mut(self.at)
            .map_or(Kind::End, |token| std::mem::replace(&mut token.kind, Kind::End));
        self.at += 1;
        kind
    }

    pub(super) fn fail<T>(&self, why: impl Into<String>) -> Parsed<T> {
        Err(TemplateError { line: self.line(), failure: Failure::Syntax(why.into()) })
    }

    pub(super) fn is_mark(&self, mark: &str) -> bool {
        matches!(self.kind(), Kind::Mark(found) if *found == mark)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), Kind::Name(found) if found == name)
    }

    pub(super) fn is_mark_at(&self, ahead: usize, mark: &str) -> bool {
        let token = self.tokens.get(self.at + ahead);
        matches!(token.map(|token| &token.kind), Some(Kind::Mark(found)) if *found == mark)
    }

    pub(super) fn is_name_at(&self, ahead: usize, name: &str) -> bool {
        let token = self.tokens.get(self.at + ahead);
        matches!(token.map(|token| &token.kind), Some(Kind::Name(found)) if found == name)
    }

    pub(super) fn skip_mark(&mut self, mark: &str) -> bool {
        let found = self.is_mark(mark);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_mark(&mut self, mark: &str) -> Parsed<()> {
        if self.skip_mark(mark) { Ok(()) } else { self.fail(format!("{mark:?} should be here")) }
    }

    fn expect(&mut self, kind: Kind, what: &str) -> Parsed<()> {
        if *self.kind() != kind {
            return self.fail(format!("{what} should be here"));
        }
        self.at += 1;
        Ok(())
    }

    pub(super) fn name(&mut self) -> Parsed<Arc<str>> {
        match self.next() {
            Kind::Name(name) => Ok(name.into()),
            _ => {
                self.at -= 1;
                self.fail("a name should be here")
            }
        }
    }

    /// Runs a part of the parser one nesting level deeper.
    pub(super) fn deeper<T>(&mut self, part: impl FnOnce(&mut Parser) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MOST_NESTED {
            return self.fail(format!("is nested more than {MOST_NESTED} deep"));
        }
        self.depth += 1;
        let parsed = part(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a block with one of these names, which is left to be read.
    fn body(&mut self, ends: &[&str]) -> Parsed<Body> {
        self.deeper(|p| {
            let mut body = Body::new();
            loop {
                let line = p.line();
                match p.next() {
                    Kind::Text(text) => body.push(Statement { line, what: What::Text(text.into()) }),
                    Kind::PrintStart => {
                        let what = What::Print(p.tuple(true)?);
                        p.expect(Kind::PrintEnd, "the end of the expression")?;
                        body.push(Statement { line, what });
                    }
                    Kind::BlockStart => match p.kind() {
                        Kind::Name(name) if ends.contains(&name.as_str()) => return Ok(body),
                        _ => {
                            let statements = p.block()?;
                            body.extend(statements.into_iter().map(|what| Statement { line, what }));
                        }
                    },
                    _ if ends.is_empty() => {
                        p.at -= 1;
                        return Ok(body);
                    }
                    _ => {
                        p.at -= 1;
                        return p.fail(format!("{:?} is missing", ends.last().unwrap_or(&"")));
                    }
                }
            }
        })
    }

    fn block_end(&mut self) -> Parsed<()> {
        self.expect(Kind::BlockEnd, "the end of the block")
    }

    /// A body and the block that ends it.
    fn body_to(&mut self, end: &str) -> Parsed<Body> {
        self.block_end()?;
        let body = self.body(&[end])?;
        self.at += 1;
        self.block_end()?;
        Ok(body)
    }

    /// The tag of a block, and its body up to the block that ends it.
    fn block(&mut self) -> Parsed<Option<What>> {
        let name = self.name()?;
        let what = match &*name {
            "if" => self.condition()?,
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "macro" => self.macro_block()?,
            "call" => self.call_block()?,
            "filter" => {
                let filters = self.filters(true)?;
                What::Filter(filters, self.body_to("endfilter")?)
            }
            "with" => {
                let mut values = Vec::new();
                while *self.kind() != Kind::BlockEnd {
                    if !values.is_empty() {
                        self.expect_mark(",")?;
                    }
                    let target = self.target(false)?;
                    self.expect_mark("=")?;
                    values.push((target, self.expression()?));
                }
                What::With(values, self.body_to("endwith")?)
            }
            // Marks text that a model wrote itself. Here it is only a scope.
            "generation" => What::With(Vec::new(), self.body_to("endgeneration")?),
            "break" | "continue" if self.loops == 0 => return self.fail(format!("{name:?} is in no loop")),
            "break" | "continue" => {
                self.block_end()?;
                if &*name == "break" { What::Break } else { What::Continue }
            }
            "block" => self.named_block()?,
            "autoescape" => match self.expression()? {
                Expr::Bool(false) => What::With(Vec::new(), self.body_to("endautoescape")?),
                _ => {
                    return self.fail("\"autoescape\" is not supported: chat templates write text, not HTML");
                }
            },
            "include" | "import" | "from" | "extends" => {
                return self.fail(format!("{name:?} needs other templates, of which there are none"));
            }
            other => return self.fail(format!("{other:?} is no block that is known, or closes nothing")),
        };
        Ok(Some(what))
    }

    fn named_block(&mut self) -> Parsed<What> {
        let name = self.name()?;
        if self.blocks.contains(&name) {
            return self.fail(format!("block {name:?} is there twice"));
        }
        self.blocks.push(name.clone());
        let scoped = self.skip_name("scoped");
        self.block_end()?;
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(&["endblock"])?;
        self.loops = loops;
        self.at += 1;
        self.skip_name(&name);
        self.block_end()?;
        Ok(What::Block(scoped, body))
    }

    fn condition(&mut self) -> Parsed<What> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(false)?;
            self.block_end()?;
            branches.push((condition, self.body(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            let mut otherwise = Body::new();
            if self.skip_name("else") {
                self.block_end()?;
                otherwise = self.body(&["endif"])?;
            }
            self.at += 1;
            self.block_end()?;
            return Ok(What::If(branches, otherwise));
        }
    }

    fn for_loop(&mut self) -> Parsed<What> {
        let target = self.target(true)?;
        if !self.skip_name("in") {
            return self.fail("\"in\" should be here");
        }
        let over = self.tuple(false)?;
        let only_if = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let body = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let mut otherwise = Body::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.body(&["endfor"])?;
        }
        self.at += 1;
        self.block_end()?;
        Ok(What::For(Arc::new(Loop { target, over, only_if, body, otherwise, recursive })))
    }

    fn set(&mut self) -> Parsed<What> {
        let target = self.target(true)?;
        if self.skip_mark("=") {
            let value = self.tuple(true)?;
            self.block_end()?;
            return Ok(What::Set(target, value));
        }
        let filters = self.filters(false)?;
        Ok(What::SetBlock(target, filters, self.body_to("endset")?))
    }

    fn parameters(&mut self) -> Parsed<Vec<(Arc<str>, Option<Expr>)>> {
        let mut parameters = Vec::new();
        self.expect_mark("(")?;
        while !self.skip_mark(")") {
            if !parameters.is_empty() {
                self.expect_mark(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_mark("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    /// A macro's body, and whether it reads `varargs` and `kwargs`.
    fn macro_of(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Arc<str>, Option<Expr>)>,
        end: &str,
    ) -> Parsed<Arc<Macro>> {
        let start = self.at;
        // `break` and `continue` in a macro do not reach the loops around it.
        let loops = std::mem::take(&mut self.loops);
        // Looks ahead, since `next` takes names out of the tokens.
        let asks = |name: &str, tokens: &[Token]| {
            let ends = |kind: &Kind| matches!(kind, Kind::Name(found) if found == end);
            let body = tokens.iter().take_while(|token| !ends(&token.kind));
            body.into_iter().any(|token| matches!(&token.kind, Kind::Name(found) if found == name))
        };
        let rest = self.tokens.get(start..).unwrap_or_default();
        let (takes_more, takes_named) = (asks("varargs", rest), asks("kwargs", rest));
        let body = self.body_to(end)?;
        self.loops = loops;
        Ok(Arc::new(Macro { name, parameters, takes_more, takes_named, body }))
    }

    fn macro_block(&mut self) -> Parsed<What> {
        let name = self.name()?;
        let parameters = self.parameters()?;
        Ok(What::Macro(self.macro_of(name, parameters, "endmacro")?))
    }

    fn call_block(&mut self) -> Parsed<What> {
        let parameters = if self.is_mark("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Chain(_, links) if matches!(links.last(), Some(Link::Call(_)))) {
            return self.fail("a call should be here");
        }
        Ok(What::CallBlock(call, self.macro_of("caller".into(), parameters, "endcall")?))
    }

    /// A chain of filters. The first has no `|` before it if `bare`.
    pub(super) fn filters(&mut self, bare: bool) -> Parsed<Vec<Call>> {
        let mut filters = Vec::new();
        while (bare && filters.is_empty()) || self.skip_mark("|") {
            let name = self.dotted()?;
            let arguments = if self.skip_mark("(") { self.arguments()? } else { Arguments::default() };
            filters.push(Call { name, arguments });
        }
        Ok(filters)
    }

    pub(super) fn dotted(&mut self) -> Parsed<Box<str>> {
        let mut name = self.name()?.to_string();
        while self.skip_mark(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }

    /// Target of an assignment: a name, a member of a namespace, or, if `several`, a comma-separated list of targets.
    fn target(&mut self, several: bool) -> Parsed<Target> {
        let first = self.one_target()?;
        if !several || !self.is_mark(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_mark(",") {
            if matches!(self.kind(), Kind::Name(name) if name != "in") || self.is_mark("(") {
                targets.push(self.one_target()?);
            }
        }
        Ok(Target::Several(targets))
    }

    fn one_target(&mut self) -> Parsed<Target> {
        if self.skip_mark("(") {
            let inner = self.deeper(|p| p.target(true))?;
            self.expect_mark(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("{name:?} cannot be given a value"));
        }
        if self.skip_mark(".") {
            return Ok(Target::Member(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
