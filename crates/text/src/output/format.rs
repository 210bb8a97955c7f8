//! [`ToolFormat`]: how a family of models writes its output.

use super::marks::Marks;
use super::step::{Open, Section, Step};
use super::writing::Writing;

/// How a family of models writes tool calls and reasoning. All are in [`ToolFormat::ALL`].
#[derive(Debug)]
pub struct ToolFormat {
    /// Its name, for users.
    pub(super) name: &'static str,
    /// The models that write it.
    pub(super) models: &'static str,
    /// Sets of texts. A template that contains all texts of a set belongs to this format.
    pub(super) shown_by: &'static [&'static [&'static str]],
    /// How reasoning is marked, where no template says it.
    pub(super) marks: Marks,
    /// The ways of writing calls.
    pub(super) sections: &'static [Section],
    /// The ways of writing calls where they are forced. The first that a template shows is its own.
    pub(super) writings: &'static [Writing],
    /// Markers around answers, which are no part of them.
    pub(super) frames: &'static [&'static str],
    /// A prefix of the names of tools, which is no part of them.
    pub(super) prefix: &'static str,
    /// Texts of special tokens that are parts of markers.
    pub(super) tokens: &'static [&'static str],
}

/// A format without anything.
pub(super) static PLAIN_FORMAT: ToolFormat = PLAIN;

/// A format without anything, to be changed in parts.
pub(super) const PLAIN: ToolFormat = ToolFormat {
    name: "",
    models: "",
    shown_by: &[],
    marks: Marks::THINK,
    sections: &[],
    writings: &[],
    frames: &[],
    prefix: "",
    tokens: &[],
};

impl ToolFormat {
    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The models that write it, in words.
    pub fn models(&self) -> &'static str {
        self.models
    }

    /// How calls are written where they are forced, by the text of a template.
    pub(super) fn writing(&self, template: &str) -> Option<&'static Writing> {
        self.writings.iter().find(|writing| template.contains(writing.shown_by))
    }

    /// All texts of the syntax.
    pub(super) fn texts(&self) -> Vec<&'static str> {
        let mut texts = [self.frames, self.tokens].concat();
        for section in self.sections {
            if let Open::Marker(markers) = section.open {
                texts.extend(markers);
            }
            add_texts(section.steps, &mut texts);
        }
        texts
    }
}

fn add_texts(steps: &'static [Step], texts: &mut Vec<&'static str>) {
    for step in steps {
        match step {
            Step::Lit(text) | Step::Close(text) | Step::Tag(text) | Step::Key(text) | Step::Braces(text) => {
                texts.push(text);
            }
            Step::Word(_, ends) => texts.extend(*ends),
            Step::Value(raw) => texts.push(raw.end),
            Step::Opt(steps) | Step::Many(steps) => add_texts(steps, texts),
            Step::Any(lists) => lists.iter().for_each(|steps| add_texts(steps, texts)),
            _ => {}
        }
    }
}
