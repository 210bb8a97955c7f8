//! `tallow run` with a seq2seq (encoder-decoder) model.

use std::io::IsTerminal;
use std::sync::Arc;

use tallow_engine::encoder_input::EncoderInput;
use tallow_engine::handle::{Event, Finish, Request};
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_text::tokenizer::Special;

use super::print;
use crate::args::Run;
use crate::chat::view::{Looks, View};
use crate::chat::{Cut, News};
use crate::encoder::Placement;
use crate::memory::Seq2SeqLimits;
use crate::notice::Notice;
use crate::settings::{Defaults, Flags, Sources, resolve};
use crate::{Failed, seq2seq, terminal};

/// Default maximum tokens of an answer.
const DEFAULT_TOKENS: usize = 512;
const DEFAULT_REASON: &str = "the default for models of this kind";
/// Upper limit of that: the KV cache for all of them is allocated up front.
const MAX_TOKENS: usize = 1 << 16;

/// Encodes a prompt, and shows the answer that is decoded.
pub(crate) fn answer(
    model: &Seq2SeqModel,
    args: &Run,
    prompt: &str,
    sources: &Sources,
) -> Result<(), Failed> {
    if model.takes_audio() {
        return Err(Failed::new("the model takes audio, not text: use `tallow transcribe`"));
    }
    if args.system.is_some() {
        return Err(Failed::new("--system: the model knows no such text; put it in front of the prompt"));
    }
    let tokenizer = model.tokenizer()?;
    let mut generation = model.generation()?;
    // Greedy by default: the tasks of such models have one best answer.
    generation.temperature = generation.temperature.or(Some(0.0));
    let flags = Flags { engine: args.engine.clone(), sampling: args.sampling.clone(), ..Flags::default() };
    let config = resolve(sources, &flags, &generation, Defaults::CHAT)?;
    let tokens = tokenizer.encode(prompt, Special::PROMPT)?;
    let (encoder_tokens, max_input) =
        (tokens.len(), args.engine.context.unwrap_or(model.spec.encoder.context));
    if encoder_tokens == 0 || encoder_tokens > max_input {
        let why = format!(
            "the prompt has {encoder_tokens} tokens; from 1 to {max_input} are read (--context says how many)"
        );
        return Err(Failed::new(why));
    }
    let vocab = model.spec.decoder.vocab;
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        return Err(Failed::new(format!("there is no token {id}: the model has {vocab}")));
    }
    let max_tokens = config.max_tokens.as_ref().map_or(DEFAULT_TOKENS, |n| n.value).clamp(1, MAX_TOKENS);
    let (dtype, batch) = (config.kv.value.0, config.batch.value);
    let limits = Seq2SeqLimits { slots: 1, encoder_tokens, decoder_tokens: max_tokens, dtype, batch };
    let names = vec![model.family.name.to_owned()];
    let handle = seq2seq::start(model, &tokenizer, names, Placement::of(&config), limits, &Notice::show)?;
    let mut events = handle.submit(Request {
        prompt: vec![model.spec.start],
        max_new: max_tokens,
        sampling: config.sampling(),
        stops: args.stop.clone(),
        input: Some(Arc::new(EncoderInput::Tokens(tokens))),
        ..Request::default()
    })?;
    let looks = Looks { wraps: !args.chat.plain, ..Looks::default() };
    let mut view = View::new(looks, args.chat.echo.then(|| prompt.to_owned()));
    let done = loop {
        match events.blocking_recv() {
            Some(Event::Piece { text, .. }) => view.tell(News::Answer(&text))?,
            Some(Event::Done(done)) => break done,
            Some(Event::Failed(why)) => return Err(why.into()),
            Some(Event::Started { .. } | Event::Prefill { .. } | Event::Prompt(_)) => {}
            None => return Err(Failed::new("the engine has stopped")),
        }
    };
    view.tell(News::Answer(&done.text))?;
    view.end()?;
    let chosen = config.max_tokens.is_some();
    if done.reason == Finish::Length && (!chosen || std::io::stderr().is_terminal()) {
        let cut = Cut::Tokens { most: max_tokens, chosen, why: DEFAULT_REASON };
        terminal::tell(&terminal::dim(&cut.words(false)));
    }
    print("")
}
