//! [`OutputParser`]: divides a generated text into reasoning, content and tool calls, as it comes.

use std::ops::Range;
use std::sync::Arc;

use super::attempt::{Attempt, Names, Outcome};
use super::header::Header;
use super::held::{Held, Match, View};
use super::lookout::{Lookout, Mark, Seen};
use super::marks::{CALL, CHANNEL, MESSAGE, Marks, RECIPIENT, START, STOPS};
use super::step::{Open, Section};
use super::tools::{self, Tools};
use super::{Event, ToolFormat};

/// Longest header of a channel; anything longer is content.
const MOST_HEADER: usize = 256;
/// Longest whitespace that is held back.
const MOST_SPACE: usize = 256;
/// Times that a text is read again, on average, because what began in it was no call.
const MOST_REREADS: usize = 8;

/// Divides a generated text into reasoning, content and tool calls.
#[derive(Debug, Clone)]
pub struct OutputParser {
    lookouts: Arc<Lookouts>,
    tools: Option<Arc<Tools>>,
    held: Held,
    part: Part,
    /// Position up to which the text is out, or dropped.
    out: usize,
    /// Position up to which the text is scanned.
    at: usize,
    /// Beginning of the whitespace in front of `at`.
    space: usize,
    attempt: Option<Attempt>,
    rereads: Rereads,
    /// True behind the header of a call that is none: its end is no marker, but text like its beginning.
    broken: bool,
    events: Vec<Event>,
}

/// The markers of a format, by the parts of a text in which they may come.
#[derive(Debug)]
struct Lookouts {
    prefix: &'static str,
    begin: Lookout,
    behind_reasoning: Lookout,
    behind_call: Lookout,
    text: Lookout,
    reasoning: Lookout,
    /// Calls without a marker.
    first: Option<&'static Section>,
    /// Calls behind the header of a channel.
    addressed: Option<&'static Section>,
    /// True if all text is in channels.
    channels: bool,
}

/// The part of a text that is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Nothing but whitespace so far.
    Begin,
    /// Nothing but whitespace since the reasoning.
    BehindReasoning,
    /// Nothing but whitespace since a call.
    BehindCall,
    Content,
    Reasoning {
        /// True if it has had text other than whitespace.
        begun: bool,
    },
    /// The header of a channel, from its first marker, which has this length.
    Header {
        marker: usize,
    },
}

/// The cost of reading again what was no call.
#[derive(Debug, Clone, Default)]
struct Rereads {
    from: usize,
    to: usize,
    bytes: usize,
}

impl Rereads {
    /// True if another attempt at `at` is within the budget.
    fn allow(&self, at: usize) -> bool {
        at >= self.to || self.bytes <= MOST_REREADS * (self.to - self.from)
    }

    fn add(&mut self, read: Range<usize>) {
        if read.start >= self.to {
            *self = Rereads { from: read.start, to: read.end, bytes: 0 };
        }
        self.bytes += read.len();
        self.to = self.to.max(read.end);
    }
}

impl Lookouts {
    fn new(format: &'static ToolFormat, marks: Marks, calls: bool) -> Lookouts {
        let sections = if calls { format.sections } else { &[] };
        let (mut markers, mut first, mut addressed) = (Vec::new(), None, None);
        for section in sections {
            match section.open {
                Open::Marker(texts) => markers.extend(texts.iter().map(|text| (*text, Mark::Calls(section)))),
                Open::First => first = Some(section),
                Open::Header => addressed = Some(section),
            }
        }
        let mut text = markers.clone();
        text.extend(format.frames.iter().map(|frame| (*frame, Mark::Frame)));
        let mut reasoning = markers;
        let mut begin = Vec::new();
        let mut behind_call = Vec::new();
        match marks {
            Marks::None => {}
            Marks::Tags { open, close } => {
                reasoning.push((close, Mark::Close));
                begin.push((open, Mark::Think));
                behind_call.push((open, Mark::Think));
            }
            Marks::Channels => {
                let ends = STOPS.map(|stop| (stop, Mark::Stop)).into_iter();
                let ends = ends.chain([START, CHANNEL].map(|start| (start, Mark::Header)));
                text.extend(ends.clone());
                reasoning.extend(ends);
                begin.extend([(MESSAGE, Mark::Header), (RECIPIENT, Mark::Header)]);
                behind_call.push((MESSAGE, Mark::Header));
            }
        }
        begin.extend(text.iter().copied());
        behind_call.extend(text.iter().copied());
        Lookouts {
            prefix: format.prefix,
            begin: Lookout::new(begin),
            behind_reasoning: Lookout::new(text.clone()),
            behind_call: Lookout::new(behind_call),
            text: Lookout::new(text),
            reasoning: Lookout::new(reasoning),
            first,
            addressed,
            channels: marks == Marks::Channels,
        }
    }
}

impl OutputParser {
    /// A parser for the answer to a prompt that ends with `prefix`.
    pub(super) fn new(
        format: &'static ToolFormat,
        marks: Marks,
        prefix: &str,
        tools: Option<Arc<Tools>>,
    ) -> OutputParser {
        let calls = tools.as_ref().is_none_or(|tools| !tools.is_empty());
        let mut parser = OutputParser {
            lookouts: Arc::new(Lookouts::new(format, marks, calls)),
            tools,
            held: Held::default(),
            part: Part::Begin,
            out: 0,
            at: 0,
            space: 0,
            attempt: None,
            rereads: Rereads::default(),
            broken: false,
            events: Vec::new(),
        };
        match marks {
            Marks::Tags { open, .. } if prefix.trim_end().ends_with(open.trim_end()) => {
                parser.part = Part::Reasoning { begun: false };
            }
            Marks::Channels => {
                // A prompt may begin the message.
                let turn = prefix.rsplit_once("<|start|>assistant").map_or("", |(_, turn)| turn);
                parser.resume(turn);
            }
            _ => {}
        }
        parser
    }

    /// Takes the beginning of an answer that is known already, as of one that is to be continued: no events come from
    /// it.
    pub fn resume(&mut self, answer: &str) {
        self.push(answer);
        // Whitespace is out already; what may be the start of a marker is still held.
        self.out = self.attempt.as_ref().map_or(self.at, |attempt| attempt.from).max(self.out);
    }

    /// True if the text that comes now is reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.part, Part::Reasoning { .. })
    }

    /// True if the answer begins later: the text that comes now is reasoning, or a channel's header.
    pub fn is_before_answer(&self) -> bool {
        match self.part {
            Part::Reasoning { .. } | Part::Header { .. } => true,
            Part::Begin | Part::BehindCall => self.lookouts.channels,
            Part::BehindReasoning | Part::Content => false,
        }
    }

    /// True if nothing has come so far but whitespace, or what may become a marker.
    pub fn is_at_start(&self) -> bool {
        matches!(self.part, Part::Begin)
    }

    /// True if what may become a tool call is held back.
    pub fn is_in_call(&self) -> bool {
        self.attempt.is_some()
    }

    /// Adds text; returns what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.held.push(text);
        while self.step() {}
        self.held.forget(self.out);
        std::mem::take(&mut self.events)
    }

    /// Bytes looked at.
    #[cfg(test)]
    pub(super) fn scanned(&self) -> usize {
        self.held.scanned.get()
    }

    /// The end of the text: returns what was held back.
    pub fn finish(&mut self) -> Vec<Event> {
        self.held.ended = true;
        while self.step() {}
        let end = self.held.end();
        match self.part {
            // Whitespace at the end of reasoning is dropped.
            Part::Reasoning { .. } => self.release(self.space.max(self.out)),
            Part::Begin | Part::Content => self.release(end),
            // A header that is cut off is no text, except that of a call.
            Part::Header { .. } if self.held.text(self.out, end).contains(RECIPIENT) => {
                self.part = Part::Content;
                self.release(end);
            }
            Part::BehindReasoning | Part::BehindCall | Part::Header { .. } => {}
        }
        self.out = end;
        std::mem::take(&mut self.events)
    }

    /// Goes on; false if more text is needed.
    fn step(&mut self) -> bool {
        let lookouts = Arc::clone(&self.lookouts);
        if self.attempt.is_some() {
            return self.attempt();
        }
        match self.part {
            Part::Begin => self.lead(&lookouts.begin, false),
            Part::BehindReasoning => self.lead(&lookouts.behind_reasoning, true),
            Part::BehindCall => self.lead(&lookouts.behind_call, true),
            Part::Content => self.text(&lookouts.text),
            Part::Reasoning { .. } => self.text(&lookouts.reasoning),
            Part::Header { marker } => self.header(marker),
        }
    }

    /// Whitespace, and the marker behind it.
    fn lead(&mut self, lookout: &Lookout, drop: bool) -> bool {
        let view = self.held.view(usize::MAX);
        let at = view.past_space(self.at);
        self.at = at;
        if drop {
            (self.out, self.space) = (at, at);
        } else if at - self.out > MOST_SPACE {
            self.part = Part::Content;
            return true;
        }
        if at == view.end() {
            return false;
        }
        match lookout.at(view, at) {
            Seen::Partial => false,
            Seen::Mark(mark, length) => self.mark(mark, at, length),
            Seen::Nothing => {
                let first =
                    self.lookouts.first.filter(|_| self.part != Part::BehindCall && self.rereads.allow(at));
                self.part = Part::Content;
                self.attempt = first.map(|section| Attempt::new(section, at, 0));
                true
            }
        }
    }

    /// Text up to a marker.
    fn text(&mut self, lookout: &Lookout) -> bool {
        let view = self.held.view(usize::MAX);
        let from = self.at;
        let mut now = from;
        let found = loop {
            let Some(byte) = view.from(now).first() else { break None };
            if lookout.may_begin(*byte) {
                match lookout.at(view, now) {
                    Seen::Mark(mark, length) => break Some((mark, length)),
                    Seen::Partial => break None,
                    Seen::Nothing => {}
                }
            }
            let c = view.char(now).unwrap_or_default();
            now += c.len_utf8();
            if !c.is_whitespace() {
                self.space = now;
                if let Part::Reasoning { begun } = &mut self.part {
                    *begun = true;
                }
            } else if self.part == (Part::Reasoning { begun: false }) {
                (self.out, self.space) = (now, now);
            }
        };
        view.count(now - from + 1);
        self.at = now;
        self.release(if now - self.space > MOST_SPACE { now } else { self.space });
        found.is_some_and(|(mark, length)| self.mark(mark, now, length))
    }

    /// A marker at `at`, which is the position up to which the text is scanned.
    fn mark(&mut self, mark: Mark, at: usize, length: usize) -> bool {
        let behind = at + length;
        match mark {
            Mark::Calls(section) if self.rereads.allow(at) => {
                self.attempt = Some(Attempt::new(section, at, length));
                return true;
            }
            Mark::Calls(_) => {
                // Too much was read in vain: the marker is text.
                self.be_text(behind);
                return true;
            }
            Mark::Stop if self.broken && self.held.text(at, behind) == CALL => {
                self.broken = false;
                self.be_text(behind);
                return true;
            }
            Mark::Think => self.part = Part::Reasoning { begun: false },
            Mark::Close => self.part = Part::BehindReasoning,
            Mark::Frame => {
                self.release(at);
                self.part = Part::Content;
            }
            Mark::Header => {
                if self.part == Part::Content {
                    self.release(at);
                }
                self.out = at;
                self.part = Part::Header { marker: length };
                return true;
            }
            Mark::Stop => {
                if self.part == Part::Content {
                    self.release(at);
                }
                self.part = Part::BehindCall;
            }
        }
        (self.out, self.at, self.space) = (behind, behind, behind);
        true
    }

    /// The text up to a position is no marker.
    fn be_text(&mut self, to: usize) {
        (self.at, self.space) = (to, to);
        match &mut self.part {
            Part::Reasoning { begun } => *begun = true,
            part => *part = Part::Content,
        }
    }

    /// Goes on with what may be calls.
    fn attempt(&mut self) -> bool {
        let Some(mut attempt) = self.attempt.take() else { return false };
        let tools = self.tools.clone();
        let names = Names { tools: tools.as_deref(), prefix: self.lookouts.prefix };
        let outcome = attempt.run(&self.held, names);
        while let Some(ready) = attempt.ready.pop_front() {
            if let Some(stray) = ready.stray {
                let text = self.held.text(stray.start, stray.end).trim_end().len();
                self.release(stray.start + text);
            }
            (self.part, self.out) = (Part::BehindCall, ready.end);
            self.events.push(Event::Call(ready.call));
        }
        if attempt.has_found() {
            (self.out, self.at, self.space) = (attempt.committed, attempt.committed, attempt.committed);
        }
        match outcome {
            Outcome::More => {
                self.attempt = Some(attempt);
                return false;
            }
            Outcome::Done => (self.out, self.at, self.space) = (attempt.at, attempt.at, attempt.at),
            Outcome::Failed => {
                self.rereads.add(attempt.from..attempt.furthest);
                if !attempt.has_found() {
                    self.fail(&attempt);
                }
            }
        }
        true
    }

    /// There is no call: the marker is text, and the text behind it is scanned.
    fn fail(&mut self, attempt: &Attempt) {
        if let Part::Header { .. } = self.part {
            (self.part, self.broken) = (Part::Content, true);
        }
        if attempt.marker > 0 {
            self.be_text(attempt.from + attempt.marker);
        } else {
            // Without a marker the first character cannot begin anything else.
            self.at = attempt.from;
            self.space = self.out;
        }
    }

    /// The header of a channel.
    fn header(&mut self, marker: usize) -> bool {
        let from = self.out;
        let view = self.held.view(usize::MAX);
        let mut now = self.at;
        let end = loop {
            if now - from > MOST_HEADER {
                break None;
            }
            let Some(byte) = view.from(now).first() else { return self.wait(now) };
            if *byte == b'<' {
                match self.end_of_header(view, now) {
                    Seen::Mark(Mark::Header, _) => break Some(now),
                    Seen::Mark(..) => break None,
                    Seen::Partial => return self.wait(now),
                    Seen::Nothing => {}
                }
            }
            now += 1;
        };
        let Some(end) = end else {
            self.be_text(from + marker);
            self.part = Part::Content;
            return true;
        };
        let header = Header::read(self.held.text(from, end));
        let behind = end + MESSAGE.len();
        if let (Some(name), Some(section)) = (header.recipient, self.lookouts.addressed) {
            let name = from + name.start..from + name.end;
            let text = self.held.text(name.start, name.end);
            let known = tools::tool_name(text, self.lookouts.prefix, self.tools.as_deref()).is_some();
            let attempt = Attempt::addressed(section, from, marker, behind, name);
            match known && self.rereads.allow(from) {
                true => self.attempt = Some(attempt),
                false => self.fail(&attempt),
            }
            return true;
        }
        self.part = match header.is_reasoning {
            true => Part::Reasoning { begun: false },
            false => Part::Content,
        };
        self.broken = false;
        (self.out, self.at, self.space) = (behind, behind, behind);
        true
    }

    fn wait(&mut self, at: usize) -> bool {
        self.at = at;
        false
    }

    /// Looks for the end of a header, or for a marker that no header contains.
    fn end_of_header(&self, view: View<'_>, at: usize) -> Seen {
        let mut seen = Seen::Nothing;
        for text in [MESSAGE].iter().chain(&STOPS) {
            match view.has(at, text) {
                Match::Yes if *text == MESSAGE => return Seen::Mark(Mark::Header, text.len()),
                Match::Yes => return Seen::Mark(Mark::Stop, text.len()),
                Match::Partial => seen = Seen::Partial,
                Match::No => {}
            }
        }
        seen
    }

    /// The held text up to a position is text of this part.
    fn release(&mut self, to: usize) {
        let text = self.held.text(self.out, to);
        if !text.is_empty() {
            let text = text.to_owned();
            self.events.push(match self.part {
                Part::Reasoning { .. } => Event::Reasoning(text),
                _ => Event::Content(text),
            });
        }
        self.out = self.out.max(to);
    }
}
