//! `tallow run`: one question, or a chat.

use std::io::IsTerminal;

use tallow_models::AnyModel;

use super::{print, repl, text_file, text_or_stdin};
use crate::Failed;
use crate::args::Run;
use crate::chat::{Answered, Talk, speed, writer};
use crate::load::{self, DEMO, Note};
use crate::lora::{self, Lora};
use crate::screen;
use crate::settings::{Defaults, Flags, Sources, resolve};

pub(crate) fn run(args: Run, sources: &Sources) -> Result<(), Failed> {
    let chat = args.prompt.is_empty() && args.file.is_none() && std::io::stdin().is_terminal();
    // A prompt that cannot be read should not cost the loading of a model.
    let prompt = match &args.file {
        _ if chat => String::new(),
        Some(file) => {
            let words = Some(args.prompt.join(" ")).filter(|words| !words.is_empty());
            std::iter::once(text_file(file)?).chain(words).collect::<Vec<_>>().join("\n\n")
        }
        None => text_or_stdin(&args.prompt)?,
    };
    let name = args.model.as_deref().unwrap_or(DEMO);
    let how = load::How::new(sources, args.engine.offline, args.engine.quant)?;
    let opened = match load::any(name, how)? {
        AnyModel::Decoder(model) => load::opened(name, *model)?,
        _ if args.lora.is_some() => {
            return Err(Failed::new("--lora: the model has an encoder, and takes no adapters"));
        }
        AnyModel::Scribe(_) if chat => {
            return Err(Failed::new(
                "the model answers one prompt at a time: give it one, as `tallow run MODEL PROMPT`",
            ));
        }
        AnyModel::Scribe(model) => return super::answer::answer(&model, &args, &prompt, sources),
        // This says why not.
        AnyModel::Encoder(_) => load::open(name, how)?,
    };
    let flags = Flags { engine: args.engine, sampling: args.sampling, ..Flags::default() };
    let mut config = opened.after_words(resolve(sources, &flags, &opened.generation, Defaults::CHAT))?;
    let adapters = Lora::open_all(args.lora.as_slice())?;
    config.adapter_room = lora::bytes(&adapters);
    let handle = opened.start(&config, vec![opened.name.clone()], &Note::show)?;
    lora::load(&handle, adapters)?;
    let words = opened.words()?;
    let templates = words.templates.as_ref().filter(|_| !args.raw);
    let max_tokens = config.max_tokens.as_ref().map(|s| s.value);
    let mut talk = Talk::new(handle, words.tokenizer.clone(), templates, max_tokens)?;
    talk.system = args.system;
    talk.stops = args.stop;
    if chat {
        return repl::chat(&opened, &config, talk, args.verbose);
    }
    let mut show = writer();
    if !talk.has_template() {
        // The model goes on with the prompt, so the two are read as one.
        show(&prompt)?;
    }
    let answered = talk.say(&prompt, &mut show)?;
    show("\n")?;
    match answered {
        Answered::Whole(done) if args.verbose => screen::tell(&screen::dim(&speed(&done))),
        Answered::Whole(_) => {}
        // As a program that the signal has ended.
        Answered::Stopped => std::process::exit(130),
    }
    print("")
}
