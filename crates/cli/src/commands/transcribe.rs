//! `tallow transcribe`: speech to text.

use std::io::{IsTerminal, Write};
use std::path::Path;

use tallow_engine::scheduler::ClientId;
use tallow_engine::transcribe::{Segment, TranscribeOptions, Transcriber};
use tallow_media::audio::Audio;
use tallow_models::speech::SpeechTask;
use tallow_server::transcript::{Format, Transcript, clock};

use super::print;
use crate::args::{self, Transcribe, TranscribeTask};
use crate::devices::Arithmetic;
use crate::encoder::Placement;
use crate::load;
use crate::model_name::short_name;
use crate::notice::Notice;
use crate::settings::Sources;
use crate::single_runner::Setup;
use crate::{Failed, seq2seq, terminal};

pub(crate) fn transcribe(args: &Transcribe, sources: &Sources) -> Result<(), Failed> {
    // A file that cannot be read should not cost the loading of a model.
    for file in args.files.iter().filter(|file| !is_stdin(file)) {
        opened(file)?;
    }
    check(args)?;
    let model =
        load::seq2seq(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    let placement = Placement::new(sources, &args.device)?;
    let kv = Setup::new(sources, &args.device, None, Arithmetic::Fast)?.kv;
    let names = vec![short_name(&args.model)];
    let (_running, transcriber) =
        seq2seq::transcriber(&model, names, placement, kv, 1, &Notice::show_passed_over)?;
    let speech = &transcriber.speech;
    let language = args.language.as_ref().map(|name| {
        let none = || Failed::new(format!("--language {name}: the model knows these: {}", speech.known()));
        speech.language(name).ok_or_else(none)
    });
    let task =
        if args.task == TranscribeTask::Translate { SpeechTask::Translate } else { SpeechTask::Transcribe };
    if task == SpeechTask::Translate && speech.languages.is_empty() {
        return Err(Failed::new("--task translate: the model knows one language only"));
    }
    let options = TranscribeOptions {
        language: language.transpose()?.flatten(),
        task,
        prompt: args.prompt.clone(),
        temperature: args.temperature,
        client: ClientId::default(),
        salt: None,
    };
    for (i, file) in args.files.iter().enumerate() {
        if args.files.len() > 1 && args.format == args::Transcript::Text {
            let name = file.display().to_string();
            print(&format!("{}==> {} <==\n", if i > 0 { "\n" } else { "" }, terminal::sanitized(&name)))?;
        }
        one(args, file, &transcriber, &options)?;
        if args.files.len() > 1 && args.format != args::Transcript::Text {
            print("\n")?;
        }
    }
    Ok(())
}

/// Rejects invalid options and combinations.
fn check(args: &Transcribe) -> Result<(), Failed> {
    if !(0.0..=1.0).contains(&args.temperature) {
        return Err(Failed::new(format!("--temperature is {}; 0 to 1 make sense", args.temperature)));
    }
    if args.timestamps && args.format != args::Transcript::Text {
        return Err(Failed::new(
            "--timestamps is for --format text: the others have times, or cannot have them",
        ));
    }
    if args.files.len() > 1 && matches!(args.format, args::Transcript::Srt | args::Transcript::Vtt) {
        return Err(Failed::new("--format srt and vtt are for one file: its times begin at its start"));
    }
    let stdin = args.files.iter().filter(|file| is_stdin(file)).count();
    if stdin > 1 {
        return Err(Failed::new("- is named more than once: there is one standard input"));
    }
    if stdin > 0 && std::io::stdin().is_terminal() {
        return Err(Failed::new("-: standard input is a terminal: pipe a sound file in, or name one"));
    }
    Ok(())
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn opened(file: &Path) -> Result<Audio, Failed> {
    let audio = if is_stdin(file) { Audio::piped(std::io::stdin()) } else { Audio::open(file) };
    audio.map_err(|why| Failed::new(format!("{}: {why}", file.display())))
}

/// Transcribes one file.
fn one(
    args: &Transcribe,
    file: &Path,
    transcriber: &Transcriber,
    options: &TranscribeOptions,
) -> Result<(), Failed> {
    let mut audio = opened(file)?;
    let bar = terminal::count_bar(audio.seconds.map_or(0, |s| s.ceil() as u64), "seconds");
    if audio.seconds.is_none_or(|s| s < 60.0) {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let (mut segments, mut lost) = (Vec::new(), None);
    let mut more = |n: usize| audio.read(n).map_err(|e| e.to_string());
    let mut tell = |some: &[Segment], done: f64| {
        if args.format == args::Transcript::Text {
            // Segments are shown as they come.
            let shown = bar.suspend(|| show(some, args.timestamps));
            lost = lost.take().or(shown.err());
        }
        segments.extend_from_slice(some);
        bar.set_position(done as u64);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let result = runtime.block_on(transcriber.run(options, &mut more, &mut tell));
    bar.finish_and_clear();
    let transcription = result.map_err(|why| Failed::new(format!("{}: {why}", file.display())))?;
    if let Some(why) = lost {
        return Err(why.into());
    }
    let transcript = Transcript { task: options.task, transcription, segments };
    match args.format {
        args::Transcript::Text => print(""),
        format => print(&transcript.written(written(format))),
    }
}

fn written(format: args::Transcript) -> Format {
    match format {
        args::Transcript::Text => Format::Text,
        args::Transcript::Json => Format::Json,
        args::Transcript::VerboseJson => Format::VerboseJson,
        args::Transcript::Srt => Format::Srt,
        args::Transcript::Vtt => Format::Vtt,
    }
}

/// Shows segments, one per line.
fn show(segments: &[Segment], times: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    for segment in segments {
        let text = terminal::sanitized(segment.text.trim());
        match times {
            true => writeln!(out, "[{} --> {}] {text}", clock(segment.start, '.'), clock(segment.end, '.'))?,
            false => writeln!(out, "{text}")?,
        }
    }
    out.flush()
}
