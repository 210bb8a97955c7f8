//! [`Spec`]: format specification of Python's `format`: `>5`, `.3f`, `,`.

use super::Failure;
use super::run::{Done, Run};
use super::value::{Value, float};

/// Largest precision, above that of any number.
const MOST_PLACES: usize = 1000;

/// Fill, alignment, sign, width, grouping, precision and kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) fill: Option<char>,
    pub(super) align: Option<char>,
    pub(super) sign: Option<char>,
    /// True if the prefix of the base is written, and the decimal point in any case (`#`).
    pub(super) alternate: bool,
    pub(super) zero: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

/// A formatted number, without its sign.
struct Digits {
    negative: bool,
    prefix: &'static str,
    text: String,
}

impl Spec {
    /// Parses the specification after the colon.
    fn parse(text: &str) -> Option<Spec> {
        let mut spec = Spec::default();
        let mut rest = text;
        let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
        let mut chars = rest.chars();
        match (chars.next(), chars.next()) {
            (Some(fill), Some(align)) if is_align(align) => {
                (spec.fill, spec.align) = (Some(fill), Some(align));
                rest = chars.as_str();
            }
            (Some(align), _) if is_align(align) => {
                spec.align = Some(align);
                rest = &rest[1..];
            }
            _ => {}
        }
        let mut skip = |one_of: &[char]| {
            let found = rest.chars().next().filter(|c| one_of.contains(c))?;
            rest = &rest[found.len_utf8()..];
            Some(found)
        };
        spec.sign = skip(&['+', '-', ' ']);
        spec.alternate = skip(&['#']).is_some();
        spec.zero = skip(&['0']).is_some();
        let number = |rest: &mut &str| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            *rest = after;
            (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
        };
        spec.width = number(&mut rest).unwrap_or(0);
        if rest.starts_with([',', '_']) {
            spec.grouping = rest.chars().next();
            rest = &rest[1..];
        }
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            spec.precision = Some(number(&mut rest)?);
        }
        let mut chars = rest.chars();
        spec.kind = chars.next();
        chars.next().is_none().then_some(spec)
    }

    /// Appends a number to `out`, right-aligned unless specified otherwise.
    fn pad_number(&self, run: &mut Run<'_>, number: &Digits, out: &mut String) -> Done<()> {
        let sign = match (number.negative, self.sign) {
            (true, _) => "-",
            (_, Some('+')) => "+",
            (_, Some(' ')) => " ",
            _ => "",
        };
        let (fill, align) = match self.zero {
            true => (self.fill.unwrap_or('0'), self.align.unwrap_or('=')),
            false => (self.fill.unwrap_or(' '), self.align.unwrap_or('>')),
        };
        let inside = if align == '=' { [sign, number.prefix].concat() } else { String::new() };
        let outside =
            if align == '=' { number.text.clone() } else { [sign, number.prefix, &number.text].concat() };
        pad(run, &inside, &outside, (fill, align, self.width), out)
    }
}

/// Appends text padded to a width: `inside` precedes the fill where the fill is in the middle (`=`).
pub(super) fn pad(
    run: &mut Run<'_>,
    inside: &str,
    text: &str,
    (fill, align, width): (char, char, usize),
    out: &mut String,
) -> Done<()> {
    let missing = width.saturating_sub(inside.chars().count() + text.chars().count());
    run.room(out.len().saturating_add(text.len()).saturating_add(missing.saturating_mul(4)))?;
    run.spend(text.len().saturating_add(missing))?;
    let left = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    out.push_str(inside);
    out.extend(std::iter::repeat_n(fill, left));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - left));
    Ok(())
}

/// Appends a value as a format specification says.
pub(super) fn write(run: &mut Run<'_>, value: &Value, text: &str, out: &mut String) -> Done<()> {
    if text.is_empty() {
        return run.append(value, out);
    }
    let unknown =
        || Failure::wrong(format!("Invalid format specifier '{text}' for object of type '{}'", value.kind()));
    let spec = Spec::parse(text).ok_or_else(unknown)?;
    if spec.zero && spec.grouping.is_some() {
        return Err(Failure::wrong("zeros and groups of digits at once are not supported in a format"));
    }
    let places = spec.precision.unwrap_or(0);
    match value {
        Value::Str(text) => {
            if !matches!(spec.kind, None | Some('s')) || spec.sign.is_some() || spec.align == Some('=') {
                return Err(unknown());
            }
            let kept = spec.precision.and_then(|most| text.of.char_indices().nth(most));
            let text = &text.of[..kept.map_or(text.of.len(), |(at, _)| at)];
            let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
            pad(run, "", text, (fill, spec.align.unwrap_or('<'), spec.width), out)
        }
        Value::Int(_) | Value::Bool(_) | Value::Float(_) if places > MOST_PLACES => Err(many_places(places)),
        Value::Int(_) | Value::Bool(_)
            if matches!(spec.kind, None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X' | 'c')) =>
        {
            if spec.precision.is_some() {
                return Err(Failure::wrong("Precision not allowed in integer format specifier"));
            }
            let number = value.as_int().unwrap_or(0);
            if spec.kind == Some('c') {
                let c = u32::try_from(number).ok().and_then(char::from_u32);
                let c = c.ok_or_else(|| Failure::wrong("%c arg not in range(0x110000)"))?.to_string();
                return pad(
                    run,
                    "",
                    &c,
                    (spec.fill.unwrap_or(' '), spec.align.unwrap_or('<'), spec.width),
                    out,
                );
            }
            let mut digits = whole(number, spec.kind, spec.alternate);
            let size = if matches!(spec.kind, Some('b' | 'o' | 'x' | 'X')) { 4 } else { 3 };
            digits.text = grouped(&digits.text, spec.grouping, size);
            spec.pad_number(run, &digits, out)
        }
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => {
            let number = value.as_float().unwrap_or(0.0);
            let text = fraction(number.abs(), &spec, true).ok_or_else(unknown)?;
            let (whole, rest) = text.split_at(text.find(['.', 'e', 'E', '%']).unwrap_or(text.len()));
            let text = grouped(whole, spec.grouping, 3) + rest;
            spec.pad_number(
                run,
                &Digits { negative: number.is_sign_negative() && !number.is_nan(), prefix: "", text },
                out,
            )
        }
        Value::Undefined(name) => Err(Failure::undefined(name)),
        other => {
            Err(Failure::wrong(format!("unsupported format string passed to {}.__format__", other.kind())))
        }
    }
}

pub(super) fn many_places(places: usize) -> Failure {
    Failure::wrong(format!("{places} decimal places; {MOST_PLACES} are written"))
}

/// An integer in the base of its kind.
fn whole(number: i128, kind: Option<char>, alternate: bool) -> Digits {
    let (negative, number) = (number < 0, number.unsigned_abs());
    let (prefix, text) = match kind {
        Some('b') => ("0b", format!("{number:b}")),
        Some('o') => ("0o", format!("{number:o}")),
        Some('x') => ("0x", format!("{number:x}")),
        Some('X') => ("0X", format!("{number:X}")),
        _ => ("", number.to_string()),
    };
    Digits { negative, prefix: if alternate { prefix } else { "" }, text }
}

/// Digits in groups of `size`, from the right.
fn grouped(digits: &str, mark: Option<char>, size: usize) -> String {
    let Some(mark) = mark.filter(|_| digits.bytes().all(|b| b.is_ascii_hexdigit())) else {
        return digits.into();
    };
    let mut out = String::new();
    for (at, c) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(size) {
            out.push(mark);
        }
        out.push(c);
    }
    out
}

/// A non-negative float as its kind says. `None` if there is no such kind. Without a kind, `shortest` writes the fewest
/// digits that round-trip.
fn fraction(x: f64, spec: &Spec, shortest: bool) -> Option<String> {
    let kind = spec.kind.unwrap_or(if spec.precision.is_some() { 'r' } else { 's' });
    if !matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%' | 'r' | 's')
        || (kind == 's' && !shortest)
    {
        return None;
    }
    if !x.is_finite() {
        let text = if x.is_nan() { "nan" } else { "inf" };
        let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text.into() };
        return Some(if kind == '%' { text + "%" } else { text });
    }
    let places = spec.precision.unwrap_or(6);
    let text = match kind {
        'e' | 'E' => scientific(x, places, spec.alternate),
        'f' | 'F' => format!("{x:.places$}{}", if spec.alternate && places == 0 { "." } else { "" }),
        '%' => format!("{:.places$}%", x * 100.0),
        's' => float(x),
        'r' => general(x, places, spec.alternate, true),
        _ => general(x, places, spec.alternate, false),
    };
    Some(if kind.is_ascii_uppercase() { text.to_uppercase() } else { text })
}

/// Scientific notation, with an exponent of at least two digits.
fn scientific(x: f64, places: usize, point: bool) -> String {
    let text = format!("{x:.places$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let point = if point && places == 0 { "." } else { "" };
    format!("{digits}{point}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

/// `digits` significant digits, in scientific notation if the exponent is far from zero. `whole` adds `.0` to what
/// looks like an integer.
fn general(x: f64, digits: usize, zeros: bool, whole: bool) -> String {
    let digits = digits.max(1);
    let text = scientific(x, digits - 1, false);
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i64 = power.parse().unwrap_or(0);
    let cut = |text: &str| match text.contains('.') && !zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i64 - i64::from(whole) {
        return format!("{}e{power}", cut(mantissa));
    }
    let places = (digits as i64 - 1 - exponent).max(0) as usize;
    let text = cut(&format!("{x:.places$}"));
    if whole && !text.contains('.') { text + ".0" } else { text }
}

/// Appends a value as a `%` conversion says; its flags are in `spec`.
pub(super) fn write_old(run: &mut Run<'_>, value: &Value, spec: &Spec, out: &mut String) -> Done<()> {
    let kind = spec.kind.unwrap_or('s');
    let operand = || match value {
        Value::Undefined(name) => Failure::undefined(name),
        value => Failure::wrong(format!("%{kind} format: a number is required, not {}", value.kind())),
    };
    let places = spec.precision.unwrap_or(0);
    let plain = |align: Option<char>| (' ', if align == Some('<') { '<' } else { '>' }, spec.width);
    match kind {
        's' | 'r' | 'a' => {
            let mut text = String::new();
            let fits = if kind == 's' {
                value.write(&mut text, 1 << 26)
            } else {
                value.write_repr(&mut text, 1 << 26)
            };
            if !fits {
                return Err(Failure::Limit("needs too much memory"));
            }
            if kind == 'a' {
                text = super::value::ascii(&text);
            }
            if let Some((at, _)) = spec.precision.and_then(|most| text.char_indices().nth(most)) {
                text.truncate(at);
            }
            pad(run, "", &text, plain(spec.align), out)
        }
        'c' => {
            let c = match value {
                Value::Str(text) if text.of.chars().count() == 1 => text.of.text.clone(),
                value => {
                    let code = value.as_int().and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
                    code.ok_or_else(|| Failure::wrong("%c requires int or char"))?.to_string()
                }
            };
            pad(run, "", &c, plain(spec.align), out)
        }
        _ if places > MOST_PLACES => Err(many_places(places)),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let number = match (value, value.as_int()) {
                (_, Some(number)) => number,
                (Value::Float(x), _) if matches!(kind, 'd' | 'i' | 'u') => super::numbers::whole_of(*x)?,
                _ => return Err(operand()),
            };
            let mut digits = whole(number, spec.kind, spec.alternate);
            digits.text = "0".repeat(places.saturating_sub(digits.text.len())) + &digits.text;
            spec.pad_number(run, &digits, out)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let x = value.as_float().ok_or_else(operand)?;
            let text = fraction(x.abs(), spec, false).unwrap_or_default();
            spec.pad_number(
                run,
                &Digits { negative: x.is_sign_negative() && !x.is_nan(), prefix: "", text },
                out,
            )
        }
        other => Err(Failure::wrong(format!("unsupported format character '{other}'"))),
    }
}
