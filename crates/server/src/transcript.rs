//! [`Transcript`]: a transcription in the response formats of OpenAI's API.

use serde::Serialize;
use tallow_engine::transcribe::{Segment, Transcription};
use tallow_models::speech::{SpeechTask, name_of};

/// `response_format` of a transcription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// A JSON object with the text.
    Json,
    /// JSON with all segments and their statistics.
    VerboseJson,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
}

impl Format {
    /// Parses a request's `response_format`.
    pub fn named(name: &str) -> Option<Format> {
        Some(match name {
            "text" => Format::Text,
            "json" => Format::Json,
            "verbose_json" => Format::VerboseJson,
            "srt" => Format::Srt,
            "vtt" => Format::Vtt,
            _ => return None,
        })
    }

    /// Content type.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Format::Json | Format::VerboseJson => "application/json",
            Format::Text => "text/plain; charset=utf-8",
            Format::Srt => "application/x-subrip; charset=utf-8",
            Format::Vtt => "text/vtt; charset=utf-8",
        }
    }
}

/// A finished transcription.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// Transcription or translation.
    pub task: SpeechTask,
    /// Language and duration.
    pub transcription: Transcription,
    /// Segments.
    pub segments: Vec<Segment>,
}

#[derive(Serialize)]
struct Usage {
    r#type: &'static str,
    seconds: f64,
}

#[derive(Serialize)]
struct Brief<'a> {
    text: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Verbose<'a> {
    task: &'static str,
    language: &'a str,
    duration: f64,
    text: &'a str,
    segments: Vec<Piece<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct Piece<'a> {
    id: usize,
    seek: u64,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: &'a [u32],
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

impl Transcript {
    /// Text of all segments.
    fn text(&self) -> String {
        let all: String = self.segments.iter().map(|s| s.text.as_str()).collect();
        all.trim().to_owned()
    }

    /// Formats the transcript.
    pub fn written(&self, format: Format) -> String {
        match format {
            Format::Text => self.text() + "\n",
            Format::Json => json(&Brief { text: &self.text(), usage: self.usage() }),
            Format::VerboseJson => self.verbose(),
            Format::Srt => self.subtitles(',', |i| format!("{}\n", i + 1)),
            Format::Vtt => "WEBVTT\n\n".to_owned() + &self.subtitles('.', |_| String::new()),
        }
    }

    fn usage(&self) -> Usage {
        Usage { r#type: "duration", seconds: self.transcription.seconds.ceil() }
    }

    fn verbose(&self) -> String {
        fn piece((id, s): (usize, &Segment)) -> Piece<'_> {
            Piece {
                id,
                // In frames of 10 ms.
                seek: (s.seek * 100.0).round() as u64,
                start: hundredths(s.start),
                end: hundredths(s.end),
                text: &s.text,
                tokens: &s.tokens,
                temperature: s.temperature,
                avg_logprob: s.mean_log,
                compression_ratio: s.repetition,
                no_speech_prob: s.silence,
            }
        }
        let segments = self.segments.iter().enumerate().map(piece).collect();
        json(&Verbose {
            task: if self.task == SpeechTask::Transcribe { "transcribe" } else { "translate" },
            language: match self.task {
                SpeechTask::Transcribe => name_of(self.transcription.language.as_deref().unwrap_or("en")),
                SpeechTask::Translate => "english",
            },
            duration: self.transcription.seconds,
            text: &self.text(),
            segments,
            usage: self.usage(),
        })
    }

    fn subtitles(&self, mark: char, number: impl Fn(usize) -> String) -> String {
        let one = |(i, s): (usize, &Segment)| {
            // `-->` in a text would be parsed as a cue's times.
            let text = s.text.trim().replace("-->", "->");
            format!("{}{} --> {}\n{text}\n\n", number(i), clock(s.start, mark), clock(s.end, mark))
        };
        self.segments.iter().enumerate().map(one).collect()
    }
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

fn json(value: &impl Serialize) -> String {
    // Serialization of strings and finite floats cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// Time stamp such as `00:01:02.340`, with `mark` in front of the milliseconds.
pub fn clock(seconds: f64, mark: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    format!("{:02}:{:02}:{:02}{mark}{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |start, end, text: &str| Segment {
            seek: 0.0,
            start,
            end,
            text: text.into(),
            tokens: vec![50364, 7],
            temperature: 0.0,
            mean_log: -0.25,
            repetition: 1.5,
            silence: 0.125,
        };
        let segments = vec![segment(0.0, 2.5, " Ask not"), segment(3661.04, 3662.0, " what --> you can.")];
        Transcript {
            task: SpeechTask::Transcribe,
            transcription: Transcription { language: Some("de".into()), seconds: 11.25 },
            segments,
        }
    }

    #[test]
    fn every_form_is_as_clients_know_it() {
        let of = |format| transcript().written(format);
        assert_eq!(of(Format::Text), "Ask not what --> you can.\n");
        assert_eq!(
            of(Format::Json),
            r#"{"text":"Ask not what --> you can.","usage":{"type":"duration","seconds":12.0}}"#
        );
        let srt = "1\n00:00:00,000 --> 00:00:02,500\nAsk not\n\n2\n01:01:01,040 --> 01:01:02,000\nwhat -> you can.\n\n";
        assert_eq!(of(Format::Srt), srt);
        let vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nAsk not\n\n01:01:01.040 --> 01:01:02.000\nwhat -> you can.\n\n";
        assert_eq!(of(Format::Vtt), vtt);
        let verbose: serde_json::Value = serde_json::from_str(&of(Format::VerboseJson)).unwrap();
        assert_eq!(verbose["language"], "german");
        assert_eq!(verbose["segments"][1]["start"], 3661.04);
        assert_eq!(verbose["segments"][0]["avg_logprob"], -0.25);
        assert_eq!(verbose["task"], "transcribe");
    }
}
