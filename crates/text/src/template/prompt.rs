//! From a chat to prompt tokens.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::{Chat, ChatTemplate, TemplateError};
use crate::tokenizer::{Around, Special, TokenizeError, Tokenizer, Written};

/// The mark that shields a special token in text from outside, as it is escaped in lists and objects. In that form it
/// shields nothing.
const ESCAPED_MARK: &str = "\\ufdd0";

/// Special tokens in the encoding of a rendered chat.
const RENDERED: Special = Special { around: Around::Omitted, written: Written::Shielded };

/// Why a chat cannot be made into a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The template fails on the chat.
    #[error("the model's chat template does not take this chat: {0}")]
    Template(#[from] TemplateError),
    /// The template writes a list or an object with special tokens in its text, which cannot be told from the
    /// template's own.
    #[error(
        "the model's chat template does not take this chat: it writes a list or an object in which there are special \
         tokens, which cannot be told from its own"
    )]
    Unclear,
    /// The rendered text cannot be tokenized.
    #[error("the chat cannot be tokenized: {0}")]
    Text(#[from] TokenizeError),
}

impl ChatTemplate {
    /// Tokens of a rendered chat. Special tokens come only from the template: nothing that the chat contains becomes
    /// one.
    pub fn prompt(&self, chat: &Chat<'_>, tokenizer: &Tokenizer) -> Result<Vec<u32>, PromptError> {
        let text = self.shielded_text(chat, tokenizer)?;
        Ok(tokenizer.begun(tokenizer.encode(&text, RENDERED)?))
    }

    /// Like [`ChatTemplate::prompt`], but `None` if the chat has far more than `most` tokens: it is then not tokenized
    /// to its end.
    pub fn prompt_up_to(
        &self,
        chat: &Chat<'_>,
        tokenizer: &Tokenizer,
        most: usize,
    ) -> Result<Option<Vec<u32>>, PromptError> {
        let text = self.shielded_text(chat, tokenizer)?;
        let tokens = tokenizer.encode_up_to(&text, RENDERED, most)?;
        Ok(tokens.map(|tokens| tokenizer.begun(tokens)))
    }

    /// The rendered chat, with the special tokens in its messages marked as text.
    fn shielded_text(&self, chat: &Chat<'_>, tokenizer: &Tokenizer) -> Result<String, PromptError> {
        let messages = match chat.messages {
            Json::Array(list) => {
                let list = list.iter().map(|message| shielded_message(tokenizer, message)).collect();
                shielded_list(chat.messages, list)
            }
            other => Cow::Borrowed(other),
        };
        let values = chat.values.iter();
        let values = values.map(|(name, value)| (name.clone(), shielded(tokenizer, value).into_owned()));
        let [tools, documents] =
            [chat.tools, chat.documents].map(|list| list.map(|list| shielded(tokenizer, list)));
        let shielded = Chat {
            messages: &messages,
            values: &values.collect(),
            tools: tools.as_deref(),
            documents: documents.as_deref(),
            ..*chat
        };
        let text = self.render(&shielded)?;
        if text.contains(ESCAPED_MARK) {
            return Err(PromptError::Unclear);
        }
        Ok(text)
    }
}

/// A message with the special tokens in its text shielded. Its role is unchanged: templates compare it.
fn shielded_message<'a>(tokenizer: &Tokenizer, message: &'a Json) -> Cow<'a, Json> {
    let mut shielded = shielded(tokenizer, message);
    if let Cow::Owned(shielded) = &mut shielded
        && let (Some(role), Some(as_given)) = (shielded.get_mut("role"), message.get("role"))
    {
        role.clone_from(as_given);
    }
    shielded
}

/// A value with the special tokens in all its text shielded. Chats may be long, and few have anything to shield: those
/// are not copied.
fn shielded<'a>(tokenizer: &Tokenizer, value: &'a Json) -> Cow<'a, Json> {
    match value {
        Json::String(text) => match tokenizer.shield(text) {
            Cow::Borrowed(_) => Cow::Borrowed(value),
            Cow::Owned(text) => Cow::Owned(text.into()),
        },
        Json::Array(values) => {
            shielded_list(value, values.iter().map(|value| shielded(tokenizer, value)).collect())
        }
        Json::Object(members) => {
            let member =
                |(name, value): (&'a String, &'a Json)| (tokenizer.shield(name), shielded(tokenizer, value));
            let all: Vec<(Cow<'_, str>, Cow<'_, Json>)> = members.iter().map(member).collect();
            let is_same = |(name, value): &(Cow<'_, str>, Cow<'_, Json>)| {
                matches!((name, value), (Cow::Borrowed(_), Cow::Borrowed(_)))
            };
            if all.iter().all(is_same) {
                return Cow::Borrowed(value);
            }
            let owned = all.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned()));
            Cow::Owned(Json::Object(owned.collect()))
        }
        other => Cow::Borrowed(other),
    }
}

/// The list with its shielded values; borrowed if none has changed.
fn shielded_list<'a>(list: &'a Json, values: Vec<Cow<'a, Json>>) -> Cow<'a, Json> {
    match values.iter().all(|value| matches!(value, Cow::Borrowed(_))) {
        true => Cow::Borrowed(list),
        false => Cow::Owned(values.into_iter().map(Cow::into_owned).collect()),
    }
}
