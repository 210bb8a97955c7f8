//! [`AnswerTokens`]: the tokens of answers as they were generated, for chats that send an answer's text back.
//!
//! A model may divide its text into other tokens than the tokenizer divides the same text into. From there on the next
//! prompt of the chat has other tokens than those that were computed, and nothing of it is found in the prefix cache. So
//! the tokens of answers are kept, and take the place of the tokenizer's where they have the same text after the same
//! prompt. The text never changes, whatever is kept here.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashMap;

use crate::tokenizer::Tokenizer;

/// An answer is found by the tokens of its prompt but the last ones, which an answer behind them may divide otherwise.
const OVERLAP: usize = 8;
/// Maximum memory in bytes: some four million tokens.
const MOST_BYTES: usize = 16 << 20;
/// Most answers to one prompt.
const MOST_ALIKE: usize = 16;

/// Tokens of answers. Bounded in memory: the least recently used are forgotten.
#[derive(Debug)]
pub struct AnswerTokens {
    /// Random keys per process, so that nobody can construct prompts that collide.
    keys: RandomState,
    most_bytes: usize,
    /// Number of uses so far.
    uses: AtomicU64,
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Answers by the hash of their places, the latest last.
    answers: HashMap<u64, Vec<Arc<Answer>>>,
    bytes: usize,
}

#[derive(Debug)]
struct Answer {
    place: Place,
    /// The prompt's last tokens and the answer's.
    ids: Box<[u32]>,
    used: AtomicU64,
}

/// A place in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    scope: Arc<str>,
    /// Number of tokens before it.
    at: usize,
    /// Hash of the scope and those tokens.
    hash: u64,
}

/// A prompt with the tokens of earlier answers.
#[derive(Debug)]
pub struct Reused {
    /// The prompt's tokens. They have the text of those that were given.
    pub ids: Vec<u32>,
    /// Number of tokens that took the place of others.
    pub changed: usize,
    /// Keeps the answer to this prompt.
    pub record: AnswerRecord,
}

/// Keeps an answer's tokens once it is dropped, however the answer has ended.
#[derive(Clone, Debug)]
pub struct AnswerRecord {
    answers: Arc<AnswerTokens>,
    place: Place,
    ids: Vec<u32>,
    /// Number of those that are the prompt's.
    overlap: usize,
}

/// Longest that a prompt of `tokens` tokens may become: its answer of up to `max_new` still fits into the context, or,
/// where it may fill the context, keeps half of its room.
pub fn longest_prompt(tokens: usize, max_new: usize, context: usize) -> usize {
    let room = context.saturating_sub(tokens);
    context.saturating_sub(if max_new < room { max_new } else { room.div_ceil(2) })
}

impl Default for AnswerTokens {
    fn default() -> AnswerTokens {
        AnswerTokens::new(MOST_BYTES)
    }
}

impl AnswerTokens {
    /// Keeps answers in up to `most_bytes` of memory.
    pub fn new(most_bytes: usize) -> AnswerTokens {
        let (keys, uses, kept) = Default::default();
        AnswerTokens { keys, most_bytes, uses, kept }
    }

    /// The prompt with the tokens of earlier answers of the same `scope` in place of others with the same text, as far as
    /// it has at most `most` tokens then, or as many as before.
    ///
    /// `ids` must be all that the model sees: no token may stand for an image or the like.
    pub fn reuse(self: &Arc<Self>, scope: &str, ids: Vec<u32>, most: usize, tokenizer: &Tokenizer) -> Reused {
        let mut room = most.saturating_sub(ids.len());
        let mut place = Place { scope: scope.into(), at: 0, hash: self.keys.hash_one(scope) };
        let mut hashes = VecDeque::from([place.hash]);
        let (mut done, mut changed, used) = (Vec::with_capacity(ids.len()), 0, self.next_use());
        // The next token is the last.
        let mut rest = ids;
        rest.reverse();
        loop {
            // What is compared is not locked meanwhile.
            let kept = self.kept_at(&place);
            if let Some((answer, ours, theirs)) = longest(&kept, &rest, room, tokenizer) {
                let (new, old) = (&answer.ids[..ours], &rest[rest.len() - theirs..]);
                let alike = new.iter().zip(old.iter().rev()).take_while(|(new, old)| new == old).count();
                changed += ours - alike;
                room = room + theirs - ours;
                rest.truncate(rest.len() - theirs);
                rest.extend(new.iter().rev());
                answer.used.store(used, Ordering::Relaxed);
            }
            let Some(id) = rest.pop() else { break };
            done.push(id);
            place.at += 1;
            place.hash = self.keys.hash_one((place.hash, id));
            hashes.push_back(place.hash);
            if hashes.len() > OVERLAP + 1 {
                hashes.pop_front();
            }
        }
        // The first token is never part of what is compared: the beginning of a text can decode in its own way.
        let at = done.len().saturating_sub(OVERLAP).max(1).min(done.len());
        let hash = hashes[at + hashes.len() - 1 - done.len()];
        let overlap = done[at..].to_vec();
        let record = AnswerRecord {
            answers: self.clone(),
            place: Place { at, hash, ..place },
            overlap: overlap.len(),
            ids: overlap,
        };
        Reused { ids: done, changed, record }
    }

    fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    fn kept_at(&self, place: &Place) -> Vec<Arc<Answer>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let alike = kept.answers.get(&place.hash).map_or(&[][..], Vec::as_slice);
        alike.iter().filter(|answer| answer.place == *place).cloned().collect()
    }

    /// Most tokens of one answer.
    fn most_tokens(&self) -> usize {
        self.most_bytes / 8 / size_of::<u32>()
    }

    fn keep(&self, place: Place, ids: Vec<u32>, overlap: usize) {
        let answer = Answer { place, ids: ids.into(), used: self.next_use().into() };
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.add(answer, overlap);
        kept.evict(self.most_bytes);
    }
}

/// The answer that has the most text in common with `rest`, of which the next token is the last; of several the latest.
/// With it, how many of its tokens have that text, and how many of `rest`.
fn longest<'a>(
    answers: &'a [Arc<Answer>],
    rest: &[u32],
    room: usize,
    tokenizer: &Tokenizer,
) -> Option<(&'a Answer, usize, usize)> {
    let same = answers.iter().map(|answer| {
        let next = rest.iter().rev().copied();
        let (ours, theirs) = tokenizer.same_text(answer.ids.iter().copied(), next);
        (&**answer, ours, theirs)
    });
    same.filter(|(_, ours, theirs)| *ours <= theirs + room).max_by_key(|(.., theirs)| *theirs)
}

impl Kept {
    /// Adds an answer to the prompt that ends with the answer's first `overlap` tokens.
    fn add(&mut self, answer: Answer, overlap: usize) {
        let here = self.answers.entry(answer.place.hash).or_default();
        let bytes = |answers: &[Arc<Answer>]| answers.iter().map(|kept| kept.bytes()).sum::<usize>();
        self.bytes -= bytes(here);
        // Of two answers one of which begins with the other the longer is enough.
        if let Some(longer) = here.iter().find(|kept| kept.ids.starts_with(&answer.ids)) {
            longer.used.store(answer.used.into_inner(), Ordering::Relaxed);
        } else {
            here.retain(|kept| !answer.ids.starts_with(&kept.ids));
            let is_alike = |kept: &Arc<Answer>| kept.ids.starts_with(&answer.ids[..overlap]);
            if here.iter().filter(|kept| is_alike(kept)).count() >= MOST_ALIKE
                && let Some(first) = here.iter().position(is_alike)
            {
                here.remove(first);
            }
            here.push(answer.into());
        }
        self.bytes += bytes(here);
    }

    /// Forgets the least recently used eighth until the rest is within the limit.
    fn evict(&mut self, most_bytes: usize) {
        while self.bytes > most_bytes {
            let all = || self.answers.values().flatten();
            let mut uses: Vec<u64> = all().map(|answer| answer.used.load(Ordering::Relaxed)).collect();
            let eighth = uses.len() / 8;
            let (_, last, _) = uses.select_nth_unstable(eighth);
            let last = *last;
            self.answers.retain(|_, alike| {
                alike.retain(|answer| answer.used.load(Ordering::Relaxed) > last);
                !alike.is_empty()
            });
            self.bytes = self.answers.values().flatten().map(|answer| answer.bytes()).sum();
        }
    }
}

impl Answer {
    /// Memory of the answer, with its place in the map.
    fn bytes(&self) -> usize {
        2 * size_of::<Answer>() + self.place.scope.len() + size_of_val(&*self.ids)
    }
}

impl AnswerRecord {
    /// Takes the answer's next token. Of a very long answer the beginning is kept.
    pub fn push(&mut self, id: u32) {
        if self.ids.len() < self.answers.most_tokens() {
            self.ids.push(id);
        }
    }
}

impl Drop for AnswerRecord {
    fn drop(&mut self) {
        if self.ids.len() > self.overlap {
            self.answers.keep(self.place.clone(), std::mem::take(&mut self.ids), self.overlap);
        }
    }
}
