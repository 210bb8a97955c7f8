//! Commands that run encoders: embeddings, reranking, speech.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::DeviceArgs;

#[derive(Debug, Args)]
pub(crate) struct Embed {
    /// The embedding model (an encoder)
    pub model: String,
    /// The texts [default: the lines of standard input, unless there are images]
    pub text: Vec<String>,
    /// Image file to embed; may be given several times
    ///
    /// For models that see images, as CLIP and SigLIP. Images come after the texts.
    #[arg(short, long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// Print how well each text matches each image (zero-shot)
    ///
    /// Instead of embeddings. For models that were trained on pairs of texts and images, as CLIP and SigLIP were.
    #[arg(long = "match", requires = "images", conflicts_with = "dimensions")]
    pub matching: bool,
    /// Keep only the first N numbers of each embedding
    ///
    /// For models that were trained for it (Matryoshka embeddings).
    #[arg(long, value_name = "N")]
    pub dimensions: Option<usize>,
    /// Cut texts that are longer than the context
    #[arg(long)]
    pub truncate: bool,
    /// Write JSON, one object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Rerank {
    /// The reranker
    pub model: String,
    /// The query
    pub query: String,
    /// The documents [default: the lines of standard input]
    pub documents: Vec<String>,
    /// Print only the N best documents
    #[arg(short = 'n', long, value_name = "N", alias = "top-k")]
    pub top_n: Option<usize>,
    /// Refuse documents that are too long instead of cutting them
    #[arg(long)]
    pub no_truncate: bool,
    /// Write JSON, one object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Classify {
    /// The classifier (an encoder with a classification head)
    pub model: String,
    /// The texts [default: the lines of standard input]
    pub text: Vec<String>,
    /// Cut texts that are longer than the context
    #[arg(long)]
    pub truncate: bool,
    /// Write JSON, one object per line, with the scores of all labels
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Output format of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transcript {
    /// The text alone
    Text,
    /// The text in a JSON object
    Json,
    /// All that is known of each segment
    VerboseJson,
    /// Subtitles (SubRip)
    Srt,
    /// Subtitles for the web (WebVTT)
    Vtt,
}

/// Output of a transcription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TranscribeTask {
    /// In the language that is spoken
    Transcribe,
    /// In English
    Translate,
}

#[derive(Debug, Args)]
pub(crate) struct Transcribe {
    /// The speech model (Whisper)
    pub model: String,
    /// Sound files: WAV, FLAC, MP3, M4A, OGG, WebM; - is stdin
    ///
    /// WAV, FLAC, MP3, M4A and MP4 (AAC, Opus), OGG (Opus, Vorbis) and WebM or Matroska are read. Of a video, the sound is
    /// transcribed. - reads a file from standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Language spoken: en, de, german, … [default: detected]
    ///
    /// The default is the language that the model detects in the first half minute.
    #[arg(long, value_name = "NAME")]
    pub language: Option<String>,
    /// transcribe, or translate into English
    #[arg(long, value_name = "TASK", default_value = "transcribe", hide_possible_values = true)]
    pub task: TranscribeTask,
    /// text, json, verbose-json, srt or vtt
    ///
    /// Output format: the text alone, the text in a JSON object, all that is known of each segment, or subtitles.
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub format: Transcript,
    /// With --format text: print the times of each segment
    #[arg(long)]
    pub timestamps: bool,
    /// Text that precedes the audio; sets style and spelling of names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prompt: String,
    /// 0 = greedy, with fallback to sampling where that fails
    ///
    /// Above 0 tokens are sampled.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub temperature: f32,
    #[command(flatten)]
    pub device: DeviceArgs,
}
