//! [`Dialogue`]: the messages of a chat, and the prompt tokens made of them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tallow_server::{ReasoningLimit, ReasoningPart};
use tallow_text::output::{OutputFormat, OutputParser};
use tallow_text::reasoning::{Controls, Effort, Uncontrolled};
use tallow_text::template::{Chat, ChatTemplate, ChatTemplates, Now};
use tallow_text::tokenizer::{Shown, Special, Tokenizer};

use crate::Failed;

/// Tokens at the end of a prompt in which the template may have opened the thinking.
const PROMPT_END: usize = 16;

/// A chat message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub role: String,
    pub content: String,
    /// Thinking before the answer. Most templates drop it from later prompts.
    pub reasoning: String,
}

impl Message {
    fn as_json(&self) -> Value {
        match self.reasoning.is_empty() {
            true => json!({"role": self.role, "content": self.content}),
            false => {
                json!({"role": self.role, "content": self.content, "reasoning_content": self.reasoning})
            }
        }
    }
}

/// A conversation as text: system prompt, messages, and the chat template that renders them.
#[derive(Clone, Debug)]
pub(crate) struct Dialogue {
    tokenizer: Tokenizer,
    /// `None`: the model continues the plain text.
    template: Option<ChatTemplate>,
    /// `None`: the model does not mark its thinking.
    format: Option<OutputFormat>,
    pub system: Option<String>,
    pub messages: Vec<Message>,
    /// Number of oldest messages that were dropped from the context.
    pub rolled: usize,
    /// Reasoning effort; `None` leaves it to the template.
    effort: Option<Effort>,
    /// Most tokens of thinking, if there is a limit.
    pub thinking_budget: Option<usize>,
    /// Extra variables passed to the chat template.
    values: Map<String, Value>,
}

impl Dialogue {
    /// An empty conversation.
    pub(crate) fn new(tokenizer: Tokenizer, templates: Option<&ChatTemplates>) -> Dialogue {
        let template = templates.and_then(|t| t.choose(false)).cloned();
        let format = template.as_ref().map(OutputFormat::of).filter(OutputFormat::reasons);
        Dialogue {
            tokenizer,
            template,
            format,
            system: None,
            messages: Vec::new(),
            rolled: 0,
            effort: None,
            thinking_budget: None,
            values: Map::new(),
        }
    }

    /// True if the model has a chat template.
    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Prompt tokens of the conversation.
    pub(crate) fn tokens(&self) -> Result<Vec<u32>, Failed> {
        let kept = self.messages.iter().enumerate();
        // System messages are kept wherever they stand.
        let kept = kept.filter(|(i, m)| *i >= self.rolled || m.role == "system").map(|(_, m)| m);
        let Some(template) = &self.template else {
            let text: String =
                self.system.iter().map(String::as_str).chain(kept.map(|m| m.content.as_str())).collect();
            return Ok(self.tokenizer.begun(self.tokenizer.encode(&text, Special::BARE)?));
        };
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages = Value::Array(system.chain(kept.map(Message::as_json)).collect());
        let chat = Chat { values: &self.values, ..Chat::new(&messages, Now::local(unix_time())) };
        Ok(template.prompt(&chat, &self.tokenizer)?)
    }

    /// Drops the oldest turn from the context, up to the next user message. The last turn stays; then it returns false.
    pub(crate) fn roll(&mut self) -> bool {
        let next = (self.rolled + 1..self.messages.len()).find(|i| self.messages[*i].role == "user");
        self.rolled = next.unwrap_or(self.rolled);
        next.is_some()
    }

    /// Keeps the first `messages` messages.
    pub(crate) fn truncate(&mut self, messages: usize) {
        self.messages.truncate(messages);
        if self.rolled >= messages {
            // Dropped messages come back, and are dropped again if there is no room.
            self.rolled = 0;
        }
    }

    /// Removes all messages.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Index of the last user message.
    pub(crate) fn last_asked(&self) -> Option<usize> {
        self.messages.iter().rposition(|m| m.role == "user")
    }

    /// Requested reasoning effort, if any.
    pub(crate) fn effort(&self) -> Option<Effort> {
        self.effort
    }

    /// Sets the reasoning effort, through whichever variable the chat template has for it.
    pub(crate) fn think(&mut self, effort: Option<Effort>) -> Result<(), Failed> {
        self.values = match (effort, &self.template) {
            (None, _) => Map::new(),
            (Some(effort), Some(template)) => Controls::of(template).values(effort).map_err(Failed::new)?,
            (Some(Effort::None), None) => Map::new(),
            (Some(_), None) => return Err(Failed::new(Uncontrolled::NoThinking)),
        };
        self.effort = effort;
        Ok(())
    }

    /// Parser that tells thinking from the answer in a reply to this prompt; `None` for models that do not think.
    pub(crate) fn parser(&self, prompt: &[u32]) -> Option<OutputParser> {
        // Without tools nothing is a call.
        Some(self.format?.parser(&self.end_of(prompt), Some(Arc::default())))
    }

    /// Text of a prompt's last tokens, which may open the thinking.
    fn end_of(&self, prompt: &[u32]) -> String {
        self.tokenizer.decode(&prompt[prompt.len().saturating_sub(PROMPT_END)..], Shown::All)
    }

    /// True if the model marks its thinking.
    pub(crate) fn thinks(&self) -> bool {
        self.format.is_some()
    }

    /// The thinking in front of a reply to this prompt, for constraints.
    pub(crate) fn reasoning(&self, prompt: &[u32]) -> Option<ReasoningPart> {
        let format = self.format?;
        let limit = self.thinking_budget.map(|tokens| {
            let closing = format.closing_tokens(&self.tokenizer);
            ReasoningLimit { tokens, closing }
        });
        Some(ReasoningPart {
            opening: format.opening_token(&self.tokenizer),
            limit,
            ..ReasoningPart::new(format, self.end_of(prompt))
        })
    }

    /// Special tokens that mark thinking, which the parser has to see.
    pub(crate) fn marks(&self) -> Vec<u32> {
        self.format.map_or_else(Vec::new, |format| format.special_tokens(&self.tokenizer, false))
    }
}

fn unix_time() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs() as i64)
}
