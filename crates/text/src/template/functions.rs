//! Built-in functions of templates.

use super::Failure;
use super::run::{CallArgs, Done, Run};
use super::value::Value;

/// Names of the functions.
pub(super) const NAMES: [&str; 7] =
    ["range", "namespace", "dict", "raise_exception", "strftime_now", "cycler", "joiner"];

impl Run<'_> {
    pub(super) fn function(&mut self, name: &str, mut args: CallArgs) -> Done<Value> {
        match name {
            "range" => self.range(args),
            "namespace" => {
                let Value::Dict(members) = self.dict_of(args)? else {
                    return Err(Failure::wrong("is no mapping"));
                };
                self.room((self.spaces.len() + 1) * 256)?;
                self.spaces.push(Default::default());
                let space = self.spaces.len() - 1;
                for (key, value) in &members.of.entries {
                    let name =
                        key.as_str().ok_or_else(|| Failure::wrong("a namespace's members have names"))?;
                    self.set_member(space, name, value.clone())?;
                }
                Ok(Value::Space(space))
            }
            "dict" => self.dict_of(args),
            "cycler" | "joiner" => self.object(name, args),
            "strftime_now" => {
                let format =
                    args.take(0, "format").ok_or_else(|| Failure::wrong("strftime_now() needs a format"))?;
                let Value::Str(format) = format else {
                    return Err(Failure::wrong(format!("strftime_now() takes text, not {}", format.kind())));
                };
                self.spend(format.of.len() * 32)?;
                let text = self.now.format(&format.of).map_err(Failure::wrong)?;
                self.text(text)
            }
            // `raise_exception`, the only one left.
            _ => {
                let message = args.take(0, "message").unwrap_or(Value::None);
                let mut text = String::new();
                message.write(&mut text, 1 << 16);
                Err(Failure::Raised(text))
            }
        }
    }

    /// `dict(...)`: from an object or pairs, and named arguments.
    fn dict_of(&mut self, args: CallArgs) -> Done<Value> {
        let mut pairs = Vec::new();
        match args.plain.first() {
            None => {}
            Some(Value::Dict(dict)) => pairs.extend(dict.of.entries.iter().cloned()),
            Some(list) => {
                for pair in self.items(list)? {
                    let [key, value] = <[Value; 2]>::try_from(self.items(&pair)?)
                        .map_err(|_| Failure::wrong("dict() takes pairs of a key and a value"))?;
                    pairs.push((key, value));
                }
            }
        }
        for (name, value) in args.named {
            pairs.push((self.text(name)?, value));
        }
        self.dict(pairs)
    }
}
