//! [`Run`]: executes a template within its limits.

mod statements;

use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

use super::ast::Body;
use super::value::{Dict, Kind, List, MOST_NESTED, Meter, Metered, Text, Value};
use super::{Failure, LEAST_WORK, MOST_MEMORY, MOST_OUTPUT, MOST_WORK, Now, WORK_PER_BYTE};

pub(super) type Done<T> = Result<T, Failure>;

/// Deepest nesting at run time: blocks, expressions and macros within each other.
const MOST_DEEP: u32 = 300;
/// Bytes that a value takes besides its contents.
const OVERHEAD: usize = 96;
/// Scope of the template, inside that of its context.
const TEMPLATE_SCOPE: usize = 1;
/// Work units of a step, where an inspected byte takes one.
const STEP: u64 = 32;
/// Copied bytes per work unit.
const COPIED: u64 = 16;

pub(super) struct Run<'n> {
    pub(super) line: u32,
    pub(super) out: String,
    pub(super) now: &'n Now,
    /// Number of messages in the chat.
    pub(super) messages: usize,
    /// Namespaces: they are mutable, so values refer to them by index.
    pub(super) spaces: Vec<Space>,
    /// Cyclers and joiners, likewise.
    pub(super) objects: Vec<Object>,
    scopes: Vec<Scope>,
    pub(super) scope: usize,
    /// Number of macros that were made, which may keep scopes alive.
    closures: usize,
    meter: Rc<Meter>,
    work: u64,
    depth: u32,
    /// Name of the `loop` variable.
    loop_name: Arc<str>,
}

#[derive(Default)]
struct Scope {
    names: HashMap<Arc<str>, Value>,
    parent: Option<usize>,
}

/// A namespace: its members in insertion order.
#[derive(Debug, Default)]
pub(super) struct Space {
    index: HashMap<Arc<str>, usize>,
    pub(super) members: Vec<(Arc<str>, Value)>,
}

impl Space {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        Some(&self.members[*self.index.get(name)?].1)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        Some(&mut self.members[*self.index.get(name)?].1)
    }

    fn set(&mut self, name: &str, value: Value) {
        match self.get_mut(name) {
            Some(there) => *there = value,
            None => {
                let name: Arc<str> = name.into();
                self.index.insert(name.clone(), self.members.len());
                self.members.push((name, value));
            }
        }
    }
}

/// An object with state; values refer to it by its index in `Run::objects`.
#[derive(Debug)]
pub(super) enum Object {
    /// Cycles through a list.
    Cycler { items: Value, at: usize },
    /// Returns empty text on the first call, and the separator afterwards.
    Joiner { between: Value, used: bool },
}

/// Outcome of the execution of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Evaluated arguments of a call.
#[derive(Debug, Default)]
pub(super) struct CallArgs {
    pub(super) plain: Vec<Value>,
    pub(super) named: Vec<(Box<str>, Value)>,
}

impl CallArgs {
    pub(super) fn of(plain: Vec<Value>) -> CallArgs {
        CallArgs { plain, named: Vec::new() }
    }

    /// Takes an argument by position or by name.
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
            messages: 0,
            spaces: Vec::new(),
            objects: Vec::new(),
            scopes: vec![Scope::default()],
            scope: 0,
            closures: 0,
            meter: Rc::default(),
            work: LEAST_WORK,
            depth: 0,
            loop_name: "loop".into(),
        }
    }

    /// Runs a whole template, in a scope inside that of its context.
    pub(super) fn template(&mut self, body: &Body) -> Done<()> {
        let outer = self.open_scope(self.scope);
        self.body(body)?;
        self.close_scope(outer);
        Ok(())
    }

    /// Raises the work budget in proportion to the input: long chats may take more work.
    pub(super) fn allow_for_what_was_given(&mut self) {
        let args = self.meter.0.get() as u64;
        self.work = self.work.saturating_add(args.saturating_mul(WORK_PER_BYTE)).min(MOST_WORK);
    }

    /// Charges a step and inspected bytes to the work budget.
    pub(super) fn spend(&mut self, bytes: usize) -> Done<()> {
        self.work(STEP + bytes as u64)
    }

    /// Charges a step and copied bytes to the work budget.
    pub(super) fn copied(&mut self, bytes: usize) -> Done<()> {
        self.work(STEP + bytes as u64 / COPIED)
    }

    fn work(&mut self, units: u64) -> Done<()> {
        match self.work.checked_sub(units) {
            Some(left) => self.work = left,
            None => return Err(Failure::TooLong { messages: self.messages }),
        }
        Ok(())
    }

    /// Checks that there is memory for `bytes` more.
    pub(super) fn room(&self, bytes: usize) -> Done<()> {
        match self.meter.0.get().checked_add(bytes) {
            Some(held) if held <= MOST_MEMORY => Ok(()),
            _ => Err(Failure::Limit("needs too much memory")),
        }
    }

    pub(super) fn text(&mut self, text: impl Into<String>) -> Done<Value> {
        self.text_like(text, false)
    }

    /// Text, marked safe or not.
    pub(super) fn text_like(&mut self, text: impl Into<String>, safe: bool) -> Done<Value> {
        let mut text: String = text.into();
        // The capacity may be far larger than the text.
        if text.capacity() > 2 * text.len() {
            text.shrink_to_fit();
        }
        let size = text.capacity() + OVERHEAD;
        self.copied(text.len())?;
        self.room(size)?;
        Ok(Value::Str(Rc::new(Metered::new(Text { text, safe }, size, &self.meter))))
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Done<Value> {
        self.sequence(items, Kind::List)
    }

    /// A generator, which can be iterated once.
    pub(super) fn once(&mut self, items: Vec<Value>) -> Done<Value> {
        self.sequence(items, Kind::Once(Default::default()))
    }

    pub(super) fn sequence(&mut self, items: Vec<Value>, kind: Kind) -> Done<Value> {
        let size = items.len() * size_of::<Value>() + OVERHEAD;
        self.copied(size)?;
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

    /// A value of the context, from JSON.
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

    /// Runs a part one nesting level deeper.
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
        self.scopes.push(Scope { names: HashMap::default(), parent: Some(parent) });
        self.scope = self.scopes.len() - 1;
        outer
    }

    /// Returns to the outer scope, and drops the inner one if no macro can refer to it.
    fn close_scope(&mut self, outer: usize) {
        if self.closures == 0 {
            self.scopes.truncate(self.scope);
        }
        self.scope = outer;
    }

    /// Runs a part in a scope of its own.
    fn scoped<T>(&mut self, parent: usize, part: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        self.spend(0)?;
        // Scopes and namespaces that macros can refer to live until the end of the run.
        self.room((self.scopes.len() + self.spaces.len()) * 256)?;
        let outer = self.open_scope(parent);
        let done = part(self);
        self.close_scope(outer);
        done
    }

    pub(super) fn set(&mut self, name: &Arc<str>, value: Value) {
        self.scopes[self.scope].names.insert(name.clone(), value);
    }

    /// Sets a variable whose name does not come from the syntax tree.
    pub(super) fn set_new(&mut self, name: &str, value: Value) {
        self.set(&name.into(), value);
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

    /// Sets a member of a namespace.
    pub(super) fn set_member(&mut self, space: usize, name: &str, value: Value) -> Done<()> {
        if name.starts_with('_') {
            return Err(Failure::wrong(format!(
                "a namespace's members must not start with '_', as {name:?} does"
            )));
        }
        self.spend(128)?;
        if let Some(members) = self.spaces.get_mut(space) {
            members.set(name, value);
        }
        Ok(())
    }
}

fn nested(depth: u32) -> Done<()> {
    if depth <= MOST_NESTED { Ok(()) } else { Err(Failure::Limit("makes lists within lists too deep")) }
}
