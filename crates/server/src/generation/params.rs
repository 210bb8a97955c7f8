//! [`Generation`]: the fields that chats and completions share.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;
use tallow_engine::handle::{EngineHandle, Info, Request};
use tallow_engine::lora::LoraRef;
use tallow_engine::sampler::Sampling;

use crate::errors::ApiError;
use crate::foreign;
use crate::generation::lora::{self, LoraSelection};
use crate::generation::structure::Structure;
use crate::generation::thinking::OutputParts;
use crate::http::guard::Caller;
use crate::parse::fields::{Fields, MAX_TOKENS, integer, number, text, wrong};

/// Most choices of one request, over all its prompts.
pub(crate) const MAX_CHOICES: usize = 128;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 128;
const MAX_BIASES: usize = 1024;
const MAX_SALT: usize = 256;

/// Generation parameters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generation {
    /// The request's `model`.
    pub(crate) model: Option<String>,
    /// Choices per prompt.
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// True if a stream reports prefill progress.
    progress: bool,
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    pub(crate) ignore_end: bool,
    salt: Option<String>,
    /// True if its pages are kept from the disk cache.
    unsaved: bool,
    seed: Option<i64>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    bias: Vec<(u32, f32)>,
    lora: Option<LoraSelection>,
    /// The structure that the answers must have.
    pub(crate) structure: Option<Structure>,
    /// Divides the answers, if the model's template shows how it writes them.
    pub(crate) parts: Option<OutputParts>,
}

impl Generation {
    /// Takes those fields. `max_tokens` and `logprobs` mean different things in chats and completions and are left to
    /// them.
    pub(crate) fn take(fields: &mut Fields) -> Result<Generation, ApiError> {
        let structure = Structure::take(fields)?;
        foreign::take(fields)?;
        let ignore_end = fields.flag("ignore_eos")?.unwrap_or(false);
        let stream = fields.flag("stream")?.unwrap_or(false);
        take_ignored(fields)?;
        let cached = fields.flag("cache_prompt")?.unwrap_or(true);
        Ok(Generation {
            model: fields.text("model")?,
            n: fields.integer("n", 1..=MAX_CHOICES as i64)?.unwrap_or(1) as usize,
            max_tokens: None,
            logprobs: None,
            stream,
            include_usage: include_usage(fields, stream)?,
            progress: progress(fields, stream)?,
            stops: stops(fields)?,
            stop_tokens: stop_tokens(fields)?,
            ignore_end,
            salt: salt(fields, cached)?,
            unsaved: !cached,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?,
            temperature: fields.number("temperature", 0.0..=10.0)?,
            top_k: fields.integer("top_k", -1..=MAX_TOKENS)?,
            // 0 leaves only the most likely token.
            top_p: fields.number("top_p", 0.0..=1.0)?,
            min_p: fields.number("min_p", 0.0..=1.0)?,
            typical_p: fields.fraction("typical_p")?,
            repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
            bias: bias(fields)?,
            lora: LoraSelection::take(fields)?,
            structure,
            parts: None,
        })
    }

    /// Most tokens of an answer: the request's `max_tokens`, else the server's limit, else `default`; never above the
    /// limit.
    pub(crate) fn max_new_tokens(&self, limit: Option<usize>, default: usize) -> usize {
        let wanted = self.max_tokens.or(limit).unwrap_or(default);
        wanted.min(limit.unwrap_or(usize::MAX))
    }

    /// Restricts prefix cache sharing to requests of the same caller, where callers have different keys.
    pub(crate) fn separate_cache(&mut self, caller: Caller) {
        if let Some(key) = caller.salt() {
            // A client's own `cache_salt` cannot reach another caller's pages: the key's number comes first.
            let salt = self.salt.take().map_or_else(String::new, |salt| format!(":{salt}"));
            self.salt = Some(key + &salt);
        }
    }

    /// Scope of its cached pages: salt and adapter; `None` if it shares them with no other request.
    pub(crate) fn cache_scope(&self, adapter: Option<LoraRef>) -> Option<String> {
        (!self.unsaved).then(|| format!("{:?} {adapter:?}", self.salt))
    }

    /// Checks token ids against the vocabulary, and finds the requested adapter.
    pub(crate) fn select_adapter(&self, handle: &EngineHandle) -> Result<Option<LoraRef>, ApiError> {
        let (info, adapter) = (handle.info(), lora::select(handle, self.model.as_deref(), self.lora)?);
        let known = |path: String, id: u32| match (id as usize) < info.vocab {
            true => Ok(()),
            false => Err(unknown_token(path, id, info.vocab)),
        };
        let mut stops = self.stop_tokens.iter().enumerate();
        stops.try_for_each(|(i, id)| known(format!("stop_token_ids[{i}]"), *id))?;
        self.bias.iter().try_for_each(|(id, _)| known(format!("logit_bias.{id}"), *id))?;
        Ok(adapter)
    }

    /// Engine requests for a prompt, one per choice. Without a `seed` they get a random one.
    pub(crate) fn requests(
        &self,
        prompt: &[u32],
        max_new: usize,
        score_prompt: bool,
        adapter: Option<LoraRef>,
        info: &Info,
    ) -> impl Iterator<Item = Request> {
        let seed = self.seed.map_or_else(|| RandomState::new().hash_one(0), |seed| seed as u64);
        (0..self.n as u64).map(move |i| Request {
            prompt: prompt.to_vec(),
            max_new,
            sampling: self.sampling(&info.sampling, seed.wrapping_add(i)),
            stops: self.stops.clone(),
            stop_tokens: self.stop_tokens.clone(),
            ignore_end: self.ignore_end,
            progress: self.progress,
            shown: self.parts.iter().flat_map(|parts| parts.markers.clone()).collect(),
            salt: self.salt.clone(),
            unsaved: self.unsaved,
            score_prompt,
            adapter,
            // The client is filled in by `run`.
            ..Request::default()
        })
    }

    fn sampling(&self, default: &Sampling, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            // In other servers' APIs -1 means all, as 0 does here.
            top_k: self.top_k.map_or(default.top_k, |k| k.max(0) as usize),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            bias: if self.bias.is_empty() { default.bias.clone() } else { self.bias.clone() },
            seed,
            logprobs: self.logprobs,
        }
    }
}

/// Error for a token id outside the vocabulary.
pub(crate) fn unknown_token(path: String, id: u32, vocab: usize) -> ApiError {
    let why =
        format!("{path}: there is no token {id}; the model's are from 0 to {}", vocab.saturating_sub(1));
    ApiError::field(path, why)
}

/// Takes fields that identify the user. They are validated and ignored.
fn take_ignored(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        fields.short_text(name, 1024)?;
    }
    // Tiers that allow slow or cached processing can be served as usual.
    let tier = |v: &Value| *v == "auto" || *v == "default" || *v == "flex";
    fields.only("service_tier", tier, "all requests are served alike; leave it out")?;
    let kept = |v: &Value| *v == "in_memory" || *v == "24h";
    fields.only("prompt_cache_retention", kept, "prefixes are cached in memory as long as there is room")?;
    if let Some(metadata) = fields.take("metadata") {
        let path = fields.path("metadata");
        let Value::Object(members) = metadata else { return Err(wrong(path, "an object", &metadata)) };
        for (name, value) in members {
            text(format!("{path}.{name}"), value)?;
        }
    }
    Ok(())
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        let why = "stream_options can only be there where stream is true";
        return Err(ApiError::field("stream_options", why));
    }
    let mut options = Fields::within("stream_options".into(), options)?;
    let include = options.flag("include_usage")?.unwrap_or(false);
    options.only_off("include_obfuscation", |value| *value == false)?;
    options.only("continuous_usage_stats", |value| *value == false, "the last chunk has the usage")?;
    options.finish()?;
    Ok(include)
}

fn progress(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    match fields.flag("return_progress")? {
        Some(true) if !stream => {
            Err(ApiError::field("return_progress", "return_progress can only be true where stream is"))
        }
        wanted => Ok(wanted.unwrap_or(false)),
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(stops)) if stops.len() <= MAX_STOPS => {
            let stops = stops.into_iter().enumerate().map(|(i, stop)| text(format!("stop[{i}]"), stop));
            stops.collect::<Result<_, _>>()?
        }
        Some(Value::Array(stops)) => {
            let why = format!("stop should have at most {MAX_STOPS} texts, and has {}", stops.len());
            return Err(ApiError::field("stop", why));
        }
        Some(other) => return Err(wrong("stop".into(), "text or a list of texts", &other)),
    };
    match stops.iter().find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        None => Ok(stops),
        Some(stop) => {
            let why = format!("a stop should have from 1 to {MAX_STOP_BYTES} bytes, and has {}", stop.len());
            Err(ApiError::field("stop", why))
        }
    }
}

fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let id = |path, value: Value| integer(path, &value, 0..=i64::from(u32::MAX)).map(|id| id as u32);
    let ids = fields.list("stop_token_ids", id)?.unwrap_or_default();
    if ids.len() > MAX_STOP_TOKENS {
        let why =
            format!("stop_token_ids should have at most {MAX_STOP_TOKENS} tokens, and has {}", ids.len());
        return Err(ApiError::field("stop_token_ids", why));
    }
    Ok(ids)
}

fn salt(fields: &mut Fields, cached: bool) -> Result<Option<String>, ApiError> {
    let salt = fields.short_text("cache_salt", MAX_SALT)?;
    // A unique salt never hits the prefix cache.
    let salt = if cached || salt.as_deref() == Some("") { salt } else { Some(crate::request_id::unique()) };
    match salt.as_deref() {
        // An empty salt looks like isolation but would give none.
        Some("") => {
            Err(ApiError::field("cache_salt", "cache_salt should not be empty; leave it out to have none"))
        }
        _ => Ok(salt),
    }
}

fn bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let members = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(members)) => members,
        Some(other) => return Err(wrong("logit_bias".into(), "an object", &other)),
    };
    if members.len() > MAX_BIASES {
        let why = format!("logit_bias should have at most {MAX_BIASES} tokens, and has {}", members.len());
        return Err(ApiError::field("logit_bias", why));
    }
    let mut all = Vec::new();
    for (key, value) in members {
        let id = key.parse().map_err(|_| {
            let key = crate::errors::quoted(&key);
            ApiError::field(
                "logit_bias",
                format!("the keys of logit_bias should be token ids, and one is {key}"),
            )
        })?;
        all.push((id, number(format!("logit_bias.{id}"), &value, -100.0..=100.0)?));
    }
    Ok(all)
}
