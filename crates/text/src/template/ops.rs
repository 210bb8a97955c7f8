//! Operators, as in Python.

use std::cmp::Ordering;
use std::rc::Rc;

use super::Failure;
use super::ast::Operator;
use super::numbers::too_large;
use super::run::{Done, Run};
use super::value::Value;

impl Failure {
    /// The error for an operand that an operation does not support.
    pub(super) fn operand(operation: &str, value: &Value) -> Failure {
        match value {
            Value::Undefined(name) => Failure::undefined(name),
            value => Failure::wrong(format!("bad operand type for {operation}: '{}'", value.kind())),
        }
    }

    fn operands(operator: &str, left: &Value, right: &Value) -> Failure {
        match (left, right) {
            (Value::Undefined(name), _) | (_, Value::Undefined(name)) => Failure::undefined(name),
            (left, right) => Failure::wrong(format!(
                "unsupported operand type(s) for {operator}: '{}' and '{}'",
                left.kind(),
                right.kind()
            )),
        }
    }
}

impl Run<'_> {
    pub(super) fn negative(&mut self, value: Value) -> Done<Value> {
        match (&value, value.as_int()) {
            (Value::Float(x), _) => Ok(Value::Float(-x)),
            (_, Some(n)) => n.checked_neg().map(Value::Int).ok_or_else(too_large),
            _ => Err(Failure::operand("unary -", &value)),
        }
    }

    pub(super) fn arithmetic(&mut self, operator: Operator, left: &Value, right: &Value) -> Done<Value> {
        if let Some(done) = self.on_sequences(operator, left, right) {
            return done;
        }
        let mark = match operator {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::FloorDivide => "//",
            Operator::Remainder => "%",
            Operator::Power => "** or pow()",
        };
        if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
            return ints(operator, a, b);
        }
        match left.as_float().zip(right.as_float()) {
            Some((a, b)) => floats(operator, a, b),
            None => Err(Failure::operands(mark, left, right)),
        }
    }

    /// Operators of text and lists. `None` for other operands.
    fn on_sequences(&mut self, operator: Operator, left: &Value, right: &Value) -> Option<Done<Value>> {
        Some(match (operator, left, right) {
            (Operator::Add, Value::Str(a), Value::Str(b)) => {
                let safe = a.of.safe || b.of.safe;
                let part = |text: &super::value::Text| match safe && !text.safe {
                    true => super::html::escaped(text),
                    false => text.text.clone(),
                };
                self.room((a.of.len() + b.of.len()).saturating_mul(if safe { 5 } else { 1 }))
                    .and_then(|()| self.text_like(part(&a.of) + &part(&b.of), safe))
            }
            (Operator::Add, Value::Str(_), other) if !other.is_undefined() => {
                Err(Failure::wrong(format!("can only concatenate str (not \"{}\") to str", other.kind())))
            }
            (Operator::Add, Value::List(a), Value::List(b)) if a.of.is_plain() && a.of.kind == b.of.kind => {
                let count = a.of.items.len() + b.of.items.len();
                self.room(count * size_of::<Value>()).and_then(|()| {
                    let items = a.of.items.iter().chain(&b.of.items).cloned().collect();
                    self.sequence(items, a.of.kind.clone())
                })
            }
            (Operator::Multiply, Value::Str(_) | Value::List(_), n) if n.as_int().is_some() => {
                self.repeated(left, n.as_int().unwrap_or(0))
            }
            (Operator::Multiply, n, Value::Str(_) | Value::List(_)) if n.as_int().is_some() => {
                self.repeated(right, n.as_int().unwrap_or(0))
            }
            (Operator::Remainder, Value::Str(text), values) => {
                let text = text.clone();
                super::format::percent(self, &text.of, values)
            }
            _ => return None,
        })
    }

    fn repeated(&mut self, value: &Value, times: i128) -> Done<Value> {
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match value {
            Value::Str(text) => {
                self.room(text.of.len().saturating_mul(times))?;
                self.text_like(text.of.repeat(times), text.of.safe)
            }
            Value::List(list) if list.of.is_plain() => {
                let count = list.of.items.len().saturating_mul(times);
                self.room(count.saturating_mul(size_of::<Value>()))?;
                let items = list.of.items.iter().cycle().take(count).cloned().collect();
                self.sequence(items, list.of.kind.clone())
            }
            other => Err(Failure::operand("*", other)),
        }
    }

    /// Concatenates the text of values, with a separator.
    pub(super) fn joined(&mut self, parts: &[Value], between: &str) -> Done<Value> {
        let mut out = String::new();
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                out.push_str(between);
            }
            self.append(part, &mut out)?;
        }
        self.text(out)
    }

    /// Appends a value's text, within the memory limit.
    pub(super) fn append(&mut self, value: &Value, out: &mut String) -> Done<()> {
        let before = out.len();
        if let Value::Str(text) = value {
            self.room(before + text.of.len())?;
            out.push_str(&text.of);
            return self.copied(text.of.len());
        }
        if let Value::Space(at) = value {
            return self.append_space(*at, out);
        }
        if !value.write(out, super::MOST_MEMORY) {
            return Err(Failure::Limit("needs too much memory"));
        }
        self.room(out.len())?;
        self.spend(out.len() - before)
    }

    /// Appends a namespace's text: its members.
    fn append_space(&mut self, at: usize, out: &mut String) -> Done<()> {
        let members = self.spaces.get(at).map(|space| space.members.clone()).unwrap_or_default();
        let mut pairs = Vec::new();
        for (name, value) in members {
            pairs.push((self.text(&*name)?, value));
        }
        let members = self.dict(pairs)?;
        out.push_str("<Namespace ");
        self.append(&members, out)?;
        out.push('>');
        Ok(())
    }

    /// A value as text.
    pub(super) fn as_text(&mut self, value: &Value) -> Done<Value> {
        if let Value::Str(_) = value {
            return Ok(value.clone());
        }
        self.joined(std::slice::from_ref(value), "")
    }

    /// Python's `==`.
    pub(super) fn equals(&mut self, left: &Value, right: &Value) -> Done<bool> {
        self.spend(0)?;
        Ok(match (left, right) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                self.spend(a.of.len().min(b.of.len()))?;
                a.of.text == b.of.text
            }
            (Value::List(a), Value::List(b)) => {
                let (a, b) = (a.clone(), b.clone());
                if Rc::ptr_eq(&a, &b) {
                    return Ok(true);
                }
                if a.of.kind != b.of.kind || !a.of.is_plain() || a.of.items.len() != b.of.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.of.items.iter().zip(&b.of.items) {
                    if !self.equals(a, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if Rc::ptr_eq(a, b) {
                    return Ok(true);
                }
                if a.of.entries.len() != b.of.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.of.entries {
                    let Some(other) = b.of.get(key) else { return Ok(false) };
                    if !self.equals(value, other)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Range(a), Value::Range(b)) => a == b,
            (Value::Space(a), Value::Space(b)) | (Value::Object(a), Value::Object(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            _ => match (left.as_int(), right.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => left.as_float().zip(right.as_float()).is_some_and(|(a, b)| a == b),
            },
        })
    }

    /// Python's `<` and its like. `None` if unordered, as with NaN.
    pub(super) fn order(&mut self, mark: &str, left: &Value, right: &Value) -> Done<Option<Ordering>> {
        self.spend(0)?;
        match (left, right) {
            (Value::Str(a), Value::Str(b)) => {
                self.spend(a.of.len().min(b.of.len()))?;
                Ok(Some(a.of.text.cmp(&b.of.text)))
            }
            (Value::List(a), Value::List(b)) if a.of.is_plain() && a.of.kind == b.of.kind => {
                for (a, b) in a.of.items.iter().zip(&b.of.items) {
                    if !self.equals(a, b)? {
                        return self.order(mark, a, b);
                    }
                }
                Ok(Some(a.of.items.len().cmp(&b.of.items.len())))
            }
            _ => {
                if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
                    return Ok(Some(a.cmp(&b)));
                }
                if let Some((a, b)) = left.as_float().zip(right.as_float()) {
                    return Ok(a.partial_cmp(&b));
                }
                match (left, right) {
                    (Value::Undefined(name), _) | (_, Value::Undefined(name)) => {
                        Err(Failure::undefined(name))
                    }
                    _ => Err(Failure::wrong(format!(
                        "'{mark}' not supported between instances of '{}' and '{}'",
                        left.kind(),
                        right.kind()
                    ))),
                }
            }
        }
    }

    /// Python's `in`.
    pub(super) fn contains(&mut self, container: &Value, value: &Value) -> Done<bool> {
        match container {
            Value::Str(text) => {
                let Some(part) = value.as_str() else {
                    return Err(match value {
                        Value::Undefined(name) => Failure::undefined(name),
                        other => Failure::wrong(format!(
                            "'in <string>' requires string as left operand, not {}",
                            other.kind()
                        )),
                    });
                };
                self.spend(text.of.len())?;
                Ok(text.of.contains(part))
            }
            Value::Dict(dict) => Ok(dict.of.get(value).is_some()),
            Value::Undefined(_) | Value::List(_) | Value::Range(_) | Value::Loop(_) => {
                for item in self.items(container)? {
                    if self.equals(&item, value)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other => Err(Failure::wrong(format!("argument of type '{}' is not iterable", other.kind()))),
        }
    }
}

fn ints(operator: Operator, a: i128, b: i128) -> Done<Value> {
    let zero = || Failure::wrong("division by zero");
    let done = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide if b == 0 => return Err(zero()),
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide | Operator::Remainder if b == 0 => return Err(zero()),
        Operator::FloorDivide => {
            a.checked_div(b).map(|q| if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
        }
        Operator::Remainder => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        Operator::Power if b < 0 && a == 0 => return Err(zero()),
        Operator::Power if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    done.map(Value::Int).ok_or_else(too_large)
}

fn floats(operator: Operator, a: f64, b: f64) -> Done<Value> {
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if divides && b == 0.0 {
        return Err(Failure::wrong("float division by zero"));
    }
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        // The sign is that of the divisor.
        Operator::Remainder => match a % b {
            r if r != 0.0 && (r < 0.0) != (b < 0.0) => r + b,
            r => r,
        },
        Operator::Power => a.powf(b),
    }))
}
