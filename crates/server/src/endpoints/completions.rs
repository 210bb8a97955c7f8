//! `/v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use tallow_engine::handle::Info;
use tallow_text::tokenizer::{Around, Shown};

use crate::body::read_json;
use crate::errors::ApiError;
use crate::generation::params::{Generation, MAX_CHOICES};
use crate::generation::prompt::{tokens_between, tokens_of_text};
use crate::generation::protocol::Protocol;
use crate::generation::run::{Job, Prompt, run};
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, MAX_TOKENS, text, token_ids, wrong};
use crate::state::Server;

const MAX_PROMPTS: usize = 64;
/// Default `max_tokens` where neither the request nor the server sets one, as in the OpenAI API.
const USUAL_TOKENS: usize = 16;

/// Request for text completions.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    prompts: Vec<PromptInput>,
    echo: bool,
    /// The text behind the answer, which fills in what is between.
    suffix: Option<String>,
    generation: Generation,
}

/// A prompt as a request gives it.
#[derive(Clone, Debug)]
enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

/// Parses the body of a completion request and checks all that can be checked without the model.
///
/// Special tokens written in a prompt are parsed: whoever writes a whole prompt writes its special tokens too.
pub fn parse_completion_request(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let mut fields = Fields::body(body)?;
    let mut generation = Generation::take(&mut fields)?;
    let prompts = prompts(&mut fields)?;
    let choices = prompts.len() * generation.n;
    if choices > MAX_CHOICES {
        let why = format!(
            "{} prompts and n = {} are {choices} answers; at most {MAX_CHOICES} are given",
            prompts.len(),
            generation.n
        );
        return Err(ApiError::field("n", why));
    }
    let echo = fields.flag("echo")?.unwrap_or(false);
    fields.rename("max_completion_tokens", "max_tokens")?;
    generation.max_tokens = fields.integer("max_tokens", 0..=MAX_TOKENS)?.map(|n| n as usize);
    if generation.max_tokens == Some(0) && !echo {
        return Err(ApiError::field(
            "max_tokens",
            "max_tokens can be 0 only where echo is true; else nothing is left to do",
        ));
    }
    generation.logprobs = fields.integer("logprobs", 0..=5)?.map(|n| n as usize);
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && echo {
        return Err(ApiError::field(
            "echo",
            "echo is of prompts that are continued; leave suffix or echo out",
        ));
    }
    if suffix.is_some() && prompts.iter().any(|prompt| matches!(prompt, PromptInput::Tokens(_))) {
        return Err(ApiError::field("suffix", "suffix goes with a prompt that is text, not with tokens"));
    }
    let n = generation.n;
    fields.only("best_of", |v| *v == n, "ask for n answers with logprobs, and take the best")?;
    fields.only("store", |v| *v == false, "answers are not stored here; leave it out")?;
    fields.only(
        "add_special_tokens",
        |v| *v == true,
        "give the prompt as token ids; /tokenize makes some",
    )?;
    fields.only("messages", |_| false, "give a prompt, or POST to /v1/chat/completions")?;
    fields.finish()?;
    Ok(CompletionRequest { prompts, echo, suffix, generation })
}

fn prompts(fields: &mut Fields) -> Result<Vec<PromptInput>, ApiError> {
    let values = match fields.take("prompt") {
        None => return Err(ApiError::field("prompt", "prompt is missing")),
        Some(Value::String(text)) => return Ok(vec![PromptInput::Text(text)]),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(wrong("prompt".into(), "text, tokens, or a list of those", &other)),
    };
    if values.iter().all(Value::is_number) && !values.is_empty() {
        return Ok(vec![PromptInput::Tokens(token_ids("prompt", values)?)]);
    }
    if values.is_empty() || values.len() > MAX_PROMPTS {
        let why = format!("prompt should have from 1 to {MAX_PROMPTS} prompts, and has {}", values.len());
        return Err(ApiError::field("prompt", why));
    }
    let each = |(i, value)| match value {
        Value::Array(ids) => token_ids(&format!("prompt[{i}]"), ids).map(PromptInput::Tokens),
        value => text(format!("prompt[{i}]"), value).map(PromptInput::Text),
    };
    values.into_iter().enumerate().map(each).collect()
}

impl PromptInput {
    fn prompt(self, echo: bool, suffix: Option<&str>, info: &Info) -> Result<Prompt, ApiError> {
        Ok(match self {
            PromptInput::Text(text) => {
                let bounds = (&info.tokenizer, info.context);
                let ids = match suffix {
                    Some(suffix) => tokens_between("suffix", (&text, suffix), &[], bounds)?,
                    None => tokens_of_text("prompt", &text, Around::Added, bounds)?,
                };
                Prompt { ids, echo: echo.then_some(text), is_text: true }
            }
            PromptInput::Tokens(ids) => {
                if ids.len() > info.context {
                    return Err(ApiError::too_long("prompt", ids.len(), info.context));
                }
                let echo = echo.then(|| info.tokenizer.decode(&ids, Shown::All));
                Prompt { ids, echo, is_text: false }
            }
        })
    }
}

pub(crate) async fn completions(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&request);
    let body = read_json(&server, request).await?;
    let job = body.process(&server, move |server, body| job(server, body, caller)).await?;
    run(&server, job).await
}

/// Parses a body and tokenizes its prompts.
fn job(server: &Server, body: Vec<u8>, caller: Caller) -> Result<Job, ApiError> {
    let CompletionRequest { prompts, echo, suffix, mut generation } = parse_completion_request(&body)?;
    drop(body);
    let info = server.model.handle.info();
    let adapter = generation.select_adapter(&server.model.handle)?;
    let prompts = prompts.into_iter().map(|given| given.prompt(echo, suffix.as_deref(), info));
    let prompts = prompts.collect::<Result<_, _>>()?;
    let max_new = generation.max_new_tokens(server.model.max_tokens, USUAL_TOKENS);
    generation.separate_cache(caller);
    Job::new(server, generation, Protocol::Completion, prompts, max_new, adapter)
}
