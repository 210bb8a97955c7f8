//! [`Reasoning`]: how a model marks its thinking, and which variables of its chat template steer it.
//!
//! Both are read from the chat template. A [`Splitter`] takes the text of an answer as it is generated, in pieces of any
//! size, and tells what is reasoning from what is the answer proper; markers may be cut anywhere between pieces.

use serde_json::{Map, Value as Json};

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Pairs of markers around a model's thinking; a template that has the second of a pair is of a model that writes it.
const TAGS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
];
/// Begins the name of a channel.
const CHANNEL: &str = "<|channel|>";
/// Begins the text of a channel.
const MESSAGE: &str = "<|message|>";
/// What ends the text of a channel.
const CHANNEL_ENDS: [&str; 5] = ["<|end|>", "<|start|>", "<|channel|>", "<|call|>", "<|return|>"];
/// The channel in which models think.
const ANALYSIS: &str = "analysis";
/// Longest header of a channel. What is longer is none.
const MOST_HEADER: usize = 256;
/// As much space as is held back.
const MOST_SPACE: usize = 256;

/// How a model marks its thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reasoning(Markers);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Markers {
    /// Thinking comes first, between two markers.
    Tags { open: &'static str, close: &'static str },
    /// Everything is in a channel with a name.
    Channels,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// What it answers.
    Answer(String),
}

/// Tells reasoning from answer in a text that comes in pieces.
#[derive(Debug, Clone)]
pub struct Splitter {
    markers: Markers,
    state: State,
    /// Text that may be part of a marker, or space that may be dropped.
    held: String,
    /// Has the part that is under way had text that is no space?
    begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A marker may come first.
    Start,
    Thinking,
    /// Space between thinking and the answer.
    Thought,
    Answer,
    /// Between two channels, or in the name of one.
    Header,
}

impl Reasoning {
    /// What a template says about its model; nothing for models that do not think.
    pub fn of(template: &ChatTemplate) -> Option<Reasoning> {
        let source = template.source();
        if source.contains(CHANNEL) && source.contains(ANALYSIS) {
            return Some(Reasoning(Markers::Channels));
        }
        let of_model = |(_, close): &&(&str, &str)| source.contains(close);
        TAGS.iter().find(of_model).map(|&(open, close)| Reasoning(Markers::Tags { open, close }))
    }

    /// The special tokens among the markers. A detokenizer that hides special tokens has to show these.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let markers: Vec<&str> = match self.0 {
            Markers::Tags { open, close } => {
                // A marker may be a token with plain text behind it.
                let token = |marker: &'static str| marker.split_inclusive('>').next().unwrap_or(marker);
                vec![token(open), token(close), open, close]
            }
            Markers::Channels => CHANNEL_ENDS.iter().copied().chain([MESSAGE]).collect(),
        };
        let mut ids: Vec<u32> = markers.iter().filter_map(|marker| tokenizer.id_of(marker)).collect();
        ids.retain(|id| tokenizer.is_special(*id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// For an answer to a rendered prompt, or to the last tokens of one as text: some prompts begin the thinking.
    pub fn splitter(&self, prompt: &str) -> Splitter {
        let opened =
            matches!(self.0, Markers::Tags { open, .. } if prompt.trim_end().ends_with(open.trim_end()));
        let state = if opened { State::Thinking } else { State::Start };
        Splitter { markers: self.0, state, held: String::new(), begun: false }
    }

    /// For the rest of an answer of which there is some already.
    pub fn splitter_after(&self, answer: &str) -> Splitter {
        let mut splitter = self.splitter("");
        splitter.push(answer);
        // That space is there already; what may be the beginning of a marker still is.
        splitter.held.drain(..splitter.held.len() - splitter.held.trim_start().len());
        splitter
    }
}

impl Splitter {
    /// Is what comes now reasoning?
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thinking
    }

    /// Takes more of the text, and gives what is certain with it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        self.held += text;
        while self.step(&mut out) {}
        out
    }

    /// The end of the text: gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut out = Vec::new();
        match self.state {
            State::Thinking => self.tell(held.trim_end(), &mut out),
            State::Start | State::Answer => tell_answer(&held, &mut out),
            State::Thought | State::Header => {}
        }
        out
    }

    /// One move; is there another?
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match (self.state, self.markers) {
            (State::Start, Markers::Tags { open, .. }) => self.start(&[open], State::Thinking),
            (State::Start, Markers::Channels) => self.start(&[CHANNEL, MESSAGE, "<|start|>"], State::Header),
            (State::Thinking, Markers::Tags { close, .. }) => self.until(&[close], State::Thought, out),
            (State::Thinking | State::Answer, Markers::Channels) => {
                self.until(&CHANNEL_ENDS, State::Header, out)
            }
            (State::Thought, _) => {
                self.held.drain(..self.held.len() - self.held.trim_start().len());
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            (State::Answer, Markers::Tags { .. }) => {
                tell_answer(&std::mem::take(&mut self.held), out);
                false
            }
            (State::Header, _) => self.header(out),
        }
    }

    /// Does the text begin with one of these?
    fn start(&mut self, markers: &[&str], then: State) -> bool {
        let text = self.held.trim_start();
        let could = markers.iter().any(|marker| marker.starts_with(text) && text.len() < marker.len());
        if could && self.held.len() <= MOST_SPACE {
            return false;
        }
        match markers.iter().find(|marker| text.starts_with(**marker)) {
            Some(marker) => {
                let space = self.held.len() - text.len();
                // The name of a channel is read from its marker on.
                let past = if then == State::Header { space } else { space + marker.len() };
                self.held.drain(..past);
                self.state = then;
            }
            None => self.state = State::Answer,
        }
        self.begun = false;
        true
    }

    /// Gives what stands before one of these markers. Of thinking, space at its end goes.
    fn until(&mut self, markers: &[&str], then: State, out: &mut Vec<Piece>) -> bool {
        let found = markers.iter().filter_map(|marker| Some((self.held.find(marker)?, marker.len())));
        if let Some((at, length)) = found.min() {
            let rest = match then {
                State::Header => self.held.split_off(at),
                _ => self.held.split_off(at + length),
            };
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            let text: &str = if self.state == State::Thinking { text.trim_end() } else { &text };
            self.tell(text, out);
            (self.state, self.begun) = (then, false);
            return true;
        }
        let keep = markers.iter().map(|marker| overlap(&self.held, marker)).max().unwrap_or(0);
        let mut sure = self.held.len() - keep;
        if self.state == State::Thinking && self.held.len() <= MOST_SPACE {
            sure = self.held[..sure].trim_end().len();
        }
        let rest = self.held.split_off(sure);
        let text = std::mem::replace(&mut self.held, rest);
        self.tell(&text, out);
        false
    }

    /// Reads which channel begins.
    fn header(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some(at) = self.held.find(MESSAGE) else {
            // Whatever that is, nobody should wait for its end.
            if self.held.len() > MOST_HEADER {
                (self.state, self.begun) = (State::Answer, false);
                tell_answer(&std::mem::take(&mut self.held), out);
            }
            return false;
        };
        let rest = self.held.split_off(at + MESSAGE.len());
        let header = std::mem::replace(&mut self.held, rest);
        let name = header.split_once(CHANNEL).map_or("", |(_, name)| name);
        let thinking = name.trim_start().starts_with(ANALYSIS);
        self.state = if thinking { State::Thinking } else { State::Answer };
        self.begun = false;
        true
    }

    /// Gives text of the part that is under way. Of thinking, space at its beginning goes.
    fn tell(&mut self, text: &str, out: &mut Vec<Piece>) {
        if self.state != State::Thinking {
            return tell_answer(text, out);
        }
        let text = if self.begun { text } else { text.trim_start() };
        if !text.is_empty() {
            self.begun = true;
            out.push(Piece::Reasoning(text.to_owned()));
        }
    }
}

fn tell_answer(text: &str, out: &mut Vec<Piece>) {
    if !text.is_empty() {
        out.push(Piece::Answer(text.to_owned()));
    }
}

/// How many bytes at the end of `text` could be the beginning of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len().saturating_sub(1));
    (1..=most).rev().find(|n| text.as_bytes().ends_with(&marker.as_bytes()[..*n])).unwrap_or(0)
}

/// How much a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Not at all.
    None,
    /// As little as it can.
    Minimal,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

impl Effort {
    /// All, least first.
    pub const ALL: [Effort; 5] = [Effort::None, Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];

    /// By its name.
    pub fn named(name: &str) -> Option<Effort> {
        Effort::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        }
    }
}

/// Variables of a chat template that steer thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The one that is true or false.
    pub switch: Option<&'static str>,
    /// The one that says how much.
    pub effort: Option<&'static str>,
    /// Does the model mark its thinking?
    pub thinks: bool,
}

/// Why an effort cannot be honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncontrolled {
    /// The model does not think.
    #[error("this model's chat template has no variable for how much to think")]
    NoThinking,
    /// The model thinks, and nothing can be said about it.
    #[error("this model always thinks: its chat template has no variable that controls it")]
    Always,
    /// The model cannot do without.
    #[error("this model always thinks; the least it takes is low")]
    AtLeastLow,
}

impl Controls {
    /// Names of switches, as templates have them.
    pub const SWITCHES: [&'static str; 2] = ["enable_thinking", "thinking"];
    /// The name of the variable that says how much.
    pub const EFFORT: &'static str = "reasoning_effort";

    /// Those of a template.
    pub fn of(template: &ChatTemplate) -> Controls {
        Controls {
            switch: Controls::SWITCHES.into_iter().find(|name| template.reads(name)),
            effort: template.reads(Controls::EFFORT).then_some(Controls::EFFORT),
            thinks: Reasoning::of(template).is_some(),
        }
    }

    /// Values for the template that switch thinking on or off; nothing if it has no variable for that.
    pub fn switched(&self, on: bool) -> Option<Map<String, Json>> {
        let switch = self.switch?;
        Some(Map::from_iter([(switch.to_owned(), Json::Bool(on))]))
    }

    /// Values for the template that ask for so much thinking. Where it can only be switched, all from `low` on is on.
    pub fn values(&self, effort: Effort) -> Result<Map<String, Json>, Uncontrolled> {
        let on = effort > Effort::Minimal || (effort == Effort::Minimal && self.effort.is_some());
        let mut values = self.switched(on).unwrap_or_default();
        match self.effort {
            Some(_) if effort == Effort::None && self.switch.is_none() => {
                return Err(Uncontrolled::AtLeastLow);
            }
            Some(name) if on => {
                // Models are taught three levels.
                let level = effort.max(Effort::Low);
                values.insert(name.to_owned(), level.name().into());
            }
            _ => {}
        }
        match values.is_empty() {
            false => Ok(values),
            // A model that does not think does as it is told.
            true if !self.thinks && !on => Ok(values),
            true if self.thinks => Err(Uncontrolled::Always),
            true => Err(Uncontrolled::NoThinking),
        }
    }
}
