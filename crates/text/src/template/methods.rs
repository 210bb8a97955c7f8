//! Methods of text, lists and objects.

use super::Failure;
use super::chars;
use super::run::{CallArgs, Done, Run};
use super::value::{Kind, Value, is_printable, is_space};

const TEXT: [&str; 43] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "istitle",
];
const LIST: [&str; 3] = ["count", "index", "copy"];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
/// Methods that would mutate a value, which is never done.
const CHANGES: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "discard",
];

/// True if the value has a method of this name.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => TEXT.contains(&name),
        Value::List(list) => list.of.is_plain() && LIST.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::Loop(_) => matches!(name, "cycle" | "changed"),
        Value::Object(_) => matches!(name, "next" | "reset"),
        Value::Function(function) => *function == "dict" && name == "fromkeys",
        _ => false,
    }
}

/// True if Python has a mutating method of this name for the value.
pub(super) fn changes(value: &Value, name: &str) -> bool {
    match value {
        Value::List(list) => list.of.kind == Kind::List && CHANGES.contains(&name),
        Value::Dict(_) => matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update"),
        _ => false,
    }
}

/// Calls a method.
pub(super) fn call(run: &mut Run<'_>, value: &Value, name: &str, args: CallArgs) -> Done<Value> {
    match value {
        Value::Str(text) => {
            let text = text.clone();
            run.spend(text.of.len())?;
            Text { run, text: &text.of, safe: text.of.safe, name, args }.call()
        }
        Value::Dict(_) => dict(run, value, name, args),
        Value::List(_) => list(run, value, name, args),
        Value::Object(at) => run.cycle(*at, name),
        Value::Function(_) => {
            let mut args = args;
            let keys = args.take(0, "iterable").unwrap_or(Value::None);
            let value = args.take(1, "value").unwrap_or(Value::None);
            let pairs: Vec<_> = run.items(&keys)?.into_iter().map(|key| (key, value.clone())).collect();
            run.dict(pairs)
        }
        Value::Loop(this) => match name {
            "cycle" if args.plain.is_empty() => Err(Failure::wrong("no items for cycling given")),
            "cycle" => Ok(args.plain[this.at % args.plain.len()].clone()),
            _ => {
                let before = this.last.take();
                let mut same = before.as_ref().is_some_and(|before| before.len() == args.plain.len());
                for (a, b) in before.iter().flatten().zip(&args.plain) {
                    same = same && run.equals(a, b)?;
                }
                this.last.replace(Some(args.plain));
                Ok(Value::Bool(!same))
            }
        },
        other => Err(Failure::wrong(format!("'{}' object has no method '{name}'", other.kind()))),
    }
}

fn dict(run: &mut Run<'_>, value: &Value, name: &str, mut args: CallArgs) -> Done<Value> {
    let Value::Dict(dict) = value else { return Ok(Value::None) };
    match name {
        "get" => {
            let key = args
                .take(0, "key")
                .ok_or_else(|| Failure::wrong("get expected at least 1 argument, got 0"))?;
            let found = dict.of.get(&key).cloned();
            Ok(found.or_else(|| args.take(1, "default")).unwrap_or(Value::None))
        }
        "keys" => {
            let keys = run.items(value)?;
            run.sequence(keys, Kind::View("dict_keys"))
        }
        "values" => {
            let values = dict.of.entries.iter().map(|(_, value)| value.clone()).collect();
            run.sequence(values, Kind::View("dict_values"))
        }
        "items" => {
            let pair =
                |(key, value): &(Value, Value)| run.sequence(vec![key.clone(), value.clone()], Kind::Tuple);
            let pairs = dict.of.entries.iter().map(pair).collect::<Done<_>>()?;
            run.sequence(pairs, Kind::View("dict_items"))
        }
        _ => Ok(value.clone()),
    }
}

fn list(run: &mut Run<'_>, value: &Value, name: &str, mut args: CallArgs) -> Done<Value> {
    if name == "copy" {
        return Ok(value.clone());
    }
    let wanted =
        args.take(0, "value").ok_or_else(|| Failure::wrong(format!("{name}() needs an argument")))?;
    let mut count = 0;
    for (i, item) in run.items(value)?.iter().enumerate() {
        if run.equals(item, &wanted)? {
            if name == "index" {
                return Ok(Value::Int(i as i128));
            }
            count += 1;
        }
    }
    match name {
        "index" => Err(Failure::wrong("the value is not in the list")),
        _ => Ok(Value::Int(count)),
    }
}

/// A substring, and the number of characters before it.
struct Window {
    text: String,
    before: i128,
}

/// A call of a text method.
struct Text<'a, 'r, 'n> {
    run: &'r mut Run<'n>,
    text: &'a str,
    safe: bool,
    name: &'a str,
    args: CallArgs,
}

impl Text<'_, '_, '_> {
    fn call(mut self) -> Done<Value> {
        let text = self.text;
        match self.name {
            "upper" => self.run.text_like(text.to_uppercase(), self.safe),
            "lower" => self.run.text_like(text.to_lowercase(), self.safe),
            "casefold" => self.run.text_like(chars::folded(text), self.safe),
            "capitalize" => self.run.text_like(chars::capitalized(text), self.safe),
            "title" => self.run.text_like(chars::titled(text), self.safe),
            "expandtabs" => self.expand_tabs(),
            "swapcase" => {
                let swap = |c: char| {
                    if c.is_uppercase() {
                        c.to_lowercase().collect()
                    } else {
                        c.to_uppercase().collect::<String>()
                    }
                };
                let swapped: String = text.chars().map(swap).collect();
                self.run.text_like(swapped, self.safe)
            }
            "strip" | "lstrip" | "rstrip" => self.strip(),
            "split" | "rsplit" => self.split(),
            "splitlines" => {
                let keep = self.args.take(0, "keepends").is_some_and(|keep| keep.is_true());
                self.all(lines(text, keep))
            }
            "partition" | "rpartition" => {
                let Value::Str(at) = self.needed(0, "sep")? else { return Err(self.wrong("takes text")) };
                if at.of.is_empty() {
                    return Err(Failure::wrong("empty separator"));
                }
                let parts = match self.name {
                    "partition" => {
                        text.split_once(&*at.of).map(|(a, b)| [a, &at.of, b]).unwrap_or([text, "", ""])
                    }
                    _ => text.rsplit_once(&*at.of).map(|(a, b)| [a, &at.of, b]).unwrap_or(["", "", text]),
                };
                let parts =
                    parts.iter().map(|part| self.run.text_like(*part, self.safe)).collect::<Done<_>>()?;
                self.run.sequence(parts, Kind::Tuple)
            }
            "startswith" | "endswith" => self.starts(),
            "removeprefix" | "removesuffix" => {
                let Value::Str(part) = self.needed(0, "part")? else { return Err(self.wrong("takes text")) };
                let left = match self.name {
                    "removeprefix" => text.strip_prefix(&*part.of),
                    _ => text.strip_suffix(&*part.of),
                };
                self.run.text_like(left.unwrap_or(text), self.safe)
            }
            "replace" => self.replace(),
            "find" | "rfind" | "index" | "rindex" | "count" => self.find(),
            "join" => {
                let parts = self.needed(0, "iterable")?;
                let parts = self.run.items(&parts)?;
                if let Some(other) = parts.iter().find(|part| part.as_str().is_none()) {
                    let kind = other.kind();
                    return Err(Failure::wrong(format!(
                        "sequence item: expected str instance, {kind} found"
                    )));
                }
                self.run.joined(&parts, text)
            }
            "center" | "ljust" | "rjust" | "zfill" => self.pad(),
            "format" => super::format::braces(self.run, text, &self.args),
            _ => Ok(Value::Bool(self.is())),
        }
    }

    fn wrong(&self, why: &str) -> Failure {
        Failure::wrong(format!("{}() {why}", self.name))
    }

    fn needed(&mut self, at: usize, name: &str) -> Done<Value> {
        match self.args.take(at, name) {
            Some(Value::Undefined(name)) => Err(Failure::undefined(&name)),
            Some(value) => Ok(value),
            None => Err(self.wrong("needs an argument more")),
        }
    }

    /// An integer argument, if it is given and not none.
    fn number(&mut self, at: usize, name: &str) -> Done<Option<i128>> {
        match self.args.take(at, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => value.as_int().map(Some).ok_or_else(|| self.wrong("takes whole numbers")),
        }
    }

    fn all<'p>(&mut self, parts: impl IntoIterator<Item = &'p str>) -> Done<Value> {
        let parts = parts.into_iter().map(|part| self.run.text_like(part, self.safe)).collect::<Done<_>>()?;
        self.run.list(parts)
    }

    fn strip(mut self) -> Done<Value> {
        let chars = match self.args.take(0, "chars") {
            None | Some(Value::None) => None,
            Some(Value::Str(chars)) => Some(chars),
            Some(other) => return Err(Failure::operand("strip()", &other)),
        };
        let goes = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.of.contains(c));
        self.run.spend(
            self.text.len().saturating_mul(chars.as_ref().map_or(0, |chars| chars.of.len().min(64))),
        )?;
        let left = match self.name {
            "strip" => self.text.trim_matches(goes),
            "lstrip" => self.text.trim_start_matches(goes),
            _ => self.text.trim_end_matches(goes),
        };
        self.run.text_like(left, self.safe)
    }

    fn split(mut self) -> Done<Value> {
        let (text, last) = (self.text, self.name == "rsplit");
        let separator = self.args.take(0, "sep").unwrap_or(Value::None);
        let most = self.number(1, "maxsplit")?.and_then(|most| usize::try_from(most).ok());
        let separator = match separator {
            Value::None => {
                let parts = blanks(text, most.unwrap_or(usize::MAX), last);
                return self.all(parts);
            }
            Value::Str(separator) if separator.of.is_empty() => {
                return Err(Failure::wrong("empty separator"));
            }
            Value::Str(separator) => separator,
            other => return Err(Failure::operand("split()", &other)),
        };
        let separator: &str = &separator.of;
        // Each part is a value, which takes more memory than its text.
        self.run.room(text.matches(separator).count().saturating_mul(160))?;
        let parts: Vec<&str> = match (most, last) {
            (None, _) => text.split(separator).collect(),
            (Some(most), false) => text.splitn(most.saturating_add(1), separator).collect(),
            (Some(most), true) => {
                let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), separator).collect();
                parts.reverse();
                parts
            }
        };
        self.all(parts)
    }

    fn starts(mut self) -> Done<Value> {
        let (part, window) = (self.needed(0, "prefix")?, self.window()?);
        let start = self.name == "startswith";
        let is = |part: &str| {
            window
                .as_ref()
                .is_some_and(|w| if start { w.text.starts_with(part) } else { w.text.ends_with(part) })
        };
        match part {
            Value::Str(part) => Ok(Value::Bool(is(&part.of))),
            Value::List(parts) if parts.of.kind == Kind::Tuple => {
                Ok(Value::Bool(parts.of.items.iter().filter_map(Value::as_str).any(is)))
            }
            other => {
                Err(self.wrong(&format!("first arg must be str or a tuple of str, not {}", other.kind())))
            }
        }
    }

    /// The substring from `start` to `end`, the second and third argument. `None` if `start` is past `end`, where not
    /// even the empty string is found.
    fn window(&mut self) -> Done<Option<Window>> {
        let (start, end) = (self.number(1, "start")?, self.number(2, "end")?);
        if start.is_none() && end.is_none() {
            return Ok(Some(Window { text: self.text.into(), before: 0 }));
        }
        let count = self.text.chars().count() as i128;
        let place = |at: i128| if at < 0 { (at + count).max(0) } else { at };
        let (start, end) = (start.map_or(0, place), end.map_or(count, place).min(count));
        if start > end {
            return Ok(None);
        }
        self.run.spend(self.text.len())?;
        let text = self.text.chars().skip(start as usize).take((end - start) as usize).collect();
        Ok(Some(Window { text, before: start }))
    }

    fn expand_tabs(mut self) -> Done<Value> {
        let size = self.number(0, "tabsize")?.unwrap_or(8);
        let size = usize::try_from(size).unwrap_or(0);
        let tabs = self.text.matches('\t').count();
        self.run.room(self.text.len().saturating_add(tabs.saturating_mul(size)))?;
        self.run.spend(tabs.saturating_mul(size))?;
        let (mut out, mut column) = (String::with_capacity(self.text.len()), 0);
        for c in self.text.chars() {
            match c {
                '\t' => {
                    let missing = if size == 0 { 0 } else { size - column % size };
                    out.extend(std::iter::repeat_n(' ', missing));
                    column += missing;
                }
                c => {
                    column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    out.push(c);
                }
            }
        }
        self.run.text_like(out, self.safe)
    }

    fn replace(mut self) -> Done<Value> {
        let (Value::Str(from), Value::Str(to)) = (self.needed(0, "old")?, self.needed(1, "new")?) else {
            return Err(self.wrong("takes text"));
        };
        let most = self.number(2, "count")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        if !self.safe {
            return replaced(self.run, self.text, &from.of, &to.of, most);
        }
        let escaped = |text: &super::value::Text| match text.safe {
            true => text.text.clone(),
            false => super::html::escaped(text),
        };
        let Value::Str(done) = replaced(self.run, self.text, &escaped(&from.of), &escaped(&to.of), most)?
        else {
            return Ok(Value::None);
        };
        self.run.text_like(done.of.text.clone(), true)
    }

    fn find(mut self) -> Done<Value> {
        let Value::Str(part) = self.needed(0, "sub")? else { return Err(self.wrong("takes text")) };
        let part: &str = &part.of;
        let window = self.window()?;
        let text = window.as_ref().map_or("", |window| &window.text);
        let found = match self.name {
            "count" if window.is_none() => return Ok(Value::Int(0)),
            "count" if part.is_empty() => return Ok(Value::Int(text.chars().count() as i128 + 1)),
            "count" => return Ok(Value::Int(text.matches(part).count() as i128)),
            _ if window.is_none() => None,
            "find" | "index" => text.find(part),
            _ => text.rfind(part),
        };
        match found {
            Some(at) => {
                let before = window.as_ref().map_or(0, |window| window.before);
                Ok(Value::Int(before + text[..at].chars().count() as i128))
            }
            None if self.name.ends_with("find") => Ok(Value::Int(-1)),
            None => Err(Failure::wrong("substring not found")),
        }
    }

    fn pad(mut self) -> Done<Value> {
        let width = self.number(0, "width")?.unwrap_or(0);
        let fill = match (self.name, self.args.take(1, "fillchar")) {
            ("zfill", _) => '0',
            (_, Some(Value::Str(fill))) => fill.of.chars().next().unwrap_or(' '),
            _ => ' ',
        };
        let missing = usize::try_from(width).unwrap_or(0).saturating_sub(self.text.chars().count());
        self.run.room(missing.saturating_mul(4))?;
        self.run.spend(missing)?;
        let fills = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
        let padded = match self.name {
            "ljust" => self.text.to_owned() + &fills(missing),
            "rjust" => fills(missing) + self.text,
            "center" => centered(self.text, missing, fill),
            _ => {
                let unsigned = self.text.strip_prefix(['-', '+']).unwrap_or(self.text);
                [&self.text[..self.text.len() - unsigned.len()], &fills(missing), unsigned].concat()
            }
        };
        self.run.text_like(padded, self.safe)
    }

    /// The `is...` methods, which test all characters.
    fn is(&self) -> bool {
        let text = self.text;
        let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
        match self.name {
            "isascii" => text.is_ascii(),
            "isspace" => all(is_space),
            "isalpha" => all(chars::is_letter),
            "isalnum" => all(chars::is_alphanumeric),
            "isdigit" => all(chars::is_digit),
            "isdecimal" => all(chars::is_decimal),
            "isnumeric" => all(chars::is_numeric),
            "isidentifier" => chars::is_identifier(text),
            "isprintable" => text.chars().all(is_printable),
            "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
            "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
            _ => text.chars().any(char::is_alphabetic) && chars::titled(text) == text,
        }
    }
}

/// Replaces a text by another, at most `most` times.
pub(super) fn replaced(run: &mut Run<'_>, text: &str, from: &str, to: &str, most: usize) -> Done<Value> {
    let count = text.matches(from).count().min(most);
    run.room(text.len().saturating_add(count.saturating_mul(to.len())))?;
    run.text(text.replacen(from, to, most))
}

/// Splits text at runs of white space, at most `most` times, from either side. White space at the ends is dropped,
/// except that an unsplit rest keeps its own.
fn blanks(text: &str, most: usize, last: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if last { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let cut = if last { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + width..]);
        parts.push(if last { after } else { before });
        rest = if last { before.trim_end_matches(is_space) } else { after.trim_start_matches(is_space) };
    }
    if last {
        parts.reverse();
    }
    parts
}

/// Splits text at line ends (`str.splitlines`).
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        parts.push(&rest[..if keep { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

/// Text with `missing` fill characters around it, divided as Python's `str.center` does.
pub(super) fn centered(text: &str, missing: usize, fill: char) -> String {
    let width = missing + text.chars().count();
    let left = missing / 2 + (missing & width & 1);
    let fills = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    [&fills(left), text, &fills(missing - left)].concat()
}
