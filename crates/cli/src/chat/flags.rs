//! Flags of `tallow run` that say how a chat goes and how it is shown.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use tallow_text::reasoning::Effort;

/// Options of a chat and of its display.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Chat")]
pub(crate) struct ChatArgs {
    /// Thinking: true, false, low, medium or high
    ///
    /// Whether the model thinks (reasons) before it answers, and how much, through the variable that its chat template
    /// has for it: enable_thinking, thinking or reasoning_effort. Without this flag it is as the template has it.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub think: Option<Think>,
    /// The same as --think=false
    #[arg(long, alias = "nothink", conflicts_with = "think")]
    pub no_think: bool,
    /// Most tokens of thinking; then it is closed and the answer begins
    #[arg(long, alias = "reasoning-budget", value_name = "TOKENS")]
    pub thinking_budget: Option<usize>,
    /// File of a chat template, in place of the model's own
    ///
    /// In Jinja, as models have it.
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    pub chat_template: Option<PathBuf>,
    /// Do not show the thinking before an answer
    ///
    /// In a pipe it is never shown.
    #[arg(long, alias = "hidethinking")]
    pub hide_thinking: bool,
    /// Refuse messages when the context is full
    ///
    /// Otherwise the oldest turns of a chat leave the context when it is full; the system prompt stays.
    #[arg(long, alias = "no-context-shift")]
    pub no_roll: bool,
    /// Print the prompt in front of the answer
    ///
    /// By default a prompt that was typed is printed on a terminal, for models without a chat template.
    #[arg(long, overrides_with = "no_echo")]
    pub echo: bool,
    /// Never print the prompt in front of the answer
    #[arg(long, alias = "no-display-prompt", overrides_with = "echo")]
    pub no_echo: bool,
    /// Show answers without Markdown rendering and word wrap
    ///
    /// In a pipe they are never rendered or wrapped.
    #[arg(long, alias = "nowordwrap")]
    pub plain: bool,
}

impl ChatArgs {
    /// The reasoning effort, if one was given.
    pub(crate) fn effort(&self) -> Option<Effort> {
        self.think.map(|think| think.0).or(self.no_think.then_some(Effort::None))
    }
}

/// Reasoning effort, as given to `--think`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Think(pub Effort);

impl FromStr for Think {
    type Err = String;

    fn from_str(text: &str) -> Result<Think, String> {
        let effort = match text.to_ascii_lowercase().as_str() {
            // Templates with a mere on/off switch take any level as on.
            "true" | "on" | "yes" | "1" => Some(Effort::Medium),
            "false" | "off" | "no" | "0" => Some(Effort::None),
            level => Effort::named(level),
        };
        effort.map(Think).ok_or_else(|| "true, false, low, medium or high is expected".into())
    }
}
