//! [`Talk`]: a conversation with a running model, of one prompt or many.

pub(crate) mod dialogue;
pub(crate) mod flags;
pub(crate) mod view;

use std::sync::Arc;
use std::time::Duration;

use tallow_constraint::Compiled;
use tallow_engine::handle::{Done, Event, Finish, Info, Request, RunningEngine};
use tallow_engine::sampler::{Constraint, Sampling};
use tallow_server::constraint;
use tallow_text::answer_tokens::{AnswerTokens, Reused, longest_prompt};
use tallow_text::output::{Event as Output, OutputParser};

use crate::Failed;
use dialogue::{Dialogue, Message};

/// Default maximum tokens of an answer for models without a chat template, which do not stop by themselves.
const BASE_MODEL_TOKENS: usize = 256;
/// Why that is the limit, for messages.
pub(crate) const BASE_MODEL_WHY: &str = "the default for models without a chat template";
/// Tokens for which dropping turns must make room if an answer is to go on when the context is full.
const MIN_ANSWER: usize = 16;

/// Progress of an answer.
pub(crate) enum News<'a> {
    /// Prefill progress in tokens.
    Prefill { computed: usize, total: usize },
    /// The context was full: that many of the oldest messages were dropped from it.
    Rolled(usize),
    /// More of the thinking.
    Thought(&'a str),
    /// More of the answer.
    Answer(&'a str),
}

/// Callback for [`News`].
pub(crate) type Listen<'a> = dyn FnMut(News<'_>) -> std::io::Result<()> + 'a;

/// A conversation with a running model.
pub(crate) struct Talk {
    engine: RunningEngine,
    runtime: tokio::runtime::Runtime,
    /// Longest context that the model supports, in tokens.
    made_for: usize,
    /// Tokens of the answers, whose text is in the prompts after them.
    answers: Arc<AnswerTokens>,
    pub dialogue: Dialogue,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// The grammar of all answers.
    pub structure: Option<Arc<Compiled>>,
    /// True if the oldest turns are dropped when the context is full.
    pub rolls: bool,
    /// True if this is an interactive chat, whose user can type commands.
    pub in_chat: bool,
}

/// The way an answer ended.
pub(crate) enum Answered {
    Whole(Done, Option<Cut>),
    /// Stopped by the user.
    Stopped,
}

/// Why an answer was cut off before the model ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The context is full.
    Context { context: usize, made_for: usize },
    /// The token limit is reached; `why` explains it where the user has not chosen it.
    Tokens { most: usize, chosen: bool, why: &'static str },
}

impl Cut {
    /// The reason, and the remedy: a flag of the command line, or a setting of a chat.
    pub(crate) fn words(self, in_chat: bool) -> String {
        let set = |setting: &str, flag: &str| match in_chat {
            true => format!("/set {setting} N"),
            false => format!("{flag} N"),
        };
        match self {
            Cut::Context { context, made_for } if context < made_for => {
                let set = set("context", "--context");
                format!("(stopped: context full, {context} tokens; {set} makes room, up to {made_for})")
            }
            Cut::Context { context, .. } => {
                format!("(stopped: context full, {context} tokens, which is this model's own limit)")
            }
            Cut::Tokens { most, chosen: true, .. } => format!("(stopped: --max-tokens {most})"),
            Cut::Tokens { most, why, .. } => {
                let set = set("max-tokens", "--max-tokens");
                format!("(stopped: --max-tokens {most}, {why}; {set} for more)")
            }
        }
    }
}

/// An answer so far.
#[derive(Default)]
struct Said {
    /// Tells thinking from the answer.
    parser: Option<OutputParser>,
    tokens: Vec<u32>,
    message: Message,
    /// True until text has come, if a space in front of it is left out.
    space_first: bool,
}

impl Said {
    fn take(&mut self, text: &str, listen: &mut Listen<'_>) -> std::io::Result<()> {
        let events = match &mut self.parser {
            None => vec![Output::Content(text.to_owned())],
            Some(parser) => parser.push(text),
        };
        events.into_iter().try_for_each(|event| self.add(event, listen))
    }

    fn end(&mut self, listen: &mut Listen<'_>) -> std::io::Result<()> {
        let held = self.parser.as_mut().map(OutputParser::finish).unwrap_or_default();
        held.into_iter().try_for_each(|event| self.add(event, listen))
    }

    fn add(&mut self, event: Output, listen: &mut Listen<'_>) -> std::io::Result<()> {
        match event {
            Output::Reasoning(text) => {
                self.message.reasoning += &text;
                listen(News::Thought(&text))
            }
            Output::Content(text) if text.is_empty() => Ok(()),
            Output::Content(text) => {
                let space = std::mem::take(&mut self.space_first) && text.starts_with(' ');
                let text = &text[usize::from(space)..];
                self.message.content += text;
                listen(News::Answer(text))
            }
            // There are no tools.
            Output::Call(_) => Ok(()),
        }
    }
}

impl Talk {
    /// An empty conversation with a model that supports up to `made_for` tokens.
    pub(crate) fn new(engine: RunningEngine, dialogue: Dialogue, made_for: usize) -> Result<Talk, Failed> {
        let sampling = engine.info().sampling.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Talk {
            engine,
            runtime,
            made_for,
            answers: Arc::default(),
            dialogue,
            sampling,
            max_tokens: None,
            stops: Vec::new(),
            structure: None,
            rolls: true,
            in_chat: false,
        })
    }

    /// Context size in tokens.
    pub(crate) fn context(&self) -> usize {
        self.engine.info().context
    }

    /// Longest context that the model supports, in tokens.
    pub(crate) fn made_for(&self) -> usize {
        self.made_for
    }

    /// Maximum tokens of an answer.
    pub(crate) fn most(&self) -> usize {
        let usual = if self.dialogue.has_template() { usize::MAX } else { BASE_MODEL_TOKENS };
        self.max_tokens.unwrap_or(usual)
    }

    /// Closes the engine. The conversation needs another one to go on.
    pub(crate) fn close(&mut self) {
        self.engine.close();
    }

    /// Continues with another engine.
    pub(crate) fn go_on_with(&mut self, engine: RunningEngine) {
        self.engine = engine;
        // Another context has another amount of room.
        self.dialogue.rolled = 0;
    }

    /// Sends a message and streams the answer. Both are added to the conversation, unless the answer fails before any
    /// text.
    pub(crate) fn say(&mut self, text: &str, listen: &mut Listen<'_>) -> Result<Answered, Failed> {
        let (messages, rolled) = (self.dialogue.messages.len(), self.dialogue.rolled);
        let (role, content) = ("user".into(), text.into());
        self.dialogue.messages.push(Message { role, content, ..Message::default() });
        let mut said = Said::default();
        let answered = self.answer(&mut said, listen);
        if answered.is_err() && said.message.content.is_empty() {
            self.dialogue.messages.truncate(messages);
            self.dialogue.rolled = rolled;
        } else {
            self.dialogue.messages.push(Message { role: "assistant".into(), ..said.message });
        }
        answered
    }

    /// Answers the last message. If the context fills up meanwhile and older turns can be dropped, the answer goes on.
    fn answer(&mut self, said: &mut Said, listen: &mut Listen<'_>) -> Result<Answered, Failed> {
        let most = self.most();
        let mut prompt = self.fit(listen)?;
        said.parser = self.dialogue.parser(&prompt);
        let constraint = self.constraint(&prompt);
        said.space_first = self.structure.as_ref().is_some_and(|structure| structure.space_first());
        loop {
            let mut constraint = constraint.clone();
            if let Some(constraint) = &mut constraint {
                said.tokens.iter().try_for_each(|token| constraint.accept(*token)).map_err(Failed::new)?;
            }
            let answered = self.ask((prompt, constraint), most - said.tokens.len(), said, listen)?;
            let Answered::Whole(done, _) = answered else {
                said.end(listen)?;
                return Ok(Answered::Stopped);
            };
            let full = done.reason == Finish::Length && said.tokens.len() < most;
            if full && let Some(more) = self.roll_for(&said.tokens, listen)? {
                prompt = more;
                continue;
            }
            said.end(listen)?;
            let (context, made_for, chosen) = (self.context(), self.made_for, self.max_tokens.is_some());
            let cut = match done.reason {
                Finish::Length if full => Some(Cut::Context { context, made_for }),
                Finish::Length => Some(Cut::Tokens { most, chosen, why: BASE_MODEL_WHY }),
                Finish::End | Finish::Stop(_) => None,
            };
            return Ok(Answered::Whole(done, cut));
        }
    }

    /// Renders the prompt. If it leaves too little room for an answer, the oldest turns are dropped until half of the
    /// context is free: then the prefix cache has the beginning of the next prompts, and not every turn drops another.
    fn fit(&mut self, listen: &mut Listen<'_>) -> Result<Vec<u32>, Failed> {
        let context = self.context();
        let room = self.most().min(context / 4).max(1);
        let mut prompt = self.dialogue.tokens()?;
        let rolled = self.dialogue.rolled;
        if self.rolls && prompt.len() + room > context {
            while prompt.len() > context / 2 && self.dialogue.roll() {
                prompt = self.dialogue.tokens()?;
            }
        }
        if prompt.len() >= context {
            return Err(self.too_long(prompt.len()));
        }
        match self.dialogue.rolled - rolled {
            0 => {}
            messages => listen(News::Rolled(messages))?,
        }
        Ok(prompt)
    }

    /// The prompt and the answer so far, with older turns dropped; `None` if that does not make enough room.
    fn roll_for(&mut self, begun: &[u32], listen: &mut Listen<'_>) -> Result<Option<Vec<u32>>, Failed> {
        let (context, rolled) = (self.context(), self.dialogue.rolled);
        let mut found = None;
        while self.rolls && self.dialogue.roll() {
            let prompt = [self.dialogue.tokens()?, begun.to_vec()].concat();
            let length = prompt.len();
            found = (length + MIN_ANSWER <= context).then_some(prompt);
            if length <= context / 2 {
                break;
            }
        }
        match found {
            Some(_) => listen(News::Rolled(self.dialogue.rolled - rolled))?,
            None => self.dialogue.rolled = rolled,
        }
        Ok(found)
    }

    fn too_long(&self, prompt: usize) -> Failed {
        let (context, made_for) = (self.context(), self.made_for);
        if !self.in_chat {
            return too_long(prompt, context, made_for);
        }
        let (what, way_out) = match self.rolls {
            true => ("the message", "Shorten it"),
            false => {
                ("the conversation", "/clear forgets it, without --no-roll its oldest turns would leave")
            }
        };
        let limit = format!("this model's own limit is {made_for}");
        Failed::new(match context < made_for && prompt < made_for {
            true => {
                let makes_room = roomy(prompt, made_for);
                format!(
                    "{what} has {prompt} tokens, and the context is {context}. {way_out}, or /set context {makes_room} \
                     makes room ({limit})"
                )
            }
            false => {
                format!("{what} has {prompt} tokens, and the context is {context} ({limit}). {way_out}")
            }
        })
    }

    /// Constraint of an answer to this prompt.
    fn constraint(&self, prompt: &[u32]) -> Option<Box<dyn Constraint>> {
        let matcher = self.structure.as_ref().map(|structure| structure.matcher());
        let Info { tokenizer, vocab, .. } = self.engine.info();
        constraint(matcher, self.dialogue.reasoning(prompt), (tokenizer, *vocab))
    }

    fn ask(
        &mut self,
        (prompt, constraint): (Vec<u32>, Option<Box<dyn Constraint>>),
        max_new: usize,
        said: &mut Said,
        listen: &mut Listen<'_>,
    ) -> Result<Answered, Failed> {
        // An adapter that was loaded for a conversation is always used.
        let adapter = self.engine.loras().first().map(|listed| listed.lora);
        let most = longest_prompt(prompt.len(), max_new, self.context());
        let Reused { ids: prompt, mut record, .. } =
            self.answers.reuse("", prompt, most, &self.engine.info().tokenizer);
        let request = Request {
            prompt,
            max_new,
            constraint,
            sampling: self.sampling.clone(),
            stops: self.stops.clone(),
            shown: self.dialogue.marks(),
            progress: true,
            adapter,
            ..Request::default()
        };
        let mut events = self.engine.submit(request)?;
        // The same prompt gets another answer the next time.
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        self.runtime.block_on(async {
            loop {
                let event = tokio::select! {
                    event = events.recv() => event,
                    pressed = tokio::signal::ctrl_c() => match pressed {
                        Ok(()) => return Ok(Answered::Stopped),
                        // If the signal cannot be caught, its default action ends the program.
                        Err(_) => events.recv().await,
                    },
                };
                match event {
                    Some(Event::Prefill { computed, total, .. }) => {
                        listen(News::Prefill { computed, total })?
                    }
                    Some(Event::Piece { text, choice }) => {
                        said.tokens.push(choice.token);
                        record.push(choice.token);
                        said.take(&text, listen)?;
                    }
                    Some(Event::Done(done)) => {
                        said.take(&done.text, listen)?;
                        return Ok(Answered::Whole(done, None));
                    }
                    Some(Event::Failed(why)) => return Err(why.into()),
                    Some(Event::Started { .. } | Event::Prompt(_)) => {}
                    None => return Err(Failed::new("the engine has stopped")),
                }
            }
        })
    }

    /// Waits until the engine has noticed that the client is gone.
    pub(crate) fn settle(&self) {
        while self.engine.is_alive() && self.engine.taken() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A context with room for a prompt of `prompt` tokens and an answer; at most `made_for`.
pub(crate) fn roomy(prompt: usize, made_for: usize) -> usize {
    const STEP: usize = 1024;
    prompt.saturating_add(2 * STEP).div_ceil(STEP).saturating_mul(STEP).min(made_for)
}

/// Error for a prompt that leaves no room for an answer.
pub(crate) fn too_long(prompt: usize, context: usize, made_for: usize) -> Failed {
    let what = format!("the prompt has {prompt} tokens, and the context is {context}");
    let makes_room = roomy(prompt, made_for);
    Failed::new(match (context < made_for, prompt < made_for) {
        (true, true) => format!(
            "{what}. This model's own limit is {made_for}: give it room with --context {makes_room} (-c {makes_room})"
        ),
        (true, false) => format!("{what}. This model's own limit is {made_for}: shorten the prompt"),
        (false, _) => format!("{what}, which is this model's own limit: shorten the prompt"),
    })
}

/// Speed of an answer, for display.
pub(crate) fn speed(done: &Done) -> String {
    let rate = |n: usize, t: Duration| if t.is_zero() { 0.0 } else { n as f64 / t.as_secs_f64() };
    let fresh = done.prompt_tokens - done.cached_tokens;
    format!(
        "prompt {} tokens ({} cached), {:.1} tokens/s; answer {} tokens, {:.1} tokens/s; first token after {:.0} ms",
        done.prompt_tokens,
        done.cached_tokens,
        rate(fresh, done.timings.prefill),
        done.new_tokens,
        rate(done.new_tokens.saturating_sub(1), done.timings.decode),
        (done.timings.queue + done.timings.prefill).as_secs_f64() * 1e3,
    )
}
