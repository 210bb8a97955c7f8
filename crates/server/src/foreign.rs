//! Fields and routes of other servers' APIs: what they map to here, or what to use instead.
//!
//! A field is mapped where it has an equivalent, accepted where it changes nothing, and otherwise refused by name, so
//! that no setting silently has no effect.

use serde_json::Value;

use crate::errors::ApiError;
use crate::parse::fields::{Fields, MAX_TOKENS};

/// Fields by their names elsewhere, and our names.
const ALIASES: [(&str, &str); 6] = [
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
    ("stop_sequences", "stop"),
    ("random_seed", "seed"),
];

type Harmless = fn(&Value) -> bool;

const ANY: Harmless = |_| true;
const NEVER: Harmless = |_| false;
const OFF: Harmless = |v| *v == false;
const ON: Harmless = |v| *v == true;
const ZERO: Harmless = |v| v.as_f64() == Some(0.0);
const ONE: Harmless = |v| v.as_f64() == Some(1.0);
const UP_TO_ZERO: Harmless = |v| v.as_f64().is_some_and(|x| x <= 0.0);
const EMPTY: Harmless = |v| match v {
    Value::Array(list) => list.is_empty(),
    Value::Object(members) => members.is_empty(),
    Value::String(text) => text.is_empty(),
    _ => false,
};

const STRUCTURED: &str = "response_format holds an answer to JSON or to a JSON Schema";
const AT_START: &str = "this is set when the server starts: see `tallow serve --help`";
const CUTS: &str = "there is temperature with top_k, top_p, min_p and typical_p";
const PENALTIES: &str = "there are repetition_penalty, presence_penalty and frequency_penalty";
const BIAS: &str = "logit_bias with -100 keeps tokens out";
const BY_FIELDS: &str = "give its members as fields of the body: temperature, top_k, top_p, min_p, repeat_penalty, \
                         num_predict, seed, stop and others; the context is set by `tallow serve --context`";

/// Fields with the values that change nothing, and what to do for any other value.
const FIELDS: [(&str, Harmless, &str); 73] = [
    // llama-server
    ("id_slot", UP_TO_ZERO, "the server chooses where a request runs; leave it out"),
    ("slot_id", UP_TO_ZERO, "the server chooses where a request runs; leave it out"),
    ("n_keep", ANY, ""),
    ("n_discard", ZERO, "the context is never shifted; leave it out"),
    ("n_probs", ZERO, "set logprobs, and in chats top_logprobs"),
    ("min_keep", UP_TO_ZERO, "top_p, min_p and typical_p keep one token at least"),
    ("mirostat", ZERO, CUTS),
    ("mirostat_mode", ZERO, CUTS),
    ("mirostat_tau", ANY, ""),
    ("mirostat_eta", ANY, ""),
    ("dry_multiplier", ZERO, PENALTIES),
    ("dry_base", ANY, ""),
    ("dry_allowed_length", ANY, ""),
    ("dry_penalty_last_n", ANY, ""),
    ("dry_sequence_breakers", ANY, ""),
    ("xtc_probability", ZERO, CUTS),
    ("xtc_threshold", ANY, ""),
    ("dynatemp_range", ZERO, CUTS),
    ("dynatemp_exponent", ANY, ""),
    ("tfs_z", ONE, CUTS),
    ("top_a", ZERO, CUTS),
    ("top_n_sigma", UP_TO_ZERO, CUTS),
    ("penalize_nl", OFF, "newlines are penalised as all tokens are; logit_bias can make up for it"),
    ("samplers", NEVER, "their order is fixed: penalties, temperature, top_k, typical_p, top_p, min_p"),
    ("sampler_order", NEVER, "their order is fixed: penalties, temperature, top_k, typical_p, top_p, min_p"),
    ("t_max_predict_ms", UP_TO_ZERO, "set max_tokens"),
    ("timings_per_token", OFF, "the last chunk has timings"),
    ("post_sampling_probs", OFF, "logprobs are the model's own, before sampling"),
    ("return_tokens", OFF, "POST the text to /tokenize"),
    ("image_data", EMPTY, "images are not supported yet"),
    // vLLM and SGLang
    ("use_beam_search", OFF, "ask for n answers with logprobs, and take the best"),
    ("length_penalty", ONE, "it is of beam search only; leave it out"),
    ("early_stopping", OFF, "it is of beam search only; leave it out"),
    (
        "min_tokens",
        ZERO,
        "set ignore_eos with max_tokens, or say in the prompt how long the answer should be",
    ),
    ("skip_special_tokens", ON, "special tokens are not part of an answer's text; logprobs show them"),
    ("spaces_between_special_tokens", ANY, ""),
    ("include_stop_str_in_output", OFF, "a stop is not part of the answer; add it yourself"),
    ("prompt_logprobs", NEVER, "POST to /v1/completions with echo and logprobs, which scores the prompt"),
    ("truncate_prompt_tokens", NEVER, "shorten the prompt yourself; /tokenize counts its tokens"),
    ("allowed_token_ids", EMPTY, BIAS),
    ("bad_words", EMPTY, BIAS),
    ("bad_words_ids", EMPTY, BIAS),
    ("logits_processors", EMPTY, BIAS),
    ("guided_decoding_backend", ANY, ""),
    ("priority", ZERO, "requests are served in the order in which they come"),
    ("request_id", NEVER, "send it as the header x-request-id"),
    ("return_token_ids", OFF, "POST the text to /tokenize"),
    ("return_tokens_as_token_ids", OFF, "POST the text to /tokenize"),
    ("mm_processor_kwargs", EMPTY, "images are not supported yet"),
    ("chat_template", NEVER, "the model's own template is used; chat_template_kwargs gives it values"),
    ("documents", EMPTY, "put them into a message"),
    // Ollama
    ("options", EMPTY, BY_FIELDS),
    ("keep_alive", |v| !ZERO(v), "the model stays loaded as long as the server runs"),
    ("num_ctx", NEVER, "the context is set when the server starts: tallow serve --context TOKENS"),
    ("num_gpu", NEVER, AT_START),
    ("num_thread", NEVER, AT_START),
    ("num_batch", NEVER, AT_START),
    ("format", EMPTY, STRUCTURED),
    ("raw", OFF, "POST the prompt to /v1/completions"),
    (
        "template",
        EMPTY,
        "the model's own template is used; POST to /v1/completions to write the whole prompt",
    ),
    ("system", EMPTY, "begin messages with one of the role system"),
    ("context", EMPTY, "give the earlier messages again; their computation is cached"),
    ("images", EMPTY, "images are not supported yet"),
    // Others
    ("parameters", EMPTY, BY_FIELDS),
    ("inputs", NEVER, "POST to /v1/completions with prompt"),
    ("do_sample", ON, "set temperature to 0, which always takes the most likely token"),
    ("extra_body", EMPTY, "its members should be fields of the body"),
    ("safe_prompt", OFF, "begin messages with one of the role system"),
    ("instructions", NEVER, "begin messages with one of the role system"),
    ("input", NEVER, "give messages to /v1/chat/completions, or prompt to /v1/completions"),
    ("transforms", EMPTY, "shorten the messages yourself"),
    ("provider", ANY, ""),
    ("usage", ANY, ""),
];

/// Maps fields of other servers to ours, and refuses those without an equivalent.
pub(crate) fn take(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["n_predict", "num_predict"] {
        // -1 (unlimited) and -2 (until the context is full) both end only with the context.
        if fields.peek(name).is_some_and(|v| *v == -1 || *v == -2) {
            fields.set(name, MAX_TOKENS.into());
        }
    }
    for (theirs, ours) in ALIASES {
        fields.rename(theirs, ours)?;
    }
    for (name, harmless, instead) in FIELDS {
        fields.only(name, harmless, instead)?;
    }
    // The penalty window matters only where there is a penalty.
    let penalty = fields.peek("repetition_penalty").is_some_and(|v| !ONE(v));
    for name in ["repeat_last_n", "penalty_last_n"] {
        fields.only(
            name,
            |v| !penalty || *v == -1,
            "repetition_penalty looks at the whole prompt and answer",
        )?;
    }
    Ok(())
}

/// Hint for a route of another server.
pub(crate) fn route(path: &str) -> Option<&'static str> {
    let path = path.trim_end_matches('/');
    if path.starts_with("/v1/v1") {
        return Some("/v1 is there twice: the base URL of the client should end in one");
    }
    Some(match path {
        "/api/v0/chat/completions" => {
            "chats are answered at POST /v1/chat/completions, in the form of OpenAI's API"
        }
        "/chat/completions" | "/chat" => {
            "it is POST /v1/chat/completions: the client's base URL should end in /v1"
        }
        "/completion" | "/completions" | "/generate" | "/generate_stream" | "/infill" => {
            "texts are continued at POST /v1/completions, in the form of OpenAI's API"
        }
        "/models" | "/api/v0/models" | "/slots" | "/props" => {
            "models are listed at GET /v1/models, and GET /metrics says how busy the server is"
        }
        "/embedding" | "/embeddings" | "/embed" => {
            "embeddings are computed at POST /v1/embeddings, by servers of an embedding model"
        }
        "/rerank" | "/reranking" | "/v1/reranking" | "/v2/rerank" | "/score" | "/v1/score" => {
            "documents are ranked at POST /v1/rerank, by servers of a reranking model"
        }
        "/api/push" | "/api/create" | "/api/copy" | "/api/blobs" => {
            "models are those of the hub, by /api/pull and /api/delete, and what a folder has"
        }
        "/apply-template" | "/v1/tokenize" | "/api/tokenize" => {
            "POST /tokenize makes tokens of a text or of messages, and counts them"
        }
        "/v1/responses/compact" => "conversations are not compacted: leave items out yourself",
        "/ping" | "/healthz" | "/livez" | "/v1/health" | "/health/live" => "it is GET /health",
        "/readyz" | "/health/ready" => "it is GET /ready",
        "/v1" | "/api" | "/api/v1" => {
            "it is the beginning of paths such as /v1/models and /v1/chat/completions"
        }
        "/docs" | "/redoc" | "/openapi.json" => "the routes are those of OpenAI's API, under /v1",
        "/v1/images/generations" | "/v1/images/edits" | "/v1/audio/speech" | "/v1/moderations" => {
            "no model of that kind is supported"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_there_once_and_says_what_to_do() {
        let mut names: Vec<&str> = FIELDS.iter().map(|f| f.0).chain(ALIASES.iter().map(|a| a.0)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for (name, harmless, instead) in FIELDS {
            // A field that takes any number takes any text; the others need a hint for refused values.
            assert!(!instead.is_empty() || harmless(&Value::from("x")), "{name}");
        }
    }
}
