//! A simulated engine: answers requests through the same handle, from a script and without a model.
//!
//! For tests of engine clients: streams, stop strings, limits, overload, and engines that break down.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::answer::{Answer, TextStep};
use crate::cache_tier::TierError;
use crate::failure::{Failure, Unfit};
use crate::handle::{
    Command, Done, EngineHandle, Event, Finish, Info, Listener, LoadLora, Request, Stats, Submission, Timings,
};
use crate::lora::{LoadedLora, LoraError, LoraId, LoraRef};
use crate::sampler::{Choice, Scored};
use crate::service::{Lost, Service, SharedOf, Worker};

/// Behaviour of a simulated engine.
#[derive(Clone, Debug)]
pub struct Script {
    /// Tokens of every answer, repeated. An answer also ends at an end-of-generation token.
    pub reply: Vec<u32>,
    /// Time between two tokens.
    pub pace: Duration,
    /// Every request fails after this many tokens.
    pub breaks_after: Option<usize>,
    /// The whole engine panics after this many tokens in total.
    pub dies_after: Option<usize>,
}

/// A simulated engine.
struct SimEngine {
    shared: SharedOf<SimEngine>,
    script: Script,
    active: Vec<Talk>,
    waiting: Vec<Talk>,
    given: usize,
}

struct Talk {
    request: Request,
    answer: Answer,
    new_tokens: usize,
    listener: Listener,
    begun: Instant,
}

/// Starts a simulated engine.
pub fn start(info: Info, script: Script) -> EngineHandle {
    let (handle, messages, guard) = EngineHandle::new(info);
    std::thread::spawn(move || {
        let (active, waiting) = (Vec::new(), Vec::new());
        Service::new(messages, guard, |shared| SimEngine { shared, script, active, waiting, given: 0 }).run();
    });
    handle
}

impl Worker for SimEngine {
    type Command = Command;
    type Info = Info;
    type Stats = Stats;

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::LoadLora(lora, reply) => drop(reply.send(self.load_lora(*lora))),
            Command::UnloadLora(name, reply) => drop(reply.send(self.unload_lora(&name))),
            Command::AddCacheTier(_, reply) => {
                let why = "a simulated engine has no pages";
                drop(reply.send(Err(TierError::Unsupported(why))));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    fn step(&mut self) -> Result<(), Lost> {
        self.active.retain(|t| !t.listener.is_gone());
        self.waiting.retain(|t| !t.listener.is_gone());
        while self.active.len() < self.shared.info.slots && !self.waiting.is_empty() {
            let mut talk = self.waiting.remove(0);
            talk.listener.tell(Event::Started { cached: 0 });
            self.active.push(talk);
        }
        for talk in std::mem::take(&mut self.active) {
            let goes_on = self.advance(talk);
            self.active.extend(goes_on);
        }
        self.publish_stats();
        self.shared.stats.step_sizes.add(self.active.len());
        std::thread::sleep(self.script.pace);
        Ok(())
    }

    fn stop(&mut self) {
        self.active.clear();
        self.waiting.clear();
        self.publish_stats();
    }
}

impl SimEngine {
    fn publish_stats(&self) {
        let stats = &self.shared.stats;
        stats.running.store(self.active.len(), Ordering::Relaxed);
        stats.waiting.store(self.waiting.len(), Ordering::Relaxed);
        let lora = |talk: &Talk, runs| talk.request.adapter.map(|lora| (lora.id, runs));
        let running = self.active.iter().filter_map(|talk| lora(talk, true));
        self.shared.use_lora(running.chain(self.waiting.iter().filter_map(|talk| lora(talk, false))));
    }

    /// Lists a LoRA adapter; it has no effect on the answers.
    fn load_lora(&mut self, lora: LoadLora) -> Result<(), LoraError> {
        let LoadLora { name, file, scale } = lora;
        self.shared.check_name(&name)?;
        let mut all = self.shared.stats.adapters();
        let id = LoraId(all.iter().map(|a| a.lora.id.0 + 1).max().unwrap_or(0));
        all.push(LoadedLora { name, path: file.path, lora: LoraRef { id, scale } });
        self.shared.list(all);
        Ok(())
    }

    fn unload_lora(&mut self, name: &str) -> Result<(), LoraError> {
        let mut all = self.shared.stats.adapters();
        let before = all.len();
        all.retain(|a| a.name != name);
        let found = all.len() < before;
        self.shared.list(all);
        if found { Ok(()) } else { Err(LoraError::Unknown(name.into())) }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, mut listener } = submission;
        let info = &self.shared.info;
        let (prompt, context) = (request.prompt.len(), info.context);
        if prompt + usize::from(request.max_new > 0) > context {
            listener.tell(Event::Failed(Unfit::TooLong { prompt, context }.into()));
            return;
        }
        let stops = (request.stops.clone(), request.stop_tokens.clone());
        let tokenizer = info.tokenizer.clone();
        let answer = Answer::new(tokenizer, &request.prompt, stops.0, stops.1, request.ignore_end)
            .showing(request.shown.clone());
        self.waiting.push(Talk { request, answer, new_tokens: 0, listener, begun: Instant::now() });
    }

    /// Sends an answer its next token. Returns the answer if it goes on.
    fn advance(&mut self, mut talk: Talk) -> Option<Talk> {
        let most = talk.request.max_new.min(self.shared.info.context - talk.request.prompt.len());
        if talk.new_tokens >= most {
            return finish(talk, Finish::Length);
        }
        if self.script.breaks_after.is_some_and(|n| talk.new_tokens >= n) {
            talk.listener.tell(Event::Failed(Failure::Broken("the script says so".into())));
            return None;
        }
        self.given += 1;
        assert!(self.script.dies_after.is_none_or(|n| self.given <= n), "the script says so");
        let token = self.script.reply[talk.new_tokens % self.script.reply.len()];
        talk.new_tokens += 1;
        let choice = choice(token, talk.request.sampling.logprobs);
        match talk.answer.push(token) {
            TextStep::More(text) => talk.listener.tell(Event::Piece { text, choice }),
            TextStep::Stop(text, stop) => {
                talk.listener.tell(Event::Piece { text, choice });
                return finish(talk, Finish::Stop(stop));
            }
            TextStep::End => return finish(talk, Finish::End),
        }
        match talk.new_tokens >= most {
            true => finish(talk, Finish::Length),
            false => Some(talk),
        }
    }
}

/// Made-up log-probabilities, the same for every token.
fn choice(token: u32, logprobs: Option<usize>) -> Choice {
    let scored = |i: usize| Scored { token: token.wrapping_add(i as u32), logprob: -0.5 - i as f32 };
    let top = logprobs.map(|n| (0..n).map(scored).collect()).unwrap_or_default();
    Choice { token, logprob: logprobs.map(|_| -0.5), top }
}

fn finish(mut talk: Talk, reason: Finish) -> Option<Talk> {
    let text = if matches!(reason, Finish::Stop(_)) { String::new() } else { talk.answer.rest() };
    let timings = Timings { decode: talk.begun.elapsed(), ..Timings::default() };
    let (prompt_tokens, new_tokens) = (talk.request.prompt.len(), talk.new_tokens);
    let done = Done { text, reason, prompt_tokens, cached_tokens: 0, new_tokens, timings };
    talk.listener.tell(Event::Done(done));
    None
}
