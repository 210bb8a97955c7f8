//! Character classes, and the characters that stand for bytes in byte-level vocabularies.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// A set of characters, as sorted ranges.
pub(crate) struct Class(Vec<(char, char)>);

impl Class {
    /// The characters that a regular expression's character class matches.
    fn of(class: &str) -> Class {
        let hir = regex_syntax::parse(class).map(|hir| hir.into_kind());
        match hir {
            Ok(HirKind::Class(HirClass::Unicode(set))) => {
                Class(set.ranges().iter().map(|r| (r.start(), r.end())).collect())
            }
            // Unreachable for the classes below; a test checks that they are not empty.
            _ => Class(Vec::new()),
        }
    }

    pub(crate) fn has(&self, c: char) -> bool {
        self.range_of(c).is_some()
    }

    /// The first and last character of the range that contains `c`.
    pub(crate) fn range_of(&self, c: char) -> Option<(char, char)> {
        let before = self.0.partition_point(|(start, _)| *start <= c).checked_sub(1)?;
        Some(self.0[before]).filter(|(_, end)| c <= *end)
    }
}

pub(super) static PUNCTUATION: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{P}"));
pub(super) static MARK: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{M}"));
pub(super) static NONSPACING: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{Mn}"));
/// Control, format and private-use characters.
pub(super) static OTHER: LazyLock<Class> = LazyLock::new(|| Class::of(r"[\p{Cc}\p{Cf}\p{Co}]"));
/// Invisible characters: format, private-use and unassigned ones.
pub(crate) static UNSEEN: LazyLock<Class> = LazyLock::new(|| Class::of(r"[\p{Cf}\p{Co}\p{Cn}]"));
pub(crate) static LETTER: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{L}"));
pub(crate) static DECIMAL: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{Nd}"));
/// Letters of upper, lower or title case.
pub(crate) static CASED: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{Cased}"));
/// Characters that can start and continue an identifier.
pub(crate) static XID_START: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{XID_Start}"));
pub(crate) static XID_CONTINUE: LazyLock<Class> = LazyLock::new(|| Class::of(r"\p{XID_Continue}"));
pub(super) static WORD: LazyLock<Class> = LazyLock::new(|| Class::of(r"\w"));

/// The ideographs that BERT-like models treat as words of their own.
///
/// One block starts at 2B920 instead of 2B820, as in the vocabularies' own tools.
pub(super) fn is_ideograph(c: char) -> bool {
    matches!(c as u32,
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F
        | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}

/// Byte-level vocabularies (GPT-2) write each byte as one visible character: itself if it is visible in Latin-1, else a
/// character from U+0100 on.
fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that do not stand for themselves: the first is written as U+0100, and so on.
static OTHERS: LazyLock<Vec<u8>> = LazyLock::new(|| (0..=255).filter(|b| !stands_for_itself(*b)).collect());

static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut chars = std::array::from_fn(|byte| byte as u8 as char);
    for (byte, c) in OTHERS.iter().zip('\u{100}'..) {
        chars[*byte as usize] = c;
    }
    chars
});

/// The character that stands for a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[byte as usize]
}

/// The byte that a character stands for.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c as u32) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => OTHERS.get(c as usize - 256).copied(),
    }
}

/// Appends the text with each byte written as the character that stands for it.
pub(super) fn as_byte_chars(text: &str, out: &mut String) {
    out.extend(text.bytes().map(char_of));
}

/// The bytes of a byte-level token; `None` if it has a character that stands for no byte.
pub(super) fn from_byte_chars(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// The byte of a byte token such as `<0x0A>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let two = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    two.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_not_empty_and_hold_what_their_names_say() {
        for (class, inside, outside) in [
            (&PUNCTUATION, "!。«", "a+ "),
            (&MARK, "\u{301}\u{94b}", "a "),
            (&NONSPACING, "\u{301}", "\u{94b}a"),
            (&OTHER, "\0\u{200b}\u{e000}", "a \u{378}"),
            (&UNSEEN, "\u{200b}\u{e000}\u{378}", "a "),
            (&LETTER, "aß你ª", "ⅷ1_"),
            (&DECIMAL, "1٣१", "²½"),
            (&CASED, "aAǅª", "你1"),
            (&XID_START, "aß你", "_1 "),
            (&XID_CONTINUE, "a_1", " -"),
            (&WORD, "aé_9\u{200d}", " -"),
        ] {
            assert!(inside.chars().all(|c| class.has(c)), "{inside:?}");
            assert!(!outside.chars().any(|c| class.has(c)), "{outside:?}");
        }
    }

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!((byte_of(' '), byte_of('你'), byte_of('\u{ad}')), (None, None, None));
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for no in ["<0x0A", "<0x+A>", "<0xé>", "0x0A", "<0x00A>"] {
            assert_eq!(byte_token(no), None, "{no}");
        }
    }
}
