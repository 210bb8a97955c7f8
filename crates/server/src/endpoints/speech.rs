//! `/v1/audio/transcriptions` and `/v1/audio/translations`: speech to text, as in OpenAI's API.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tallow_engine::handle::Failure;
use tallow_engine::scheduler::ClientId;
use tallow_engine::transcribe::{Interrupted, Segment, TranscribeOptions};
use tallow_media::audio::Audio;
use tallow_models::speech::SpeechTask;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError, oneshot};

use crate::ServedSpeech;
use crate::access::Notes;
use crate::body;
use crate::errors::ApiError;
use crate::http::guard::Caller;
use crate::metrics::TrackedRequest;
use crate::parse::multipart::{MultipartForm, boundary};
use crate::served::Model;
use crate::state::{ActiveRequest, Endpoints, Server};
use crate::transcript::{Format, Transcript};

/// Longest body in bytes: OpenAI's limit of 25 MiB for the file, and 64 KiB for the other fields.
const MAX_BYTES: usize = (25 << 20) + (64 << 10);
/// Bytes that decoding audio takes besides its file.
const DECODING: usize = 8 << 20;
/// Longest prompt in bytes.
const MAX_PROMPT: usize = 64 << 10;

/// A transcription request.
struct TranscriptionRequest {
    /// Byte range of the file in the body.
    file: Range<usize>,
    options: TranscribeOptions,
    format: Format,
}

pub(crate) async fn transcriptions(
    State(server): State<Arc<Server<ServedSpeech>>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(server, request, SpeechTask::Transcribe).await
}

pub(crate) async fn translations(
    State(server): State<Arc<Server<ServedSpeech>>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(server, request, SpeechTask::Translate).await
}

async fn answer(
    server: Arc<Server<ServedSpeech>>,
    request: Request,
    task: SpeechTask,
) -> Result<Response, ApiError> {
    server.ready()?;
    let permit = permit(&server)?;
    let ctx = server.request_context(&request);
    let salt = Caller::of(&request).salt();
    let (parts, body) = request.into_parts();
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = boundary(kind).ok_or_else(|| {
        let why = "the body should be a form with a file: send it as content-type: multipart/form-data";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)
    })?;
    let mut bytes = body::read(body, &ctx, MAX_BYTES).await?;
    ctx.claim.grow(DECODING).await?;
    let (_active, begun) = (ActiveRequest::new(&server), Instant::now());
    Notes::current().note(|noted| noted.model = server.model.names().first().cloned());
    let mut tracked = TrackedRequest::new(server.metrics.clone());
    // Dropped when nobody waits for the result any more.
    let (_waits, gone) = oneshot::channel::<()>();
    let (own, client) = (server.clone(), ctx.client);
    let work = tokio::task::spawn_blocking(move || {
        // Released when this closure ends, even if nobody waits for it any more.
        let _held = (permit, ctx);
        let parsed = parse(&own, &bytes, &boundary, task, (client, salt))?;
        // Keeps the file in place and drops what is around it.
        bytes.truncate(parsed.file.end);
        bytes.drain(..parsed.file.start);
        Handle::current().block_on(async {
            tokio::select! {
                done = transcribe(&own, bytes, parsed, task) => done,
                _ = gone => Err(ApiError::engine(Failure::ShuttingDown, true)),
            }
        })
    });
    let failed = |e| {
        tracing::error!("audio could not be transcribed: {e}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it")
    };
    let done = tokio::select! {
        done = work => done.map_err(failed).and_then(|done| done),
        () = server.drain_over() => Err(ApiError::engine(Failure::ShuttingDown, true)),
    };
    match &done {
        Ok(_) => tracked.done(begun.elapsed()),
        Err(why) if why.status.is_client_error() => tracked.refused(),
        Err(_) => tracked.failed(),
    }
    let (text, format) = done?;
    Ok(([(header::CONTENT_TYPE, format.kind())], text).into_response())
}

/// A permit to be served or wait.
fn permit(server: &Server<ServedSpeech>) -> Result<OwnedSemaphorePermit, ApiError> {
    let model = &server.model;
    model.permits.clone().try_acquire_owned().map_err(|e| {
        let why = match e {
            TryAcquireError::NoPermits => Failure::Full(model.queue),
            TryAcquireError::Closed => Failure::ShuttingDown,
        };
        ApiError::engine(why, model.transcriber.handle.is_alive())
    })
}

fn parse(
    server: &Server<ServedSpeech>,
    body: &[u8],
    boundary: &str,
    task: SpeechTask,
    (client, salt): (ClientId, Option<String>),
) -> Result<TranscriptionRequest, ApiError> {
    let speech = &server.model.transcriber.speech;
    let mut form = MultipartForm::read(body, boundary)?;
    let names = server.model.names();
    if let Some(model) = form.text("model")?.filter(|model| !names.contains(model)) {
        return Err(ApiError::no_model(&model, names));
    }
    let Some(file) = form.bytes("file").filter(|file| !file.is_empty()) else {
        return Err(ApiError::field("file", "file is missing or empty: it should be the sound"));
    };
    let language =
        match form.text("language")?.filter(|name| !name.is_empty() && task == SpeechTask::Transcribe) {
            None => None,
            Some(name) => speech.language(&name).ok_or_else(|| {
                let why = format!("language is not one that the model knows: {}", speech.known());
                ApiError::field("language", why)
            })?,
        };
    if task == SpeechTask::Translate && speech.languages.is_empty() {
        return Err(ApiError::bad("the model knows one language only, and does not translate"));
    }
    let prompt = form.text("prompt")?.unwrap_or_default();
    if prompt.len() > MAX_PROMPT {
        return Err(ApiError::field("prompt", format!("prompt should have at most {MAX_PROMPT} bytes")));
    }
    let format = form.text("response_format")?;
    let format = Format::named(format.as_deref().unwrap_or("json")).ok_or_else(|| {
        ApiError::field("response_format", "response_format should be json, text, srt, verbose_json or vtt")
    })?;
    let temperature =
        match form.text("temperature")? {
            None => 0.0,
            Some(text) => text.parse().ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(|| {
                ApiError::field("temperature", "temperature should be a number from 0 to 1")
            })?,
        };
    granularities(&mut form, format)?;
    // Accepted and ignored, as OpenAI's whisper-1 does: the answer is not streamed.
    form.text("stream")?;
    form.finish()?;
    // `file` is a slice of `body`.
    let start = file.as_ptr() as usize - body.as_ptr() as usize;
    let file = start..start + file.len();
    Ok(TranscriptionRequest {
        file,
        options: TranscribeOptions { language, task, prompt, temperature, client, salt },
        format,
    })
}

/// Checks the requested timestamps. Those of words are not available.
fn granularities(form: &mut MultipartForm<'_>, format: Format) -> Result<(), ApiError> {
    const FIELD: &str = "timestamp_granularities[]";
    for wanted in form.texts(FIELD)? {
        match wanted.as_str() {
            "segment" if format == Format::VerboseJson => {}
            "segment" => {
                return Err(ApiError::field(FIELD, format!("{FIELD} is for response_format verbose_json")));
            }
            "word" => {
                let why = format!("{FIELD}: times of single words are not supported; take segment");
                return Err(ApiError::field(FIELD, why).code("unsupported_value"));
            }
            _ => return Err(ApiError::field(FIELD, format!("{FIELD} should be segment"))),
        }
    }
    Ok(())
}

/// Transcribes the audio file.
async fn transcribe(
    server: &Server<ServedSpeech>,
    file: Vec<u8>,
    parsed: TranscriptionRequest,
    task: SpeechTask,
) -> Result<(String, Format), ApiError> {
    let transcriber = &server.model.transcriber;
    let bad_file = |why: &dyn std::fmt::Display| ApiError::field("file", format!("file: {why}"));
    let mut audio = Audio::bytes(file).map_err(|e| bad_file(&e))?;
    let mut segments = Vec::new();
    let mut more = |n: usize| audio.read(n).map_err(|e| e.to_string());
    let mut tell = |some: &[Segment], _: f64| segments.extend_from_slice(some);
    let result = transcriber.run(&parsed.options, &mut more, &mut tell).await;
    let transcription = result.map_err(|e| match e {
        Interrupted::Failure(why) => ApiError::engine(why, transcriber.handle.is_alive()),
        Interrupted::Sound(why) => bad_file(&why),
        Interrupted::Prompt(why) => ApiError::field("prompt", format!("prompt: {why}")),
    })?;
    Ok((Transcript { task, transcription, segments }.written(parsed.format), parsed.format))
}
