//! [`Cutter`]: the pre-tokenizer, which splits normalised text into words for the model.

use tallow_checkpoint::{FileError, Result};

use super::field::Field;
use super::pattern::Pattern;
use super::unicode::{PUNCTUATION, WORD, as_byte_chars};
use super::{MOST_GROWN, TokenizeError};

type Cut<T> = std::result::Result<T, TokenizeError>;

/// The GPT-2 pattern, the default of byte-level pre-tokenization.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Pre-tokenizer steps, each applied to all words.
#[derive(Debug, Default)]
pub(super) struct Cutter(pub(super) Vec<Step>);

#[derive(Debug)]
pub(super) enum Step {
    /// Splits at white space, which is dropped, and isolates punctuation (`BertPreTokenizer`).
    Bert,
    /// Writes bytes as characters (`ByteLevel`), after splitting by the pattern if there is one.
    ByteLevel {
        prefix: bool,
        pattern: Option<Pattern>,
    },
    Delimiter(char),
    Digits {
        each: bool,
    },
    FixedLength(usize),
    Metaspace {
        space: char,
        prefix: Prefix,
        split: bool,
    },
    Punctuation(Behavior),
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    /// Splits into runs of word characters and runs of other characters; white space is dropped.
    Whitespace,
    WhitespaceSplit,
}

/// The words that get a leading space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    /// The word at the start of the whole text.
    First,
    All,
    None,
}

/// Treatment of a match when a word is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// Text and the end offsets of its words.
#[derive(Debug)]
pub(super) struct Words {
    text: String,
    ends: Vec<u32>,
    /// True if the first word starts where the whole text starts.
    at_start: bool,
}

/// A piece of a word: start, end, and whether it was matched.
type Span = (usize, usize, bool);

/// The words that remain of a text, as byte ranges.
#[derive(Default)]
struct Kept {
    words: Vec<(u32, u32)>,
    dropped: bool,
}

impl Kept {
    fn add(&mut self, start: usize, end: usize) {
        if start < end {
            self.words.push((start as u32, end as u32));
        }
    }
}

impl Words {
    /// The whole text as one word.
    pub(super) fn new(text: String, at_start: bool) -> Words {
        let ends = if text.is_empty() { Vec::new() } else { vec![text.len() as u32] };
        Words { text, ends, at_start }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start as usize..*end as usize])
    }

    /// Splits every word at the matches that `find` reports.
    fn cut(
        &mut self,
        behavior: Behavior,
        invert: bool,
        mut find: impl FnMut(&str, &mut dyn FnMut(usize, usize)) -> Cut<()>,
    ) -> Cut<()> {
        let mut kept = Kept::default();
        let (mut spans, mut start) = (Vec::new(), 0);
        for end in &self.ends {
            let word = &self.text[start..*end as usize];
            let mut add = |from: usize, to: usize, matched: bool| match behavior {
                Behavior::Isolated => kept.add(start + from, start + to),
                Behavior::Removed if matched => kept.dropped = true,
                Behavior::Removed => kept.add(start + from, start + to),
                _ => spans.push((from, to, matched)),
            };
            let mut at = 0;
            find(word, &mut |from, to| {
                if at < from {
                    add(at, from, invert);
                }
                add(from, to, !invert);
                at = to;
            })?;
            if at < word.len() {
                add(at, word.len(), invert);
            }
            behavior.merge(&mut spans);
            spans.drain(..).for_each(|(from, to, _)| kept.add(start + from, start + to));
            start = *end as usize;
        }
        self.at_start &= kept.words.first().is_some_and(|(start, _)| *start == 0);
        if kept.dropped {
            let parts: Vec<&str> =
                kept.words.iter().map(|(a, b)| &self.text[*a as usize..*b as usize]).collect();
            let text = parts.concat();
            let mut end = 0;
            self.ends.clear();
            self.ends.extend(kept.words.iter().map(|(a, b)| {
                end += b - a;
                end
            }));
            self.text = text;
        } else {
            self.ends.clear();
            self.ends.extend(kept.words.iter().map(|(_, end)| *end));
        }
        Ok(())
    }

    /// Splits every word at the characters for which `is` holds.
    fn cut_chars(&mut self, behavior: Behavior, is: impl Fn(char) -> bool) -> Cut<()> {
        self.cut(behavior, false, |word, each| {
            for (i, c) in word.char_indices().filter(|(_, c)| is(*c)) {
                each(i, i + c.len_utf8());
            }
            Ok(())
        })
    }

    /// Rewrites every word. The closure's flag says whether the word is at the start of the whole text.
    fn rewrite(&mut self, write: impl Fn(&str, bool, &mut String)) -> Cut<()> {
        let mut text = String::with_capacity(self.text.len() + self.ends.len());
        let mut ends = Vec::with_capacity(self.ends.len());
        for (i, word) in self.iter().enumerate() {
            write(word, self.at_start && i == 0, &mut text);
            super::check_length(text.len(), MOST_GROWN)?;
            ends.push(text.len() as u32);
        }
        (self.text, self.ends) = (text, ends);
        Ok(())
    }
}

impl Behavior {
    fn read(field: &Field<'_>) -> Result<Behavior> {
        Ok(match field.text()? {
            "Removed" => Behavior::Removed,
            "Isolated" => Behavior::Isolated,
            "MergedWithPrevious" => Behavior::MergedWithPrevious,
            "MergedWithNext" => Behavior::MergedWithNext,
            "Contiguous" => Behavior::Contiguous,
            other => return Err(field.unsupported(format_args!("{other:?}"))),
        })
    }

    /// Merges matches with their neighbours. `Removed` and `Isolated` merge nothing; [`Words::cut`] handles them.
    fn merge(self, spans: &mut Vec<Span>) {
        match self {
            Behavior::Removed | Behavior::Isolated => {}
            Behavior::Contiguous => merge(spans, |before, this| before == this),
            Behavior::MergedWithPrevious => merge(spans, |before, this| this && !before),
            Behavior::MergedWithNext => {
                spans.reverse();
                merge(spans, |before, this| this && !before);
                spans.reverse();
            }
        }
    }
}

/// Joins each span to the previous one where `joins(previous is a match, this is a match)`.
fn merge(spans: &mut Vec<Span>, joins: impl Fn(bool, bool) -> bool) {
    let mut before = false;
    let mut count = 0;
    for i in 0..spans.len() {
        let (start, end, matched) = spans[i];
        if count > 0 && joins(before, matched) {
            let last = &mut spans[count - 1];
            (last.0, last.1) = (last.0.min(start), last.1.max(end));
        } else {
            spans[count] = spans[i];
            count += 1;
        }
        before = matched;
    }
    spans.truncate(count);
}

impl Cutter {
    pub(super) fn read(field: &Field<'_>) -> Result<Cutter> {
        field.parts("pretokenizers")?.iter().map(Step::read).collect::<Result<_>>().map(Cutter)
    }

    /// True if every byte of the text ends up in some word.
    pub(super) fn keeps_all(&self) -> bool {
        self.0.iter().all(|step| match step {
            Step::Bert | Step::Delimiter(_) | Step::Whitespace | Step::WhitespaceSplit => false,
            Step::Punctuation(behavior) | Step::Split { behavior, .. } => *behavior != Behavior::Removed,
            Step::ByteLevel { .. } | Step::Digits { .. } | Step::FixedLength(_) | Step::Metaspace { .. } => {
                true
            }
        })
    }

    pub(super) fn run(&self, mut words: Words) -> Cut<Words> {
        for step in &self.0 {
            step.run(&mut words)?;
        }
        Ok(words)
    }
}

impl Step {
    fn read(field: &Field<'_>) -> Result<Step> {
        Ok(match field.kind()? {
            "BertPreTokenizer" => Step::Bert,
            "ByteLevel" => Step::ByteLevel {
                prefix: field.at("add_prefix_space").flag()?,
                pattern: match field.at("use_regex").flag_or(true)? {
                    true => Some(Pattern::new(GPT2).map_err(|why| field.bad(why))?),
                    false => None,
                },
            },
            "CharDelimiterSplit" | "Delimiter" => Step::Delimiter(field.at("delimiter").letter()?),
            "Digits" => Step::Digits { each: field.at("individual_digits").flag()? },
            "FixedLength" => Step::FixedLength(field.at("length").count()?.max(1)),
            "Metaspace" => Step::Metaspace {
                space: field.at("replacement").letter()?,
                prefix: Prefix::read(field)?,
                split: field.at("split").flag_or(true)?,
            },
            "Punctuation" => Step::Punctuation(match field.at("behavior") {
                behavior if behavior.is_null() => Behavior::Isolated,
                behavior => Behavior::read(&behavior)?,
            }),
            "Split" => {
                let pattern = field.at("pattern");
                let (text, source) = (pattern.at("String"), pattern.at("Regex"));
                let pattern = match text.is_null() {
                    true => Pattern::new(source.text()?).map_err(|why| source.bad(why)),
                    false => Pattern::literal(text.text()?).map_err(|why| text.bad(why)),
                }?;
                let behavior = Behavior::read(&field.at("behavior"))?;
                Step::Split { pattern, behavior, invert: field.at("invert").flag_or(false)? }
            }
            "Whitespace" => Step::Whitespace,
            "WhitespaceSplit" => Step::WhitespaceSplit,
            other => return Err(field.unsupported(format_args!("pre-tokenizer {other:?}"))),
        })
    }

    fn run(&self, words: &mut Words) -> Cut<()> {
        match self {
            Step::Bert => {
                words.cut_chars(Behavior::Removed, char::is_whitespace)?;
                words.cut_chars(Behavior::Isolated, |c| c.is_ascii_punctuation() || PUNCTUATION.has(c))
            }
            Step::ByteLevel { prefix, pattern } => {
                if *prefix {
                    words.rewrite(|word, _, out| {
                        if !word.starts_with(' ') {
                            out.push(' ');
                        }
                        out.push_str(word);
                    })?;
                }
                if let Some(pattern) = pattern {
                    words.cut(Behavior::Isolated, false, |word, each| pattern.find(word, each))?;
                }
                words.rewrite(|word, _, out| as_byte_chars(word, out))
            }
            Step::Delimiter(delimiter) => words.cut_chars(Behavior::Removed, |c| c == *delimiter),
            Step::Digits { each } => {
                let behavior = if *each { Behavior::Isolated } else { Behavior::Contiguous };
                words.cut_chars(behavior, char::is_numeric)
            }
            Step::FixedLength(length) => words.cut(Behavior::Isolated, false, |word, each| {
                let mut starts = word.char_indices().map(|(i, _)| i).step_by(*length).skip(1);
                let mut from = 0;
                starts.by_ref().for_each(|to| {
                    each(from, to);
                    from = to;
                });
                Ok(())
            }),
            Step::Metaspace { space, prefix, split } => {
                words.rewrite(|word, at_start, out| {
                    let wanted = *prefix == Prefix::All || (*prefix == Prefix::First && at_start);
                    if wanted && !word.starts_with([' ', *space]) {
                        out.push(*space);
                    }
                    out.extend(word.chars().map(|c| if c == ' ' { *space } else { c }));
                })?;
                if *split { words.cut_chars(Behavior::MergedWithNext, |c| c == *space) } else { Ok(()) }
            }
            Step::Punctuation(behavior) => {
                words.cut_chars(*behavior, |c| c.is_ascii_punctuation() || PUNCTUATION.has(c))
            }
            Step::Split { pattern, behavior, invert } => {
                words.cut(*behavior, *invert, |word, each| pattern.find(word, each))
            }
            Step::Whitespace => words.cut(Behavior::Removed, true, |word, each| {
                let mut run: Option<(usize, usize, bool)> = None;
                for (i, c) in word.char_indices() {
                    let kind = if WORD.has(c) { Some(true) } else { (!c.is_whitespace()).then_some(false) };
                    let end = i + c.len_utf8();
                    match (&mut run, kind) {
                        (Some(run), Some(kind)) if run.2 == kind => run.1 = end,
                        _ => {
                            if let Some((start, end, _)) = run.take() {
                                each(start, end);
                            }
                            run = kind.map(|kind| (i, end, kind));
                        }
                    }
                }
                run.into_iter().for_each(|(start, end, _)| each(start, end));
                Ok(())
            }),
            Step::WhitespaceSplit => words.cut_chars(Behavior::Removed, char::is_whitespace),
        }
    }
}

impl Prefix {
    /// Reads `prepend_scheme`, or the older `add_prefix_space`.
    pub(super) fn read(field: &Field<'_>) -> Result<Prefix> {
        let scheme = field.at("prepend_scheme");
        let prefix = match scheme.value().as_str() {
            None if scheme.is_null() => None,
            Some("first") => Some(Prefix::First),
            Some("always") => Some(Prefix::All),
            Some("never") => Some(Prefix::None),
            _ => return Err(scheme.bad("should be \"first\", \"always\" or \"never\"")),
        };
        match (field.at("add_prefix_space").flag_or(true)?, prefix) {
            (true, prefix) => Ok(prefix.unwrap_or(Prefix::All)),
            (false, None | Some(Prefix::None)) => Ok(Prefix::None),
            (false, Some(_)) => Err(scheme.bad("contradicts \"add_prefix_space\": false")),
        }
    }
}

/// A step that isolates the matches of the pattern `source`. `wrong` makes the error if it does not compile.
pub(super) fn isolate(source: &str, wrong: impl Fn(String) -> FileError) -> Result<Step> {
    let pattern = Pattern::new(source).map_err(wrong)?;
    Ok(Step::Split { pattern, behavior: Behavior::Isolated, invert: false })
}
