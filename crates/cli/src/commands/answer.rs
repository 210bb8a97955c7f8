//! `tallow run` with a seq2seq (encoder-decoder) model.

use std::io::IsTerminal;
use std::sync::mpsc::{Sender, channel};

use tallow_engine::answer::{Answer, TextStep};
use tallow_engine::handle::Failure;
use tallow_engine::sampler::Sampler;
use tallow_engine::seq2seq::{EncoderInput, LogitsPolicy, SlotLimits, Task};
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_text::tokenizer::{Special, Tokenizer};

use super::print;
use crate::args::Run;
use crate::chat::{Cut, News};
use crate::encoder::Place;
use crate::load::Notice;
use crate::settings::{Defaults, Flags, Sources, resolve};
use crate::view::{Looks, View};
use crate::{Failed, seq2seq, terminal};

/// Default maximum tokens of an answer.
const USUAL: usize = 512;
const USUAL_WHY: &str = "the default for models of this kind";
/// Upper limit of that: the KV cache for all of them is allocated up front.
const MOST: usize = 1 << 16;

/// What is sent for each token of an answer.
type Told = Result<u32, Failure>;

/// Samples an answer and sends its tokens.
struct Answering {
    tokenizer: Tokenizer,
    sampler: Sampler,
    written: usize,
    most: usize,
    told: Sender<Told>,
    gone: bool,
}

impl LogitsPolicy for Answering {
    fn next(&mut self, logits: &[f32]) -> Vec<u32> {
        let chosen = match self.sampler.sample(&mut logits.to_vec(), self.written) {
            Ok(choice) => choice.token,
            Err(why) => {
                self.gone = self.told.send(Err(Failure::Broken(why.to_string()))).is_err();
                return Vec::new();
            }
        };
        self.sampler.accept(chosen);
        self.written += 1;
        if self.tokenizer.ends_generation(chosen) {
            return Vec::new();
        }
        self.gone = self.told.send(Ok(chosen)).is_err();
        if self.written < self.most { vec![chosen] } else { Vec::new() }
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn end(self: Box<Self>, how: Result<(), Failure>) {
        if let Err(why) = how {
            // The receiver may be gone.
            let _ = self.told.send(Err(why));
        }
    }
}

/// Encodes a prompt, and shows the answer that is decoded.
pub(crate) fn answer(
    model: &Seq2SeqModel,
    args: &Run,
    prompt: &str,
    sources: &Sources,
) -> Result<(), Failed> {
    if model.hears() {
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
    let (encoder_tokens, most) = (tokens.len(), args.engine.context.unwrap_or(model.spec.encoder.context));
    if encoder_tokens == 0 || encoder_tokens > most {
        let why = format!(
            "the prompt has {encoder_tokens} tokens; from 1 to {most} are read (--context says how many)"
        );
        return Err(Failed::new(why));
    }
    let vocab = model.spec.decoder.vocab;
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        return Err(Failed::new(format!("there is no token {id}: the model has {vocab}")));
    }
    let most = config.max_tokens.as_ref().map_or(USUAL, |n| n.value).clamp(1, MOST);
    let desk =
        SlotLimits { slots: 1, encoder_tokens, decoder_tokens: most + 1, dtype: config.kv.value.0, queue: 1 };
    let handle = seq2seq::start(model, Place::of(&config), desk, &Notice::show)?;
    let (told, hear) = channel();
    let sampler = Sampler::new(config.sampling(), &[]);
    let pen = Answering { tokenizer: tokenizer.clone(), sampler, written: 0, most, told, gone: false };
    handle.submit(Task {
        input: EncoderInput::Tokens(tokens),
        prompt: vec![model.spec.start],
        policy: Box::new(pen),
    })?;
    let mut text = Answer::new(tokenizer, &[], args.stop.clone(), Vec::new(), false);
    let looks = Looks { wraps: !args.chat.plain, ..Looks::default() };
    let mut view = View::new(looks, args.chat.echo.then(|| prompt.to_owned()));
    let (mut written, mut stopped) = (0, false);
    for token in hear {
        written += 1;
        let said = match text.push(token?) {
            TextStep::More(said) => said,
            TextStep::Stop(said, _) => {
                stopped = true;
                said
            }
            TextStep::End => break,
        };
        view.tell(News::Answer(&said))?;
        if stopped {
            break;
        }
    }
    if !stopped {
        view.tell(News::Answer(&text.rest()))?;
    }
    view.end()?;
    let chosen = config.max_tokens.is_some();
    if written == most && !stopped && (!chosen || std::io::stderr().is_terminal()) {
        let cut = Cut::Tokens { most, chosen, why: USUAL_WHY };
        terminal::tell(&terminal::dim(&cut.words(false)));
    }
    print("")
}
