//! [`Reasoning`]: how a model marks its reasoning, and which variables of its chat template control it.
//!
//! Both are read from the chat template. A [`Splitter`] takes a generated text in chunks of any size and separates
//! reasoning from the answer; markers may be split anywhere between chunks.

use serde_json::{Map, Value as Json};

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Markers around reasoning. A template that contains the closing one belongs to a model that uses the pair.
const TAGS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
];
/// Starts a channel's name (gpt-oss).
const CHANNEL: &str = "<|channel|>";
/// Starts a channel's text.
const MESSAGE: &str = "<|message|>";
/// End of a channel's text.
const CHANNEL_ENDS: [&str; 5] = ["<|end|>", "<|start|>", "<|channel|>", "<|call|>", "<|return|>"];
/// The channel of reasoning.
const ANALYSIS: &str = "analysis";
/// Longest header of a channel; anything longer is answer text.
const MOST_HEADER: usize = 256;
/// Longest whitespace that is held back.
const MOST_SPACE: usize = 256;

/// The markers of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reasoning(Markers);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Markers {
    /// Reasoning first, between two markers.
    Tags { open: &'static str, close: &'static str },
    /// All text is in named channels (gpt-oss).
    Channels,
}

/// A piece of a generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Reasoning.
    Reasoning(String),
    /// Answer.
    Answer(String),
}

/// Splits a streamed text into reasoning and answer.
#[derive(Debug, Clone)]
pub struct Splitter {
    markers: Markers,
    state: State,
    /// Text that may be part of a marker, or whitespace that may be dropped.
    held: String,
    /// True if the current part has had text other than whitespace.
    begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// An opening marker may come.
    Start,
    Thinking,
    /// Whitespace between reasoning and answer.
    Thought,
    Answer,
    /// Between two channels, or in a channel's name.
    Header,
}

impl Reasoning {
    /// By a model's chat template; `None` for models without reasoning.
    pub fn of(template: &ChatTemplate) -> Option<Reasoning> {
        let source = template.source();
        if source.contains(CHANNEL) && source.contains(ANALYSIS) {
            return Some(Reasoning(Markers::Channels));
        }
        let of_model = |(_, close): &&(&str, &str)| source.contains(close);
        TAGS.iter().find(of_model).map(|&(open, close)| Reasoning(Markers::Tags { open, close }))
    }

    /// Special tokens among the markers. A detokenizer that hides special tokens must show these.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let markers: Vec<&str> = match self.0 {
            Markers::Tags { open, close } => {
                // A marker may be a special token followed by plain text.
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

    /// A splitter for the answer to a rendered prompt, or to the text of its last tokens: some prompts open the
    /// reasoning.
    pub fn splitter(&self, prompt: &str) -> Splitter {
        let opened =
            matches!(self.0, Markers::Tags { open, .. } if prompt.trim_end().ends_with(open.trim_end()));
        let state = if opened { State::Thinking } else { State::Start };
        Splitter { markers: self.0, state, held: String::new(), begun: false }
    }

    /// A splitter for the rest of an answer that has begun already.
    pub fn splitter_after(&self, answer: &str) -> Splitter {
        let mut splitter = self.splitter("");
        splitter.push(answer);
        // Whitespace in `answer` is out already; what may be the start of a marker is still held.
        splitter.held.drain(..splitter.held.len() - splitter.held.trim_start().len());
        splitter
    }
}

impl Splitter {
    /// True if the text that comes now is reasoning.
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thinking
    }

    /// Adds text; returns the pieces that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut out = Vec::new();
        self.held += text;
        while self.step(&mut out) {}
        out
    }

    /// End of the text: returns what was held back.
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

    /// One state transition; returns whether another may follow.
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

    /// Looks for one of these markers at the start of the text. Returns false if more text is needed to decide.
    fn start(&mut self, markers: &[&str], then: State) -> bool {
        let text = self.held.trim_start();
        let could = markers.iter().any(|marker| marker.starts_with(text) && text.len() < marker.len());
        if could && self.held.len() <= MOST_SPACE {
            return false;
        }
        match markers.iter().find(|marker| text.starts_with(**marker)) {
            Some(marker) => {
                let space = self.held.len() - text.len();
                // A channel's name is parsed together with its marker.
                let past = if then == State::Header { space } else { space + marker.len() };
                self.held.drain(..past);
                self.state = then;
            }
            None => self.state = State::Answer,
        }
        self.begun = false;
        true
    }

    /// Emits the text in front of one of these markers. Trailing whitespace of reasoning is dropped.
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

    /// Parses a channel's header.
    fn header(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some(at) = self.held.find(MESSAGE) else {
            // Not a header: do not hold it back any longer.
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

    /// Emits text of the current part. Leading whitespace of reasoning is dropped.
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

/// Number of bytes at the end of `text` that could be the start of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len().saturating_sub(1));
    (1..=most).rev().find(|n| text.as_bytes().ends_with(&marker.as_bytes()[..*n])).unwrap_or(0)
}

/// Reasoning effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// No reasoning.
    None,
    /// As little reasoning as possible.
    Minimal,
    /// Little reasoning.
    Low,
    /// Some reasoning.
    Medium,
    /// Much reasoning.
    High,
}

impl Effort {
    /// All efforts, least first.
    pub const ALL: [Effort; 5] = [Effort::None, Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];

    /// Finds an effort by name.
    pub fn named(name: &str) -> Option<Effort> {
        Effort::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// The name.
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

/// Variables of a chat template that control reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The boolean one.
    pub switch: Option<&'static str>,
    /// The one for the effort.
    pub effort: Option<&'static str>,
    /// True if the model marks reasoning.
    pub thinks: bool,
}

/// Why an effort cannot be honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncontrolled {
    /// The model does not reason.
    #[error("this model's chat template has no variable for how much to think")]
    NoThinking,
    /// The model always reasons, and the template has no control.
    #[error("this model always thinks: its chat template has no variable that controls it")]
    Always,
    /// The model cannot go without reasoning.
    #[error("this model always thinks; the least it takes is low")]
    AtLeastLow,
}

impl Controls {
    /// Names of boolean variables in templates.
    pub const SWITCHES: [&'static str; 2] = ["enable_thinking", "thinking"];
    /// Name of the effort variable.
    pub const EFFORT: &'static str = "reasoning_effort";

    /// The controls of a template.
    pub fn of(template: &ChatTemplate) -> Controls {
        Controls {
            switch: Controls::SWITCHES.into_iter().find(|name| template.reads(name)),
            effort: template.reads(Controls::EFFORT).then_some(Controls::EFFORT),
            thinks: Reasoning::of(template).is_some(),
        }
    }

    /// Template variables that switch reasoning on or off; `None` if the template has no switch.
    pub fn switched(&self, on: bool) -> Option<Map<String, Json>> {
        let switch = self.switch?;
        Some(Map::from_iter([(switch.to_owned(), Json::Bool(on))]))
    }

    /// Template variables for an effort. With only a switch, `low` and above are on.
    pub fn values(&self, effort: Effort) -> Result<Map<String, Json>, Uncontrolled> {
        let on = effort > Effort::Minimal || (effort == Effort::Minimal && self.effort.is_some());
        let mut values = self.switched(on).unwrap_or_default();
        match self.effort {
            Some(_) if effort == Effort::None && self.switch.is_none() => {
                return Err(Uncontrolled::AtLeastLow);
            }
            Some(name) if on => {
                // Templates know three levels.
                let level = effort.max(Effort::Low);
                values.insert(name.to_owned(), level.name().into());
            }
            _ => {}
        }
        match values.is_empty() {
            false => Ok(values),
            // A model without reasoning satisfies "none" as it is.
            true if !self.thinks && !on => Ok(values),
            true if self.thinks => Err(Uncontrolled::Always),
            true => Err(Uncontrolled::NoThinking),
        }
    }
}
