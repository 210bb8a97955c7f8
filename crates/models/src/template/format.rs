//! Text with values put in: `"%s" % value` and `"{}".format(value)`.

use super::Failure;
use super::run::{Done, Given, Run};
use super::value::{Kind, Value, float};

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

/// More places than a number has.
const MOST_PLACES: usize = 1000;

/// The number that digits are; none are 0.
fn amount(digits: &str) -> usize {
    if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) }
}

/// Writes one value as what follows a `%` says, and gives the text after that.
fn conversion<'t>(run: &mut Run<'_>, spec: &'t str, value: &Value, out: &mut String) -> Done<&'t str> {
    let unknown =
        || Failure::wrong(format!("unsupported format {:?}", spec.chars().take(8).collect::<String>()));
    let flags = spec.len() - spec.trim_start_matches(['-', '0', '+', ' ', '#']).len();
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let width_end = flags + digits(&spec[flags..]);
    let mut end = width_end;
    let mut precision = None;
    if spec[end..].starts_with('.') {
        let len = digits(&spec[end + 1..]);
        precision = Some(amount(&spec[end + 1..end + 1 + len]));
        end += 1 + len;
    }
    let kind = spec[end..].chars().next().ok_or_else(unknown)?;
    let number = || value.as_float().ok_or_else(|| Failure::operand("%", value));
    let mut written = String::new();
    match kind {
        's' | 'r' | 'a' => {
            let fits = if kind == 's' {
                value.write(&mut written, 1 << 26)
            } else {
                value.write_repr(&mut written, 1 << 26)
            };
            if !fits {
                return Err(Failure::Limit("needs too much memory"));
            }
            if let Some((at, _)) = precision.and_then(|most| written.char_indices().nth(most)) {
                written.truncate(at);
            }
        }
        'd' | 'i' | 'u' => {
            written = (value.as_int().map_or_else(|| number().map(|x| x as i128), Ok)?).to_string()
        }
        'x' => written = format!("{:x}", value.as_int().ok_or_else(|| Failure::operand("%x", value))?),
        'X' => written = format!("{:X}", value.as_int().ok_or_else(|| Failure::operand("%X", value))?),
        'f' | 'F' => {
            let places = precision.filter(|places| *places > MOST_PLACES);
            if let Some(places) = places {
                return Err(Failure::wrong(format!("{places} decimal places; {MOST_PLACES} are written")));
            }
            written = format!("{:.*}", precision.unwrap_or(6), number()?);
        }
        'g' if precision.is_none() => {
            let shown = float(number()?);
            written = shown.strip_suffix(".0").unwrap_or(&shown).into();
        }
        _ => return Err(unknown()),
    }
    let (flags, width) = (&spec[..flags], amount(&spec[flags..width_end]));
    if flags.contains('#') {
        return Err(unknown());
    }
    let is_text = matches!(kind, 's' | 'r' | 'a');
    let sign = ['+', ' '].into_iter().find(|sign| flags.contains(*sign));
    if let Some(sign) = sign.filter(|_| !written.starts_with('-') && !is_text) {
        written.insert(0, sign);
    }
    let missing = width.saturating_sub(written.chars().count());
    run.room(out.len().saturating_add(written.len()).saturating_add(missing))?;
    run.spend(written.len().saturating_add(missing))?;
    let fill = if flags.contains('0') && !flags.contains('-') && !is_text { '0' } else { ' ' };
    let fills: String = std::iter::repeat_n(fill, missing).collect();
    if flags.contains('-') {
        out.extend([written, fills]);
    } else if fill == '0' && written.starts_with(['-', '+', ' ']) {
        out.extend([&written[..1], fills.as_str(), &written[1..]]);
    } else {
        out.extend([fills, written]);
    }
    Ok(&spec[end + kind.len_utf8()..])
}

/// Python's `format` on text, with names and numbers in braces but nothing about how to write them.
pub(super) fn braces(run: &mut Run<'_>, text: &str, given: Given) -> Done<Value> {
    let mut out = String::new();
    let mut next = 0;
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
        let Some((name, after)) = rest.split_once('}').filter(|_| brace == "{") else {
            return Err(Failure::wrong("Single brace encountered in format string"));
        };
        rest = after;
        let value = match (name, name.parse::<usize>()) {
            ("", _) => {
                next += 1;
                given.plain.get(next - 1)
            }
            (_, Ok(place)) => given.plain.get(place),
            _ => given.named.iter().find(|(named, _)| &**named == name).map(|(_, value)| value),
        };
        let value = value.ok_or_else(|| Failure::wrong(format!("nothing is given for {{{name}}}")))?;
        run.append(value, &mut out)?;
    }
    out.push_str(rest);
    run.text(out)
}
