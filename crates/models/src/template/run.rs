//! [`Run`]: a template at work, within its limits.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Body, Call, Expr, Loop as LoopNode, Macro, Statement, Target, What};
use super::value::{Closure, Dict, Kind, List, Loop, MOST_NESTED, Meter, Metered, Text, Value};
use super::{Failure, MOST_MEMORY, MOST_OUTPUT, MOST_WORK, Now};

pub(super) type Done<T> = Result<T, Failure>;

/// Deepest nesting of what is running: blocks, expressions and macros within each other.
const MOST_DEEP: u32 = 300;
/// What a value takes besides its parts.
const OVERHEAD: usize = 96;
/// What a step costs, where copying a byte costs one.
const STEP: u64 = 64;

pub(super) struct Run<'n> {
    pub(super) line: u32,
    pub(super) out: String,
    pub(super) now: &'n Now,
    /// Namespaces, which are all that can change.
    pub(super) spaces: Vec<HashMap<Box<str>, Value>>,
    scopes: Vec<Scope>,
    pub(super) scope: usize,
    /// How many macros were made, which may hold on to scopes.
    closures: usize,
    meter: Rc<Meter>,
    work: u64,
    depth: u32,
}

#[derive(Default)]
struct Scope {
    names: HashMap<Box<str>, Value>,
    parent: Option<usize>,
}

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Arguments, worked out.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) plain: Vec<Value>,
    pub(super) named: Vec<(Box<str>, Value)>,
}

impl Given {
    pub(super) fn of(plain: Vec<Value>) -> Given {
        Given { plain, named: Vec::new() }
    }

    /// Takes an argument by its place or its name.
    pub(super) fn take(&mut self, at: usize, name: &str) -> Option<Value> {
        if let Some(value) = self.plain.get_mut(at) {
            return Some(std::mem::replace(value, Value::None));
        }
        let found = self.named.iter().position(|(named, _)| &**named == name)?;
        Some(self.named.swap_remove(found).1)
    }
}

impl<'n> Run<'n> {
    pub(super) fn new(now: &'n Now) -> Run<'n> {
        Run {
            line: 1,
            out: String::new(),
            now,
            spaces: Vec::new(),
            scopes: vec![Scope::default()],
            scope: 0,
            closures: 0,
            meter: Rc::default(),
            work: MOST_WORK,
            depth: 0,
        }
    }

    /// Runs a whole template, in a scope inside that of its context.
    pub(super) fn template(&mut self, body: &Body) -> Done<()> {
        let outer = self.open_scope(self.scope);
        self.body(body)?;
        self.close_scope(outer);
        Ok(())
    }

    /// Counts work: so many steps' worth of bytes.
    pub(super) fn spend(&mut self, bytes: usize) -> Done<()> {
        self.work = self.work.checked_sub(STEP + bytes as u64).ok_or(Failure::Limit("takes too long"))?;
        Ok(())
    }

    /// Is there memory for so many bytes more?
    pub(super) fn room(&self, bytes: usize) -> Done<()> {
        match self.meter.0.get().checked_add(bytes) {
            Some(held) if held <= MOST_MEMORY => Ok(()),
            _ => Err(Failure::Limit("needs too much memory")),
        }
    }

    pub(super) fn text(&mut self, text: impl Into<Box<str>>) -> Done<Value> {
        self.text_like(text, false)
    }

    /// Text that is safe or not.
    pub(super) fn text_like(&mut self, text: impl Into<Box<str>>, safe: bool) -> Done<Value> {
        let text = text.into();
        let size = text.len() + OVERHEAD;
        self.spend(text.len())?;
        self.room(size)?;
        Ok(Value::Str(Rc::new(Metered::new(Text { text, safe }, size, &self.meter))))
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Done<Value> {
        self.sequence(items, Kind::List)
    }

    /// A row that can be gone through once.
    pub(super) fn once(&mut self, items: Vec<Value>) -> Done<Value> {
        self.sequence(items, Kind::Once(Default::default()))
    }

    pub(super) fn sequence(&mut self, items: Vec<Value>, kind: Kind) -> Done<Value> {
        let size = items.len() * size_of::<Value>() + OVERHEAD;
        self.spend(size)?;
        self.room(size)?;
        let list = List::new(items, kind);
        nested(list.depth)?;
        Ok(Value::List(Rc::new(Metered::new(list, size, &self.meter))))
    }

    pub(super) fn dict(&mut self, pairs: impl IntoIterator<Item = (Value, Value)>) -> Done<Value> {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            self.spend(4 * size_of::<Value>())?;
            let kind = key.kind();
            if !dict.set(key, value) {
                return Err(Failure::wrong(format!("unhashable type: '{kind}'")));
            }
        }
        let size = dict.entries.len() * 5 * size_of::<Value>() + OVERHEAD;
        self.room(size)?;
        nested(dict.depth)?;
        Ok(Value::Dict(Rc::new(Metered::new(dict, size, &self.meter))))
    }

    /// A value of the context.
    pub(super) fn json(&mut self, value: &serde_json::Value) -> Done<Value> {
        self.deeper(|run| {
            Ok(match value {
                serde_json::Value::Null => Value::None,
                serde_json::Value::Bool(b) => Value::Bool(*b),
                serde_json::Value::Number(n) => match (n.as_u64(), n.as_i64()) {
                    (Some(n), _) => Value::Int(i128::from(n)),
                    (_, Some(n)) => Value::Int(i128::from(n)),
                    _ => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
                },
                serde_json::Value::String(text) => run.text(text.as_str())?,
                serde_json::Value::Array(items) => {
                    let items = items.iter().map(|item| run.json(item)).collect::<Done<_>>()?;
                    run.list(items)?
                }
                serde_json::Value::Object(members) => {
                    let mut pairs = Vec::with_capacity(members.len());
                    for (key, value) in members {
                        pairs.push((run.text(key.as_str())?, run.json(value)?));
                    }
                    run.dict(pairs)?
                }
            })
        })
    }

    /// Runs a part one level deeper.
    pub(super) fn deeper<T>(&mut self, part: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        if self.depth >= MOST_DEEP {
            return Err(Failure::Limit("is nested too deep while it runs"));
        }
        self.depth += 1;
        let done = part(self);
        self.depth -= 1;
        done
    }

    fn open_scope(&mut self, parent: usize) -> usize {
        let outer = self.scope;
        self.scopes.push(Scope { names: HashMap::new(), parent: Some(parent) });
        self.scope = self.scopes.len() - 1;
        outer
    }

    /// Goes back to the outer scope, and drops the inner one if no macro can hold on to it.
    fn close_scope(&mut self, outer: usize) {
        if self.closures == 0 {
            self.scopes.truncate(self.scope);
        }
        self.scope = outer;
    }

    /// Runs a part in a scope of its own.
    fn scoped<T>(&mut self, parent: usize, part: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        self.spend(256)?;
        // Scopes and namespaces that macros can hold on to stay until the end.
        self.room((self.scopes.len() + self.spaces.len()) * 256)?;
        let outer = self.open_scope(parent);
        let done = part(self);
        self.close_scope(outer);
        done
    }

    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.scopes[self.scope].names.insert(name.into(), value);
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let mut at = Some(self.scope);
        while let Some(scope) = at.and_then(|at| self.scopes.get(at)) {
            if let Some(value) = scope.names.get(name) {
                return Some(value);
            }
            at = scope.parent;
        }
        None
    }

    fn body(&mut self, body: &[Statement]) -> Done<Flow> {
        self.deeper(|run| {
            for statement in body {
                run.line = statement.line;
                match run.statement(&statement.what)? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::Next)
        })
    }

    fn write(&mut self, text: &str) -> Done<()> {
        self.spend(text.len())?;
        if self.out.len() + text.len() > MOST_OUTPUT {
            return Err(Failure::Limit("writes too much"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn print(&mut self, value: &Value) -> Done<()> {
        if let Value::Str(text) = value {
            return self.write(&text.of);
        }
        let before = self.out.len();
        if !value.write(&mut self.out, MOST_OUTPUT) {
            return Err(Failure::Limit("writes too much"));
        }
        self.spend(self.out.len() - before)
    }

    fn statement(&mut self, what: &What) -> Done<Flow> {
        match what {
            What::Text(text) => self.write(text)?,
            What::Print(value) => {
                let value = self.eval(value)?;
                self.print(&value)?;
            }
            What::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            What::For(node) => {
                let over = self.eval(&node.over)?;
                self.for_loop(node, over, 0, self.scope)?;
            }
            What::Set(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            What::SetBlock(target, filters, body) => {
                let value = self.captured(|run| run.body_in_scope(body))?;
                let value = self.filtered(value, filters)?;
                self.assign(target, value)?;
            }
            What::Macro(node) => {
                let closure = self.closure(node);
                self.set(&node.name, closure);
            }
            What::CallBlock(call, body) => {
                let caller = self.closure(body);
                let value = self.call_with(call, Some(("caller", caller)))?;
                self.print(&value)?;
            }
            What::Filter(filters, body) => {
                let value = self.captured(|run| run.body_in_scope(body))?;
                let value = self.filtered(value, filters)?;
                self.print(&value)?;
            }
            What::With(values, body) => {
                // All values are worked out outside.
                let values = values.iter().map(|(target, value)| Ok((target, self.eval(value)?)));
                let values: Vec<(&Target, Value)> = values.collect::<Done<_>>()?;
                return self.scoped(self.scope, |run| {
                    for (target, value) in values {
                        run.assign(target, value)?;
                    }
                    run.body(body)
                });
            }
            What::Break => return Ok(Flow::Break),
            What::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn body_in_scope(&mut self, body: &Body) -> Done<()> {
        self.scoped(self.scope, |run| run.body(body).map(|_| ()))
    }

    fn closure(&mut self, of: &Arc<Macro>) -> Value {
        self.closures += 1;
        Value::Macro(Rc::new(Closure { of: of.clone(), scope: self.scope }))
    }

    /// What a part writes, as a value.
    fn captured(&mut self, part: impl FnOnce(&mut Self) -> Done<()>) -> Done<Value> {
        let outer = std::mem::take(&mut self.out);
        let done = part(self);
        let written = std::mem::replace(&mut self.out, outer);
        done?;
        self.text(written)
    }

    fn filtered(&mut self, value: Value, filters: &[Call]) -> Done<Value> {
        filters.iter().try_fold(value, |value, filter| {
            let given = self.arguments(&filter.arguments)?;
            self.filter(&filter.name, value, given)
        })
    }

    fn assign(&mut self, target: &Target, value: Value) -> Done<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Member(space, name) => {
                let Some(Value::Space(at)) = self.get(space) else {
                    return Err(Failure::wrong(format!(
                        "{space:?} is no namespace, so it has nothing to set"
                    )));
                };
                let at = *at;
                self.set_member(at, name, value)?;
            }
            Target::Several(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.len() {
                    let why = format!("{} values for {} names", values.len(), targets.len());
                    return Err(Failure::wrong(why));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value)?;
                }
            }
        }
        Ok(())
    }

    /// Sets a member of a namespace.
    pub(super) fn set_member(&mut self, space: usize, name: &str, value: Value) -> Done<()> {
        if name.starts_with('_') {
            return Err(Failure::wrong(format!(
                "a namespace's members must not start with '_', as {name:?} does"
            )));
        }
        self.spend(128)?;
        if let Some(members) = self.spaces.get_mut(space) {
            members.insert(name.into(), value);
        }
        Ok(())
    }

    fn for_loop(&mut self, node: &Arc<LoopNode>, over: Value, depth: usize, scope: usize) -> Done<()> {
        let mut items = self.items(&over)?;
        if let Some(condition) = &node.only_if {
            let mut kept = Vec::new();
            for item in items {
                self.scoped(scope, |run| {
                    run.assign(&node.target, item.clone())?;
                    if run.eval(condition)?.is_true() {
                        kept.push(item);
                    }
                    Ok(())
                })?;
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(scope, |run| run.body(&node.otherwise).map(|_| ()));
        }
        let count = items.len();
        let Value::List(items) = self.list(items)? else { return Ok(()) };
        let again = node.recursive.then(|| node.clone());
        let mut last = None;
        for at in 0..count {
            let this = Loop {
                items: items.clone(),
                at,
                depth,
                again: again.clone(),
                scope,
                last: last.take().into(),
            };
            let this = Rc::new(this);
            let flow = self.scoped(scope, |run| {
                run.set("loop", Value::Loop(this.clone()));
                run.assign(&node.target, items.of.items[at].clone())?;
                run.body(&node.body)
            })?;
            last = this.last.take();
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// Runs a loop again for an inner list, and gives what it writes.
    pub(super) fn recurse(&mut self, this: &Loop, over: Value) -> Done<Value> {
        let Some(node) = this.again.clone() else {
            return Err(Failure::wrong("the loop is not recursive"));
        };
        let (depth, scope) = (this.depth + 1, this.scope);
        self.deeper(|run| run.captured(|run| run.for_loop(&node, over, depth, scope)))
    }

    /// Calls a macro and gives what it writes.
    pub(super) fn call_macro(&mut self, closure: &Closure, mut given: Given) -> Done<Value> {
        let of = closure.of.clone();
        self.deeper(|run| {
            run.captured(|run| {
                run.scoped(closure.scope, |run| {
                    run.bind(&of, &mut given)?;
                    run.body(&of.body).map(|_| ())
                })
            })
        })
    }

    /// Gives a macro's names their values.
    fn bind(&mut self, of: &Macro, given: &mut Given) -> Done<()> {
        let wrong = |why: String| Err(Failure::wrong(format!("macro '{}' {why}", of.name)));
        let mut plain = std::mem::take(&mut given.plain).into_iter();
        for (name, default) in &of.parameters {
            let named = given.named.iter().position(|(named, _)| named == name);
            let value = match (plain.next(), named) {
                (Some(_), Some(_)) => return wrong(format!("was given '{name}' twice")),
                (Some(value), None) => value,
                (None, Some(at)) => given.named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default)?,
                    None => Value::undefined(name),
                },
            };
            self.set(name, value);
        }
        if let Some(at) = given.named.iter().position(|(name, _)| &**name == "caller") {
            let caller = given.named.swap_remove(at).1;
            self.set("caller", caller);
        }
        if of.takes_more {
            let more = self.sequence(plain.by_ref().collect(), Kind::Tuple)?;
            self.set("varargs", more);
        }
        if of.takes_named {
            let named = std::mem::take(&mut given.named);
            let pairs: Vec<(Value, Value)> =
                named.into_iter().map(|(name, value)| Ok((self.text(name)?, value))).collect::<Done<_>>()?;
            let named = self.dict(pairs)?;
            self.set("kwargs", named);
        }
        if plain.next().is_some() {
            return wrong(format!("takes not more than {} argument(s)", of.parameters.len()));
        }
        match given.named.first() {
            Some((name, _)) => wrong(format!("takes no keyword argument '{name}'")),
            None => Ok(()),
        }
    }

    /// Works out a call and makes it, with one argument more if there is one.
    fn call_with(&mut self, call: &Expr, more: Option<(&str, Value)>) -> Done<Value> {
        let Expr::Chain(start, links) = call else { return Err(Failure::wrong("is no call")) };
        let mut value = self.eval(start)?;
        let last = links.len().saturating_sub(1);
        for (i, link) in links.iter().enumerate() {
            value = match link {
                super::ast::Link::Call(arguments) if i == last => {
                    let mut given = self.arguments(arguments)?;
                    given.named.extend(more.clone().map(|(name, value)| (name.into(), value)));
                    self.call(&value, given)?
                }
                link => self.link(value, link)?,
            };
        }
        Ok(value)
    }
}

fn nested(depth: u32) -> Done<()> {
    if depth <= MOST_NESTED { Ok(()) } else { Err(Failure::Limit("makes lists within lists too deep")) }
}
