//! Speech recognition with a [`Seq2Seq`](crate::seq2seq::Seq2Seq) (Whisper). Samples become log-mel frames in [`tallow_media::mel`],
//! tokens are chosen by the timestamp rules in [`rules`], and a window's tokens are split into segments in [`window`].

pub mod rules;
pub mod window;

use serde_json::Value;
use tallow_checkpoint::Settings;
use tallow_text::tokenizer::Tokenizer;

use crate::error::{LoadError, Result};
use crate::seq2seq::Seq2SeqModel;

/// Samples per second.
pub const RATE: usize = tallow_media::audio::RATE as usize;
/// Seconds per timestamp token.
pub const TICK: f64 = 0.02;
const FILE: &str = "generation_config.json";

/// Whisper task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeechTask {
    /// Transcription: text in the spoken language.
    Transcribe,
    /// Translation: text in English.
    Translate,
}

/// Special tokens of a speech model, and which tokens it suppresses.
#[derive(Debug, Clone)]
pub struct Speech {
    /// `<|startoftranscript|>`
    pub start: u32,
    /// `<|endoftext|>`. All text tokens are below it.
    pub end: u32,
    /// `<|startofprev|>`, before the text of earlier windows.
    pub before: Option<u32>,
    /// `<|nospeech|>`, in older vocabularies `<|nocaptions|>`.
    pub silence: Option<u32>,
    /// `<|notimestamps|>`. The timestamp tokens follow it.
    pub timeless: u32,
    /// Language codes and their tokens. Empty for a monolingual model.
    pub languages: Vec<(String, u32)>,
    transcribe: u32,
    translate: u32,
    never: Vec<u32>,
    never_first: Vec<u32>,
    latest_start: u32,
    vocab: usize,
    /// Most tokens of the decoder in a window, prompt included.
    pub context: usize,
}

impl Speech {
    /// Reads the settings from a model's files.
    pub fn read(model: &Seq2SeqModel, tokenizer: &Tokenizer) -> Result<Speech> {
        let (checkpoint, spec) = (&model.checkpoint, &model.spec);
        let own = checkpoint.json_file(FILE)?.unwrap_or_default();
        let Settings::Hf(config) = &checkpoint.settings else {
            return Err(LoadError::unsupported(&checkpoint.path, "speech", "Hugging Face folders are read"));
        };
        let vocab = spec.decoder.vocab;
        let missing = |text: &str| {
            let why = format!("has no token {text}: it is not that of a model of speech");
            LoadError::bad(&checkpoint.path.join("tokenizer.json"), "the vocabulary", why)
        };
        let find = |text: &str| tokenizer.id_of(text).filter(|id| (*id as usize) < vocab);
        let need = |text: &str| find(text).ok_or_else(|| missing(text));
        let list = |key: &str| -> Result<Vec<u32>> {
            let value = if own[key].is_null() { &config[key] } else { &own[key] };
            let id =
                |v: &Value| v.as_i64().and_then(|n| u32::try_from(n).ok()).filter(|n| (*n as usize) < vocab);
            match value {
                Value::Null => Ok(Vec::new()),
                Value::Array(ids) => Ok(ids.iter().filter_map(id).collect()),
                other => {
                    Err(LoadError::bad(&checkpoint.path.join(FILE), key, format!("is {other}, not a list")))
                }
            }
        };
        let (end, transcribe) = (need("<|endoftext|>")?, need("<|transcribe|>")?);
        let (translate, timeless) = (need("<|translate|>")?, need("<|notimestamps|>")?);
        if timeless as usize + 1 >= vocab {
            return Err(missing("<|0.00|>"));
        }
        let several = own["is_multilingual"].as_bool().unwrap_or(vocab >= 51865);
        let codes = (spec.start + 1..translate.min(transcribe)).filter(|_| several);
        let code = |id: u32| {
            let text = tokenizer.token_text(id)?.strip_prefix("<|")?.strip_suffix("|>")?;
            Some((text.to_owned(), id))
        };
        let latest = own["max_initial_timestamp_index"].as_u64().and_then(|n| u32::try_from(n).ok());
        Ok(Speech {
            start: spec.start,
            end,
            before: find("<|startofprev|>"),
            silence: find("<|nospeech|>").or_else(|| find("<|nocaptions|>")),
            timeless,
            languages: codes.filter_map(code).collect(),
            transcribe,
            translate,
            never: list("suppress_tokens")?,
            never_first: list("begin_suppress_tokens")?,
            latest_start: latest.unwrap_or(50),
            vocab,
            context: spec.decoder.context,
        })
    }

    /// The first timestamp token, `<|0.00|>`: the start of a window.
    pub fn zero(&self) -> u32 {
        self.timeless + 1
    }

    /// A language's token, by its code or English name: `Some(None)` for a monolingual model, which has no such token;
    /// `None` for an unknown language.
    pub fn language(&self, name: &str) -> Option<Option<u32>> {
        let name = name.to_lowercase();
        let code = NAMES.iter().find(|(_, full)| *full == name).map_or(name.as_str(), |(code, _)| *code);
        match self.languages.iter().find(|(known, _)| known == code) {
            Some((_, id)) => Some(Some(*id)),
            None => (self.languages.is_empty() && code == "en").then_some(None),
        }
    }

    /// Codes of the known languages, for messages.
    pub fn known(&self) -> String {
        let codes = self.languages.iter().map(|(code, _)| code.as_str());
        if self.languages.is_empty() { "en".into() } else { codes.collect::<Vec<_>>().join(", ") }
    }

    /// Language and task tokens, which follow the start token.
    pub fn setting(&self, language: Option<u32>, task: SpeechTask) -> Vec<u32> {
        let task = if task == SpeechTask::Transcribe { self.transcribe } else { self.translate };
        language.map_or(Vec::new(), |language| vec![language, task])
    }

    /// Language code of a language token.
    pub fn code(&self, language: u32) -> Option<&str> {
        self.languages.iter().find(|(_, id)| *id == language).map(|(code, _)| code.as_str())
    }
}

/// English name of a language code.
pub fn name_of(code: &str) -> &str {
    NAMES.iter().find(|(known, _)| *known == code).map_or(code, |(_, name)| name)
}

/// Language codes and English names.
const NAMES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];
