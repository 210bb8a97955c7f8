//! The `tojson` filter: JSON as Python's `json` module writes it.

use std::fmt::Write;

use super::run::{CallArgs, Done, Run};
use super::value::{Value, float};
use super::{Failure, MOST_MEMORY};

/// Options of `json.dumps`.
struct Style {
    ascii: bool,
    indent: Option<String>,
    /// Separators: between items, and between a key and its value.
    between: String,
    after_key: String,
    sort: bool,
}

/// A value as JSON.
pub(super) fn dump(run: &mut Run<'_>, value: &Value, mut args: CallArgs) -> Done<Value> {
    let mut flag = |at, name| args.take(at, name).is_some_and(|flag| flag.is_true());
    let (ascii, sort) = (flag(0, "ensure_ascii"), flag(3, "sort_keys"));
    let indent = match args.take(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(indent)) => Some(indent.of.to_string()),
        Some(width) => {
            let width = width.as_int().ok_or_else(|| Failure::operand("tojson", &width))?;
            let width = usize::try_from(width).unwrap_or(0);
            run.room(width)?;
            Some(" ".repeat(width))
        }
    };
    let (mut between, mut after_key) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = args.take(2, "separators").filter(|s| !matches!(s, Value::None)) {
        let parts = run.items(&separators)?;
        let (Some(item), Some(key)) =
            (parts.first().and_then(Value::as_str), parts.get(1).and_then(Value::as_str))
        else {
            return Err(Failure::wrong("tojson takes two separators"));
        };
        (between, after_key) = (item.into(), key.into());
    }
    let style = Style { ascii, indent, between, after_key, sort };
    let mut out = String::new();
    style.write(run, value, 0, &mut out)?;
    run.text(out)
}

impl Style {
    fn write(&self, run: &mut Run<'_>, value: &Value, depth: usize, out: &mut String) -> Done<()> {
        run.spend(0)?;
        if out.len() > MOST_MEMORY {
            return Err(Failure::Limit("needs too much memory"));
        }
        // Writing to a string cannot fail.
        let _ = match value {
            Value::None => write!(out, "null"),
            Value::Bool(b) => write!(out, "{b}"),
            Value::Int(n) => write!(out, "{n}"),
            Value::Float(x) if x.is_nan() => write!(out, "NaN"),
            Value::Float(x) if x.is_infinite() => write!(out, "{}Infinity", if *x < 0.0 { "-" } else { "" }),
            Value::Float(x) => write!(out, "{}", float(*x)),
            Value::Str(text) => {
                run.spend(text.of.len())?;
                self.quote(&text.of, out);
                Ok(())
            }
            Value::List(list) if list.of.is_plain() => {
                let write =
                    |run: &mut Run<'_>, item: &Value, out: &mut String| self.write(run, item, depth + 1, out);
                out.push('[');
                self.items(run, &list.of.items, depth, out, write)?;
                out.push(']');
                Ok(())
            }
            Value::Dict(dict) => {
                let mut entries: Vec<(Value, Value)> = dict.of.entries.clone();
                if self.sort {
                    entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
                }
                out.push('{');
                self.items(run, &entries, depth, out, |run, (key, value), out| {
                    self.key(key, out)?;
                    out.push_str(&self.after_key);
                    self.write(run, value, depth + 1, out)
                })?;
                out.push('}');
                Ok(())
            }
            Value::Undefined(name) => return Err(Failure::undefined(name)),
            other => {
                return Err(Failure::wrong(format!(
                    "Object of type {} is not JSON serializable",
                    other.kind()
                )));
            }
        };
        Ok(())
    }

    /// The items between brackets.
    fn items<T>(
        &self,
        run: &mut Run<'_>,
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&mut Run<'_>, &T, &mut String) -> Done<()>,
    ) -> Done<()> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.between } else { "" });
            run.room(out.len() + self.indent.as_ref().map_or(0, |indent| indent.len() * (depth + 1)))?;
            line(depth + 1, out);
            write(run, item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        Ok(())
    }

    /// An object's key, written as a string whatever its type.
    fn key(&self, key: &Value, out: &mut String) -> Done<()> {
        let text = match key {
            Value::Str(text) => text.of.to_string(),
            Value::None => "null".into(),
            Value::Bool(b) => b.to_string(),
            Value::Int(n) => n.to_string(),
            Value::Float(x) => float(*x),
            other => {
                return Err(Failure::wrong(format!(
                    "keys must be str, int, float, bool or None, not {}",
                    other.kind()
                )));
            }
        };
        self.quote(&text, out);
        Ok(())
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
