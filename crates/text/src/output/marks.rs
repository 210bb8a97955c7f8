//! [`Marks`]: how a model marks its reasoning.

use crate::template::ChatTemplate;

/// Markers around reasoning. A template that contains the closing one belongs to a model that uses the pair.
const TAGS: [(&str, &str); 7] = [
    THINK,
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
];
/// The most common pair.
const THINK: (&str, &str) = ("<think>", "</think>");
/// Starts a channel's name (gpt-oss).
pub(super) const CHANNEL: &str = "<|channel|>";
/// Starts a channel's text.
pub(super) const MESSAGE: &str = "<|message|>";
/// Starts a header.
pub(super) const START: &str = "<|start|>";
/// Ends a call.
pub(super) const CALL: &str = "<|call|>";
/// Ends a channel of reasoning and begins that of the answer.
pub(super) const TO_ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";
/// Ends of a channel's text, other than the next header.
pub(super) const STOPS: [&str; 3] = ["<|end|>", CALL, "<|return|>"];
/// The channel of reasoning.
pub(super) const ANALYSIS: &str = "analysis";
/// Stands in front of the tool that a channel is addressed to.
pub(super) const RECIPIENT: &str = "to=";

/// The markers of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// It does not reason.
    None,
    /// Reasoning first, between two markers.
    Tags {
        /// The opening one.
        open: &'static str,
        /// The closing one.
        close: &'static str,
    },
    /// All text is in named channels (gpt-oss).
    Channels,
}

impl Marks {
    /// The most common pair of markers.
    pub(super) const THINK: Marks = Marks::Tags { open: THINK.0, close: THINK.1 };

    /// By a model's chat template.
    pub(super) fn of(template: &ChatTemplate) -> Marks {
        let source = template.source();
        if source.contains(CHANNEL) && source.contains(ANALYSIS) {
            return Marks::Channels;
        }
        let tags = TAGS.iter().find(|(_, close)| source.contains(close));
        tags.map_or(Marks::None, |&(open, close)| Marks::Tags { open, close })
    }

    /// All markers.
    pub(super) fn texts(self) -> Vec<&'static str> {
        match self {
            Marks::None => Vec::new(),
            Marks::Tags { open, close } => vec![open, close],
            Marks::Channels => [&STOPS[..], &[START, CHANNEL, MESSAGE]].concat(),
        }
    }

    /// A name from which [`named`](Self::named) makes them again.
    pub(super) fn name(self) -> &'static str {
        match self {
            Marks::None => "none",
            Marks::Tags { close, .. } => close,
            Marks::Channels => "channels",
        }
    }

    /// Marks of models' templates that have this name.
    pub(super) fn named(name: &str) -> Option<Marks> {
        let tags = TAGS.iter().map(|&(open, close)| Marks::Tags { open, close });
        [Marks::None, Marks::Channels].into_iter().chain(tags).find(|marks| marks.name() == name)
    }
}
