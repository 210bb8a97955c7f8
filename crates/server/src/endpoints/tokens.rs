//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tallow_engine::handle::EngineHandle;
use tallow_text::tokenizer::{Around, Shown, Tokenizer};

use crate::body::{Bounds, read_json_within};
use crate::errors::{ApiError, respond};
use crate::generation::lora;
use crate::generation::params::unknown_token;
use crate::generation::prompt::{Messages, tokens_of_text};
use crate::parse::fields::{Fields, token_ids, wrong};
use crate::state::Server;

/// Smallest body limit in bytes, whatever the context length.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of body per token of the context, where that is more.
const BYTES_OF_TOKEN: usize = 16;
/// Longest detokenized text in bytes.
const MAX_TEXT: usize = 4 << 20;
/// Bytes of the answer and its intermediates per byte of body: each byte may be a token, with its id and its text.
const ANSWER: usize = 24;

#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    max_model_len: usize,
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<TokenStrings<'a>>,
}

/// Tokens as the vocabulary writes them. Serialized lazily, because there may be a million.
struct TokenStrings<'a> {
    tokens: &'a [u32],
    tokenizer: &'a Tokenizer,
}

impl Serialize for TokenStrings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_seq(self.tokens.iter().map(|id| self.tokenizer.token_text(*id).unwrap_or_default()))
    }
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

/// Tokens of a body take many times its bytes, so its limit depends on the context.
fn bounds(server: &Server) -> Bounds {
    let context = server.model.handle.info().context;
    let body = context.saturating_mul(BYTES_OF_TOKEN).clamp(MAX_BYTES, 8 * MAX_BYTES);
    Bounds { body, answer: ANSWER }
}

pub(crate) async fn tokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    read_json_within(&server, request, bounds(&server)).await?.process(&server, tokens).await
}

fn tokens(server: &Server, body: Vec<u8>) -> Result<Response, ApiError> {
    let (info, max_tokens) = (server.model.handle.info(), bounds(server).body);
    let mut fields = Fields::body(&body)?;
    check_model(&mut fields, &server.model.handle)?;
    let with_texts = fields.flag("return_token_strs")?.unwrap_or(false);
    for (theirs, ours) in [("content", "prompt"), ("add_special", "add_special_tokens")] {
        fields.rename(theirs, ours)?;
    }
    let prompt = fields.text("prompt")?;
    let tokens = match prompt {
        Some(prompt) => {
            let around = fields.flag("add_special_tokens")?.unwrap_or(true);
            let around = if around { Around::Added } else { Around::Omitted };
            fields.finish()?;
            tokens_of_text("prompt", &prompt, around, (&info.tokenizer, max_tokens))?
        }
        None => {
            let messages = Messages::take(&mut fields)?;
            fields.finish()?;
            messages.tokens_up_to(server, max_tokens)?
        }
    };
    let texts = TokenStrings { tokens: &tokens, tokenizer: &info.tokenizer };
    let (count, token_strs) = (tokens.len(), with_texts.then_some(texts));
    respond(&Tokens { count, max_model_len: info.context, tokens: &tokens, token_strs })
}

pub(crate) async fn detokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    read_json_within(&server, request, bounds(&server)).await?.process(&server, text).await
}

fn text(server: &Server, body: Vec<u8>) -> Result<Response, ApiError> {
    let info = server.model.handle.info();
    let mut fields = Fields::body(&body)?;
    check_model(&mut fields, &server.model.handle)?;
    let ids = match fields.take("tokens") {
        Some(Value::Array(ids)) => token_ids("tokens", ids)?,
        other => {
            return Err(wrong("tokens".into(), "a list of token ids", &other.unwrap_or(Value::Null)));
        }
    };
    fields.finish()?;
    if let Some(id) = ids.iter().find(|id| **id as usize >= info.vocab) {
        return Err(unknown_token("tokens".into(), *id, info.vocab));
    }
    respond(&Text { prompt: text_of(&ids, &info.tokenizer)? })
}

/// Detokenizes, up to [`MAX_TEXT`] bytes.
fn text_of(ids: &[u32], tokenizer: &Tokenizer) -> Result<String, ApiError> {
    let (mut text, mut stream) = (String::new(), tokenizer.stream(Shown::All));
    for id in ids {
        text.push_str(stream.push(*id).unwrap_or_default());
        if text.len() > MAX_TEXT {
            let why =
                format!("the text of these tokens has more than {MAX_TEXT} bytes; ask for fewer at a time");
            return Err(ApiError::field("tokens", why));
        }
    }
    text.push_str(stream.finish().unwrap_or_default());
    Ok(text)
}

fn check_model(fields: &mut Fields, handle: &EngineHandle) -> Result<(), ApiError> {
    lora::select(handle, fields.text("model")?.as_deref(), None).map(drop)
}
