//! [`Attempt`]: reads the text behind an opening marker as calls, step by step, as it comes.

mod reading;

use std::collections::VecDeque;
use std::ops::Range;

use super::braces::BracesScan;
use super::held::{Held, Match, View};
use super::json::{self, JsonScan};
use super::python::{self, PythonScan};
use super::step::{Members, Raw, Section, Slot, Step};
use super::tools::{self, Tools};
use super::{MOST_CALL, ToolCall};

use reading::CUT_TAG;

/// The request's side of a call: which names are tools.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) tools: Option<&'a Tools>,
    pub(super) prefix: &'a str,
}

/// Reads calls. It goes on where it stopped, and looks at no text twice, except where an alternative or an optional
/// part does not fit.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    /// Position of the opening marker.
    pub(super) from: usize,
    /// Length of the opening marker.
    pub(super) marker: usize,
    /// Position up to which the text belongs to calls that are complete.
    pub(super) committed: usize,
    /// Position up to which the steps have read.
    pub(super) at: usize,
    /// Position up to which text was looked at.
    pub(super) furthest: usize,
    /// Calls that are complete.
    pub(super) ready: VecDeque<Ready>,
    frames: Vec<Frame>,
    parts: Vec<Part>,
    kept: Vec<ToolCall>,
    /// The step that is not at its end.
    scan: Scan,
    /// True if text since the last complete call is none.
    stray: bool,
    /// True if a call was complete.
    found: bool,
}

/// A call that is complete.
#[derive(Debug, Clone)]
pub(super) struct Ready {
    /// Text in front of it that belongs to no call.
    pub(super) stray: Option<Range<usize>>,
    /// Position behind it.
    pub(super) end: usize,
    /// The call.
    pub(super) call: ToolCall,
}

/// State of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More text is needed.
    More,
    /// The syntax is complete.
    Done,
    /// The text from the last complete call on is none.
    Failed,
}

/// A list of steps that is being read.
#[derive(Debug, Clone)]
struct Frame {
    steps: &'static [Step],
    next: usize,
    retreat: Retreat,
}

/// A place to go back to where a list of steps does not fit.
#[derive(Debug, Clone)]
enum Retreat {
    /// The list around it does not fit, either.
    None,
    /// Its text is read again by the steps behind it.
    Skip(Place),
    /// The same, from the end of the last repetition.
    Repeat(Place),
    /// The next of these lists is tried.
    Next(Place, &'static [&'static [Step]]),
}

#[derive(Debug, Clone, Copy)]
struct Place {
    at: usize,
    parts: usize,
    kept: usize,
}

/// A part of a call.
#[derive(Debug, Clone)]
enum Part {
    Word(Slot, Range<usize>),
    Key(Range<usize>),
    Value(&'static Raw, Range<usize>),
    /// Arguments as JSON.
    Arguments(String),
    Whole(ToolCall),
}

/// State within a step.
#[derive(Debug, Clone)]
enum Scan {
    /// At its beginning.
    None,
    Json(JsonScan, usize),
    Python(PythonScan, usize),
    Braces(BracesScan, usize),
    /// The text from here on is scanned for a marker.
    Text(usize, Sought),
}

/// State of the search for the marker behind a value.
#[derive(Debug, Clone, Copy)]
enum Sought {
    /// Not found.
    Open { stray: bool },
    /// Found at this position; the whitespace behind it is passed up to the other one.
    Found { at: usize, space: usize },
}

/// Result of a step.
enum Stepped {
    Next,
    More,
    /// The text does not fit, from this position on.
    Wrong(usize),
}

impl Attempt {
    /// Reads `section` behind the opening marker of this length.
    pub(super) fn new(section: &'static Section, from: usize, marker: usize) -> Attempt {
        Attempt {
            from,
            marker,
            committed: from,
            at: from + marker,
            furthest: from + marker,
            ready: VecDeque::new(),
            frames: vec![Frame { steps: section.steps, next: 0, retreat: Retreat::None }],
            parts: Vec::new(),
            kept: Vec::new(),
            scan: Scan::None,
            stray: false,
            found: false,
        }
    }

    /// Reads `section` behind a header of a channel, which ends at `at` and names the tool.
    pub(super) fn addressed(
        section: &'static Section,
        from: usize,
        marker: usize,
        at: usize,
        name: Range<usize>,
    ) -> Attempt {
        let parts = vec![Part::Word(Slot::Name, name)];
        Attempt { at, parts, ..Attempt::new(section, from, marker) }
    }

    /// True if a call was complete.
    pub(super) fn has_found(&self) -> bool {
        self.found
    }

    /// Goes on with the text that has come.
    pub(super) fn run(&mut self, held: &Held, names: Names<'_>) -> Outcome {
        loop {
            // A call longer than this is given up, wherever the text is cut.
            let limit = self.committed + MOST_CALL;
            let view = held.view(limit);
            let Some(frame) = self.frames.last_mut() else {
                return if self.found && !self.stray { Outcome::Done } else { Outcome::Failed };
            };
            let Some(step) = frame.steps.get(frame.next) else {
                self.end_of_list();
                continue;
            };
            match self.step(step, view, names) {
                Stepped::Next => self.scan = Scan::None,
                Stepped::More if !view.ended && view.end() < limit => return Outcome::More,
                Stepped::More if !view.ended => {
                    self.furthest = view.end();
                    return Outcome::Failed;
                }
                wrong => {
                    let at = if let Stepped::Wrong(at) = wrong { at } else { view.end() };
                    self.furthest = self.furthest.max(at);
                    self.scan = Scan::None;
                    if !self.retreat() {
                        return Outcome::Failed;
                    }
                }
            }
        }
    }

    /// A list of steps is complete.
    fn end_of_list(&mut self) {
        let place = self.place();
        if let Some(frame) = self.frames.last_mut() {
            match &mut frame.retreat {
                // Each repetition takes some text, so there is an end.
                Retreat::Repeat(last) => (*last, frame.next) = (place, 0),
                _ => {
                    self.frames.pop();
                }
            }
        }
    }

    /// Goes back to where another way of reading begins; false if there is none.
    fn retreat(&mut self) -> bool {
        while let Some(frame) = self.frames.last_mut() {
            let place = match frame.retreat {
                Retreat::None => {
                    self.frames.pop();
                    continue;
                }
                Retreat::Skip(place) | Retreat::Repeat(place) => {
                    self.frames.pop();
                    place
                }
                Retreat::Next(place, lists) => {
                    match lists.split_first() {
                        Some((first, rest)) => {
                            *frame = Frame { steps: first, next: 0, retreat: Retreat::Next(place, rest) };
                        }
                        None => {
                            self.frames.pop();
                            continue;
                        }
                    }
                    place
                }
            };
            self.at = place.at;
            self.parts.truncate(place.parts);
            self.kept.truncate(place.kept);
            return true;
        }
        false
    }

    fn place(&self) -> Place {
        Place { at: self.at, parts: self.parts.len(), kept: self.kept.len() }
    }

    /// Begins a list of steps within another.
    fn enter(&mut self, steps: &'static [Step], retreat: Retreat) -> Stepped {
        self.advance();
        self.frames.push(Frame { steps, next: 0, retreat });
        Stepped::Next
    }

    /// Goes on with the next step.
    fn advance(&mut self) -> Stepped {
        if let Some(frame) = self.frames.last_mut() {
            frame.next += 1;
        }
        Stepped::Next
    }

    fn advance_to(&mut self, at: usize) -> Stepped {
        (self.at, self.furthest) = (at, self.furthest.max(at));
        self.advance()
    }

    fn step(&mut self, step: &'static Step, view: View<'_>, names: Names<'_>) -> Stepped {
        match step {
            Step::Lit(text) => match view.has(self.at, text) {
                Match::Yes => self.advance_to(self.at + text.len()),
                Match::Partial => Stepped::More,
                Match::No => Stepped::Wrong(self.at),
            },
            Step::Close(text) => self.close(text, 0, view),
            Step::Tag(text) => self.close(text, CUT_TAG.len(), view),
            Step::Space => {
                self.at = view.past_space(self.at);
                if self.at == view.end() && !view.ended { Stepped::More } else { self.advance() }
            }
            Step::Edge => match view.char(self.at) {
                Some(c) if !c.is_whitespace() => Stepped::Wrong(self.at),
                None if !view.ended => Stepped::More,
                _ => self.advance(),
            },
            Step::End if self.at < view.end() => Stepped::Wrong(self.at),
            Step::End => {
                if view.ended {
                    self.advance()
                } else {
                    Stepped::More
                }
            }
            Step::Word(slot, ends) => self.word(*slot, ends, view, names),
            Step::Key(end) => self.key(end, view),
            Step::Value(raw) => self.value(raw, view),
            Step::Call(members) => {
                self.object(view, b"{", |attempt, text, _| attempt.call(text, members, names))
            }
            Step::Item(members) => self.object(view, b"{", |attempt, text, range| {
                match attempt.call(text, members, names) {
                    Stepped::Next => attempt.item(range),
                    _ => attempt.stray = true,
                }
                Stepped::Next
            }),
            Step::Arguments => self.object(view, b"{\"n", |attempt, text, _| match json::arguments(text) {
                Some(arguments) => {
                    attempt.parts.push(Part::Arguments(arguments));
                    Stepped::Next
                }
                None => Stepped::Wrong(attempt.at),
            }),
            Step::Python(suffix) => self.python(suffix, view, names),
            Step::Braces(quote) => self.braces(quote, view),
            Step::Opt(steps) => self.enter(steps, Retreat::Skip(self.place())),
            Step::Many(steps) => self.enter(steps, Retreat::Repeat(self.place())),
            Step::Any(lists) => match lists.split_first() {
                Some((first, rest)) => self.enter(first, Retreat::Next(self.place(), rest)),
                None => Stepped::Wrong(self.at),
            },
            Step::Keep => match self.assemble(view, names) {
                Some(call) => {
                    self.parts.clear();
                    self.kept.push(call);
                    self.advance()
                }
                None => Stepped::Wrong(self.at),
            },
            Step::Emit => self.emit(view, names),
        }
    }

    /// An object that is to be a call.
    fn call(&mut self, text: &str, members: &Members, names: Names<'_>) -> Stepped {
        let call = json::object_call(text, members).and_then(|parts| {
            if members.bare && !parts.has_arguments && names.tools.is_none() {
                return None;
            }
            let name = tools::tool_name(&parts.name, names.prefix, names.tools)?.to_owned();
            Some(ToolCall { id: parts.id, name, arguments: parts.arguments })
        });
        match call {
            Some(call) => {
                self.parts.push(Part::Whole(call));
                Stepped::Next
            }
            None => Stepped::Wrong(self.at),
        }
    }

    /// An object of a list is a call: it is complete, whatever comes behind it.
    fn item(&mut self, range: Range<usize>) {
        let stray = self.stray.then_some(self.committed..range.start);
        if let Some(Part::Whole(call)) = self.parts.pop() {
            self.ready.push_back(Ready { stray, end: range.end, call });
            self.commit();
        }
    }

    fn emit(&mut self, view: View<'_>, names: Names<'_>) -> Stepped {
        if !self.parts.is_empty() {
            match self.assemble(view, names) {
                Some(call) => self.kept.push(call),
                None => return Stepped::Wrong(self.at),
            }
        }
        if self.kept.is_empty() {
            return Stepped::Wrong(self.at);
        }
        let calls = std::mem::take(&mut self.kept);
        let end = self.at;
        self.ready.extend(calls.into_iter().map(|call| Ready { stray: None, end, call }));
        self.commit();
        self.advance()
    }

    /// What is read so far belongs to complete calls, and is not read again.
    fn commit(&mut self) {
        self.parts.clear();
        (self.committed, self.found, self.stray) = (self.at, true, false);
        let place = self.place();
        for frame in &mut self.frames {
            match &mut frame.retreat {
                Retreat::Repeat(last) => *last = place,
                retreat => *retreat = Retreat::None,
            }
        }
    }

    /// The call that the parts are.
    fn assemble(&self, view: View<'_>, names: Names<'_>) -> Option<ToolCall> {
        let (mut name, mut id, mut arguments, mut key) = (None, None, None, "");
        let mut members = Vec::new();
        for part in &self.parts {
            match part {
                Part::Whole(call) => return Some(call.clone()),
                Part::Arguments(text) => arguments = Some(text.clone()),
                Part::Key(range) => key = view.text(range.start, range.end).trim(),
                Part::Value(raw, range) => {
                    let text = view.text(range.start, range.end);
                    let value = tools::value(text, raw.typed, (name.unwrap_or_default(), key), names.tools);
                    members.push((key.to_owned(), value));
                }
                Part::Word(slot, range) => {
                    let word = view.text(range.start, range.end);
                    match slot {
                        Slot::Name => name = tools::tool_name(word, names.prefix, names.tools),
                        Slot::NamedId => {
                            name = tools::tool_name(without_index(word), names.prefix, names.tools);
                            id = Some(word.to_owned());
                        }
                        Slot::Id => id = Some(word.to_owned()),
                        Slot::Ignored => {}
                    }
                }
            }
        }
        let arguments = match arguments {
            Some(text) => text,
            None => json::arguments(&python::object(&members))?,
        };
        Some(ToolCall { id, name: name?.to_owned(), arguments })
    }
}

/// A call's id without the number of the call.
fn without_index(id: &str) -> &str {
    match id.rsplit_once(':') {
        Some((name, index)) if !index.is_empty() && index.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => id,
    }
}
