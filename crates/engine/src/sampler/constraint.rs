//! [`Constraint`]: restricts which tokens an answer may have, as a grammar does.
//!
//! The mask of the next token is computed on a thread of its own, while the device computes the logits.

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
    fn allowed(&mut self) -> Result<TokenMask, String>;

    /// A copy that goes its own way, for the tokens of a draft and for other answers to the same prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Box<dyn Constraint> {
        self.fork()
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

    /// One token of a vocabulary.
    pub fn only(token: u32, vocab: usize) -> TokenMask {
        let mut mask = TokenMask(vec![0; vocab.div_ceil(32)]);
        mask.set(token, true);
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

/// A constraint at some place of its answer, and the mask there; or its error.
type Reached = Result<(Box<dyn Constraint>, Arc<TokenMask>), String>;

/// The constraint of one answer, and the mask of its next token.
#[derive(Debug)]
pub(super) struct Constrained {
    threads: MaskThreads,
    state: Mutex<State>,
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
        Constrained { threads, state: Mutex::new(State::Behind(constraint, Vec::new())) }
    }

    /// Follows a generated token, once the mask is asked for.
    pub(super) fn accept(&mut self, token: u32) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(state, State::lost()) {
            State::Behind(constraint, mut tokens) => {
                tokens.push(token);
                State::Behind(constraint, tokens)
            }
            State::Computing(reached) => State::after(wait(&reached), token),
            State::Reached(reached) => State::after(reached, token),
        };
    }

    /// Has the mask of the next token computed on another thread.
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

    /// The mask of the next token. Waits for it, or computes it here if nobody does.
    pub(super) fn mask(&self) -> Result<Arc<TokenMask>, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = match std::mem::replace(&mut *state, State::lost()) {
            State::Behind(constraint, tokens) => reach(constraint, &tokens),
            State::Computing(reached) => wait(&reached),
            State::Reached(reached) => reached,
        };
        let mask = reached.as_ref().map(|(_, mask)| mask.clone()).map_err(Clone::clone);
        *state = State::Reached(reached);
        mask
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
            State::Reached(Ok((constraint, mask))) => State::Reached(Ok((constraint.fork(), mask.clone()))),
            State::Reached(Err(why)) => State::Reached(Err(why.clone())),
        };
        Constrained { threads: self.threads.clone(), state: Mutex::new(copy) }
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

/// Follows tokens, and computes the mask after them. A panic fails the request.
fn reach(mut constraint: Box<dyn Constraint>, tokens: &[u32]) -> Reached {
    let follow = move || {
        tokens.iter().try_for_each(|token| constraint.accept(*token))?;
        let mask = constraint.allowed()?;
        Ok((constraint, Arc::new(mask)))
    };
    catch_unwind(AssertUnwindSafe(follow))
        .unwrap_or_else(|_| Err("the answer's constraint failed: this is a bug, please report it".into()))
}

fn wait(reached: &Receiver<Reached>) -> Reached {
    reached.recv().unwrap_or_else(|_| Err("the thread that follows the answer's constraint is gone".into()))
}
