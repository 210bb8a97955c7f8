//! The `tallow` program.

#![deny(clippy::print_stderr)]

mod args;
mod build;
mod chat;
mod chunks;
mod clock;
mod commands;
mod decoder;
mod descriptors;
mod devices;
mod disk_cache;
mod encoder;
mod env;
mod fit;
mod hub;
mod load;
mod log;
mod lora;
mod memory;
mod model_name;
mod model_store;
mod notice;
mod partial_file;
mod remote;
mod seq2seq;
mod settings;
mod signal;
mod single_runner;
mod terminal;

use std::fmt;
use std::process::ExitCode;

use args::{Cli, Command};

/// Why a command failed, as shown to the user.
#[derive(Debug)]
pub(crate) struct Failed {
    why: String,
    /// Broken pipe: the reader of our output is gone, so nothing is reported.
    quiet: bool,
    /// True if a model does not fit into the memory that is free.
    no_room: bool,
}

impl Failed {
    pub(crate) fn new(why: impl fmt::Display) -> Failed {
        Failed { why: why.to_string(), quiet: false, no_room: false }
    }

    /// A model does not fit into the memory that is free.
    pub(crate) fn no_room(why: impl fmt::Display) -> Failed {
        Failed { no_room: true, ..Failed::new(why) }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<std::io::Error> for Failed {
    fn from(e: std::io::Error) -> Failed {
        Failed { quiet: e.kind() == std::io::ErrorKind::BrokenPipe, ..Failed::new(e) }
    }
}

/// Errors whose own message says enough.
macro_rules! from {
    ($($error:ty),*) => { $(impl From<$error> for Failed { fn from(e: $error) -> Failed { Failed::new(e) } })* };
}
from!(
    tallow_media::audio::AudioError,
    tallow_core::Error,
    tallow_engine::handle::Failure,
    tallow_engine::transcribe::Interrupted,
    tallow_hub::HubError,
    tallow_checkpoint::FileError,
    tallow_models::LoadError,
    tallow_models::encoder::InputError,
    tallow_text::template::PromptError,
    tallow_text::tokenizer::TokenizeError
);

fn main() -> ExitCode {
    // SAFETY: `main` has just begun, so no other thread exists that could access the environment.
    unsafe { env::quiet_drivers() };
    // Journey, stop 1: the command line.
    let cli = args::parse();
    let serves = matches!(cli.command, Command::Serve(_));
    match log::start(&cli.log, serves).and_then(|()| run(cli)) {
        Err(failed) if !failed.quiet => {
            log::final_line(&format!("{} {}", terminal::red("error:"), terminal::sanitized(&failed.why)));
            ExitCode::FAILURE
        }
        Ok(()) | Err(_) => {
            log::finish();
            ExitCode::SUCCESS
        }
    }
}

fn run(mut cli: Cli) -> Result<(), Failed> {
    let mut sources = settings::Sources::read(cli.config.as_deref())?;
    cli.command.settle(&mut sources)?;
    match cli.command {
        Command::Run(mut args) => {
            args.verbose = cli.log.verbose > 0;
            commands::run::run(args, &sources)
        }
        Command::Serve(args) => commands::serve::serve(args, &sources),
        Command::Bench(args) => commands::bench::bench(&args, &sources),
        Command::Ps(args) => commands::ps::ps(&args, &sources),
        Command::Stop(args) => commands::ps::stop(&args, &sources),
        Command::Pull(args) => commands::hub::pull(&args, &sources),
        Command::Search(args) => commands::hub::search(&args, &sources),
        Command::List(args) => commands::hub::list(&args),
        Command::Rm(args) => commands::hub::rm(&args),
        Command::Show(args) => commands::show::show(&args, &sources),
        Command::Convert(args) => commands::convert::convert(&args, &sources),
        Command::Pack(args) => commands::pack::pack(&args, &sources),
        Command::Doctor(args) => commands::doctor::doctor(args, &sources),
        Command::Replay(args) => commands::replay::replay(args, &sources),
        Command::Embed(args) => commands::embed::embed(&args, &sources),
        Command::Rerank(args) => commands::embed::rerank(&args, &sources),
        Command::Classify(args) => commands::embed::classify(&args, &sources),
        Command::Transcribe(args) => commands::transcribe::transcribe(&args, &sources),
        Command::Parse(args) => commands::parse::parse(&args),
        Command::Schema(args) => commands::schema::schema(&args, &sources),
        Command::Tokenize(args) => commands::tokenize::tokenize(&args, &sources),
        Command::Perplexity(args) => commands::perplexity::perplexity(&args, &sources),
        Command::Imatrix(args) => commands::imatrix::imatrix(&args, &sources),
        Command::Dump(args) => commands::dump::dump(&args, &sources),
        Command::Completions(args) => commands::completions(&args),
    }
}
