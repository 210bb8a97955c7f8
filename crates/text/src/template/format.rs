//! String formatting: `"%s" % value` and `"{}".format(value)`.

use super::Failure;
use super::run::{CallArgs, Done, Run};
use super::spec::{self, Spec};
use super::value::{Kind, Value};

/// Python's `%` on text.
pub(super) fn percent(run: &mut Run<'_>, text: &str, values: &Value) -> Done<Value> {
    let list = match values {
        Value::List(list) if list.of.kind == Kind::Tuple => list.of.items.clone(),
        other => vec![other.clone()],
    };
    let mut values_left = list.iter();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inside| inside.split_once(')'));
        let value = match (named, values) {
            (Some((name, after)), Value::Dict(dict)) => {
                rest = after;
                dict.of
                    .get_text(name)
                    .cloned()
                    .ok_or_else(|| Failure::wrong(format!("KeyError: '{name}'")))?
            }
            (Some(_), _) => return Err(Failure::wrong("format requires a mapping")),
            (None, _) => {
                let next = values_left.next().cloned();
                next.ok_or_else(|| Failure::wrong("not enough arguments for format string"))?
            }
        };
        rest = conversion(run, rest, &value, &mut out)?;
    }
    out.push_str(rest);
    if values_left.next().is_some() && !matches!(values, Value::Dict(_)) {
        return Err(Failure::wrong("not all arguments converted during string formatting"));
    }
    run.text(out)
}

/// Value of a string of digits; 0 if it is empty.
fn amount(digits: &str) -> usize {
    if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) }
}

/// Writes one value by the conversion after a `%`, and returns the text after that.
fn conversion<'t>(run: &mut Run<'_>, text: &'t str, value: &Value, out: &mut String) -> Done<&'t str> {
    let unknown =
        || Failure::wrong(format!("unsupported format {:?}", text.chars().take(8).collect::<String>()));
    let (flags, rest) = text.split_at(text.len() - text.trim_start_matches(['-', '0', '+', ' ', '#']).len());
    let digits =
        |text: &'t str| text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let (width, mut rest) = digits(rest);
    let mut precision = None;
    if let Some(after) = rest.strip_prefix('.') {
        let (places, after) = digits(after);
        (precision, rest) = (Some(amount(places)), after);
    }
    let kind = rest.chars().next().ok_or_else(unknown)?;
    let spec = Spec {
        align: flags.contains('-').then_some('<'),
        sign: ['+', ' '].into_iter().find(|sign| flags.contains(*sign)),
        alternate: flags.contains('#'),
        zero: flags.contains('0') && !flags.contains('-'),
        width: amount(width),
        precision,
        kind: Some(kind),
        ..Spec::default()
    };
    if !kind.is_ascii_alphabetic() {
        return Err(unknown());
    }
    spec::write_old(run, value, &spec, out)?;
    Ok(&rest[kind.len_utf8()..])
}

/// Python's `str.format`.
pub(super) fn braces(run: &mut Run<'_>, text: &str, args: &CallArgs) -> Done<Value> {
    let mut out = String::new();
    fill_in(run, text, args, &mut Fields::default(), &mut out)?;
    run.text(out)
}

/// Index of the next unnamed field, and nesting depth of specifications.
#[derive(Default)]
struct Fields {
    next: usize,
    depth: u32,
}

fn fill_in(
    run: &mut Run<'_>,
    text: &str,
    args: &CallArgs,
    fields: &mut Fields,
    out: &mut String,
) -> Done<()> {
    if fields.depth > 2 {
        return Err(Failure::wrong("Max string recursion exceeded"));
    }
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        let end = if brace == "{" { closing(rest) } else { None };
        let end = end.ok_or_else(|| Failure::wrong("Single brace encountered in format string"))?;
        field(run, &rest[..end], args, fields, out)?;
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(())
}

/// Position of the brace that closes a field.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Writes a field: its value, conversion (`!r`) and format specification.
fn field(run: &mut Run<'_>, text: &str, args: &CallArgs, fields: &mut Fields, out: &mut String) -> Done<()> {
    run.spend(text.len())?;
    let (of, how) = text.split_at(text.find(['!', ':']).unwrap_or(text.len()));
    let (conversion, spec) = match how.strip_prefix('!') {
        None => (None, how.strip_prefix(':').unwrap_or_default()),
        Some(how) => {
            let (letter, spec) = how.split_once(':').unwrap_or((how, ""));
            (Some(letter), spec)
        }
    };
    let value = found(run, of, args, fields)?;
    let mut text = String::new();
    let value = match conversion {
        None => value,
        Some("s") => run.as_text(&value)?,
        Some("r" | "a") => {
            if !value.write_repr(&mut text, 1 << 26) {
                return Err(Failure::Limit("needs too much memory"));
            }
            run.text(if conversion == Some("a") { super::value::ascii(&text) } else { text })?
        }
        Some(other) => return Err(Failure::wrong(format!("Unknown conversion specifier {other}"))),
    };
    let mut written = String::new();
    fields.depth += 1;
    fill_in(run, spec, args, fields, &mut written)?;
    fields.depth -= 1;
    spec::write(run, &value, &written, out)
}

/// The value of a field's name: an argument, and members and items of it.
fn found(run: &mut Run<'_>, name: &str, args: &CallArgs, fields: &mut Fields) -> Done<Value> {
    let (first, mut path) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
    let argument = match (first, first.parse::<usize>()) {
        ("", _) => {
            fields.next += 1;
            args.plain.get(fields.next - 1)
        }
        (_, Ok(place)) => args.plain.get(place),
        _ => args.named.iter().find(|(named, _)| &**named == first).map(|(_, value)| value),
    };
    let nothing = || Failure::wrong(format!("nothing is given for {{{first}}}"));
    let mut value = argument.cloned().ok_or_else(nothing)?;
    while !path.is_empty() {
        value = if let Some(rest) = path.strip_prefix('.') {
            let (member, rest) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
            path = rest;
            run.member(&value, member)?
        } else {
            let inside = path.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (item, rest) = inside.ok_or_else(|| Failure::wrong("Missing ']' in format string"))?;
            path = rest;
            let item = match item.parse::<u32>() {
                Ok(number) => Value::Int(i128::from(number)),
                Err(_) => run.text(item)?,
            };
            run.item(&value, &item)?
        };
    }
    Ok(value)
}
