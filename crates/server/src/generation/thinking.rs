//! [`Thinking`]: a request's reasoning options; [`OutputParts`]: how a generated text is divided.

use serde_json::{Map, Value};
use tallow_text::output::OutputParser;
use tallow_text::reasoning::{Controls, Effort};
use tallow_text::template::ChatTemplate;

use crate::errors::{ApiError, quoted};
use crate::parse::fields::{Fields, wrong};

/// Reasoning options of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thinking {
    /// The reasoning effort, and the field that sets it.
    level: Option<(String, Level)>,
    pub(crate) output: ReasoningOutput,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Level {
    On,
    Effort(Effort),
}

/// Treatment of reasoning in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum ReasoningOutput {
    /// Sent as `reasoning_content`.
    #[default]
    Separate,
    /// Left out.
    Hidden,
    /// Kept in the text, with the model's marks.
    Inline,
}

/// How a generated text is divided into reasoning, content and tool calls.
#[derive(Clone, Debug)]
pub(crate) struct OutputParts {
    pub(crate) parser: OutputParser,
    /// Tells the answer from what comes before it, and the token that opens that, if one token does; `None` for models that do
    /// not mark reasoning.
    pub(crate) before: Option<(OutputParser, Option<u32>)>,
    /// Special tokens among the markers, which must be decoded to text.
    pub(crate) markers: Vec<u32>,
    /// True if reasoning is counted.
    pub(crate) counts: bool,
    /// True if reasoning is sent.
    pub(crate) is_sent: bool,
}

/// Members of `chat_template_kwargs` that are always allowed: they control reasoning and write nothing else.
const HARMLESS: [&str; 5] =
    ["enable_thinking", "thinking", "preserve_thinking", "clear_thinking", "keep_thinking"];

/// True if any client may pass this value to a template.
pub(crate) fn is_harmless(name: &str, value: &Value) -> bool {
    match value {
        Value::Bool(_) => HARMLESS.contains(&name),
        Value::Number(_) => name == "thinking_budget",
        Value::String(text) => name == Controls::EFFORT && Effort::named(text).is_some(),
        _ => false,
    }
}

impl Thinking {
    /// Takes the fields: OpenAI's `reasoning_effort`, and those of other APIs.
    pub(crate) fn take(fields: &mut Fields) -> Result<Thinking, ApiError> {
        let mut thinking = Thinking::default();
        if let Some(name) = fields.text("reasoning_effort")? {
            thinking.set_level("reasoning_effort".into(), effort("reasoning_effort", &name)?)?;
        }
        for name in ["enable_thinking", "think"] {
            match fields.take(name) {
                None => {}
                Some(Value::Bool(on)) => thinking.set_level(name.into(), switched(on))?,
                Some(Value::String(text)) if name == "think" => {
                    thinking.set_level(name.into(), effort(name, &text)?)?;
                }
                Some(other) => return Err(wrong(name.into(), "true or false", &other)),
            }
        }
        thinking.of_objects(fields)?;
        thinking.format(fields)?;
        Ok(thinking)
    }

    fn of_objects(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        if let Some(value) = fields.take("thinking") {
            let mut within = Fields::within("thinking".into(), value)?;
            let kind = within.text("type")?.unwrap_or_default();
            let on = match kind.as_str() {
                "enabled" | "adaptive" => true,
                "disabled" => false,
                _ => {
                    let why =
                        format!("thinking.type should be enabled or disabled, and is {}", quoted(&kind));
                    return Err(ApiError::field("thinking.type", why));
                }
            };
            self.set_level("thinking.type".into(), switched(on))?;
            within.only("budget_tokens", |_| false, BUDGET)?;
            within.only("clear_thinking", |_| false, "give it as a member of chat_template_kwargs")?;
            within.finish()?;
        }
        if let Some(value) = fields.take("reasoning") {
            let mut within = Fields::within("reasoning".into(), value)?;
            if let Some(name) = within.text("effort")? {
                self.set_level("reasoning.effort".into(), effort("reasoning.effort", &name)?)?;
            }
            if let Some(on) = within.flag("enabled")? {
                self.set_level("reasoning.enabled".into(), switched(on))?;
            }
            if within.flag("exclude")? == Some(true) {
                self.output = ReasoningOutput::Hidden;
            }
            within.only("max_tokens", |_| false, BUDGET)?;
            within.only("summary", |v| *v == "auto", "reasoning is given as it is; leave it out")?;
            within.finish()?;
        }
        Ok(())
    }

    fn format(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        if let Some(format) = fields.text("reasoning_format")? {
            self.output = match format.as_str() {
                "auto" | "deepseek" | "parsed" => ReasoningOutput::Separate,
                "none" | "raw" => ReasoningOutput::Inline,
                "hidden" => ReasoningOutput::Hidden,
                _ => {
                    let why = "reasoning_format should be auto, none or hidden";
                    return Err(ApiError::field(
                        "reasoning_format",
                        format!("{why}, and is {}", quoted(&format)),
                    ));
                }
            };
        }
        if fields.flag("include_reasoning")? == Some(false) {
            self.output = ReasoningOutput::Hidden;
        }
        if fields.flag("separate_reasoning")? == Some(false) {
            self.output = ReasoningOutput::Inline;
        }
        fields.only("stream_reasoning", |v| *v == true, "a stream has reasoning as it comes")
    }

    fn set_level(&mut self, field: String, level: Level) -> Result<(), ApiError> {
        let agrees = |one: Level, other: Level| {
            let off = |w| matches!(w, Level::Effort(Effort::None));
            one == other || (one == Level::On && !off(other)) || (other == Level::On && !off(one))
        };
        match &self.level {
            Some((other, previous)) if !agrees(*previous, level) => {
                let why = format!("{other} and {field} contradict each other; give one of them");
                Err(ApiError::field(field, why))
            }
            // The more specific one is kept.
            Some(_) if level == Level::On => Ok(()),
            _ => {
                self.level = Some((field, level));
                Ok(())
            }
        }
    }

    /// Template values for these options, merged with those that the request passes itself.
    pub(crate) fn values(
        &self,
        template: Option<&ChatTemplate>,
        given: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ApiError> {
        let mut values = given.clone();
        let Some((field, level)) = &self.level else { return Ok(values) };
        let none = Controls { switch: None, effort: None, thinks: false };
        let controls = template.map_or(none, Controls::of);
        let wanted = match level {
            Level::Effort(effort) => controls.values(*effort),
            Level::On if controls.thinks => Ok(controls.switched(true).unwrap_or_default()),
            Level::On => controls.switched(true).ok_or(tallow_text::reasoning::Uncontrolled::NoThinking),
        };
        let wanted = wanted.map_err(|why| {
            let why = format!("{field} cannot be honoured: {why}; leave it out");
            ApiError::field(field.as_str(), why).code("unsupported_value")
        })?;
        for (name, value) in wanted {
            match values.get(&name) {
                Some(other) if *other != value => {
                    let why = format!("{field} and chat_template_kwargs.{name} contradict each other");
                    return Err(ApiError::field(field.as_str(), why));
                }
                _ => drop(values.insert(name, value)),
            }
        }
        Ok(values)
    }
}

const BUDGET: &str = "reasoning has no limit of its own: set max_tokens, or reasoning_effort";

fn switched(on: bool) -> Level {
    if on { Level::On } else { Level::Effort(Effort::None) }
}

fn effort(field: &str, name: &str) -> Result<Level, ApiError> {
    let effort = Effort::named(name).map(Level::Effort);
    effort.ok_or_else(|| {
        let all = Effort::ALL.map(Effort::name).join(", ");
        let why = format!("{field} should be one of {all}, and is {}", quoted(name));
        ApiError::field(field, why)
    })
}
