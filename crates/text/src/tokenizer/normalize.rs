//! [`Normalizer`]: text normalisation before pre-tokenization.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use tallow_checkpoint::Result;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::decompose_canonical;
use unicode_segmentation::UnicodeSegmentation;

use super::charsmap::Charsmap;
use super::field::Field;
use super::pattern::Pattern;
use super::unicode::{MARK, NONSPACING, OTHER, PUNCTUATION, as_byte_chars, is_ideograph};
use super::{MOST_GROWN, TokenizeError};

/// Normalisation steps, each applied to the whole text.
#[derive(Debug, Default)]
pub(super) struct Normalizer(pub(super) Vec<Step>);

#[derive(Debug)]
pub(super) enum Step {
    /// BERT's cleaning as in `tokenizer.json` files (`BertNormalizer`).
    Bert {
        clean: bool,
        ideographs: bool,
        accents: bool,
        lower: bool,
    },
    /// BERT's cleaning as in GGUF files: it also isolates punctuation, and keeps only the first character of a
    /// decomposition.
    BertWords {
        accents: bool,
        lower: bool,
    },
    Form(Form),
    Lowercase,
    Strip {
        left: bool,
        right: bool,
    },
    StripAccents,
    Nmt,
    /// SentencePiece's table as in `tokenizer.json` files (`Precompiled`): by grapheme, shortest entry first.
    Table(Charsmap),
    /// SentencePiece's table as in GGUF files, with its handling of spaces.
    SentencePiece(SentencePiece),
    Text {
        pattern: String,
        with: String,
    },
    Pattern {
        pattern: Pattern,
        with: String,
    },
    Prepend(String),
    ByteChars,
}

/// Unicode normalisation form.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// The normalisation of a GGUF file's unigram model.
#[derive(Debug)]
pub(super) struct SentencePiece {
    pub(super) table: Option<Charsmap>,
    /// True if a space is put before the text (`add_space_prefix`).
    pub(super) prefix: bool,
    /// True if runs of spaces are collapsed and those at the ends dropped (`remove_extra_whitespaces`).
    pub(super) squeeze: bool,
}

impl Normalizer {
    /// True if text is composed (NFC).
    pub(super) fn composes(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Form(Form::Nfc)))
    }

    pub(super) fn read(field: &Field<'_>) -> Result<Normalizer> {
        field.parts("normalizers")?.iter().map(Step::read).collect::<Result<_>>().map(Normalizer)
    }

    pub(super) fn run<'t>(&self, text: &'t str) -> std::result::Result<Cow<'t, str>, TokenizeError> {
        let mut text = Cow::Borrowed(text);
        for step in &self.0 {
            if text.is_empty() {
                break;
            }
            if let Some(changed) = step.run(&text)? {
                text = Cow::Owned(changed);
            }
            super::check_length(text.len(), MOST_GROWN)?;
        }
        Ok(text)
    }
}

impl Step {
    fn read(field: &Field<'_>) -> Result<Step> {
        Ok(match field.kind()? {
            "BertNormalizer" | "Bert" => {
                let lower = field.at("lowercase").flag()?;
                Step::Bert {
                    clean: field.at("clean_text").flag()?,
                    ideographs: field.at("handle_chinese_chars").flag()?,
                    accents: field.at("strip_accents").flag_or(lower)?,
                    lower,
                }
            }
            "NFC" => Step::Form(Form::Nfc),
            "NFD" => Step::Form(Form::Nfd),
            "NFKC" => Step::Form(Form::Nfkc),
            "NFKD" => Step::Form(Form::Nfkd),
            "Lowercase" => Step::Lowercase,
            "Strip" => {
                Step::Strip { left: field.at("strip_left").flag()?, right: field.at("strip_right").flag()? }
            }
            "StripAccents" => Step::StripAccents,
            "Nmt" => Step::Nmt,
            "Precompiled" => {
                let table = field.at("precompiled_charsmap");
                let bytes = base64(table.text()?).ok_or_else(|| table.bad("is not base64"))?;
                Step::Table(Charsmap::parse(&bytes).map_err(|why| table.bad(why))?)
            }
            "Replace" => Step::replace(field)?,
            "Prepend" => Step::Prepend(field.at("prepend").text()?.into()),
            "ByteLevel" => Step::ByteChars,
            other => return Err(field.unsupported(format_args!("normalizer {other:?}"))),
        })
    }

    fn replace(field: &Field<'_>) -> Result<Step> {
        let with = field.at("content").text()?.to_owned();
        let pattern = field.at("pattern");
        let text = pattern.at("String");
        if !text.is_null() {
            let pattern = text.text()?.to_owned();
            if pattern.is_empty() {
                return Err(text.bad("is empty"));
            }
            return Ok(Step::Text { pattern, with });
        }
        let source = pattern.at("Regex");
        let pattern = Pattern::new(source.text()?).map_err(|why| source.bad(why))?;
        Ok(Step::Pattern { pattern, with })
    }

    /// The changed text. `None` if nothing changed.
    fn run(&self, text: &str) -> std::result::Result<Option<String>, TokenizeError> {
        Ok(Some(match self {
            Step::Bert { clean, ideographs, accents, lower } => {
                bert(text, [*clean, *ideographs, *accents, *lower])
            }
            Step::BertWords { accents, lower } => bert_words(text, *accents, *lower),
            Step::Form(form) => return Ok(form.run(text)),
            Step::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Step::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                if *right { text.trim_end() } else { text }.into()
            }
            Step::StripAccents => text.chars().filter(|c| !MARK.has(*c)).collect(),
            Step::Nmt => text.chars().filter_map(nmt).collect(),
            Step::Table(table) => by_grapheme(table, text)?,
            Step::SentencePiece(piece) => piece.run(text)?,
            Step::Text { pattern, with } => return replace_text(text, pattern, with),
            Step::Pattern { pattern, with } => return replace_pattern(text, pattern, with).map(Some),
            Step::Prepend(prefix) => [prefix.as_str(), text].concat(),
            Step::ByteChars => {
                let mut out = String::with_capacity(text.len() * 2);
                as_byte_chars(text, &mut out);
                out
            }
        }))
    }
}

impl Form {
    fn run(self, text: &str) -> Option<String> {
        use unicode_normalization::{IsNormalized, is_nfc_quick, is_nfkc_quick};
        if text.is_ascii() {
            return None;
        }
        match self {
            Form::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => None,
            Form::Nfkc if is_nfkc_quick(text.chars()) == IsNormalized::Yes => None,
            Form::Nfc => Some(text.nfc().collect()),
            Form::Nfd => Some(text.nfd().collect()),
            Form::Nfkc => Some(text.nfkc().collect()),
            Form::Nfkd => Some(text.nfkd().collect()),
        }
    }
}

/// BERT's cleaning: drops control characters, maps all white space to spaces, puts spaces around ideographs, strips
/// accents and lowercases.
fn bert(text: &str, [clean, ideographs, accents, lower]: [bool; 4]) -> String {
    let kept = |c: char| matches!(c, '\t' | '\n' | '\r') || !(c == '\0' || c == '\u{FFFD}' || OTHER.has(c));
    let spaced = |c: char| if c.is_whitespace() { ' ' } else { c };
    let mut out = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !clean || kept(*c)).map(|c| if clean { spaced(c) } else { c }) {
        if ideographs && is_ideograph(c) {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    if accents && !out.is_ascii() {
        out = out.nfd().filter(|c| !NONSPACING.has(*c)).collect();
    }
    if lower {
        out = out.chars().flat_map(char::to_lowercase).collect();
    }
    out
}

/// The words for a GGUF file's BERT vocabulary, separated by spaces.
fn bert_words(text: &str, accents: bool, lower: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let mut first = None;
        if accents {
            decompose_canonical(c, |part| first = first.or(Some(part)));
        }
        let c = first.unwrap_or(c);
        if c.is_whitespace() {
            out.push(' ');
            continue;
        }
        if c == '\u{FFFD}' || OTHER.has(c) || (accents && MARK.has(c)) {
            continue;
        }
        let written = if lower { c.to_lowercase().next().unwrap_or(c) } else { c };
        if c.is_ascii_punctuation() || PUNCTUATION.has(c) || is_ideograph(c) {
            out.extend([' ', written, ' ']);
        } else {
            out.push(written);
        }
    }
    out
}

/// The `Nmt` normaliser: drops control characters and maps unusual white space to spaces.
fn nmt(c: char) -> Option<char> {
    match c as u32 {
        0x01..=0x08 | 0x0B | 0x0E..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x09 | 0x0A | 0x0C | 0x0D | 0x1680 | 0x200B..=0x200F | 0x2028 | 0x2029 | 0x2581 | 0xFEFF | 0xFFFD => {
            Some(' ')
        }
        _ => Some(c),
    }
}

/// Replaces each grapheme of up to five bytes of which the table has a prefix, and in other graphemes each character
/// that it has. The shortest entry wins and replaces the whole grapheme, as in the library that wrote these files.
fn by_grapheme(table: &Charsmap, text: &str) -> std::result::Result<String, TokenizeError> {
    let mut out = String::with_capacity(text.len());
    for grapheme in text.graphemes(true) {
        super::check_length(out.len(), MOST_GROWN)?;
        let whole = (grapheme.len() < 6).then(|| table.prefixes(grapheme).next()).flatten();
        if let Some((_, with)) = whole {
            out.push_str(with);
            continue;
        }
        for (i, c) in grapheme.char_indices() {
            match table.prefixes(&grapheme[i..i + c.len_utf8()]).next() {
                Some((_, with)) => out.push_str(with),
                None => out.push(c),
            }
        }
    }
    Ok(out)
}

impl SentencePiece {
    fn run(&self, text: &str) -> std::result::Result<String, TokenizeError> {
        let mut out = String::with_capacity(text.len() + 3);
        let (mut in_word, mut prefixed) = (false, false);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            super::check_length(out.len(), MOST_GROWN)?;
            let entry = self.table.as_ref().and_then(|table| table.prefixes(rest).last());
            let (len, piece) = match entry {
                Some((len, with)) if rest.is_char_boundary(len) => (len, with),
                _ => (c.len_utf8(), &rest[..c.len_utf8()]),
            };
            for c in piece.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.squeeze {
                        out.push('▁');
                    }
                    continue;
                }
                if !in_word && ((self.prefix && !prefixed) || self.squeeze) {
                    out.push('▁');
                    prefixed = true;
                }
                in_word = true;
                out.push(c);
            }
            rest = &rest[len..];
        }
        Ok(out)
    }
}

fn replace_text(text: &str, pattern: &str, with: &str) -> std::result::Result<Option<String>, TokenizeError> {
    let count = text.matches(pattern).count();
    super::check_length(text.len().saturating_add(count.saturating_mul(with.len())), MOST_GROWN)?;
    Ok((count > 0).then(|| text.replace(pattern, with)))
}

fn replace_pattern(text: &str, pattern: &Pattern, with: &str) -> std::result::Result<String, TokenizeError> {
    let mut spans = Vec::new();
    pattern.find(text, |start, end| spans.push((start, end)))?;
    super::check_length(text.len().saturating_add(spans.len().saturating_mul(with.len())), MOST_GROWN)?;
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (start, end) in spans {
        out.push_str(&text[from..start]);
        out.push_str(with);
        from = end;
    }
    out.push_str(&text[from..]);
    Ok(out)
}

/// Decodes standard base64, with or without padding.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(step: Step, text: &str) -> String {
        Normalizer(vec![step]).run(text).unwrap().into_owned()
    }

    #[test]
    fn base64_of_every_length() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob")] {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!((base64("Z"), base64("Z!")), (None, None));
    }

    #[test]
    fn bert_cleans_as_its_files_say() {
        let text = "  Ünïcode\u{0}\u{200b}\tA你b\u{301} İ";
        assert_eq!(
            run(Step::Bert { clean: true, ideographs: true, accents: true, lower: true }, text),
            "  unicode a 你 b i"
        );
        assert_eq!(
            run(Step::Bert { clean: false, ideographs: false, accents: false, lower: true }, "Ä\t你"),
            "ä\t你"
        );
        assert_eq!(run(Step::BertWords { accents: true, lower: true }, "Don't 안\u{1}!"), "don ' t ᄋ ! ");
    }

    #[test]
    fn a_replacement_cannot_grow_without_bound() {
        let step = Step::Text { pattern: "a".into(), with: "b".repeat(1 << 20) };
        let text = "a".repeat(1000);
        assert!(matches!(Normalizer(vec![step]).run(&text), Err(TokenizeError::TooLong { .. })));
        let doubling = || Step::Text { pattern: "a".into(), with: "aa".into() };
        let doubled = Normalizer((0..60).map(|_| doubling()).collect());
        assert!(matches!(doubled.run("a"), Err(TokenizeError::TooLong { .. })));
    }

    #[test]
    fn sentencepiece_treats_spaces_as_told() {
        let piece = |prefix, squeeze| Step::SentencePiece(SentencePiece { table: None, prefix, squeeze });
        assert_eq!(run(piece(true, true), "  a  b "), "▁a▁b");
        assert_eq!(run(piece(true, false), "  a  b "), "▁▁▁a▁▁b▁");
        assert_eq!(run(piece(false, false), "a b"), "a▁b");
    }

    #[test]
    fn a_broken_table_reads_nothing_outside_itself() {
        for bytes in [
            &[][..],
            &[4, 0, 0, 0],
            &[8, 0, 0, 0, 1, 2, 3, 4],
            &[3, 0, 0, 0, 1, 2, 3, 4],
            &[4, 0, 0, 0, 1, 2, 3, 4, 255],
        ] {
            assert!(Charsmap::parse(bytes).is_err(), "{bytes:?}");
        }
        let mut seed = 7u32;
        for _ in 0..200 {
            let mut bytes = vec![64, 0, 0, 0];
            for _ in 0..80 {
                seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
                bytes.push((seed >> 24) as u8 & 0x7F);
            }
            let table = Charsmap::parse(&bytes).unwrap();
            run(Step::Table(table), "aé你\u{0}🙂\u{301}");
            let table = Some(Charsmap::parse(&bytes).unwrap());
            run(Step::SentencePiece(SentencePiece { table, prefix: true, squeeze: true }), "aé你\u{0}🙂");
        }
    }
}
