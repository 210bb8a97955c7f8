//! [`Value`]: values of a template, with the semantics of the Python values that templates are written for.
//!
//! Values are immutable, except namespaces, cyclers and joiners, which live in the [`Run`](super::run::Run). Everything
//! that can be large is charged to a [`Meter`] for as long as it lives, so that a template cannot hold more memory than
//! its limit. A value also knows its nesting depth, so that nothing that walks it can overflow the stack.

use std::cell::Cell;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

use super::ast::{Loop as LoopNode, Macro};
use crate::tokenizer::unicode::UNSEEN;

/// Deepest nesting of lists and objects.
pub(super) const MOST_NESTED: u32 = 200;

/// White space as Python defines it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// An undefined name, which may be tested but not used.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<Metered<Text>>),
    List(Rc<Metered<List>>),
    Dict(Rc<Metered<Dict>>),
    Range(Range),
    /// A namespace, by its index in `Run::spaces`.
    Space(usize),
    /// A cycler or a joiner, by its index in `Run::objects`.
    Object(usize),
    Macro(Rc<Closure>),
    /// A built-in function.
    Function(&'static str),
    /// A bound method.
    Method(Rc<(Value, Box<str>)>),
    Loop(Rc<Loop>),
}

/// Bytes of memory that values hold.
#[derive(Debug, Default)]
pub(super) struct Meter(pub(super) Cell<usize>);

/// A value that is charged to a [`Meter`] for as long as it lives.
#[derive(Debug)]
pub(super) struct Metered<T> {
    pub(super) of: T,
    size: usize,
    meter: Rc<Meter>,
}

impl<T> Metered<T> {
    pub(super) fn new(of: T, size: usize, meter: &Rc<Meter>) -> Metered<T> {
        meter.0.set(meter.0.get() + size);
        Metered { of, size, meter: meter.clone() }
    }
}

impl Metered<Text> {
    /// A substring, as text that is not safe.
    pub(super) fn part(&self, part: &str) -> Value {
        let text = Text { text: part.into(), safe: false };
        Value::Str(Rc::new(Metered::new(text, part.len(), &self.meter)))
    }

    /// Appends text.
    pub(super) fn push_str(&mut self, more: &str) {
        let before = self.of.text.capacity();
        self.of.text.push_str(more);
        let grown = self.of.text.capacity() - before;
        self.size += grown;
        self.meter.0.set(self.meter.0.get() + grown);
    }
}

impl<T> Drop for Metered<T> {
    fn drop(&mut self) {
        self.meter.0.set(self.meter.0.get().saturating_sub(self.size));
    }
}

/// Text, and whether it is marked safe (`Markup`): unsafe text that is added to it then has its HTML escaped.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) safe: bool,
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) kind: Kind,
    pub(super) depth: u32,
}

/// Python type of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Tuple,
    /// A tuple of a group's common key and its items (`groupby`).
    Group,
    /// A view of the keys, values or items of an object, by Python's name for its type.
    View(&'static str),
    /// A generator, which can be iterated once, and whether it has been.
    Once(Cell<bool>),
}

/// Keys and values in insertion order.
#[derive(Debug, Default)]
pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    pub(super) depth: u32,
}

/// Hash key of an entry: numbers compare by value, whatever their type.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    None,
    Int(i128),
    Float(u64),
    Str(Box<str>),
    Tuple(Vec<Key>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i128,
    pub(super) step: i128,
    pub(super) len: usize,
}

impl Range {
    pub(super) fn at(self, i: usize) -> Value {
        Value::Int(self.start + self.step * i as i128)
    }
}

/// A macro and the scope in which it was defined.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) of: Arc<Macro>,
    pub(super) scope: usize,
}

/// State of a running loop (`loop`).
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Metered<List>>,
    pub(super) at: usize,
    pub(super) depth: usize,
    /// The loop itself if it is recursive, so that it can be called for an inner list.
    pub(super) again: Option<Arc<LoopNode>>,
    pub(super) scope: usize,
    /// Arguments of the last call of `changed`.
    pub(super) last: std::cell::RefCell<Option<Vec<Value>>>,
}

/// A borrowed text key, for look-ups without allocation.
struct TextKey<'a>(&'a str);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Key::None => state.write_u8(0),
            Key::Int(n) => n.hash(state),
            Key::Float(bits) => bits.hash(state),
            Key::Str(text) => TextKey(text).hash(state),
            Key::Tuple(keys) => keys.hash(state),
        }
    }
}

impl Hash for TextKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl hashbrown::Equivalent<Key> for TextKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        matches!(key, Key::Str(text) if **text == *self.0)
    }
}

impl Key {
    fn of(value: &Value) -> Option<Key> {
        Some(match value {
            Value::None => Key::None,
            Value::Bool(b) => Key::Int(i128::from(*b)),
            Value::Int(n) => Key::Int(*n),
            Value::Float(x) if x.fract() == 0.0 && x.abs() < 1e30 => Key::Int(*x as i128),
            Value::Float(x) => Key::Float(x.to_bits()),
            Value::Str(s) => Key::Str(s.of.text.as_str().into()),
            // No nested tuples: with shared parts, a few bytes can hold very many of them.
            Value::List(list) if list.of.kind == Kind::Tuple && list.of.depth == 1 => {
                Key::Tuple(list.of.items.iter().map(Key::of).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl Dict {
    /// Sets the value of a key. False if the key is not hashable.
    pub(super) fn set(&mut self, key: Value, value: Value) -> bool {
        let Some(canonical) = Key::of(&key) else { return false };
        self.depth = self.depth.max(value.depth() + 1).max(key.depth() + 1);
        match self.index.get(&canonical) {
            Some(at) => self.entries[*at].1 = value,
            None => {
                self.index.insert(canonical, self.entries.len());
                self.entries.push((key, value));
            }
        }
        true
    }

    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        if let Value::Str(text) = key {
            return self.get_text(&text.of);
        }
        Some(&self.entries[*self.index.get(&Key::of(key)?)?].1)
    }

    pub(super) fn get_text(&self, key: &str) -> Option<&Value> {
        Some(&self.entries[*self.index.get(&TextKey(key))?].1)
    }
}

impl List {
    pub(super) fn new(items: Vec<Value>, kind: Kind) -> List {
        let depth = items.iter().map(Value::depth).max().unwrap_or(0) + 1;
        List { items, kind, depth }
    }

    /// True if it is a list or a tuple, whose items have indices.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::List | Kind::Tuple | Kind::Group)
    }
}

impl Value {
    pub(super) fn undefined(name: &str) -> Value {
        Value::Undefined(name.into())
    }

    pub(super) fn depth(&self) -> u32 {
        match self {
            Value::List(list) => list.of.depth,
            Value::Dict(dict) => dict.of.depth,
            Value::Method(method) => method.0.depth() + 1,
            _ => 0,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(&s.of),
            _ => None,
        }
    }

    /// The value as an integer; a bool is one too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(x) => Some(*x),
            _ => self.as_int().map(|n| n as f64),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Str(s) => !s.of.is_empty(),
            Value::List(list) => matches!(list.of.kind, Kind::Once(_)) || !list.of.items.is_empty(),
            Value::Dict(dict) => !dict.of.entries.is_empty(),
            Value::Range(range) => range.len > 0,
            Value::Loop(this) => !this.items.of.items.is_empty(),
            Value::Space(_) | Value::Object(_) => true,
            Value::Macro(_) | Value::Function(_) | Value::Method(_) => true,
        }
    }

    /// Python's name of the type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(list) => match list.of.kind {
                Kind::List => "list",
                Kind::Tuple | Kind::Group => "tuple",
                Kind::View(name) => name,
                Kind::Once(_) => "generator",
            },
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::Space(_) => "namespace",
            Value::Object(_) => "object",
            Value::Macro(_) => "macro",
            Value::Function(_) | Value::Method(_) => "function",
            Value::Loop(_) => "loop",
        }
    }

    /// Number of elements (characters, items or entries), of types that have a length.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Value::Undefined(_) => Some(0),
            Value::Str(s) => Some(s.of.chars().count()),
            Value::List(list) if matches!(list.of.kind, Kind::Once(_)) => None,
            Value::List(list) => Some(list.of.items.len()),
            Value::Dict(dict) => Some(dict.of.entries.len()),
            Value::Range(range) => Some(range.len),
            Value::Loop(this) => Some(this.items.of.items.len()),
            _ => None,
        }
    }

    /// Appends Python's `str` of the value to `out`. False if `out` grew past `most`.
    pub(super) fn write(&self, out: &mut String, most: usize) -> bool {
        match self {
            Value::Str(s) => out.push_str(&s.of),
            Value::Undefined(_) => {}
            _ => return self.write_repr(out, most),
        }
        out.len() <= most
    }

    /// Appends Python's `repr` of the value to `out`. False if `out` grew past `most`.
    pub(super) fn write_repr(&self, out: &mut String, most: usize) -> bool {
        // Writing to a string cannot fail.
        let _ = match self {
            Value::Undefined(_) => write!(out, "Undefined"),
            Value::None => write!(out, "None"),
            Value::Bool(true) => write!(out, "True"),
            Value::Bool(false) => write!(out, "False"),
            Value::Int(n) => write!(out, "{n}"),
            Value::Float(x) => write!(out, "{}", float(*x)),
            Value::Str(s) => {
                quote(&s.of, out);
                Ok(())
            }
            Value::List(list) => return list.of.write_repr(out, most),
            Value::Dict(dict) => {
                out.push('{');
                for (i, (key, value)) in dict.of.entries.iter().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" });
                    if !key.write_repr(out, most) {
                        return false;
                    }
                    out.push_str(": ");
                    if !value.write_repr(out, most) {
                        return false;
                    }
                }
                out.push('}');
                Ok(())
            }
            Value::Range(range) => {
                let stop = range.start + range.step * range.len as i128;
                match range.step {
                    1 => write!(out, "range({}, {stop})", range.start),
                    step => write!(out, "range({}, {stop}, {step})", range.start),
                }
            }
            Value::Space(_) | Value::Object(_) => write!(out, "<{}>", self.kind()),
            Value::Macro(_) | Value::Function(_) | Value::Method(_) | Value::Loop(_) => {
                write!(out, "<{}>", self.kind())
            }
        };
        out.len() <= most
    }
}

impl List {
    fn write_repr(&self, out: &mut String, most: usize) -> bool {
        match self.kind {
            Kind::List => out.push('['),
            Kind::Tuple | Kind::Group => out.push('('),
            Kind::View(name) => out.extend([name, "(["]),
            Kind::Once(_) => {
                out.push_str("<generator object>");
                return out.len() <= most;
            }
        }
        for (i, item) in self.items.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            if !item.write_repr(out, most) {
                return false;
            }
        }
        out.push_str(match (&self.kind, self.items.len()) {
            (Kind::Tuple, 1) => ",)",
            (Kind::Tuple | Kind::Group, _) => ")",
            (Kind::View(_), _) => "])",
            _ => "]",
        });
        out.len() <= most
    }
}

/// A float as Python writes it: the shortest digits that round-trip, in scientific notation below 1e-4 and from 1e16.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&power) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", power.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Text in quotes as Python's `repr` writes it.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => escape(c, out),
        }
    }
    out.push(quote);
}

/// Text with non-ASCII characters escaped, as Python's `ascii` does with the `repr`.
pub(super) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() { out.push(c) } else { escape(c, &mut out) }
    }
    out
}

/// Appends the escape sequence of a character's code point.
fn escape(c: char, out: &mut String) {
    let code = c as u32;
    // Writing to a string cannot fail.
    let _ = match code {
        0..=0xFF => write!(out, "\\x{code:02x}"),
        0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// True if Python's `repr` shows the character as it is: not separators, controls, or format, private-use and
/// unassigned characters.
pub(super) fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || is_space(c) || UNSEEN.has(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (x, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (2.5e200, "2.5e+200"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn text_is_quoted_as_python_quotes_it() {
        for (text, quoted) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\n\t\\", "'a\\n\\t\\\\'"),
            ("\0\u{7f}\u{a0}é你🙂", "'\\x00\\x7f\\xa0é你🙂'"),
            ("\u{200b}\u{e000}\u{10ffff}", "'\\u200b\\ue000\\U0010ffff'"),
        ] {
            let mut out = String::new();
            quote(text, &mut out);
            assert_eq!(out, quoted);
        }
    }
}
