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
use crate::chat::view::{Looks, View};
use crate::chat::{Cut, News};
use crate::encoder::Placement;
use crate::notice::Notice;
use crate::settings::{Defaults, Flags, Sources, resolve};
use crate::{Failed, seq2seq, terminal};

/// Default maximum tokens of an answer.
const DEFAULT_TOKENS: usize = 512;
const DEFAULT_REASON: &str = "the default for models of this kind";
/// Upper limit of that: the KV cache for all of them is allocated up front.
const MAX_TOKENS: usize = 1 << 16;

/// What is sent for each token of an answer.
type Sampled = Result<u32, Failure>;

/// Samples an answer and sends its tokens.
struct SampleAndSend {
    tokenizer: Tokenizer,
    sampler: Sampler,
    written: usize,
    max_tokens: usize,
    sender: Sender<Sampled>,
    gone: bool,
}

impl LogitsPolicy for SampleAndSend {
    fn next(&mut self, logits: &[f32]) -> Vec<u32> {
        let chosen = match self.sampler.sample(&mut logits.to_vec(), self.written) {
            Ok(choice) => choice.token,
            Err(why) => {
                self.gone = self.sender.send(Err(Failure::Broken(why.to_string()))).is_err();
                return Vec::new();
            }
        };
        self.sampler.accept(chosen);
        self.written += 1;
        if self.tokenizer.ends_generation(chosen) {
            return Vec::new();
        }
        self.gone = self.sender.send(Ok(chosen)).is_err();
        if self.written < self.max_tokens { vec![chosen] } else { Vec::new() }
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn end(self: Box<Self>, how: Result<(), Failure>) {
        if let Err(why) = how {
            // The receiver may be gone.
            let _ = self.sender.send(Err(why));
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
    let limits = SlotLimits {
        slots: 1,
        encoder_tokens,
        decoder_tokens: max_tokens + 1,
        dtype: config.kv.value.0,
        queue: 1,
    };
    let handle = seq2seq::start(model, Placement::of(&config), limits, &Notice::show)?;
    let (sender, received) = channel();
    let sampler = Sampler::new(config.sampling(), &[]);
    let policy =
        SampleAndSend { tokenizer: tokenizer.clone(), sampler, written: 0, max_tokens, sender, gone: false };
    handle.submit(Task {
        input: EncoderInput::Tokens(tokens),
        prompt: vec![model.spec.start],
        policy: Box::new(policy),
    })?;
    let mut text = Answer::new(tokenizer, &[], args.stop.clone(), Vec::new(), false);
    let looks = Looks { wraps: !args.chat.plain, ..Looks::default() };
    let mut view = View::new(looks, args.chat.echo.then(|| prompt.to_owned()));
    let (mut written, mut stopped) = (0, false);
    for token in received {
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
    if written == max_tokens && !stopped && (!chosen || std::io::stderr().is_terminal()) {
        let cut = Cut::Tokens { most: max_tokens, chosen, why: DEFAULT_REASON };
        terminal::tell(&terminal::dim(&cut.words(false)));
    }
    print("")
}
