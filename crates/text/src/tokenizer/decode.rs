//! [`Stage`]: the decoder's steps from tokens to text. Each emits text as soon as later tokens cannot change it.
//!
//! Decoding a whole list and decoding token by token run the same stages, so their results are equal.

use std::collections::VecDeque;
use std::sync::Arc;

use tallow_checkpoint::Result;

use super::cut::Prefix;
use super::field::Field;
use super::pattern::Pattern;
use super::unicode::{byte_token, from_byte_chars};

/// The text of a token, or a part of it, between two stages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) text: String,
    /// True if it is the first chunk of its token.
    pub(super) opens: bool,
    /// True if it is the last chunk of its token.
    pub(super) closes: bool,
    /// True if the token decodes to its own text, bypassing the byte-level decoder.
    pub(super) verbatim: bool,
}

/// One decoder step with its state.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// Maps byte-level characters to bytes and decodes the bytes of all tokens as UTF-8.
    Bytes(Utf8),
    /// Decodes runs of byte tokens as UTF-8; in an invalid run each byte becomes U+FFFD.
    ByteTokens {
        row: Vec<u8>,
        whole: String,
    },
    /// Joins all tokens into one.
    Fuse(bool),
    Strip(Strip),
    Replace(Replace),
    Metaspace {
        space: char,
        prefix: bool,
        count: usize,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
        whole: String,
        count: usize,
    },
    /// Replaces the end-of-word suffix by a space, and removes it in the last token.
    Suffix {
        suffix: String,
        waiting: Option<String>,
        whole: String,
    },
    Ctc(Ctc),
    /// Puts a space between tokens.
    Spaced(usize),
}

/// Bytes that are not a complete character yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Utf8 {
    whole: String,
    waiting: Vec<u8>,
    opened: bool,
}

/// Removes a character from the start and end of each token.
#[derive(Debug, Clone)]
pub(super) struct Strip {
    pub(super) content: char,
    pub(super) start: usize,
    pub(super) stop: usize,
    /// Number that may still be removed at the start, and the characters that may have to be removed at the end.
    left: usize,
    held: VecDeque<char>,
}

impl Strip {
    pub(super) fn new(content: char, start: usize, stop: usize) -> Strip {
        Strip { content, start, stop, left: 0, held: VecDeque::new() }
    }
}

/// Replaces a text or pattern in each token.
#[derive(Debug, Clone)]
pub(super) struct Replace {
    find: Arc<Find>,
    with: String,
    held: String,
}

#[derive(Debug)]
enum Find {
    Text(String),
    Pattern(Pattern),
}

impl Replace {
    pub(super) fn text(find: &str, with: &str) -> Replace {
        Replace { find: Arc::new(Find::Text(find.into())), with: with.into(), held: String::new() }
    }
}

/// CTC decoding (speech models): repeats and padding are dropped.
#[derive(Debug, Clone)]
pub(super) struct Ctc {
    pad: String,
    delimiter: String,
    cleanup: bool,
    whole: String,
    last: Option<String>,
}

impl Stage {
    pub(super) fn byte_tokens() -> Stage {
        Stage::ByteTokens { row: Vec::new(), whole: String::new() }
    }

    /// Reads a `decoder`.
    pub(super) fn read_all(field: &Field<'_>) -> Result<Vec<Stage>> {
        if field.is_null() {
            return Ok(vec![Stage::Spaced(0)]);
        }
        field.parts("decoders")?.iter().map(Stage::read).collect()
    }

    fn read(field: &Field<'_>) -> Result<Stage> {
        let text = |key| field.at(key).text().map(str::to_owned);
        Ok(match field.kind()? {
            "ByteLevel" => Stage::Bytes(Utf8::default()),
            "ByteFallback" => Stage::byte_tokens(),
            "Fuse" => Stage::Fuse(false),
            "Strip" => {
                let (start, stop) = (field.at("start").count()?, field.at("stop").count()?);
                Stage::Strip(Strip::new(field.at("content").letter()?, start, stop))
            }
            "Replace" => {
                let (find, source) = (field.at("pattern").at("String"), field.at("pattern").at("Regex"));
                let find = match find.is_null() {
                    false if find.text()?.is_empty() => return Err(find.bad("is empty")),
                    false => Find::Text(find.text()?.into()),
                    true => Find::Pattern(Pattern::new(source.text()?).map_err(|why| source.bad(why))?),
                };
                Stage::Replace(Replace { find: Arc::new(find), with: text("content")?, held: String::new() })
            }
            "Metaspace" => Stage::Metaspace {
                space: field.at("replacement").letter()?,
                prefix: Prefix::read(field)? != Prefix::None,
                count: 0,
            },
            "WordPiece" => Stage::WordPiece {
                prefix: text("prefix")?,
                cleanup: field.at("cleanup").flag()?,
                whole: String::new(),
                count: 0,
            },
            "BPEDecoder" => Stage::Suffix { suffix: text("suffix")?, waiting: None, whole: String::new() },
            "CTC" => Stage::Ctc(Ctc {
                pad: text("pad_token")?,
                delimiter: text("word_delimiter_token")?,
                cleanup: field.at("cleanup").flag()?,
                whole: String::new(),
                last: None,
            }),
            other => return Err(field.unsupported(format_args!("decoder {other:?}"))),
        })
    }

    /// Takes a chunk and emits the text that can no longer change.
    fn push(&mut self, mut chunk: Chunk, give: &mut impl FnMut(Chunk)) {
        match self {
            Stage::Bytes(utf8) => {
                let verbatim = chunk.verbatim;
                if let Some(token) = complete(&mut utf8.whole, chunk) {
                    utf8.push(token, verbatim, give);
                }
            }
            Stage::ByteTokens { row, whole } => {
                let verbatim = chunk.verbatim;
                let Some(text) = complete(whole, chunk) else { return };
                match byte_token(&text) {
                    Some(byte) => row.push(byte),
                    None => {
                        end_row(row, give);
                        give(Chunk { verbatim, ..alone(text) });
                    }
                }
            }
            Stage::Fuse(opened) => {
                chunk.opens = !std::mem::replace(opened, true);
                chunk.closes = false;
                give(chunk);
            }
            Stage::Strip(strip) => strip.push(chunk, give),
            Stage::Replace(replace) => replace.push(chunk, give),
            Stage::Metaspace { space, prefix, count } => {
                *count += usize::from(chunk.opens);
                let first = *count == 1 && *prefix;
                let spaced = |c| if c == *space { (!first).then_some(' ') } else { Some(c) };
                chunk.text = chunk.text.chars().filter_map(spaced).collect();
                give(chunk);
            }
            Stage::WordPiece { prefix, cleanup, whole, count } => {
                if let Some(token) = complete(whole, chunk) {
                    let text = word_piece(token, prefix, *cleanup, *count == 0);
                    *count += 1;
                    give(alone(text));
                }
            }
            Stage::Suffix { suffix, waiting, whole } => {
                if let Some(token) = complete(whole, chunk)
                    && let Some(before) = waiting.replace(token)
                {
                    give(alone(before.replace(suffix.as_str(), " ")));
                }
            }
            Stage::Ctc(ctc) => {
                if let Some(token) = complete(&mut ctc.whole, chunk) {
                    ctc.token(token, give);
                }
            }
            Stage::Spaced(count) => {
                if chunk.opens && *count > 0 {
                    chunk.text.insert(0, ' ');
                }
                *count += usize::from(chunk.opens);
                give(chunk);
            }
        }
    }

    /// Emits what is held back, and resets the stage.
    fn finish(&mut self, give: &mut impl FnMut(Chunk)) {
        match self {
            Stage::Bytes(utf8) => {
                let text = String::from_utf8_lossy(&utf8.waiting).into_owned();
                give(Chunk { text, opens: !utf8.opened, closes: true, verbatim: false });
                *utf8 = Utf8::default();
            }
            Stage::ByteTokens { row, .. } => end_row(row, give),
            Stage::Fuse(opened) => {
                let opens = !std::mem::take(opened);
                give(Chunk { opens, closes: true, ..Chunk::default() });
            }
            // The previous stage has closed its last token, so nothing is held back.
            Stage::Strip(_) | Stage::Replace(_) => {}
            Stage::Metaspace { count, .. } | Stage::WordPiece { count, .. } | Stage::Spaced(count) => {
                *count = 0
            }
            Stage::Suffix { suffix, waiting, .. } => {
                if let Some(last) = waiting.take() {
                    give(alone(last.replace(suffix.as_str(), "")));
                }
            }
            Stage::Ctc(ctc) => ctc.last = None,
        }
    }

    /// True if in the middle of a text a token adds the same bytes whatever is around it.
    pub(super) fn add_bytes(stages: &[Stage]) -> bool {
        let mut is_fused = false;
        stages.iter().all(|stage| match stage {
            Stage::Bytes(_) | Stage::Fuse(_) => {
                is_fused = true;
                true
            }
            Stage::ByteTokens { .. } | Stage::Metaspace { .. } => true,
            Stage::Replace(replace) => {
                matches!(&*replace.find, Find::Text(find) if find.chars().count() == 1)
            }
            // Once tokens are joined it concerns only the ends of the text.
            Stage::Strip(_) => is_fused,
            Stage::WordPiece { .. } | Stage::Suffix { .. } | Stage::Ctc(_) | Stage::Spaced(_) => false,
        })
    }

    /// The bytes that a token adds in the middle of a text.
    pub(super) fn bytes(stages: &[Stage], token: &str, verbatim: bool) -> Vec<u8> {
        let mut text = token.to_owned();
        for stage in stages {
            match stage {
                Stage::Bytes(_) if verbatim => return text.into_bytes(),
                Stage::Bytes(_) => return from_byte_chars(&text).unwrap_or(text.into_bytes()),
                Stage::ByteTokens { .. } => {
                    if let Some(byte) = byte_token(&text) {
                        return vec![byte];
                    }
                }
                Stage::Replace(replace) => text = replace.all(&text),
                Stage::Metaspace { space, .. } => text = text.replace(*space, " "),
                Stage::WordPiece { prefix, cleanup, .. } => text = word_piece(text, prefix, *cleanup, false),
                Stage::Suffix { suffix, .. } => text = text.replace(suffix.as_str(), " "),
                Stage::Spaced(_) => text.insert(0, ' '),
                Stage::Fuse(_) | Stage::Strip(_) | Stage::Ctc(_) => {}
            }
        }
        text.into_bytes()
    }
}

/// Sends a token through the stages and appends the emitted text to `out`.
pub(super) fn push(stages: &mut [Stage], chunk: Chunk, out: &mut String) {
    match stages {
        [] => out.push_str(&chunk.text),
        [stage, rest @ ..] => stage.push(chunk, &mut |chunk| push(rest, chunk, out)),
    }
}

/// Appends what the stages still hold back to `out`, and resets them.
pub(super) fn finish(stages: &mut [Stage], out: &mut String) {
    if let [stage, rest @ ..] = stages {
        stage.finish(&mut |chunk| push(rest, chunk, out));
        finish(rest, out);
    }
}

impl Utf8 {
    fn push(&mut self, token: String, verbatim: bool, give: &mut impl FnMut(Chunk)) {
        match from_byte_chars(&token) {
            Some(bytes) if !verbatim => self.waiting.extend(bytes),
            _ => self.waiting.extend(token.bytes()),
        }
        let mut text = String::new();
        let mut rest = self.waiting.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = bad;
                    // No error length: the following bytes may complete the character.
                    let Some(len) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[len..];
                }
            }
        }
        self.waiting = rest.to_vec();
        let opens = !std::mem::replace(&mut self.opened, true);
        give(Chunk { text, opens, closes: false, verbatim: false });
    }
}

fn end_row(row: &mut Vec<u8>, give: &mut impl FnMut(Chunk)) {
    match String::from_utf8(std::mem::take(row)) {
        Ok(text) if text.is_empty() => {}
        Ok(text) => give(alone(text)),
        Err(e) => (0..e.as_bytes().len()).for_each(|_| give(alone(char::REPLACEMENT_CHARACTER.into()))),
    }
}

impl Strip {
    fn push(&mut self, chunk: Chunk, give: &mut impl FnMut(Chunk)) {
        if chunk.opens {
            self.left = self.start;
            self.held.clear();
        }
        let mut text = chunk.text.as_str();
        while self.left > 0
            && let Some(rest) = text.strip_prefix(self.content)
        {
            text = rest;
            self.left -= 1;
        }
        if !text.is_empty() {
            self.left = 0;
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            self.held.push_back(c);
            let certain =
                if c == self.content { self.held.len().saturating_sub(self.stop) } else { self.held.len() };
            out.extend(self.held.drain(..certain));
        }
        give(Chunk { text: out, ..chunk });
    }
}

impl Replace {
    fn push(&mut self, chunk: Chunk, give: &mut impl FnMut(Chunk)) {
        self.held.push_str(&chunk.text);
        let text = match (&*self.find, chunk.closes) {
            (_, true) => {
                let whole = std::mem::take(&mut self.held);
                self.all(&whole)
            }
            (Find::Pattern(_), false) => String::new(),
            (Find::Text(find), false) => {
                // The end of the held text may be the start of a match.
                let after = self.held.rfind(find.as_str()).map_or(0, |at| at + find.len());
                let starts =
                    |n: &usize| find.is_char_boundary(*n) && self.held[after..].ends_with(&find[..*n]);
                let keep = (1..find.len()).rev().find(starts).unwrap_or(0);
                let held = self.held.split_off(self.held.len() - keep);
                let certain = std::mem::replace(&mut self.held, held);
                self.all(&certain)
            }
        };
        give(Chunk { text, ..chunk });
    }

    fn all(&self, text: &str) -> String {
        match &*self.find {
            Find::Text(find) => text.replace(find.as_str(), &self.with),
            Find::Pattern(pattern) => {
                let (mut out, mut from) = (String::new(), 0);
                let found = pattern.find(text, |start, end| {
                    out.push_str(&text[from..start]);
                    out.push_str(&self.with);
                    from = end;
                });
                // Text that the pattern fails to search is left unchanged.
                if found.is_ok() { out + &text[from..] } else { text.into() }
            }
        }
    }
}

impl Ctc {
    fn token(&mut self, token: String, give: &mut impl FnMut(Chunk)) {
        if self.last.as_ref() == Some(&token) {
            return;
        }
        let mut text = token.replace(&self.pad, "");
        if self.cleanup {
            text = clean_up(&text).replace(&self.delimiter, " ");
        }
        self.last = Some(token);
        if !text.is_empty() {
            give(alone(text));
        }
    }
}

/// A token as a single chunk.
fn alone(text: String) -> Chunk {
    Chunk { text, opens: true, closes: true, verbatim: false }
}

/// The whole token, once its last chunk has arrived.
fn complete(whole: &mut String, chunk: Chunk) -> Option<String> {
    whole.push_str(&chunk.text);
    chunk.closes.then(|| std::mem::take(whole))
}

fn word_piece(token: String, prefix: &str, cleanup: bool, first: bool) -> String {
    let token = match token.strip_prefix(prefix) {
        _ if first => token,
        Some(inner) => inner.to_owned(),
        None => [" ", &token].concat(),
    };
    if cleanup { clean_up(&token) } else { token }
}

/// Removes the spaces that English does not have, such as before punctuation (the decoder's `cleanup`).
fn clean_up(text: &str) -> String {
    let pairs = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes token by token and returns the text emitted after each token and at the end.
    fn pieces(mut stages: Vec<Stage>, tokens: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for token in tokens {
            let mut text = String::new();
            push(&mut stages, alone((*token).into()), &mut text);
            out.push(text);
        }
        let mut text = String::new();
        finish(&mut stages, &mut text);
        out.push(text);
        out
    }

    #[test]
    fn bytes_become_text_when_they_are_a_character() {
        let utf8 = || vec![Stage::Bytes(Utf8::default())];
        assert_eq!(pieces(utf8(), &["Hi", "Ġä", "½", "ł", "!"]), ["Hi", " ", "", "你", "!", ""]);
        assert_eq!(pieces(utf8(), &["ä½", "a", "ÿ", "ä"]), ["", "\u{FFFD}a", "\u{FFFD}", "", "\u{FFFD}"]);
        assert_eq!(pieces(utf8(), &["<｜end▁x｜>", "Ġ"]), ["<｜end▁x｜>", " ", ""]);
    }

    #[test]
    fn rows_of_byte_tokens_are_text_or_nothing() {
        let stages = || vec![Stage::byte_tokens()];
        assert_eq!(pieces(stages(), &["a", "<0xE4>", "<0xBD>", "<0xA0>", "b"]), ["a", "", "", "", "你b", ""]);
        assert_eq!(pieces(stages(), &["<0xE4>", "<0x61>"]), ["", "", "\u{FFFD}\u{FFFD}"]);
    }

    #[test]
    fn ends_are_taken_off_across_chunks() {
        let stages = || vec![Stage::Fuse(false), Stage::Strip(Strip::new(' ', 2, 2))];
        assert_eq!(pieces(stages(), &[" ", " ", " a ", "  ", "b", "  ", " "]).concat(), " a   b ");
        assert_eq!(pieces(stages(), &["  "]).concat(), "");
        let each = vec![Stage::Strip(Strip::new('x', 1, 1))];
        assert_eq!(pieces(each, &["xxax", "x", "bxx"]), ["xa", "", "bx", ""]);
    }

    #[test]
    fn what_is_replaced_may_lie_across_chunks() {
        let stages = || vec![Stage::Fuse(false), Stage::Replace(Replace::text("abab", "_"))];
        for tokens in
            [&["ab", "ab", "ab", "abab"][..], &["a", "b", "a", "c"], &["aba", "babab"], &["xab", "a"]]
        {
            assert_eq!(pieces(stages(), tokens).concat(), tokens.concat().replace("abab", "_"));
        }
    }

    #[test]
    fn words_and_suffixes() {
        let word = Stage::WordPiece { prefix: "##".into(), cleanup: true, whole: String::new(), count: 0 };
        assert_eq!(pieces(vec![word], &["##a", "##b", "c", "."]), ["##a", "b", " c", ".", ""]);
        let suffix = Stage::Suffix { suffix: "</w>".into(), waiting: None, whole: String::new() };
        assert_eq!(pieces(vec![suffix], &["a", "b</w>", "c</w>"]), ["", "a", "b ", "c"]);
        assert_eq!(pieces(vec![Stage::Spaced(0)], &["a", "b"]), ["a", " b", ""]);
        let space = Stage::Metaspace { space: '▁', prefix: true, count: 0 };
        assert_eq!(pieces(vec![space], &["▁a", "▁b▁"]), ["a", " b ", ""]);
    }

    #[test]
    fn speech_drops_repeats_and_padding() {
        let ctc = Ctc {
            pad: "<pad>".into(),
            delimiter: "|".into(),
            cleanup: true,
            whole: String::new(),
            last: None,
        };
        let tokens = ["h", "h", "<pad>", "i", "i", "|", "<pad>", "i"];
        assert_eq!(pieces(vec![Stage::Ctc(ctc)], &tokens).concat(), "hi i");
    }
}
