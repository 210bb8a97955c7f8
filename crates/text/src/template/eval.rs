//! Evaluation of expressions.

use std::rc::Rc;

use super::ast::{Arguments, Comparison, Expr, Link};
use super::run::{CallArgs, Done, Run};
use super::value::{Kind, Loop, Range, Value};
use super::{Failure, methods};

/// Longest range, as in Jinja's sandbox.
const MOST_RANGE: usize = 100_000;

impl Run<'_> {
    pub(super) fn eval(&mut self, expr: &Expr) -> Done<Value> {
        self.spend(0)?;
        Ok(match expr {
            Expr::None => Value::None,
            Expr::Bool(b) => Value::Bool(*b),
            Expr::Int(n) => Value::Int(*n),
            Expr::Float(x) => Value::Float(*x),
            Expr::Str(text) => self.text(text.clone())?,
            Expr::Name(name) => self.named(name),
            _ => self.deeper(|run| run.eval_inner(expr))?,
        })
    }

    fn eval_inner(&mut self, expr: &Expr) -> Done<Value> {
        match expr {
            Expr::List(items) => {
                let items = self.eval_all(items)?;
                self.list(items)
            }
            Expr::Tuple(items) => {
                let items = self.eval_all(items)?;
                self.sequence(items, Kind::Tuple)
            }
            Expr::Dict(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| Ok((self.eval(key)?, self.eval(value)?)));
                let pairs: Vec<_> = pairs.collect::<Done<_>>()?;
                self.dict(pairs)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value)?.is_true())),
            Expr::Negative(value) => {
                let value = self.eval(value)?;
                self.negative(value)
            }
            Expr::Positive(value) => match self.eval(value)? {
                value @ Value::Float(_) => Ok(value),
                value => value.as_int().map(Value::Int).ok_or_else(|| Failure::operand("unary +", &value)),
            },
            Expr::Arithmetic(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, other) in rest {
                    let other = self.eval(other)?;
                    value = self.arithmetic(*operator, &value, &other)?;
                }
                Ok(value)
            }
            Expr::Join(parts) => {
                let parts = self.eval_all(parts)?;
                self.joined(&parts, "")
            }
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (comparison, right) in rest {
                    let right = self.eval(right)?;
                    if !self.comparison(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::And(parts) => self.first_where(parts, false),
            Expr::Or(parts) => self.first_where(parts, true),
            Expr::Choice(parts, otherwise) => {
                if self.eval(&parts[0])?.is_true() {
                    return self.eval(&parts[1]);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Value::undefined("the value of an 'if' without 'else'")),
                }
            }
            Expr::Chain(start, links) => {
                let start = self.eval(start)?;
                links.iter().try_fold(start, |value, link| self.link(value, link))
            }
            simple => self.eval(simple),
        }
    }

    fn eval_all(&mut self, parts: &[Expr]) -> Done<Vec<Value>> {
        parts.iter().map(|part| self.eval(part)).collect()
    }

    /// The first value whose truth is `wanted`, or the last value.
    fn first_where(&mut self, parts: &[Expr], wanted: bool) -> Done<Value> {
        let mut value = Value::None;
        for part in parts {
            value = self.eval(part)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn named(&self, name: &str) -> Value {
        if let Some(value) = self.get(name) {
            return value.clone();
        }
        match super::functions::NAMES.iter().find(|known| **known == name) {
            Some(function) => Value::Function(function),
            None => Value::undefined(name),
        }
    }

    pub(super) fn link(&mut self, value: Value, link: &Link) -> Done<Value> {
        self.spend(0)?;
        match link {
            Link::Member(name) => self.member(&value, name),
            Link::Item(item) => {
                let item = self.eval(item)?;
                self.item(&value, &item)
            }
            Link::Slice(bounds) => {
                let [start, stop, step] = bounds;
                let mut bound = |bound: &Option<Expr>| match bound {
                    Some(bound) => self.eval(bound),
                    None => Ok(Value::None),
                };
                let bounds = [bound(start)?, bound(stop)?, bound(step)?];
                self.slice(&value, &bounds)
            }
            Link::Call(arguments) => {
                let args = self.arguments(arguments)?;
                self.call(&value, args)
            }
            Link::Filter(filter) => {
                let args = self.arguments(&filter.arguments)?;
                self.filter(&filter.name, value, args)
            }
            Link::Test(test, negated) => {
                let args = self.arguments(&test.arguments)?;
                Ok(Value::Bool(self.test(&test.name, &value, args)? != *negated))
            }
        }
    }

    pub(super) fn arguments(&mut self, arguments: &Arguments) -> Done<CallArgs> {
        let mut args = CallArgs::of(self.eval_all(&arguments.plain)?);
        if let Some(rest) = &arguments.rest {
            let rest = self.eval(rest)?;
            args.plain.extend(self.items(&rest)?);
        }
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value)?));
        }
        if let Some(rest) = &arguments.named_rest {
            match self.eval(rest)? {
                Value::Dict(dict) => {
                    for (key, value) in &dict.of.entries {
                        let name = key.as_str().ok_or_else(|| Failure::wrong("keywords must be strings"))?;
                        args.named.push((name.into(), value.clone()));
                    }
                }
                other => {
                    return Err(Failure::wrong(format!(
                        "argument after ** must be a mapping, not {}",
                        other.kind()
                    )));
                }
            }
        }
        Ok(args)
    }

    pub(super) fn call(&mut self, callee: &Value, args: CallArgs) -> Done<Value> {
        match callee {
            Value::Macro(closure) => self.call_macro(&closure.clone(), args),
            Value::Function(name) => self.function(name, args),
            Value::Method(method) => self.deeper(|run| methods::call(run, &method.0, &method.1, args)),
            Value::Object(at) => self.join_next(*at),
            Value::Loop(this) => match args.plain.into_iter().next() {
                Some(over) => self.recurse(&this.clone(), over),
                None => Err(Failure::wrong("the loop is called without a list")),
            },
            Value::Undefined(name) => Err(Failure::undefined(name)),
            other => Err(Failure::wrong(format!("'{}' object is not callable", other.kind()))),
        }
    }

    /// The items of an iterable value.
    pub(super) fn items(&mut self, value: &Value) -> Done<Vec<Value>> {
        let count = match value {
            Value::Str(text) => text.of.len(),
            Value::List(list) => list.of.items.len(),
            value => value.len().unwrap_or(0),
        };
        self.copied(count * size_of::<Value>())?;
        self.room(count * size_of::<Value>())?;
        Ok(match value {
            Value::Undefined(_) => Vec::new(),
            Value::List(list) => match &list.of.kind {
                Kind::Once(gone) if gone.replace(true) => Vec::new(),
                _ => list.of.items.clone(),
            },
            Value::Dict(dict) => dict.of.entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Range(range) => (0..range.len).map(|i| range.at(i)).collect(),
            Value::Str(text) => {
                let text = text.clone();
                let mut buffer = [0; 4];
                text.of.chars().map(|c| self.text(&*c.encode_utf8(&mut buffer))).collect::<Done<_>>()?
            }
            Value::Loop(this) => this.items.of.items[this.at..].to_vec(),
            other => return Err(Failure::wrong(format!("'{}' object is not iterable", other.kind()))),
        })
    }

    /// `value.name`: a method, or else an item.
    pub(super) fn member(&mut self, value: &Value, name: &str) -> Done<Value> {
        if let Value::Undefined(of) = value {
            return Err(Failure::undefined(of));
        }
        if name.starts_with("__") {
            return Err(Failure::wrong(format!(
                "access to attribute '{name}' of '{}' object is unsafe",
                value.kind()
            )));
        }
        if methods::changes(value, name) {
            return Ok(Value::undefined(&format!("{}.{name}, which would change a value,", value.kind())));
        }
        if methods::has(value, name) {
            return Ok(Value::Method(Rc::new((value.clone(), name.into()))));
        }
        let found = match value {
            Value::Dict(dict) => dict.of.get_text(name).cloned(),
            Value::Space(at) => self.spaces.get(*at).and_then(|space| space.get(name).cloned()),
            Value::List(list) if list.of.kind == Kind::Group => {
                let place = ["grouper", "list"].iter().position(|known| *known == name);
                place.map(|at| list.of.items[at].clone())
            }
            Value::Object(at) if name == "current" => Some(self.cycle(*at, name)?),
            Value::Loop(this) => self.loop_member(this, name)?,
            Value::Macro(closure) if name == "name" => {
                let name = closure.of.name.clone();
                Some(self.text(&*name)?)
            }
            _ => None,
        };
        Ok(found.unwrap_or_else(|| Value::undefined(&format!("{}.{name}", value.kind()))))
    }

    fn loop_member(&mut self, this: &Loop, name: &str) -> Done<Option<Value>> {
        let (at, count) = (this.at, this.items.of.items.len());
        let int = |n: usize| Some(Value::Int(n as i128));
        let item = |at: Option<usize>| {
            let found = at.and_then(|at| this.items.of.items.get(at)).cloned();
            Some(found.unwrap_or_else(|| Value::undefined("there is no other item")))
        };
        Ok(match name {
            "index" => int(at + 1),
            "index0" => int(at),
            "revindex" => int(count - at),
            "revindex0" => int(count - at - 1),
            "first" => Some(Value::Bool(at == 0)),
            "last" => Some(Value::Bool(at + 1 == count)),
            "length" => int(count),
            "depth" => int(this.depth + 1),
            "depth0" => int(this.depth),
            "previtem" => item(at.checked_sub(1)),
            "nextitem" => item(Some(at + 1)),
            _ => None,
        })
    }

    /// `value[item]`: an item, or else a method.
    pub(super) fn item(&mut self, value: &Value, item: &Value) -> Done<Value> {
        let index = |len: usize| {
            let i = item.as_int()?;
            let i = if i < 0 { i + len as i128 } else { i };
            usize::try_from(i).ok().filter(|i| *i < len)
        };
        let found = match value {
            Value::Undefined(of) => return Err(Failure::undefined(of)),
            Value::List(list) if list.of.is_plain() => {
                index(list.of.items.len()).map(|i| list.of.items[i].clone())
            }
            Value::Dict(dict) => dict.of.get(item).cloned(),
            Value::Range(range) => index(range.len).map(|i| range.at(i)),
            Value::Str(text) if item.as_int().is_some() => {
                self.spend(text.of.len())?;
                let c = index(text.of.chars().count()).and_then(|i| text.of.chars().nth(i));
                match c {
                    Some(c) => Some(self.text(c.to_string())?),
                    None => None,
                }
            }
            _ => None,
        };
        match (found, item.as_str()) {
            (Some(found), _) => Ok(found),
            (None, Some(name)) if !matches!(value, Value::Dict(_)) || methods::has(value, name) => {
                self.member(value, name)
            }
            _ => {
                let mut shown = String::new();
                item.write(&mut shown, 60);
                Ok(Value::undefined(&format!("{}[{shown}]", value.kind())))
            }
        }
    }

    fn slice(&mut self, value: &Value, bounds: &[Value; 3]) -> Done<Value> {
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            *number = match bound {
                Value::None => None,
                bound => Some(bound.as_int().ok_or_else(|| {
                    Failure::wrong("slice indices must be integers or None or have an __index__ method")
                })?),
            };
        }
        let [start, stop, step] = numbers;
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(Failure::wrong("slice step cannot be zero"));
        }
        match value {
            Value::Undefined(of) => Err(Failure::undefined(of)),
            Value::Str(text) => {
                self.spend(text.of.len() * 4)?;
                self.room(text.of.len() * 4)?;
                let chars: Vec<char> = text.of.chars().collect();
                let picked: String = picks(chars.len(), start, stop, step).map(|i| chars[i]).collect();
                self.text_like(picked, text.of.safe)
            }
            Value::List(list) if list.of.is_plain() => {
                let items = &list.of.items;
                let picked = picks(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
                self.sequence(picked, list.of.kind.clone())
            }
            Value::Range(range) => {
                let picked = picks(range.len, start, stop, step).map(|i| range.at(i)).collect();
                self.list(picked)
            }
            other => Ok(Value::undefined(&format!("a slice of a {}", other.kind()))),
        }
    }

    /// `range(...)`.
    pub(super) fn range(&mut self, args: CallArgs) -> Done<Value> {
        let bounds: Option<Vec<i128>> = args.plain.iter().map(Value::as_int).collect();
        let (start, stop, step) = match bounds.as_deref() {
            Some([stop]) => (0, *stop, 1),
            Some([start, stop]) => (*start, *stop, 1),
            Some([start, stop, step]) if *step != 0 => (*start, *stop, *step),
            _ => {
                return Err(Failure::wrong(
                    "range() takes one to three whole numbers, of which the last is not 0",
                ));
            }
        };
        let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
        let len = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
        match usize::try_from(len) {
            Ok(len) if len <= MOST_RANGE => Ok(Value::Range(Range { start, step, len })),
            _ => Err(Failure::wrong(format!("range() has {len} numbers; {MOST_RANGE} are taken"))),
        }
    }

    fn comparison(&mut self, comparison: Comparison, left: &Value, right: &Value) -> Done<bool> {
        use std::cmp::Ordering::{Greater, Less};
        Ok(match comparison {
            Comparison::Equal => self.equals(left, right)?,
            Comparison::Unequal => !self.equals(left, right)?,
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
            Comparison::Less => self.order("<", left, right)? == Some(Less),
            Comparison::Greater => self.order(">", left, right)? == Some(Greater),
            Comparison::LessOrEqual => matches!(self.order("<=", left, right)?, Some(o) if o != Greater),
            Comparison::GreaterOrEqual => matches!(self.order(">=", left, right)?, Some(o) if o != Less),
        })
    }
}

/// Indices that a slice selects.
fn picks(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let len = len as i128;
    // Bounds are clamped to the list, or to just outside it on the side where iteration ends.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i128| (if bound < 0 { bound.saturating_add(len) } else { bound }).clamp(low, high);
    let (first, end) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, end) = (start.map_or(first, place), stop.map_or(end, place));
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < end } else { at > end };
        let here = at;
        at = at.saturating_add(step);
        inside.then_some(here as usize)
    })
}
