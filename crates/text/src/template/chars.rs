//! Character classes and case mappings of Python's `str`.

use crate::tokenizer::unicode::{CASED, DECIMAL, LETTER, XID_CONTINUE, XID_START};

/// Digits that are not decimal: superscript, subscript and circled ones, and those of a few scripts.
const DIGITS: [(u32, u32); 20] = [
    (0xB2, 0xB3),
    (0xB9, 0xB9),
    (0x1369, 0x1371),
    (0x19DA, 0x19DA),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247C),
    (0x2488, 0x2490),
    (0x24EA, 0x24EA),
    (0x24F5, 0x24FD),
    (0x24FF, 0x24FF),
    (0x2776, 0x277E),
    (0x2780, 0x2788),
    (0x278A, 0x2792),
    (0x10A40, 0x10A43),
    (0x10E60, 0x10E68),
    (0x11052, 0x1105A),
    (0x1F100, 0x1F10A),
];
/// Ideographs with a numeric value.
const NUMBERS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭廾";

pub(super) fn is_letter(c: char) -> bool {
    LETTER.has(c)
}

pub(super) fn is_decimal(c: char) -> bool {
    DECIMAL.has(c)
}

pub(super) fn is_digit(c: char) -> bool {
    let code = u32::from(c);
    is_decimal(c) || DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

pub(super) fn is_numeric(c: char) -> bool {
    c.is_numeric() || NUMBERS.contains(c)
}

pub(super) fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || is_numeric(c)
}

/// Value of a decimal digit. Each script has its ten digits in a row.
pub(super) fn digit_of(c: char) -> Option<u32> {
    let (first, _) = DECIMAL.range_of(c)?;
    Some((u32::from(c) - u32::from(first)) % 10)
}

/// True if the text is an identifier (`str.isidentifier`).
pub(super) fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || XID_START.has(c)) && chars.all(|c| XID_CONTINUE.has(c))
}

/// Appends the title case of a character.
fn push_title(c: char, out: &mut String) {
    let code = u32::from(c);
    let other = match code {
        // Digraphs (two letters in one character) in upper, title and lower case.
        0x1C4..=0x1CC => 0x1C5 + (code - 0x1C4) / 3 * 3,
        0x1F1..=0x1F3 => 0x1F2,
        // Georgian, which has no capitals in running text.
        0x10D0..=0x10FA | 0x10FD..=0x10FF => code,
        // Greek with iota subscript.
        0x1F80..=0x1FAF => code | 8,
        0x1FB3 | 0x1FC3 | 0x1FF3 | 0x1FBC | 0x1FCC | 0x1FFC => code & !0xF | 0xC,
        _ => 0,
    };
    if let Some(other) = char::from_u32(other).filter(|other| *other != '\0') {
        return out.push(other);
    }
    let keeps_iota = matches!(code, 0x1FB2..=0x1FB7 | 0x1FC2..=0x1FC7 | 0x1FF2..=0x1FF7);
    for (at, upper) in c.to_uppercase().enumerate() {
        match upper {
            'Ι' if keeps_iota && at > 0 => out.push('\u{345}'),
            upper if at == 0 || c == 'ŉ' => out.push(upper),
            upper => out.extend(upper.to_lowercase()),
        }
    }
}

/// `str.capitalize`: the first character in title case, the rest in lower case.
pub(super) fn capitalized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    chars.next().into_iter().for_each(|first| push_title(first, &mut out));
    out + &chars.as_str().to_lowercase()
}

/// `str.title`: title case where a word starts, which is after any uncased character.
pub(super) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            push_title(c, &mut out)
        }
        inside = CASED.has(c);
    }
    out
}

/// `str.casefold`: a form for case-insensitive comparison.
pub(super) fn folded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let code = u32::from(c);
        match code {
            0x131 | 0x13A0..=0x13F5 => out.push(c),
            // Cherokee folds to its capitals, which Unicode had first.
            0x13F8..=0x13FD => out.extend(char::from_u32(code - 8)),
            0xAB70..=0xABBF => out.extend(char::from_u32(code - 0xAB70 + 0x13A0)),
            _ => out.extend(c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
        }
    }
    out
}
