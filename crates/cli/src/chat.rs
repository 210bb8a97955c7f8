//! [`Talk`]: a conversation with a model, whether of one question or of many.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tallow_engine::handle::{Done, EngineHandle, Event, Request};
use tallow_engine::sampler::Sampling;
use tallow_models::template::{Chat, ChatTemplate, ChatTemplates, Now};
use tallow_models::tokenizer::{Special, Tokenizer};

use crate::Failed;
use crate::screen;

/// Tokens of an answer where nobody says, for models that were not taught to stop.
const UNTAUGHT: usize = 256;

/// One thing that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub role: String,
    pub content: String,
}

/// A conversation.
pub(crate) struct Talk {
    handle: EngineHandle,
    tokenizer: Tokenizer,
    /// `None`: the model goes on with text as it is.
    template: Option<ChatTemplate>,
    runtime: tokio::runtime::Runtime,
    pub system: Option<String>,
    pub messages: Vec<Message>,
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    /// Texts that end an answer; they are not part of it.
    pub stops: Vec<String>,
}

/// How an answer came out.
pub(crate) enum Answered {
    Whole(Done),
    /// The user wanted no more.
    Stopped,
}

impl Talk {
    /// A conversation with nothing said yet.
    pub(crate) fn new(
        handle: EngineHandle,
        tokenizer: Tokenizer,
        templates: Option<&ChatTemplates>,
        max_tokens: Option<usize>,
    ) -> Result<Talk, Failed> {
        let sampling = handle.info().sampling.clone();
        let template = templates.and_then(|t| t.choose(false)).cloned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Talk {
            handle,
            tokenizer,
            template,
            runtime,
            system: None,
            messages: Vec::new(),
            sampling,
            max_tokens,
            stops: Vec::new(),
        })
    }

    /// Was the model taught to chat?
    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Tokens that a conversation may have.
    pub(crate) fn context(&self) -> usize {
        self.handle.info().context
    }

    /// Tokens of the whole conversation so far, as the model would be given them.
    pub(crate) fn prompt(&self) -> Result<Vec<u32>, Failed> {
        let Some(template) = &self.template else {
            let text: String =
                self.system.iter().chain(self.messages.iter().map(|m| &m.content)).cloned().collect();
            return Ok(self.tokenizer.begun(self.tokenizer.encode(&text, Special::BARE)?));
        };
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let said = self.messages.iter().map(|m| json!({"role": m.role, "content": m.content}));
        let messages = Value::Array(system.chain(said).collect());
        Ok(template.prompt(&Chat::new(&messages, Now::from_unix(unix_time())), &self.tokenizer)?)
    }

    /// Says something and passes the answer on as it comes. What was said and answered is remembered, unless nothing
    /// came of it.
    pub(crate) fn say(
        &mut self,
        text: &str,
        show: impl FnMut(&str) -> std::io::Result<()>,
    ) -> Result<Answered, Failed> {
        self.messages.push(Message { role: "user".into(), content: text.into() });
        let mut answer = String::new();
        let answered = self.prompt().and_then(|prompt| self.ask(prompt, &mut answer, show));
        if answered.is_err() && answer.is_empty() {
            self.messages.pop();
        } else {
            self.messages.push(Message { role: "assistant".into(), content: answer });
        }
        answered
    }

    fn ask(
        &mut self,
        prompt: Vec<u32>,
        answer: &mut String,
        mut show: impl FnMut(&str) -> std::io::Result<()>,
    ) -> Result<Answered, Failed> {
        let taught = if self.has_template() { usize::MAX } else { UNTAUGHT };
        let max_new = self.max_tokens.unwrap_or(taught);
        // Whoever loads one for a conversation wants it there.
        let adapter = self.handle.adapters().first().map(|listed| listed.worn);
        let (sampling, stops) = (self.sampling.clone(), self.stops.clone());
        let request = Request { prompt, max_new, sampling, stops, adapter, ..Request::default() };
        let mut events = self.handle.submit(request)?;
        // The next answer to the same words is another one.
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let stopped = || Ok(Answered::Stopped);
        self.runtime.block_on(async {
            loop {
                let event = tokio::select! {
                    event = events.recv() => event,
                    pressed = tokio::signal::ctrl_c() => match pressed {
                        Ok(()) => return stopped(),
                        // Without a way to hear it, the system ends us as it always does.
                        Err(_) => events.recv().await,
                    },
                };
                match event {
                    Some(Event::Piece { text, .. }) => {
                        answer.push_str(&text);
                        show(&text)?;
                    }
                    Some(Event::Done(done)) => {
                        answer.push_str(&done.text);
                        show(&done.text)?;
                        return Ok(Answered::Whole(done));
                    }
                    Some(Event::Failed(why)) => return Err(why.into()),
                    Some(_) => {}
                    None => return Err(Failed::new("the engine has stopped")),
                }
            }
        })
    }

    /// Waits until the engine has taken note that nobody listens any more.
    pub(crate) fn settle(&self) {
        while self.handle.is_alive() && self.handle.taken() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn unix_time() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs() as i64)
}

/// Writes pieces of an answer to standard output, harmless where that is a terminal.
pub(crate) fn writer() -> impl FnMut(&str) -> std::io::Result<()> {
    use std::io::IsTerminal;
    let mut out = std::io::stdout();
    let terminal = out.is_terminal();
    move |text| {
        let text = if terminal { screen::harmless(text) } else { text.into() };
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// How fast an answer came, for people who want to know.
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
