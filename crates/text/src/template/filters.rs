//! Filters: `value | filter`.

use super::Failure;
use super::numbers::{too_large, whole_of};
use super::run::{CallArgs, Done, Run};
use super::value::{Kind, Value, is_space};
use super::{chars, html, json, methods};

/// Names of all filters.
pub(super) const NAMES: [&str; 50] = [
    "string",
    "safe",
    "trim",
    "upper",
    "lower",
    "title",
    "capitalize",
    "replace",
    "indent",
    "center",
    "truncate",
    "wordcount",
    "escape",
    "e",
    "forceescape",
    "urlencode",
    "format",
    "striptags",
    "default",
    "d",
    "length",
    "count",
    "first",
    "last",
    "list",
    "join",
    "items",
    "tojson",
    "int",
    "float",
    "round",
    "abs",
    "attr",
    "filesizeformat",
    "xmlattr",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "reverse",
    "sort",
    "unique",
    "min",
    "max",
    "sum",
    "dictsort",
    "batch",
    "slice",
    "groupby",
];

impl Run<'_> {
    pub(super) fn filter(&mut self, name: &str, value: Value, args: CallArgs) -> Done<Value> {
        self.spend(0)?;
        self.deeper(|run| match name {
            "string" if value.as_str().is_some() => Ok(value),
            "string" | "safe" | "trim" | "upper" | "lower" | "title" | "capitalize" | "replace"
            | "indent" | "center" | "truncate" | "wordcount" | "escape" | "e" | "forceescape"
            | "urlencode" | "format" | "striptags" => run.text_filter(name, &value, args),
            "default" | "d" | "length" | "count" | "first" | "last" | "list" | "join" | "items"
            | "tojson" | "int" | "float" | "round" | "abs" | "attr" | "filesizeformat" | "xmlattr" => {
                run.plain_filter(name, value, args)
            }
            _ => run.list_filter(name, value, args),
        })
    }

    fn text_filter(&mut self, name: &str, value: &Value, mut args: CallArgs) -> Done<Value> {
        let Value::Str(text) = self.as_text(value)? else { return Ok(Value::None) };
        let safe = text.of.safe;
        let text: &str = &text.of;
        self.spend(text.len())?;
        match name {
            "trim" => match args.take(0, "chars") {
                None | Some(Value::None) => self.text_like(text.trim_matches(is_space), safe),
                Some(chars) => {
                    let strip = self.text_like(text, safe)?;
                    methods::call(self, &strip, "strip", CallArgs::of(vec![chars]))
                }
            },
            "upper" => self.text_like(text.to_uppercase(), safe),
            "lower" => self.text_like(text.to_lowercase(), safe),
            "capitalize" => self.text_like(chars::capitalized(text), safe),
            "title" => self.text(titled(text)),
            "replace" => {
                let mut needed =
                    |at, name| args.take(at, name).ok_or_else(|| Failure::wrong("replace needs two texts"));
                let (from, to) = (needed(0, "old")?, needed(1, "new")?);
                let (from, to) = (self.as_text(&from)?, self.as_text(&to)?);
                let most = args.take(2, "count").and_then(|most| usize::try_from(most.as_int()?).ok());
                let (from, to) = (from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default());
                methods::replaced(self, text, from, to, most.unwrap_or(usize::MAX))
            }
            "indent" => self.indent(text, args),
            "center" => {
                let width = args.take(0, "width").and_then(|width| width.as_int()).unwrap_or(80);
                let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
                self.room(missing)?;
                self.spend(missing)?;
                self.text_like(methods::centered(text, missing, ' '), safe)
            }
            "truncate" => self.truncate(text, args),
            "wordcount" => {
                let words = text
                    .split(|c: char| !(chars::is_alphanumeric(c) || c == '_'))
                    .filter(|word| !word.is_empty());
                Ok(Value::Int(words.count() as i128))
            }
            "escape" | "e" | "forceescape" => {
                self.room(text.len() * 5)?;
                let done = if safe && name != "forceescape" { text.into() } else { html::escaped(text) };
                self.text_like(done, true)
            }
            "urlencode" => {
                self.room(text.len() * 3)?;
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-~/".contains(&b);
                let encode = |b: u8| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") };
                self.text(text.bytes().map(encode).collect::<String>())
            }
            "striptags" => self.without_tags(text),
            "format" => {
                let values = match args.named.is_empty() {
                    true => self.sequence(args.plain, Kind::Tuple)?,
                    false => {
                        let pairs = args.named.into_iter().map(|(name, value)| Ok((self.text(name)?, value)));
                        let pairs: Vec<_> = pairs.collect::<Done<_>>()?;
                        self.dict(pairs)?
                    }
                };
                super::format::percent(self, text, &values)
            }
            // string and safe
            name => self.text_like(text, name == "safe" || safe),
        }
    }

    fn indent(&mut self, text: &str, mut args: CallArgs) -> Done<Value> {
        let indent = match args.take(0, "width") {
            None => "    ".into(),
            Some(Value::Str(indent)) => indent.of.to_string(),
            Some(width) => {
                let width = width.as_int().ok_or_else(|| Failure::operand("indent", &width))?;
                let width = usize::try_from(width).unwrap_or(0);
                self.room(width)?;
                " ".repeat(width)
            }
        };
        let first = args.take(1, "first").is_some_and(|first| first.is_true());
        let blank = args.take(2, "blank").is_some_and(|blank| blank.is_true());
        let text = text.to_owned() + "\n";
        let lines = methods::lines(&text, false);
        self.room(lines.len().saturating_mul(indent.len()).saturating_add(text.len()))?;
        let mut out = String::new();
        for (i, line) in lines.iter().enumerate() {
            out.push_str(if i > 0 { "\n" } else { "" });
            if (i > 0 && (blank || !line.is_empty())) || (i == 0 && first) {
                out.push_str(&indent);
            }
            out.push_str(line);
        }
        self.text(out)
    }

    fn truncate(&mut self, text: &str, mut args: CallArgs) -> Done<Value> {
        let mut number = |at, name, otherwise: usize| {
            let args = args.take(at, name).and_then(|n| usize::try_from(n.as_int()?).ok());
            args.unwrap_or(otherwise)
        };
        let (length, leeway) = (number(0, "length", 255), number(3, "leeway", 5));
        let kill = args.take(1, "killwords").is_some_and(|kill| kill.is_true());
        let end = args.take(2, "end").unwrap_or(self.text("...")?);
        let end = end.as_str().unwrap_or_default();
        if text.chars().count() <= length.saturating_add(leeway) {
            return self.text(text);
        }
        let keep = length.saturating_sub(end.chars().count());
        let kept: String = text.chars().take(keep).collect();
        let kept = if kill {
            kept.as_str()
        } else {
            kept.rsplit_once(' ').map_or(kept.as_str(), |(before, _)| before)
        };
        self.text(kept.to_owned() + end)
    }

    fn plain_filter(&mut self, name: &str, value: Value, mut args: CallArgs) -> Done<Value> {
        match name {
            "default" | "d" => {
                let boolean = args.take(1, "boolean").is_some_and(|boolean| boolean.is_true());
                if value.is_undefined() || (boolean && !value.is_true()) {
                    return match args.take(0, "default_value") {
                        Some(default) => Ok(default),
                        None => self.text(""),
                    };
                }
                Ok(value)
            }
            "length" | "count" => match value.len() {
                Some(len) => Ok(Value::Int(len as i128)),
                None => Err(Failure::wrong(format!("object of type '{}' has no len()", value.kind()))),
            },
            "last" if matches!(&value, Value::List(list) if matches!(list.of.kind, Kind::Once(_))) => {
                Err(Failure::wrong("'generator' object is not reversible"))
            }
            "first" | "last" => {
                let items = self.items(&value)?;
                let item = if name == "first" { items.first() } else { items.last() };
                Ok(item.cloned().unwrap_or_else(|| Value::undefined("the first or last of nothing")))
            }
            "list" => {
                let items = self.items(&value)?;
                self.list(items)
            }
            "join" => {
                let between = args.take(0, "d").unwrap_or(self.text("")?);
                let between = self.as_text(&between)?;
                let mut items = self.items(&value)?;
                if let Some(attribute) = args.take(1, "attribute") {
                    items = items.iter().map(|item| self.attribute(item, &attribute)).collect::<Done<_>>()?;
                }
                self.joined(&items, between.as_str().unwrap_or_default())
            }
            "items" => match &value {
                Value::Undefined(_) => self.once(Vec::new()),
                Value::Dict(_) => {
                    let pairs = methods::call(self, &value, "items", args)?;
                    let pairs = self.items(&pairs)?;
                    self.once(pairs)
                }
                _ => Err(Failure::wrong("Can only get item pairs from a mapping.")),
            },
            "tojson" => json::dump(self, &value, args),
            "int" => {
                let (default, base) = (args.take(0, "default"), args.take(1, "base"));
                let base = base.and_then(|base| u32::try_from(base.as_int()?).ok());
                let number = int(&value, base.filter(|b| (2..=36).contains(b)).unwrap_or(10))?;
                Ok(Value::Int(number.or(default.and_then(|d| d.as_int())).unwrap_or(0)))
            }
            "filesizeformat" => {
                let bytes = match &value {
                    Value::Str(text) => text.of.trim_matches(is_space).parse().ok(),
                    value => value.as_float(),
                };
                let bytes = bytes.ok_or_else(|| Failure::operand("filesizeformat", &value))?;
                let binary = args.take(0, "binary").is_some_and(|binary| binary.is_true());
                self.text(html::file_size(bytes, binary))
            }
            "xmlattr" => {
                let space = args.take(0, "autospace").is_none_or(|space| space.is_true());
                self.attributes(&value, space)
            }
            "float" => {
                let number = match &value {
                    Value::Str(text) => text.of.trim_matches(is_space).replace('_', "").parse().ok(),
                    value => value.as_float(),
                };
                let default = args.take(0, "default").and_then(|default| default.as_float());
                Ok(Value::Float(number.or(default).unwrap_or(0.0)))
            }
            "abs" => match &value {
                Value::Float(x) => Ok(Value::Float(x.abs())),
                value => match value.as_int().and_then(i128::checked_abs) {
                    Some(n) => Ok(Value::Int(n)),
                    None => Err(Failure::operand("abs()", value)),
                },
            },
            "round" => round(&value, args),
            // attr
            _ => {
                let name = args.take(0, "name").ok_or_else(|| Failure::wrong("attr needs a name"))?;
                let name = name.as_str().unwrap_or_default();
                match &value {
                    Value::Dict(_) if !methods::has(&value, name) => Ok(Value::undefined(name)),
                    value => self.member(value, name),
                }
            }
        }
    }

    /// The value at a dotted path of names and indices.
    pub(super) fn attribute(&mut self, value: &Value, path: &Value) -> Done<Value> {
        let Value::Str(path) = path else { return self.item(value, path) };
        let mut value = value.clone();
        for part in path.of.split('.') {
            let part = match part.parse() {
                Ok(number) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(number),
                _ => self.text(part)?,
            };
            value = self.item(&value, &part)?;
        }
        Ok(value)
    }
}

/// `int`: the value as an integer; text is parsed.
fn int(value: &Value, base: u32) -> Done<Option<i128>> {
    match value {
        Value::Str(text) => {
            let text = text.of.trim_matches(is_space);
            let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
            // Digits of any script are accepted; underscores only between digits.
            let between = !unsigned.starts_with('_') && !unsigned.ends_with('_') && !unsigned.contains("__");
            let digit = |c: char| chars::digit_of(c).and_then(|d| char::from_digit(d, 10)).unwrap_or(c);
            let text: String = text.chars().filter(|c| *c != '_' || !between).map(digit).collect();
            let (sign, unsigned) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let digits = match base {
                16 => unsigned.strip_prefix("0x").or(unsigned.strip_prefix("0X")),
                8 => unsigned.strip_prefix("0o").or(unsigned.strip_prefix("0O")),
                2 => unsigned.strip_prefix("0b").or(unsigned.strip_prefix("0B")),
                _ => None,
            };
            let digits = digits.unwrap_or(unsigned);
            if !digits.is_empty() && digits.chars().all(|c| c.is_digit(base)) {
                let number = i128::from_str_radix(digits, base).map_err(|_| too_large())?;
                return Ok(Some(if sign == "-" { -number } else { number }));
            }
            text.parse().ok().filter(|x: &f64| x.is_finite()).map(whole_of).transpose()
        }
        Value::Float(x) if !x.is_finite() => Ok(None),
        Value::Float(x) => whole_of(*x).map(Some),
        value => Ok(value.as_int()),
    }
}

fn round(value: &Value, mut args: CallArgs) -> Done<Value> {
    let x = value.as_float().ok_or_else(|| Failure::operand("round()", value))?;
    let precision = args.take(0, "precision").and_then(|p| i32::try_from(p.as_int()?).ok()).unwrap_or(0);
    let method = args.take(1, "method");
    let scale = 10f64.powi(precision.clamp(-300, 300));
    Ok(Value::Float(match method.as_ref().and_then(Value::as_str).unwrap_or("common") {
        "ceil" => (x * scale).ceil() / scale,
        "floor" => (x * scale).floor() / scale,
        // Rounds the decimal expansion, ties to even.
        "common" if precision >= 0 => {
            let text = format!("{x:.*}", precision.clamp(0, 300) as usize);
            text.parse().unwrap_or(x)
        }
        "common" => (x * scale).round_ties_even() / scale,
        other => return Err(Failure::wrong(format!("round has no method {other:?}"))),
    }))
}

/// `title` filter: upper case where a word starts, after spaces, dashes and opening brackets.
fn titled(text: &str) -> String {
    let splits = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        if std::mem::replace(&mut starts, splits(c)) {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
    }
    out
}
