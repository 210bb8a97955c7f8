//! `/tokenize` and `/detokenize`: what the model makes of a text, and back.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tallow_engine::handle::EngineHandle;
use tallow_models::tokenizer::{Around, Shown};

use crate::adapters;
use crate::body::prepare;
use crate::completions::tokens;
use crate::errors::{ApiError, respond};
use crate::fields::{Fields, wrong};
use crate::generation::unknown_token;
use crate::prompt::{Messages, tokens_of_text};
use crate::state::Server;

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

pub(crate) async fn tokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    prepare(&server, request, |server, body| {
        let info = server.model.handle.info();
        let mut fields = Fields::body(body)?;
        check_model(&mut fields, &server.model.handle)?;
        let with_texts = fields.flag("return_token_strs")?.unwrap_or(false);
        let prompt = fields.text("prompt")?;
        let tokens = match prompt {
            Some(prompt) => {
                let around = fields.flag("add_special_tokens")?.unwrap_or(true);
                let around = if around { Around::Added } else { Around::Omitted };
                fields.finish()?;
                tokens_of_text("prompt", &prompt, around, &info.tokenizer)?
            }
            None => {
                let messages = Messages::take(&mut fields)?;
                fields.finish()?;
                messages.tokens(
                    server.model.templates.as_ref(),
                    server.settings.template_values,
                    &info.tokenizer,
                )?
            }
        };
        let text = |id: &u32| info.tokenizer.token_text(*id).unwrap_or_default().to_owned();
        let token_strs = with_texts.then(|| tokens.iter().map(text).collect());
        respond(&Tokens { count: tokens.len(), max_model_len: info.context, tokens, token_strs })
    })
    .await
}

pub(crate) async fn detokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    prepare(&server, request, |server, body| {
        let info = server.model.handle.info();
        let mut fields = Fields::body(body)?;
        check_model(&mut fields, &server.model.handle)?;
        let ids = match fields.take("tokens") {
            Some(Value::Array(ids)) => tokens("tokens", ids)?,
            other => {
                return Err(wrong("tokens".into(), "a list of token ids", &other.unwrap_or(Value::Null)));
            }
        };
        fields.finish()?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= info.vocab) {
            return Err(unknown_token("tokens".into(), *id, info.vocab));
        }
        respond(&Text { prompt: info.tokenizer.decode(&ids, Shown::All) })
    })
    .await
}

fn check_model(fields: &mut Fields, handle: &EngineHandle) -> Result<(), ApiError> {
    adapters::chosen(handle, fields.text("model")?.as_deref(), None).map(drop)
}
