//! Parser of expressions, from the loosest binding operator to the tightest.

use super::ast::{Arguments, Call, Comparison, Expr, Link, Operator};
use super::lex::Kind;
use super::parse::{Parsed, Parser};

impl Parser {
    /// An expression, or a tuple of several with commas between. Without `choices`, an `if` is not part of it.
    pub(super) fn tuple(&mut self, choices: bool) -> Parsed<Expr> {
        let one = |p: &mut Parser| if choices { p.expression() } else { p.deeper(Parser::or) };
        let mut items = vec![one(self)?];
        let mut is_tuple = false;
        while self.skip_mark(",") {
            is_tuple = true;
            let over = matches!(self.kind(), Kind::PrintEnd | Kind::BlockEnd) || self.is_mark(")");
            if over || self.is_name("recursive") {
                break;
            }
            items.push(one(self)?);
        }
        Ok(match items.pop() {
            Some(only) if !is_tuple => only,
            last => Expr::Tuple(items.into_iter().chain(last).collect()),
        })
    }

    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.deeper(|p| {
            let mut value = p.or()?;
            while p.skip_name("if") {
                let condition = p.or()?;
                let otherwise = if p.skip_name("else") { Some(Box::new(p.expression()?)) } else { None };
                value = Expr::Choice(Box::new([condition, value]), otherwise);
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Parsed<Expr> {
        let first = self.and()?;
        let mut parts = vec![first];
        while self.skip_name("or") {
            parts.push(self.and()?);
        }
        Ok(single(parts, Expr::Or))
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut parts = vec![self.not()?];
        while self.skip_name("and") {
            parts.push(self.not()?);
        }
        Ok(single(parts, Expr::And))
    }

    fn not(&mut self) -> Parsed<Expr> {
        if self.skip_name("not") {
            return self.deeper(|p| Ok(Expr::Not(Box::new(p.not()?))));
        }
        self.compare()
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let found = match self.kind() {
            Kind::Mark("==") => Comparison::Equal,
            Kind::Mark("!=") => Comparison::Unequal,
            Kind::Mark("<") => Comparison::Less,
            Kind::Mark("<=") => Comparison::LessOrEqual,
            Kind::Mark(">") => Comparison::Greater,
            Kind::Mark(">=") => Comparison::GreaterOrEqual,
            Kind::Name(name) if name == "in" => Comparison::In,
            Kind::Name(name) if name == "not" && self.is_name_at(1, "in") => {
                self.at += 1;
                Comparison::NotIn
            }
            _ => return None,
        };
        self.at += 1;
        Some(found)
    }

    fn compare(&mut self) -> Parsed<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    /// Operators of one precedence, left-associative.
    fn arithmetic(
        &mut self,
        operators: &[(&str, Operator)],
        part: fn(&mut Parser) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        let first = part(self)?;
        let mut rest = Vec::new();
        while let Some((mark, operator)) = operators.iter().find(|(mark, _)| self.is_mark(mark)) {
            self.skip_mark(mark);
            rest.push((*operator, part(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Arithmetic(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.arithmetic(&[("+", Operator::Add), ("-", Operator::Subtract)], Parser::join)
    }

    fn join(&mut self) -> Parsed<Expr> {
        let mut parts = vec![self.product()?];
        while self.skip_mark("~") {
            parts.push(self.product()?);
        }
        Ok(single(parts, Expr::Join))
    }

    fn product(&mut self) -> Parsed<Expr> {
        let operators = [
            ("*", Operator::Multiply),
            ("//", Operator::FloorDivide),
            ("/", Operator::Divide),
            ("%", Operator::Remainder),
        ];
        self.arithmetic(&operators, Parser::power)
    }

    fn power(&mut self) -> Parsed<Expr> {
        self.arithmetic(&[("**", Operator::Power)], |p| p.signed(true))
    }

    /// A sign binds tighter than filters, but not tighter than members and calls.
    fn signed(&mut self, filters: bool) -> Parsed<Expr> {
        self.deeper(|p| {
            let start = if p.skip_mark("-") {
                Expr::Negative(Box::new(p.signed(false)?))
            } else if p.skip_mark("+") {
                Expr::Positive(Box::new(p.signed(false)?))
            } else {
                p.primary()?
            };
            let mut links = Vec::new();
            p.postfix(&mut links)?;
            if filters {
                p.filters_and_tests(&mut links)?;
            }
            Ok(if links.is_empty() { start } else { Expr::Chain(Box::new(start), links) })
        })
    }

    fn primary(&mut self) -> Parsed<Expr> {
        Ok(match self.next() {
            Kind::Name(name) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(name.into()),
            },
            Kind::Str(mut text) => {
                while let Kind::Str(more) = self.kind() {
                    text.push_str(more);
                    self.at += 1;
                }
                Expr::Str(text.into())
            }
            Kind::Int(number) => Expr::Int(number),
            Kind::Float(number) => Expr::Float(number),
            Kind::Mark("(") if self.skip_mark(")") => Expr::Tuple(Vec::new()),
            Kind::Mark("(") => {
                let inner = self.tuple(true)?;
                self.expect_mark(")")?;
                inner
            }
            Kind::Mark("[") => Expr::List(self.items("]", Parser::expression)?),
            Kind::Mark("{") => Expr::Dict(self.items("}", |p| {
                let key = p.expression()?;
                p.expect_mark(":")?;
                Ok((key, p.expression()?))
            })?),
            _ => {
                self.at -= 1;
                return self.fail("a value should be here");
            }
        })
    }

    /// Comma-separated items, up to the mark `end`.
    fn items<T>(&mut self, end: &str, item: fn(&mut Parser) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_mark(end) {
            if !items.is_empty() {
                self.expect_mark(",")?;
                if self.skip_mark(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Members, items and calls.
    fn postfix(&mut self, links: &mut Vec<Link>) -> Parsed<()> {
        loop {
            if self.skip_mark(".") {
                links.push(match self.next() {
                    Kind::Name(name) => Link::Member(name.into()),
                    Kind::Int(number) => Link::Item(Expr::Int(number)),
                    _ => {
                        self.at -= 1;
                        return self.fail("a member's name should be here");
                    }
                });
            } else if self.skip_mark("[") {
                links.push(self.subscript()?);
            } else if self.skip_mark("(") {
                links.push(Link::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Parsed<Link> {
        let mut bounds = [None, None, None];
        let mut colons = 0;
        while !self.skip_mark("]") {
            if self.skip_mark(":") {
                colons += 1;
                if colons > 2 {
                    return self.fail("a slice has three bounds at most");
                }
            } else {
                if bounds[colons].is_some() {
                    return self.fail("\"]\" should be here");
                }
                bounds[colons] = Some(self.tuple(true)?);
            }
        }
        match (colons, bounds) {
            (0, [Some(item), ..]) => Ok(Link::Item(item)),
            (0, _) => self.fail("an item's name should be here"),
            (_, bounds) => Ok(Link::Slice(bounds)),
        }
    }

    /// Arguments of a call, up to the closing parenthesis.
    pub(super) fn arguments(&mut self) -> Parsed<Arguments> {
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.skip_mark(")") {
            if !std::mem::take(&mut first) {
                self.expect_mark(",")?;
                if self.skip_mark(")") {
                    break;
                }
            }
            if self.skip_mark("**") {
                arguments.named_rest = Some(Box::new(self.expression()?));
            } else if self.skip_mark("*") {
                arguments.rest = Some(Box::new(self.expression()?));
            } else if matches!(self.kind(), Kind::Name(_)) && self.is_mark_at(1, "=") {
                let name = self.name()?;
                self.at += 1;
                arguments.named.push(((&*name).into(), self.expression()?));
            } else if !arguments.named.is_empty() {
                return self.fail("arguments with names come last");
            } else {
                arguments.plain.push(self.expression()?);
            }
        }
        Ok(arguments)
    }

    fn filters_and_tests(&mut self, links: &mut Vec<Link>) -> Parsed<()> {
        loop {
            if self.is_mark("|") {
                links.extend(self.filters(false)?.into_iter().map(Link::Filter));
            } else if self.skip_name("is") {
                let negated = self.skip_name("not");
                let name = self.dotted()?;
                let arguments = self.test_arguments()?;
                links.push(Link::Test(Call { name, arguments }, negated));
            } else if self.skip_mark("(") {
                links.push(Link::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    /// Arguments of a test: in parentheses, or one value without them.
    fn test_arguments(&mut self) -> Parsed<Arguments> {
        if self.skip_mark("(") {
            return self.arguments();
        }
        let takes = match self.kind() {
            Kind::Name(name) => {
                !matches!(name.as_str(), "else" | "or" | "and" | "is" | "if" | "in" | "not" | "recursive")
            }
            Kind::Str(_) | Kind::Int(_) | Kind::Float(_) | Kind::Mark("[" | "{") => true,
            _ => false,
        };
        let mut arguments = Arguments::default();
        if takes {
            let start = self.primary()?;
            let mut links = Vec::new();
            self.postfix(&mut links)?;
            let value = if links.is_empty() { start } else { Expr::Chain(Box::new(start), links) };
            arguments.plain.push(value);
        }
        Ok(arguments)
    }
}

fn single(mut parts: Vec<Expr>, several: fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.len() {
        1 => parts.pop().unwrap_or(Expr::None),
        _ => several(parts),
    }
}
