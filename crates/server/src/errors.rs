//! [`ApiError`]: error responses, in the form of the API that a request came by.

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tallow_engine::failure::Unfit;
use tallow_engine::handle::Failure;

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    /// Field at fault.
    param: Option<String>,
    code: Option<&'static str>,
}

#[derive(Serialize)]
struct Wire<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// The API in whose form an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    OpenAi,
    Anthropic,
    Ollama,
}

#[derive(Serialize)]
struct AnthropicWire<'a> {
    r#type: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    r#type: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct OllamaWire<'a> {
    error: &'a str,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl fmt::Display) -> ApiError {
        ApiError { status, message: message.to_string(), param: None, code: None }
    }

    /// 400 for a field.
    pub(crate) fn field(param: impl Into<String>, message: impl fmt::Display) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400 for the request as a whole.
    pub(crate) fn bad(message: impl fmt::Display) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404 for an unknown model.
    pub(crate) fn no_model(name: &str, names: &[String]) -> ApiError {
        let message = format!("there is no model {}; there is {}", quoted(name), names.join(", "));
        let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
        ApiError { param: Some("model".into()), ..error }
    }

    /// The prompt does not fit into the context.
    pub(crate) fn too_long(param: &str, prompt: usize, context: usize) -> ApiError {
        let message = format!(
            "the prompt has {prompt} tokens, and the model's context of {context} must hold them and the answer; \
             shorten the prompt"
        );
        ApiError::field(param, message).code("context_length_exceeded")
    }

    /// The prompt exceeds the context by so much that its tokens were not counted.
    pub(crate) fn far_too_long(param: &str, context: usize) -> ApiError {
        let message = format!(
            "the prompt has more than {context} tokens, and the model's context of {context} must hold them and the \
             answer; shorten the prompt"
        );
        ApiError::field(param, message).code("context_length_exceeded")
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The `code` of the error, if any.
    pub(crate) fn code_name(&self) -> Option<&'static str> {
        self.code
    }

    /// The answer to a failure of the engine. `alive`: true if it still runs.
    pub(crate) fn engine(failure: Failure, alive: bool) -> ApiError {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match failure {
            Failure::Unfit(Unfit::TooLong { prompt, context }) => {
                ApiError::too_long("prompt", prompt, context)
            }
            Failure::Unfit(unfit) => ApiError::field("prompt", unfit),
            Failure::Full(_) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, failure).code("queue_full"),
            Failure::QueueTimeout(_) => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, failure).code("queue_timeout")
            }
            Failure::Unread => ApiError::new(unavailable, failure).code("answer_not_read"),
            Failure::ShuttingDown => ApiError::new(unavailable, failure).code("shutting_down"),
            Failure::Broken(why) if !alive => ApiError::new(unavailable, why).code("engine_stopped"),
            Failure::Broken(why) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why),
        }
    }

    /// The error as a JSON object, in OpenAI's form.
    pub(crate) fn json(&self) -> String {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        let (param, code) = (self.param.as_deref(), self.code);
        written(&Wire { error: Error { message: &self.message, r#type: kind, param, code } })
    }

    /// The error as a JSON object, in the form of an API.
    pub(crate) fn json_of(&self, form: ErrorForm) -> String {
        match form {
            ErrorForm::OpenAi => self.json(),
            ErrorForm::Anthropic => {
                let kind = match self.status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    400..500 => "invalid_request_error",
                    503 => "overloaded_error",
                    _ => "api_error",
                };
                let error = AnthropicError { r#type: kind, message: &self.message };
                written(&AnthropicWire { r#type: "error", error })
            }
            ErrorForm::Ollama => written(&OllamaWire { error: &self.message }),
        }
    }
}

impl ErrorForm {
    /// The form of errors at a path.
    pub(crate) fn of(path: &str) -> ErrorForm {
        let under = |prefix: &str| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if under("/v1/messages") {
            ErrorForm::Anthropic
        } else if under("/api") {
            ErrorForm::Ollama
        } else {
            ErrorForm::OpenAi
        }
    }
}

/// Serialization of texts cannot fail.
fn written(wire: &impl Serialize) -> String {
    serde_json::to_string(wire).unwrap_or_default()
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.param {
            Some(param) => write!(f, "{param}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(self.status, self.json());
        let headers = response.headers_mut();
        // A full queue moves on soon; a server that stops is back only after a restart.
        let wait = match self.status {
            StatusCode::TOO_MANY_REQUESTS => Some("1"),
            StatusCode::SERVICE_UNAVAILABLE => Some("10"),
            _ => None,
        };
        if let Some(wait) = wait {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(wait));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The rest of the body is not read.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // For the access log.
        response.extensions_mut().insert(self);
        response
    }
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A 200 response with a value as JSON.
pub(crate) fn respond(value: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_string(value);
    let body = body.map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("no JSON: {e}")))?;
    Ok(json(StatusCode::OK, body))
}

/// Quotes foreign text for a message: escaped and truncated.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((at, _)) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    }
}
