//! [`Transcriber`]: transcribes audio of any length to timestamped segments, window by window (Whisper). It runs on its
//! caller's thread; model calls go to the [`seq2seq`](crate::seq2seq) engine, which batches them with other tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tallow_media::mel::{HOP, LogMel};
use tallow_models::speech::rules::{choose, language, likelihood};
use tallow_models::speech::window::{cut, repetition};
use tallow_models::speech::{Job, RATE, Speech};
use tallow_text::tokenizer::{Shown, Special, TokenizeError, Tokenizer};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::seq2seq::{EncoderInput, LogitsPolicy, Seq2SeqHandle, Task};

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
    pub job: Job,
    /// Text that could precede the audio (Whisper's `initial_prompt`), for the first window.
    pub prompt: String,
    /// First temperature; 0 is greedy.
    pub temperature: f32,
    /// Set when the client is gone.
    pub gone: Arc<AtomicBool>,
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

/// Transcribes audio with a seq2seq engine. Clones share everything.
#[derive(Debug, Clone)]
pub struct Transcriber {
    /// Seq2seq engine.
    pub handle: Seq2SeqHandle,
    /// Special tokens and rules of the model.
    pub speech: Arc<Speech>,
    tokenizer: Tokenizer,
    mel: Arc<LogMel>,
}

/// Decoded tokens of a window.
struct Draft {
    language: Option<u32>,
    tokens: Vec<u32>,
    logs: f32,
    silence: f32,
    temperature: f32,
}

impl Draft {
    fn mean_log(&self) -> f32 {
        self.logs / (self.tokens.len() + 1) as f32
    }

    fn is_silence(&self) -> bool {
        self.silence > NO_SPEECH_THRESHOLD && self.mean_log() < MIN_AVG_LOGPROB
    }
}

/// Decodes a draft, greedily or sampled by its temperature.
struct GreedyOrSampled {
    speech: Arc<Speech>,
    job: Job,
    draft: Draft,
    begun: bool,
    draws: u64,
    gone: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<Draft, Failure>>,
}

impl GreedyOrSampled {
    /// Uniform in [0, 1), from the state alone (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.draws = self.draws.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.draws ^ self.draws >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl LogitsPolicy for GreedyOrSampled {
    fn next(&mut self, logits: &[f32]) -> Vec<u32> {
        let speech = self.speech.clone();
        if !self.begun {
            self.begun = true;
            self.draft.silence = speech.silence.map_or(0.0, |token| likelihood(logits, token));
            self.draft.language = self.draft.language.or_else(|| language(&speech, logits));
            let setting = speech.setting(self.draft.language, self.job);
            if !setting.is_empty() {
                return setting;
            }
        }
        let draw = self.draw();
        let chosen = choose(&speech, &self.draft.tokens, logits, self.draft.temperature, draw);
        self.draft.logs += chosen.log;
        if chosen.token == speech.end || self.draft.tokens.len() >= speech.context / 2 {
            return Vec::new();
        }
        self.draft.tokens.push(chosen.token);
        vec![chosen.token]
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn end(self: Box<Self>, how: Result<(), Failure>) {
        let GreedyOrSampled { draft, reply, .. } = *self;
        // The caller may be gone.
        let _ = reply.send(how.map(|()| draft));
    }
}

impl Transcriber {
    /// A transcriber for a model whose log-mel frames have `bands` bands.
    pub fn new(handle: Seq2SeqHandle, speech: Speech, tokenizer: Tokenizer, bands: usize) -> Transcriber {
        Transcriber { handle, speech: Arc::new(speech), tokenizer, mel: Arc::new(LogMel::new(bands)) }
    }

    /// Samples per window.
    fn window(&self) -> usize {
        2 * self.handle.info().encoder_tokens * HOP
    }

    /// Transcribes audio. `more(n)` returns the next `n` samples, fewer at the end. After each window `tell` is called
    /// with its segments and the number of seconds done.
    pub fn run(
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
            if samples.is_empty() || wish.gone.load(Ordering::Relaxed) {
                let code = language.and_then(|id| self.speech.code(id)).map(str::to_owned);
                return Ok(Transcription { language: code, seconds: before as f64 / RATE as f64 });
            }
            let draft = self.draft(wish, language, &begun, &samples)?;
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
    fn draft(
        &self,
        wish: &TranscribeOptions,
        language: Option<u32>,
        begun: &[u32],
        samples: &[f32],
    ) -> Result<Draft, Interrupted> {
        let sound = self.mel.frames(samples, 2 * self.handle.info().encoder_tokens);
        let mut temperature = wish.temperature;
        loop {
            let (reply, answer) = oneshot::channel();
            let draft = Draft { language, tokens: Vec::new(), logs: 0.0, silence: 0.0, temperature };
            let policy = GreedyOrSampled {
                speech: self.speech.clone(),
                job: wish.job,
                draft,
                begun: false,
                draws: u64::from(temperature.to_bits()),
                gone: wish.gone.clone(),
                reply,
            };
            let input = EncoderInput::Mel(sound.clone());
            self.handle.submit(Task { input, prompt: begun.to_vec(), policy: Box::new(policy) })?;
            let draft = answer.blocking_recv().map_err(|_| self.handle.shutdown_reason())??;
            let text = self.tokenizer.decode(&draft.tokens, Shown::Text);
            let poor = repetition(&text) > MAX_COMPRESSION_RATIO || draft.mean_log() < MIN_AVG_LOGPROB;
            if !poor || draft.is_silence() || temperature + TEMPERATURES > 1.0 + 1e-6 {
                return Ok(draft);
            }
            temperature += TEMPERATURES;
        }
    }
}
