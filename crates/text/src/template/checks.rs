//! Tests: `value is test`.

use super::Failure;
use super::run::{CallArgs, Done, Run};
use super::value::Value;

/// Names of all tests.
const TESTS: [&str; 39] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "callable",
    "odd",
    "even",
    "divisibleby",
    "lower",
    "upper",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "sameas",
    "escaped",
    "filter",
    "test",
];

impl Run<'_> {
    pub(super) fn test(&mut self, name: &str, value: &Value, mut args: CallArgs) -> Done<bool> {
        let mut other = || {
            args.take(0, "other").ok_or_else(|| Failure::wrong(format!("test '{name}' needs an argument")))
        };
        let whole = || value.as_int().ok_or_else(|| Failure::operand(name, value));
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.as_float().is_some(),
            "string" => matches!(value, Value::Str(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "sequence" => match value {
                Value::List(list) => list.of.is_plain(),
                value => {
                    matches!(value, Value::Str(_) | Value::Dict(_) | Value::Range(_) | Value::Undefined(_))
                }
            },
            "iterable" => value.len().is_some() || matches!(value, Value::List(_)),
            "callable" => {
                matches!(
                    value,
                    Value::Macro(_)
                        | Value::Function(_)
                        | Value::Method(_)
                        | Value::Loop(_)
                        | Value::Object(_)
                        | Value::Undefined(_)
                )
            }
            "odd" => whole()? % 2 != 0,
            "even" => whole()? % 2 == 0,
            "divisibleby" => {
                let by = other()?.as_int().filter(|by| *by != 0);
                let by =
                    by.ok_or_else(|| Failure::wrong("divisibleby takes a whole number that is not 0"))?;
                whole()?.checked_rem(by) == Some(0)
            }
            "lower" | "upper" => {
                let Value::Str(text) = self.as_text(value)? else { return Ok(false) };
                let wrong = |c: char| if name == "lower" { c.is_uppercase() } else { c.is_lowercase() };
                text.of.chars().any(char::is_alphabetic) && !text.of.chars().any(wrong)
            }
            "eq" | "equalto" | "==" => {
                let other = other()?;
                self.equals(value, &other)?
            }
            "ne" | "!=" => {
                let other = other()?;
                !self.equals(value, &other)?
            }
            "lt" | "lessthan" | "<" => {
                let other = other()?;
                self.order("<", value, &other)?.is_some_and(|o| o.is_lt())
            }
            "le" | "<=" => {
                let other = other()?;
                self.order("<=", value, &other)?.is_some_and(|o| o.is_le())
            }
            "gt" | "greaterthan" | ">" => {
                let other = other()?;
                self.order(">", value, &other)?.is_some_and(|o| o.is_gt())
            }
            "ge" | ">=" => {
                let other = other()?;
                self.order(">=", value, &other)?.is_some_and(|o| o.is_ge())
            }
            "in" => {
                let other = other()?;
                self.contains(&other, value)?
            }
            "escaped" => matches!(value, Value::Str(text) if text.of.safe),
            "filter" => value.as_str().is_some_and(|name| super::filters::NAMES.contains(&name)),
            "test" => value.as_str().is_some_and(|name| TESTS.contains(&name)),
            "sameas" => {
                let other = other()?;
                // Identity, as far as it can be told of immutable values.
                value.kind() == other.kind() && self.equals(value, &other)?
            }
            _ => return Err(Failure::wrong(format!("there is no test named '{name}'"))),
        })
    }
}
