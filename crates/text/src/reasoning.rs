//! [`Controls`]: which variables of a model's chat template control its reasoning. [`output`](crate::output) tells reasoning from
//! the answer.

use serde_json::{Map, Value as Json};

use crate::output::OutputFormat;
use crate::template::ChatTemplate;

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
            thinks: OutputFormat::of(template).reasons(),
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
