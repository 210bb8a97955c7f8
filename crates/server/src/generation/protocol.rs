//! [`Protocol`]: the API that a request came by, in whose form it is answered.

use crate::generation::anthropic::Anthropic;
use crate::generation::native::Native;
use crate::generation::ollama::{Lines, Ollama};
use crate::generation::openai::{OpenAi, Shape};
use crate::generation::responses::{ResponseRequest, Responses};
use crate::generation::writer::{Answer, AnswerWriter};

/// The API that a request came by.
#[derive(Clone, Debug)]
pub(crate) enum Protocol {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions.
    Completion,
    /// llama-server's own completions.
    Native,
    /// Anthropic's messages.
    Messages,
    /// Ollama's chats and texts.
    Ollama(Lines),
    /// OpenAI's responses.
    Responses(Box<ResponseRequest>),
}

impl Protocol {
    /// An answer's id, from that of the request.
    pub(crate) fn answer_id(&self, request: &str) -> String {
        match self {
            Protocol::Chat => format!("chatcmpl-{request}"),
            Protocol::Completion | Protocol::Native => format!("cmpl-{request}"),
            Protocol::Messages => format!("msg_{request}"),
            // Such answers have no id; logs have.
            Protocol::Ollama(_) => format!("ollama-{request}"),
            // It is kept under this id, which no client may choose.
            Protocol::Responses(response) => response.id.clone(),
        }
    }

    /// The field that has the prompt.
    pub(crate) fn prompt_field(&self) -> &'static str {
        match self {
            Protocol::Chat | Protocol::Messages | Protocol::Ollama(Lines::Chat) => "messages",
            Protocol::Completion | Protocol::Native | Protocol::Ollama(Lines::Generate) => "prompt",
            Protocol::Responses(_) => "input",
        }
    }

    /// Writes an answer.
    pub(crate) fn writer(self, answer: Answer) -> Box<dyn AnswerWriter> {
        match self {
            Protocol::Chat => Box::new(OpenAi { shape: Shape::Chat, answer }),
            Protocol::Completion => Box::new(OpenAi { shape: Shape::Completion, answer }),
            Protocol::Native => Box::new(Native::new(answer)),
            Protocol::Messages => Box::new(Anthropic::new(answer)),
            Protocol::Ollama(lines) => Box::new(Ollama::new(lines, answer)),
            Protocol::Responses(request) => Box::new(Responses::new(*request, answer)),
        }
    }
}
