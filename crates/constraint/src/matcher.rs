//! [`Matcher`]: which tokens may come next in one text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use toktrie::SimpleVob;

use crate::engine::Engine;
use crate::vocabulary::Vocabulary;

/// Why a matcher could not go on. It concerns this text alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// The token may not come here. The matcher is as before.
    #[error("the token {token} ({text:?}) may not come here under the grammar")]
    NotAllowed {
        /// The token.
        token: u32,
        /// Its text.
        text: String,
    },
    /// The text has ended.
    #[error("the text has ended, and the token {token} came after its end")]
    Over {
        /// The token.
        token: u32,
    },
    /// The grammar is too ambiguous or too large for one step.
    #[error("the grammar costs too much at this point of the text ({why}): use a simpler one")]
    TooCostly {
        /// The limit that was reached.
        why: String,
    },
    /// The engine of grammars failed.
    #[error("the grammar failed at this point of the text: {why}")]
    Failed {
        /// Its message.
        why: String,
    },
}

/// The start of all texts under a grammar.
pub(crate) struct Start {
    /// Never used: where the tables of others have grown too large, or are damaged, they begin again from here.
    fresh: Mutex<Engine>,
    /// Shared by matchers, so that each profits from the tables of those before it.
    shared: Mutex<Engine>,
    first: Arc<SimpleVob>,
    /// The token of a space that every text of the grammar begins with, and that need not be generated (SentencePiece).
    lead: Option<u32>,
    /// The text may be empty.
    may_be_empty: bool,
    free: Option<Free>,
    table_bytes: usize,
}

/// Free text in front of the first trigger. What may come there depends on the start of a trigger at its end alone, so
/// that few masks do for all texts.
struct Free {
    triggers: Vec<Vec<u8>>,
    masks: Mutex<HashMap<Vec<u8>, Arc<SimpleVob>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Start {
    pub(crate) fn new(
        engine: Engine,
        (vocabulary, lead): (&Vocabulary, Option<u32>),
        triggers: &[String],
        table_bytes: usize,
    ) -> Result<Start, String> {
        let mut probe = engine.clone();
        let mut first = probe.mask()?;
        if let Some(lead) = lead {
            probe.accept(lead)?;
            let mut rest = probe.mask()?;
            // A space that a text begins with comes behind the one in front of it.
            for token in vocabulary.spaces() {
                rest.disallow_token(*token);
            }
            first.or(&rest);
        }
        let may_be_empty = probe.may_end()?;
        let triggers: Vec<Vec<u8>> = triggers.iter().map(|t| t.as_bytes().to_vec()).collect();
        let free = Free { triggers, masks: Mutex::default() };
        Ok(Start {
            fresh: Mutex::new(engine.copy()),
            shared: Mutex::new(engine),
            first: Arc::new(first),
            lead,
            may_be_empty,
            free: (!free.triggers.is_empty()).then_some(free),
            table_bytes,
        })
    }

    pub(crate) fn space_first(&self) -> bool {
        self.lead.is_some()
    }

    fn begin(&self) -> Engine {
        let mut shared = lock(&self.shared);
        if shared.table_bytes() > self.table_bytes || shared.has_failed() {
            *shared = lock(&self.fresh).copy();
        }
        shared.clone()
    }

    /// A parser with tables of its own, and new ones for the matchers to come.
    fn begin_alone(&self) -> Engine {
        let fresh = lock(&self.fresh);
        *lock(&self.shared) = fresh.copy();
        fresh.copy()
    }
}

impl Free {
    /// The start of a trigger that `text` ends with, behind `pending`. `None` if a trigger is complete.
    fn advance(&self, pending: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let all = [pending, text].concat();
        if self.triggers.iter().any(|t| all.windows(t.len()).any(|w| w == t)) {
            return None;
        }
        let starts = |tail: &[u8]| self.triggers.iter().any(|t| t.starts_with(tail));
        (0..=all.len()).map(|at| &all[at..]).find(|tail| starts(tail)).map(<[u8]>::to_vec)
    }
}

/// The state of one text under a grammar: its masks. A clone goes on from the same point.
#[derive(Clone)]
pub struct Matcher {
    engine: Engine,
    start: Arc<Start>,
    vocabulary: Arc<Vocabulary>,
    mask: Option<Arc<SimpleVob>>,
    /// The tokens so far.
    tokens: Vec<u32>,
    /// The tables are this matcher's and its clones' own.
    alone: bool,
    /// In front of the first trigger: the start of one.
    free: Option<Vec<u8>>,
    over: bool,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("tokens", &self.tokens)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(start: Arc<Start>, vocabulary: Arc<Vocabulary>) -> Matcher {
        Matcher {
            engine: start.begin(),
            mask: Some(Arc::clone(&start.first)),
            vocabulary,
            tokens: Vec::new(),
            alone: false,
            free: start.free.as_ref().map(|_| Vec::new()),
            over: false,
            start,
        }
    }

    /// Runs a step. Where it fails, what other texts have done to the shared tables may be why: then it runs once more,
    /// with tables of its own.
    fn run<T>(&mut self, step: impl Fn(&mut Engine) -> Result<T, String>) -> Result<T, MatchError> {
        match step(&mut self.engine) {
            Err(_) if !self.alone => {}
            done => return done.map_err(|e| failure(&e)),
        }
        self.engine = self.start.begin_alone();
        self.alone = true;
        for token in &self.tokens {
            self.engine.accept(*token).map_err(|e| failure(&e))?;
        }
        step(&mut self.engine).map_err(|e| failure(&e))
    }

    /// The tokens that may come next: bit `t % 32` of word `t / 32`. All tokens that end generation where the text may
    /// end.
    pub fn mask(&mut self) -> Result<&[u32], MatchError> {
        if self.mask.is_none() {
            self.mask = Some(self.compute()?);
        }
        let words = self.vocabulary.size().div_ceil(32);
        Ok(self.mask.as_ref().and_then(|mask| mask.as_slice().get(..words)).unwrap_or_default())
    }

    fn compute(&mut self) -> Result<Arc<SimpleVob>, MatchError> {
        if self.over {
            return Ok(Arc::new(self.vocabulary.env.tok_trie().eos_token_set()));
        }
        let start = Arc::clone(&self.start);
        let (Some(free), Some(pending)) = (&start.free, self.free.clone()) else {
            return self.run(Engine::mask).map(Arc::new);
        };
        if let Some(known) = lock(&free.masks).get(&pending) {
            return Ok(Arc::clone(known));
        }
        let mask = self.run(Engine::mask).map(Arc::new)?;
        lock(&free.masks).insert(pending, Arc::clone(&mask));
        Ok(mask)
    }

    /// Goes on behind a token. A token that the mask leaves out is taken if its text may come here all the same, cut
    /// into tokens in another way.
    pub fn accept(&mut self, token: u32) -> Result<(), MatchError> {
        if self.over {
            return Err(MatchError::Over { token });
        }
        if self.vocabulary.ends.contains(&token) {
            if !self.may_end()? {
                return Err(self.not_allowed(token));
            }
            (self.over, self.mask) = (true, None);
            return Ok(());
        }
        if self.engine.is_stopped() {
            return Err(self.not_allowed(token));
        }
        // The engine would pass over a token without a text.
        if self.vocabulary.bytes(token).is_empty() && !self.has_in_mask(token)? {
            return Err(self.not_allowed(token));
        }
        if let Some(lead) = self.start.lead.filter(|_| self.tokens.is_empty()) {
            return self.accept_first(lead, token);
        }
        let in_mask = self.mask.as_ref().is_some_and(|mask| mask.is_allowed(token));
        if !in_mask && !self.run(|engine| engine.allows(token))? {
            return Err(self.not_allowed(token));
        }
        self.mask = None;
        self.run(|engine| engine.accept(token))?;
        self.tokens.push(token);
        if let (Some(free), Some(pending)) = (&self.start.free, &self.free) {
            // A special token stands in no free text: it is a trigger.
            let text = self.vocabulary.bytes(token);
            self.free = if text.is_empty() { None } else { free.advance(pending, text) };
        }
        Ok(())
    }

    /// The first token, with or without the space that the text has in front.
    fn accept_first(&mut self, lead: u32, token: u32) -> Result<(), MatchError> {
        let spaced = self.vocabulary.bytes(token).starts_with(b" ");
        let mut probe = self.engine.clone();
        if !spaced {
            probe.accept(lead).map_err(|e| failure(&e))?;
        }
        if !probe.allows(token).map_err(|e| failure(&e))? {
            return Err(self.not_allowed(token));
        }
        self.mask = None;
        let first = [lead, token];
        for token in &first[usize::from(spaced)..] {
            self.run(|engine| engine.accept(*token))?;
            self.tokens.push(*token);
        }
        Ok(())
    }

    fn has_in_mask(&mut self, token: u32) -> Result<bool, MatchError> {
        let words = self.mask()?;
        Ok(words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
    }

    fn at_start(&self) -> bool {
        self.start.lead.is_some() && self.tokens.is_empty()
    }

    fn not_allowed(&self, token: u32) -> MatchError {
        let text = self.vocabulary.tokenizer.token_text(token).unwrap_or_default().into();
        MatchError::NotAllowed { token, text }
    }

    /// A matcher that goes on from the same point, for drafts.
    #[must_use]
    pub fn fork(&self) -> Matcher {
        self.clone()
    }

    /// True if the text may end here.
    pub fn may_end(&mut self) -> Result<bool, MatchError> {
        match (self.over, self.at_start()) {
            (true, _) => Ok(true),
            (false, true) => Ok(self.start.may_be_empty),
            (false, false) => self.run(Engine::may_end),
        }
    }

    /// True if nothing but an end may come, or one has come.
    pub fn is_over(&self) -> bool {
        self.over || self.engine.is_stopped()
    }

    /// The tokens that must come next, as the tokenizer would cut their text. Empty if there is a choice, or if the
    /// tokenizer treats the start of a text in its own way (SentencePiece).
    pub fn forced(&mut self) -> Result<Vec<u32>, MatchError> {
        if self.is_over() || self.at_start() { Ok(Vec::new()) } else { self.run(Engine::forced) }
    }
}

/// The engine's message without what it adds for its authors.
fn failure(message: &str) -> MatchError {
    let why = message.lines().next().unwrap_or_default().trim().to_owned();
    let costly = ["too many", "fuel", "limit", "too complex", "TooComplex", "lexer error", "too big"];
    if costly.iter().any(|word| message.contains(word)) {
        MatchError::TooCostly { why }
    } else {
        MatchError::Failed { why }
    }
}
