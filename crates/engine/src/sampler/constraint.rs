//! [`Constraint`]: restricts which tokens an answer may have, as a grammar does.
//!
//! The mask of the next token is computed on a thread of its own, while the device computes the logits.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Most threads that compute masks.
const MOST_THREADS: usize = 4;

/// A constraint on an answer, which follows it token by token. An error fails its request alone.
pub trait Constraint: Debug + Send + Sync {
    /// Follows a generated token.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// The tokens that may come next: at least one, and where the answer may end the model's end-of-generation tokens.
    fn allowed(&mut self) -> Result<Allowed, String>;

    /// A copy that goes its own way, for the tokens of a draft and for other answers to the same prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Box<dyn Constraint> {
        self.fork()
    }
}

/// The tokens that may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Any of these.
    Any(TokenMask),
    /// This one alone, and the others after it. They are computed together, as a draft that is right.
    Forced {
        /// The next token.
        token: u32,
        /// Those that must follow it.
        then: Vec<u32>,
    },
}

impl Allowed {
    /// These tokens, one after the other; `None` if there are none.
    pub fn forced(tokens: &[u32]) -> Option<Allowed> {
        let (token, then) = tokens.split_first()?;
        Some(Allowed::Forced { token: *token, then: then.to_vec() })
    }

    /// True if the token may come next.
    pub fn contains(&self, token: u32) -> bool {
        match self {
            Allowed::Any(mask) => mask.contains(token),
            Allowed::Forced { token: only, .. } => *only == token,
        }
    }
}

/// A set of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask(Vec<u32>);

impl TokenMask {
    /// A mask of one bit for each token, 32 in a word, the lowest first. Tokens past the end are not in it.
    pub fn of_words(words: Vec<u32>) -> TokenMask {
        TokenMask(words)
    }

    /// All tokens below `vocab`.
    pub fn all(vocab: usize) -> TokenMask {
        let word = |at: usize| match vocab - 32 * at {
            left @ 0..32 => (1 << left) - 1,
            _ => u32::MAX,
        };
        TokenMask((0..vocab.div_ceil(32)).map(word).collect())
    }

    /// These tokens of a vocabulary.
    pub fn of_tokens(tokens: &[u32], vocab: usize) -> TokenMask {
        let mut mask = TokenMask(vec![0; vocab.div_ceil(32)]);
        tokens.iter().for_each(|token| mask.set(*token, true));
        mask
    }

    /// Adds a token, or removes it. One past the end is left out.
    pub fn set(&mut self, token: u32, is_in: bool) {
        if let Some(word) = self.0.get_mut(token as usize / 32) {
            let bit = 1 << (token % 32);
            *word = if is_in { *word | bit } else { *word & !bit };
        }
    }

    /// True if the token is in it.
    pub fn contains(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The token with the largest logit, the first of equals; `None` if no token has a chance.
    pub(super) fn largest(&self, logits: &[f32]) -> Option<u32> {
        let (mut largest, mut most) = (None, f32::NEG_INFINITY);
        for (at, (some, word)) in logits.chunks(32).zip(&self.0).enumerate() {
            // Few words of a mask have a token with more than all before.
            if *word == 0 || peak(some) <= most {
                continue;
            }
            for (bit, x) in some.iter().enumerate() {
                if word >> bit & 1 == 1 && *x > most {
                    (largest, most) = (Some((32 * at + bit) as u32), *x);
                }
            }
        }
        largest
    }

    /// Sets the logits of all other tokens to -inf. Returns false if no token with a chance is left.
    pub(super) fn apply(&self, logits: &mut [f32]) -> bool {
        let mut is_left = false;
        let words = self.0.iter().copied().chain(std::iter::repeat(0));
        for (some, word) in logits.chunks_mut(32).zip(words) {
            // Most words of most masks are empty.
            if word == 0 {
                some.fill(f32::NEG_INFINITY);
                continue;
            }
            for (bit, x) in some.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
                is_left |= *x > f32::NEG_INFINITY;
            }
        }
        is_left
    }
}

/// The largest of some logits.
fn peak(logits: &[f32]) -> f32 {
    // Lanes are compared at once by the instructions that all processors have.
    let mut lanes = [f32::NEG_INFINITY; 8];
    for some in logits.chunks(8) {
        for (lane, x) in lanes.iter_mut().zip(some) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that compute masks. They end when all that know them are gone.
#[derive(Clone, Debug)]
pub struct MaskThreads(Sender<Job>);

impl MaskThreads {
    /// Starts them: few, since a mask takes a fraction of a step.
    pub fn start() -> std::io::Result<MaskThreads> {
        let (sender, jobs) = channel::<Job>();
        let jobs = Arc::new(Mutex::new(jobs));
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..(cores / 4).clamp(1, MOST_THREADS) {
            let jobs = jobs.clone();
            let next = move || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let work = move || {
                while let Ok(job) = next() {
                    job();
                }
            };
            std::thread::Builder::new().name("tallow-masks".into()).spawn(work)?;
        }
        Ok(MaskThreads(sender))
    }
}

/// A constraint at some place of its answer, and what is allowed there; or its error.
type Reached = Result<(Box<dyn Constraint>, Arc<Allowed>), String>;

/// The constraint of one answer, and what it allows next.
#[derive(Debug)]
pub(super) struct Constrained {
    threads: MaskThreads,
    state: Mutex<State>,
    /// Tokens that were forced to follow those that it was told.
    then: VecDeque<u32>,
}

#[derive(Debug)]
enum State {
    /// At the end of the tokens that it was told, but for those that it has not followed yet.
    Behind(Box<dyn Constraint>, Vec<u32>),
    Computing(Receiver<Reached>),
    Reached(Reached),
}

impl Constrained {
    pub(super) fn new(constraint: Box<dyn Constraint>, threads: MaskThreads) -> Constrained {
        let state = Mutex::new(State::Behind(constraint, Vec::new()));
        Constrained { threads, state, then: VecDeque::new() }
    }

    /// Follows a generated token, once the mask is asked for.
    pub(super) fn accept(&mut self, token: u32) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let reached = match std::mem::replace(state, State::lost()) {
            State::Behind(constraint, mut tokens) => {
                if self.then.pop_front() != Some(token) {
                    self.then.clear();
                }
                tokens.push(token);
                *state = State::Behind(constraint, tokens);
                return;
            }
            State::Computing(reached) => wait(&reached),
            State::Reached(reached) => reached,
        };
        self.then = match reached.as_ref().map(|(_, allowed)| &**allowed) {
            Ok(Allowed::Forced { token: only, then }) if *only == token => then.iter().copied().collect(),
            _ => VecDeque::new(),
        };
        *state = State::after(reached, token);
    }

    /// The tokens that must come next, as far as that is known by now.
    pub(super) fn forced(&self) -> Vec<u32> {
        if !self.then.is_empty() {
            return self.then.iter().copied().collect();
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Computing(reached) = &*state
            && let Ok(reached) = reached.try_recv()
        {
            *state = State::Reached(reached);
        }
        match &*state {
            State::Reached(Ok((_, allowed))) => match &**allowed {
                Allowed::Forced { token, then } => [&[*token], &then[..]].concat(),
                Allowed::Any(_) => Vec::new(),
            },
            State::Reached(Err(_)) | State::Behind(..) | State::Computing(_) => Vec::new(),
        }
    }

    /// Has what may come next computed on another thread.
    pub(super) fn prepare(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(state, State::lost()) {
            State::Behind(constraint, tokens) => {
                let (sender, receiver) = channel();
                // Nobody may wait for it any more.
                let job = move || drop(sender.send(reach(constraint, &tokens)));
                match self.threads.0.send(Box::new(job)) {
                    Ok(()) => State::Computing(receiver),
                    Err(_) => State::lost(),
                }
            }
            other => other,
        };
    }

    /// The tokens that may come next. Waits for them, or computes them here if nobody does.
    pub(super) fn allowed(&self) -> Result<Arc<Allowed>, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = match std::mem::replace(&mut *state, State::lost()) {
            State::Behind(constraint, tokens) => reach(constraint, &tokens),
            State::Computing(reached) => wait(&reached),
            State::Reached(reached) => reached,
        };
        let allowed = reached.as_ref().map(|(_, allowed)| allowed.clone()).map_err(Clone::clone);
        *state = State::Reached(reached);
        allowed
    }
}

impl Clone for Constrained {
    fn clone(&self) -> Constrained {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Computing(reached) = &*state {
            let reached = wait(reached);
            *state = State::Reached(reached);
        }
        let copy = match &*state {
            State::Behind(constraint, tokens) => State::Behind(constraint.fork(), tokens.clone()),
            State::Computing(_) => State::lost(),
            State::Reached(Ok((constraint, allowed))) => {
                State::Reached(Ok((constraint.fork(), allowed.clone())))
            }
            State::Reached(Err(why)) => State::Reached(Err(why.clone())),
        };
        Constrained { threads: self.threads.clone(), state: Mutex::new(copy), then: self.then.clone() }
    }
}

impl State {
    fn lost() -> State {
        State::Reached(Err("the thread that follows the answer's constraint is gone".into()))
    }

    fn after(reached: Reached, token: u32) -> State {
        match reached {
            Ok((constraint, _)) => State::Behind(constraint, vec![token]),
            Err(why) => State::Reached(Err(why)),
        }
    }
}

/// Follows tokens, and computes what may come after them. A panic fails the request.
fn reach(mut constraint: Box<dyn Constraint>, tokens: &[u32]) -> Reached {
    let follow = move || {
        tokens.iter().try_for_each(|token| constraint.accept(*token))?;
        let allowed = constraint.allowed()?;
        Ok((constraint, Arc::new(allowed)))
    };
    catch_unwind(AssertUnwindSafe(follow))
        .unwrap_or_else(|_| Err("the answer's constraint failed: this is a bug, please report it".into()))
}

fn wait(reached: &Receiver<Reached>) -> Reached {
    reached.recv().unwrap_or_else(|_| Err("the thread that follows the answer's constraint is gone".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::uniform;

    /// As if all others were at -inf, whatever is allowed.
    #[test]
    fn the_largest_is_that_of_the_masked_row() {
        for seed in 0..400 {
            let vocab = 1 + seed as usize % 150;
            let share = [0.0, 0.02, 0.5, 1.0][seed as usize % 4];
            let drawn = |at: usize| uniform(seed, at);
            let allowed: Vec<u32> =
                (0..vocab).filter(|at| drawn(1000 + at) < share).map(|at| at as u32).collect();
            let mask = TokenMask::of_tokens(&allowed, vocab);
            // Few different logits, so that some are equal.
            let logits: Vec<f32> = (0..vocab)
                .map(|at| {
                    if drawn(2000 + at) < 0.3 { f32::NEG_INFINITY } else { (drawn(at) * 5.0).floor() as f32 }
                })
                .collect();
            let mut masked = logits.clone();
            let is_left = mask.apply(&mut masked);
            let plain = crate::sampler::largest((0..).zip(masked));
            assert_eq!(mask.largest(&logits), is_left.then_some(plain), "{seed}");
        }
    }
}
