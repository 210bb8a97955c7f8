//! `cycler` and `joiner`: functions that return objects with state.

use super::Failure;
use super::run::{CallArgs, Done, Object, Run};
use super::value::Value;

impl Run<'_> {
    /// `cycler(...)` or `joiner(...)`.
    pub(super) fn object(&mut self, name: &str, mut args: CallArgs) -> Done<Value> {
        // Objects live until the end of the run.
        self.room((self.objects.len() + 1) * 256)?;
        self.spend(0)?;
        let object = match name {
            "cycler" if args.plain.is_empty() => {
                return Err(Failure::wrong("at least one item has to be provided"));
            }
            "cycler" => Object::Cycler { items: self.list(args.plain)?, at: 0 },
            _ => Object::Joiner {
                between: args.take(0, "sep").map_or_else(|| self.text(", "), Ok)?,
                used: false,
            },
        };
        self.objects.push(object);
        Ok(Value::Object(self.objects.len() - 1))
    }

    /// `current`, `next` or `reset` of a cycler. `next` returns the current item and advances.
    pub(super) fn cycle(&mut self, object: usize, method: &str) -> Done<Value> {
        let Some(Object::Cycler { items: Value::List(items), at }) = self.objects.get_mut(object) else {
            return Err(Failure::wrong(format!("'Joiner' object has no attribute '{method}'")));
        };
        let item = items.of.items[*at].clone();
        match method {
            "next" => *at = (*at + 1) % items.of.items.len(),
            "reset" => {
                *at = 0;
                return Ok(Value::None);
            }
            _ => {}
        }
        Ok(item)
    }

    /// A call of a joiner.
    pub(super) fn join_next(&mut self, object: usize) -> Done<Value> {
        let Some(Object::Joiner { between, used }) = self.objects.get_mut(object) else {
            return Err(Failure::wrong("'Cycler' object is not callable"));
        };
        match std::mem::replace(used, true) {
            true => Ok(between.clone()),
            false => self.text(""),
        }
    }
}
