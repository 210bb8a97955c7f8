//! [`Transcriber`]: transcribes audio of any length to timestamped segments, window by window (Whisper). Audio is read and
//! text is cut on its caller's thread; windows are decoded by an [`engine`](crate::engine), which batches them with those
//! of others.

use std::sync::{Arc, Mutex, PoisonError};

use tallow_media::mel::{HOP, LogMel};
use tallow_models::speech::rules::{choose, language, likelihood};
use tallow_models::speech::window::{cut, repetition};
use tallow_models::speech::{RATE, Speech, SpeechTask};
use tallow_text::tokenizer::{Shown, Special, TokenizeError, Tokenizer};

use crate::encoder_input::EncoderInput;
use crate::failure::Failure;
use crate::handle::{EngineHandle, Event, Request};
use crate::sampler::{LogitsPolicy, uniform};
use crate::scheduler::ClientId;

/// Above this compression ratio a text is repetitive and is decoded again.
const MAX_COMPRESSION_RATIO: f32 = 2.4;
/// Below this mean log-probability of its tokens a text is unlikely and is decoded again.
const MIN_AVG_LOGPROB: f32 = -1.0;
/// A window is silent if its no-speech probability is above this and its text is unlikely.
const NO_SPEECH_THRESHOLD: f32 = 0.6;
/// Temperature step of the fallback for unlikely or repetitive text.
const TEMPERATURES: f32 = 0.2;

/// Options of a transcription.
#[derive(Debug, Clone)]
pub struct TranscribeOptions {
    /// Language token; detected if `None`.
    pub language: Option<u32>,
    /// Transcribe or translate.
    pub task: SpeechTask,
    /// Text that could precede the audio (Whisper's `initial_prompt`), for the first window.
    pub prompt: String,
    /// First temperature; 0 is greedy.
    pub temperature: f32,
    /// Client; clients share the slots evenly.
    pub client: ClientId,
    /// Salt of the cache: only requests with the same salt share what was encoded.
    pub salt: Option<String>,
}

/// A transcribed segment.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Start of its window, in seconds.
    pub seek: f64,
    /// Start time in seconds.
    pub start: f64,
    /// End time in seconds.
    pub end: f64,
    /// Transcribed text.
    pub text: String,
    /// Text tokens.
    pub tokens: Vec<u32>,
    /// Temperature that its window was decoded with.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub mean_log: f32,
    /// Compression ratio of the window's text.
    pub repetition: f32,
    /// No-speech probability of the window.
    pub silence: f32,
}

/// Summary of a transcription; its segments are passed to `tell` on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcription {
    /// Language code, if the model is multilingual.
    pub language: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Why a transcription was interrupted.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// The model failed.
    #[error("{0}")]
    Failure(#[from] Failure),
    /// The audio could not be read.
    #[error("{0}")]
    Sound(String),
    /// The prompt could not be tokenized.
    #[error("the prompt: {0}")]
    Prompt(#[from] TokenizeError),
}

/// Transcribes audio with the engine of a speech model. Clones share everything.
#[derive(Debug, Clone)]
pub struct Transcriber {
    /// The engine.
    pub handle: EngineHandle,
    /// Special tokens and rules of the model.
    pub speech: Arc<Speech>,
    tokenizer: Tokenizer,
    mel: Arc<LogMel>,
    /// Tokens of the encoder's output for a window.
    encoder_tokens: usize,
}

/// Decoded tokens of a window.
#[derive(Debug, Default)]
struct Draft {
    language: Option<u32>,
    tokens: Vec<u32>,
    /// Log-probability of each token, and of the one that ended the draft.
    logs: Vec<f32>,
    silence: f32,
    temperature: f32,
}

impl Draft {
    fn mean_log(&self) -> f32 {
        self.logs.iter().fold(0.0, |sum, log| sum + log) / (self.tokens.len() + 1) as f32
    }

    fn is_silence(&self) -> bool {
        self.silence > NO_SPEECH_THRESHOLD && self.mean_log() < MIN_AVG_LOGPROB
    }
}

/// Whisper's rules for the tokens of a window: language and task, then text and timestamps, greedily or sampled by the
/// draft's temperature.
#[derive(Debug)]
struct SpeechPolicy {
    speech: Arc<Speech>,
    task: SpeechTask,
    /// Language token; detected if `None`.
    language: Option<u32>,
    draft: Mutex<Draft>,
}

impl LogitsPolicy for SpeechPolicy {
    fn choose(&self, written: &[u32], logits: &[f32]) -> u32 {
        let speech = &self.speech;
        let mut draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner);
        if written.is_empty() {
            draft.silence = speech.silence.map_or(0.0, |token| likelihood(logits, token));
            draft.language = self.language.or_else(|| language(speech, logits));
        }
        let setting = speech.setting(draft.language, self.task);
        if let Some(token) = setting.get(written.len()) {
            return *token;
        }
        let written = &written[setting.len()..];
        let draw = uniform(u64::from(draft.temperature.to_bits()), written.len());
        let chosen = choose(speech, written, logits, draft.temperature, draw);
        // A step that fails is repeated: what it added is replaced.
        draft.tokens.truncate(written.len());
        draft.logs.truncate(written.len());
        draft.logs.push(chosen.log);
        if chosen.token == speech.end || written.len() >= speech.context / 2 {
            return speech.end;
        }
        draft.tokens.push(chosen.token);
        chosen.token
    }
}

impl Transcriber {
    /// A transcriber for a model whose windows are log-mel frames of `bands` bands, and have `encoder_tokens` tokens once
    /// encoded.
    pub fn new(
        handle: EngineHandle,
        speech: Speech,
        tokenizer: Tokenizer,
        bands: usize,
        encoder_tokens: usize,
    ) -> Transcriber {
        let (speech, mel) = (Arc::new(speech), Arc::new(LogMel::new(bands)));
        Transcriber { handle, speech, tokenizer, mel, encoder_tokens }
    }

    /// Samples per window.
    fn window(&self) -> usize {
        2 * self.encoder_tokens * HOP
    }

    /// Transcribes audio. `more(n)` returns the next `n` samples, fewer at the end. After each window `tell` is called
    /// with its segments and the number of seconds done. Dropping the future cancels the window that is decoded.
    pub async fn run(
        &self,
        wish: &TranscribeOptions,
        more: &mut dyn FnMut(usize) -> Result<Vec<f32>, String>,
        tell: &mut dyn FnMut(&[Segment], f64),
    ) -> Result<Transcription, Interrupted> {
        let (window, mut language) = (self.window(), wish.language);
        let (mut samples, mut before, mut ended) = (Vec::new(), 0usize, false);
        let mut begun = self.begun(&wish.prompt)?;
        loop {
            if !ended {
                let wanted = window - samples.len();
                let some = more(wanted).map_err(Interrupted::Sound)?;
                ended = some.len() < wanted;
                samples.extend(some);
            }
            if samples.is_empty() {
                let code = language.and_then(|id| self.speech.code(id)).map(str::to_owned);
                return Ok(Transcription { language: code, seconds: before as f64 / RATE as f64 });
            }
            let draft = self.draft(wish, language, &begun, &samples).await?;
            language = language.or(draft.language);
            begun = vec![self.speech.start];
            let (seek, seconds) = (before as f64 / RATE as f64, samples.len() as f64 / RATE as f64);
            let (pieces, done) = cut(&self.speech, &draft.tokens, seconds);
            let all = self.tokenizer.decode(&draft.tokens, Shown::Text);
            let segment = |piece: tallow_models::speech::window::Piece| Segment {
                seek,
                start: seek + piece.start,
                end: seek + piece.end.min(seconds.max(piece.start)),
                text: self.tokenizer.decode(&piece.tokens, Shown::Text),
                tokens: piece.tokens,
                temperature: draft.temperature,
                mean_log: draft.mean_log(),
                repetition: repetition(&all),
                silence: draft.silence,
            };
            let silent = draft.is_silence();
            let segments = pieces.into_iter().map(segment).filter(|s| !silent && !s.text.trim().is_empty());
            let segments: Vec<Segment> = segments.collect();
            let done = if silent { seconds } else { done };
            let step = ((done * RATE as f64).round() as usize).clamp(1, samples.len());
            samples.drain(..step);
            before += step;
            tell(&segments, before as f64 / RATE as f64);
        }
    }

    /// Decoder prompt of the first window: the user's prompt, if any, as previous text, and the start token.
    fn begun(&self, prompt: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut begun = Vec::new();
        if let (Some(before), text) = (self.speech.before, prompt.trim())
            && !text.is_empty()
        {
            let tokens = self.tokenizer.encode(&format!(" {text}"), Special::BARE)?;
            let most = (self.speech.context / 2).saturating_sub(1).min(tokens.len());
            begun.push(before);
            begun.extend(&tokens[tokens.len() - most..]);
        }
        begun.push(self.speech.start);
        Ok(begun)
    }

    /// Decodes a window: the first draft that is neither unlikely nor repetitive, or the last one (temperature
    /// fallback).
    async fn draft(
        &self,
        wish: &TranscribeOptions,
        language: Option<u32>,
        begun: &[u32],
        samples: &[f32],
    ) -> Result<Draft, Failure> {
        let frames = self.mel.frames(samples, 2 * self.encoder_tokens);
        let input = Arc::new(EncoderInput::Mel(frames));
        let mut temperature = wish.temperature;
        loop {
            let policy = Arc::new(SpeechPolicy {
                speech: self.speech.clone(),
                task: wish.task,
                language,
                draft: Mutex::new(Draft { temperature, ..Draft::default() }),
            });
            let request = Request {
                prompt: begun.to_vec(),
                max_new: usize::MAX,
                stop_tokens: vec![self.speech.end],
                ignore_end: true,
                client: wish.client,
                salt: wish.salt.clone(),
                input: Some(input.clone()),
                policy: Some(policy.clone()),
                ..Request::default()
            };
            self.end_of(request).await?;
            let draft = std::mem::take(&mut *policy.draft.lock().unwrap_or_else(PoisonError::into_inner));
            let text = self.tokenizer.decode(&draft.tokens, Shown::Text);
            let poor = repetition(&text) > MAX_COMPRESSION_RATIO || draft.mean_log() < MIN_AVG_LOGPROB;
            if !poor || draft.is_silence() || temperature + TEMPERATURES > 1.0 + 1e-6 {
                return Ok(draft);
            }
            temperature += TEMPERATURES;
        }
    }

    /// Submits a request and waits for its end.
    async fn end_of(&self, request: Request) -> Result<(), Failure> {
        let mut events = self.handle.submit(request)?;
        loop {
            match events.recv().await {
                Some(Event::Done(_)) => return Ok(()),
                Some(Event::Failed(why)) => return Err(why),
                Some(_) => {}
                None => return Err(self.handle.shutdown_reason()),
            }
        }
    }
}
