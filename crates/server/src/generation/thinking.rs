//! [`Thinking`]: a request's reasoning options; [`OutputParts`]: how a generated text is divided.

use serde_json::{Map, Value};
use tallow_text::output::{OutputFormat, OutputParser};
use tallow_text::reasoning::{Controls, Effort};
use tallow_text::template::ChatTemplate;
use tallow_text::tokenizer::Tokenizer;

use crate::constraint::{ReasoningLimit, ReasoningPart};
use crate::errors::{ApiError, quoted};
use crate::parse::fields::{Fields, MAX_TOKENS, wrong};

/// Reasoning options of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thinking {
    /// The reasoning effort, and the field that sets it.
    level: Option<(String, Level)>,
    /// The most tokens of reasoning, and the field that sets it.
    budget: Option<(String, usize)>,
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
    /// The reasoning in front of an answer; `None` for models that do not mark it.
    pub(crate) before: Option<ReasoningPart>,
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
        // Their names in other servers' APIs.
        for name in ["thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"]
        {
            thinking.take_budget(fields, name)?;
        }
        thinking.format(fields)?;
        Ok(thinking)
    }

    /// Takes a limit of the reasoning; -1 is none.
    fn take_budget(&mut self, fields: &mut Fields, name: &str) -> Result<(), ApiError> {
        let path = fields.path(name);
        let Some(tokens) = fields.integer(name, -1..=MAX_TOKENS)?.and_then(|n| usize::try_from(n).ok())
        else {
            return Ok(());
        };
        match &self.budget {
            Some((other, previous)) if *previous != tokens => {
                let why = format!("{other} and {path} contradict each other; give one of them");
                Err(ApiError::field(path, why))
            }
            _ => {
                self.budget = Some((path, tokens));
                Ok(())
            }
        }
    }

    /// The limit of the reasoning, if the request sets one.
    pub(crate) fn limit(
        &self,
        format: OutputFormat,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ReasoningLimit>, ApiError> {
        let Some((field, tokens)) = &self.budget else { return Ok(None) };
        let closing = format.closing_tokens(tokenizer);
        if closing.is_empty() {
            let why =
                format!("{field} cannot be honoured: the model does not mark its reasoning; leave it out");
            return Err(ApiError::field(field.as_str(), why).code("unsupported_value"));
        }
        Ok(Some(ReasoningLimit { tokens: *tokens, closing }))
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
            self.take_budget(&mut within, "budget_tokens")?;
            // Summaries and signatures are of models whose reasoning is secret.
            within.only("display", Value::is_string, "leave it out")?;
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
            self.take_budget(&mut within, "max_tokens")?;
            for name in ["summary", "generate_summary"] {
                within.only(name, Value::is_string, "it should be auto: reasoning is given as it is")?;
            }
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
