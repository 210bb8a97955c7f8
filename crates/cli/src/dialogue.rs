//! [`Dialogue`]: what was said in a chat, and the tokens that a model is given of it.

use serde_json::{Map, Value, json};
use tallow_models::reasoning::{Controls, Effort, Reasoning, Splitter, Uncontrolled};
use tallow_models::template::{Chat, ChatTemplate, ChatTemplates, Now};
use tallow_models::tokenizer::{Shown, Special, Tokenizer};

use crate::Failed;

/// The end of a prompt, in tokens, in which a template may have begun the thinking.
const ENDING: usize = 16;

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub role: String,
    pub content: String,
    /// What the model thought before it answered. Most templates leave it out of later prompts.
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

/// A conversation as text: system prompt, messages, and how the chat template writes them.
#[derive(Clone, Debug)]
pub(crate) struct Dialogue {
    tokenizer: Tokenizer,
    /// `None`: the model continues text as it is.
    template: Option<ChatTemplate>,
    reasoning: Option<Reasoning>,
    pub system: Option<String>,
    pub messages: Vec<Message>,
    /// Messages at the beginning that have left the context: the model is not given them any more.
    pub rolled: usize,
    /// How much the model is to think; `None` leaves that to the template.
    effort: Option<Effort>,
    /// Variables of the chat template.
    values: Map<String, Value>,
}

impl Dialogue {
    /// A conversation in which nothing has been said.
    pub(crate) fn new(tokenizer: Tokenizer, templates: Option<&ChatTemplates>) -> Dialogue {
        let template = templates.and_then(|t| t.choose(false)).cloned();
        let reasoning = template.as_ref().and_then(Reasoning::of);
        Dialogue {
            tokenizer,
            template,
            reasoning,
            system: None,
            messages: Vec::new(),
            rolled: 0,
            effort: None,
            values: Map::new(),
        }
    }

    /// Does the model have a chat template?
    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of the conversation, as the model is given them.
    pub(crate) fn tokens(&self) -> Result<Vec<u32>, Failed> {
        let kept = self.messages.iter().enumerate();
        // A system prompt stays, wherever it stands.
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

    /// Drops the oldest turn from the context: up to the next message of the user's. The last turn stays; then it
    /// returns false.
    pub(crate) fn roll(&mut self) -> bool {
        let next = (self.rolled + 1..self.messages.len()).find(|i| self.messages[*i].role == "user");
        self.rolled = next.unwrap_or(self.rolled);
        next.is_some()
    }

    /// Keeps the first so many messages.
    pub(crate) fn truncate(&mut self, messages: usize) {
        self.messages.truncate(messages);
        if self.rolled >= messages {
            // What has left comes back, and leaves again if there is no room.
            self.rolled = 0;
        }
    }

    /// Forgets all messages.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Where the last message of the user's is.
    pub(crate) fn last_asked(&self) -> Option<usize> {
        self.messages.iter().rposition(|m| m.role == "user")
    }

    /// How much the model is asked to think, if anybody said.
    pub(crate) fn effort(&self) -> Option<Effort> {
        self.effort
    }

    /// Says how much the model is to think, through whatever variable its chat template has for that.
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

    /// What tells an answer to this prompt from the thinking before it; `None` for models that do not think.
    pub(crate) fn splitter(&self, prompt: &[u32]) -> Option<Splitter> {
        let ending = &prompt[prompt.len().saturating_sub(ENDING)..];
        Some(self.reasoning?.splitter(&self.tokenizer.decode(ending, Shown::All)))
    }

    /// Special tokens that mark thinking, which the splitter has to see.
    pub(crate) fn marks(&self) -> Vec<u32> {
        self.reasoning.map_or_else(Vec::new, |r| r.special_tokens(&self.tokenizer))
    }
}

fn unix_time() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs() as i64)
}
