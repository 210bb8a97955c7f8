//! Steps that are read in pieces: words, values and literals.

use std::ops::Range;

use super::{Attempt, Names, Part, Scan, Sought, Stepped, ToolCall, without_index};
use crate::output::braces::{self, BracesScan};
use crate::output::held::{Match, View};
use crate::output::json::{JsonScan, Scanned};
use crate::output::python::{self, PythonScan};
use crate::output::step::{Raw, Slot};
use crate::output::tools::{self, ends_name};

/// Longest name, id or key of an argument.
const MOST_WORD: usize = 256;
/// The least of a closing tag that cannot begin anything else.
pub(super) const CUT_TAG: &str = "</";

impl Attempt {
    /// A marker of which at least so many bytes are there at the end of the text.
    pub(super) fn close(&mut self, text: &'static str, least: usize, view: View<'_>) -> Stepped {
        match view.has(self.at, text) {
            Match::Yes => self.advance_to(self.at + text.len()),
            Match::Partial => Stepped::More,
            Match::No if is_cut(text, least, view, self.at) => self.advance_to(view.end()),
            Match::No => Stepped::Wrong(self.at),
        }
    }

    pub(super) fn word(&mut self, slot: Slot, ends: &[&str], view: View<'_>, names: Names<'_>) -> Stepped {
        let from = self.at;
        let mut now = match self.scan {
            Scan::Text(now, _) => now,
            _ => from,
        };
        loop {
            self.scan = Scan::Text(now, Sought::Open { stray: false });
            let Some(c) = view.char(now) else {
                return if view.ended { Stepped::Wrong(now) } else { Stepped::More };
            };
            let found: Vec<Match> = ends.iter().map(|end| view.has(now, end)).collect();
            if found.contains(&Match::Partial) {
                return Stepped::More;
            }
            if c.is_whitespace() || found.contains(&Match::Yes) {
                break;
            }
            now += c.len_utf8();
            if ends_name(c) || now - from > MOST_WORD {
                return Stepped::Wrong(now);
            }
        }
        let word = view.text(from, now);
        let name = match slot {
            Slot::Name => Some(word),
            Slot::NamedId => Some(without_index(word)),
            Slot::Id | Slot::Ignored => None,
        };
        if word.is_empty()
            || name.is_some_and(|name| tools::tool_name(name, names.prefix, names.tools).is_none())
        {
            return Stepped::Wrong(now);
        }
        self.parts.push(Part::Word(slot, from..now));
        self.advance_to(now)
    }

    pub(super) fn key(&mut self, end: &'static str, view: View<'_>) -> Stepped {
        let from = self.at;
        let mut now = match self.scan {
            Scan::Text(now, _) => now,
            _ => from,
        };
        loop {
            match view.has(now, end) {
                Match::Yes => break,
                Match::Partial => {
                    self.scan = Scan::Text(now, Sought::Open { stray: false });
                    return Stepped::More;
                }
                Match::No => {}
            }
            match view.char(now) {
                Some(c) => now += c.len_utf8(),
                None => return Stepped::Wrong(now),
            }
            if now - from > MOST_WORD {
                return Stepped::Wrong(now);
            }
        }
        self.parts.push(Part::Key(from..now));
        self.advance_to(now + end.len())
    }

    /// The value of an argument. A closing marker counts only where what may follow it follows; once one has not, the
    /// value must not contain what may follow a value, or a broken call could be taken for part of a value.
    pub(super) fn value(&mut self, raw: &'static Raw, view: View<'_>) -> Stepped {
        let from = self.at;
        let (mut now, mut state) = match self.scan {
            Scan::Text(now, state) => (now, state),
            _ => (from, Sought::Open { stray: false }),
        };
        let first = |text: &str| text.as_bytes().first().copied();
        // Texts that end the search in vain.
        let wrong = |stray: bool| raw.never.iter().chain(raw.then.iter().filter(move |_| stray));
        loop {
            match state {
                Sought::Open { stray } => {
                    let rest = view.from(now);
                    let begins = |byte: &u8| {
                        Some(*byte) == first(raw.end) || wrong(stray).any(|text| first(text) == Some(*byte))
                    };
                    let plain = rest.iter().position(begins).unwrap_or(rest.len());
                    view.count(plain);
                    now += plain;
                    if plain == rest.len() {
                        break;
                    }
                    let end = view.has(now, raw.end);
                    let then: Vec<Match> = wrong(stray).map(|text| view.has(now, text)).collect();
                    if end == Match::Yes {
                        state = Sought::Found { at: now, space: now + raw.end.len() };
                    } else if end == Match::Partial || then.contains(&Match::Partial) {
                        break;
                    } else if then.contains(&Match::Yes) {
                        return Stepped::Wrong(now);
                    } else {
                        now += 1;
                    }
                }
                Sought::Found { at, space } => {
                    let space = view.past_space(space);
                    state = Sought::Found { at, space };
                    let then: Vec<Match> = raw.then.iter().map(|text| view.has(space, text)).collect();
                    let is_cut = |text: &&str| is_cut(text, CUT_TAG.len(), view, space);
                    if then.contains(&Match::Yes) || raw.then.iter().any(is_cut) {
                        self.parts.push(Part::Value(raw, from..at));
                        return self.advance_to(at + raw.end.len());
                    }
                    if then.contains(&Match::Partial) {
                        break;
                    }
                    (now, state) = (at + raw.end.len(), Sought::Open { stray: true });
                }
            }
        }
        self.scan = Scan::Text(now, state);
        Stepped::More
    }

    /// A JSON value that begins with one of these bytes. Calls and their arguments are objects; arguments may be a
    /// string with one, or null.
    pub(super) fn object(
        &mut self,
        view: View<'_>,
        begins: &[u8],
        then: impl FnOnce(&mut Attempt, &str, Range<usize>) -> Stepped,
    ) -> Stepped {
        let from = self.at;
        if view.from(from).first().is_some_and(|byte| !begins.contains(byte)) {
            return Stepped::Wrong(from);
        }
        let (mut scan, now) = match std::mem::replace(&mut self.scan, Scan::None) {
            Scan::Json(scan, now) => (scan, now),
            _ => (JsonScan::new(), from),
        };
        let bytes = view.from(now);
        let scanned = scan.scan(bytes);
        match scanned {
            Scanned::More => {
                view.count(bytes.len());
                self.scan = Scan::Json(scan, now + bytes.len());
                Stepped::More
            }
            Scanned::Wrong(length) => Stepped::Wrong(now + length),
            Scanned::Done(length) => {
                view.count(length);
                let end = now + length;
                self.at = end;
                match then(self, view.text(from, end), from..end) {
                    Stepped::Next => self.advance(),
                    other => other,
                }
            }
        }
    }

    pub(super) fn python(&mut self, suffix: &str, view: View<'_>, names: Names<'_>) -> Stepped {
        let from = self.at;
        let (mut scan, now) = match std::mem::replace(&mut self.scan, Scan::None) {
            Scan::Python(scan, now) => (scan, now),
            _ => (PythonScan::default(), from),
        };
        let bytes = view.from(now);
        let end = match scan.scan(bytes) {
            Scanned::More => {
                view.count(bytes.len());
                self.scan = Scan::Python(scan, now + bytes.len());
                return Stepped::More;
            }
            Scanned::Wrong(length) => return Stepped::Wrong(now + length),
            Scanned::Done(length) => now + length,
        };
        view.count(end - now);
        let begin = from + scan.name;
        let name = view.text(from, begin);
        let Some(name) =
            name.strip_suffix(suffix).and_then(|name| tools::tool_name(name, names.prefix, names.tools))
        else {
            return Stepped::Wrong(end);
        };
        let Some(arguments) = python::arguments(view.text(begin + 1, end - 1)) else {
            return Stepped::Wrong(end);
        };
        self.parts.push(Part::Whole(ToolCall { id: None, name: name.to_owned(), arguments }));
        self.advance_to(end)
    }

    pub(super) fn braces(&mut self, quote: &str, view: View<'_>) -> Stepped {
        let from = self.at;
        let (mut scan, now) = match std::mem::replace(&mut self.scan, Scan::None) {
            Scan::Braces(scan, now) => (scan, now),
            _ => (BracesScan::default(), from),
        };
        match scan.scan(view, now, quote) {
            Err(at) => Stepped::Wrong(at),
            Ok((now, false)) => {
                self.scan = Scan::Braces(scan, now);
                Stepped::More
            }
            Ok((end, true)) => match braces::arguments(view.text(from, end), quote) {
                Some(arguments) => {
                    self.parts.push(Part::Arguments(arguments));
                    self.advance_to(end)
                }
                None => Stepped::Wrong(self.at),
            },
        }
    }
}

/// True if the text ends within this marker, of which at least so many bytes are there.
fn is_cut(marker: &str, least: usize, view: View<'_>, at: usize) -> bool {
    let rest = view.from(at);
    view.ended && rest.len() >= least && marker.as_bytes().starts_with(rest)
}
