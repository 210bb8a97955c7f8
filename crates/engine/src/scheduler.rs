//! [`Scheduler`]: which tokens of which sequences the next step computes.
//!
//! A pure state machine: no device, no clock, no threads. A step has a budget of tokens, and a smaller one where
//! sequences are being decoded, which all wait for it. Those come first, one token each; what is left of the budget is
//! shared evenly among those whose prompts are being computed, so that a long prompt delays neither the answers under
//! way nor the short prompts beside it. When the cache is full the newest sequence is preempted: it loses its pages, waits
//! at the head of the queue, and is computed again (mostly from the prefix cache, where there is one). The oldest always
//! goes on, so everything ends.
//!
//! Clients share the slots evenly: the next to be admitted is of the client that has the fewest, and where none is free,
//! the newest sequence of the client that has the most is preempted, as long as that makes the shares more even.

use std::collections::{HashMap, VecDeque};

use crate::block_pool::{BlockId, BlockPool, Chain};
use crate::lora::LoraRef;

/// A sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Who asks for sequences, for fairness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// A place among the sequences under way, of which each has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A sequence to be generated.
#[derive(Clone, Debug)]
pub struct NewSeq {
    /// Its name, never used before.
    pub id: SeqId,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most.
    pub max_new: usize,
    /// Whom it shares its prefix with.
    pub root: Chain,
    /// Are the logits of every prompt token wanted? Then nothing is taken from the prefix cache.
    pub all_logits: bool,
    /// What is added to the model. Sequences that differ in it have no prefix in common, which is for `root` to say.
    pub lora: Option<LoraRef>,
    /// Who asked: clients share the slots evenly.
    pub client: ClientId,
}

/// A sequence in the scheduler.
#[derive(Debug)]
struct Seq {
    id: SeqId,
    /// The prompt and what has been generated.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Tokens that the sequence may have in the end.
    most: usize,
    /// Tokens whose keys and values are in the cache.
    computed: usize,
    blocks: Vec<BlockId>,
    /// While it is under way.
    slot: SlotId,
    root: Chain,
    /// What the next page to be published follows.
    after: Chain,
    /// Pages published or found.
    published: usize,
    all_logits: bool,
    lora: Option<LoraRef>,
    client: ClientId,
    /// Prompt tokens that the prefix cache spared, the first time.
    cached: Option<usize>,
}

impl Seq {
    fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Is only its newest token left to compute?
    fn decodes(&self) -> bool {
        self.left() == 1 && self.tokens.len() > self.prompt_len
    }

    /// Pages for all its tokens and one more.
    fn pages(&self, page_len: usize) -> usize {
        (self.tokens.len() + 1).min(self.most).max(self.tokens.len()).div_ceil(page_len)
    }
}

/// Tokens of one sequence that a step computes.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPart {
    /// Whose.
    pub id: SeqId,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The position of the first.
    pub start: usize,
    /// The sequence's pages, up to the last of these tokens.
    pub blocks: Vec<BlockId>,
    /// The sequence's place.
    pub slot: SlotId,
    /// Which of these tokens' logits are wanted.
    pub logits: Wanted,
    /// What is added to the model.
    pub lora: Option<LoraRef>,
}

/// Logits that a part is computed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The prompt is not finished yet.
    None,
    /// The next token is to be sampled from the last.
    Last,
    /// Every token's; sample from the last if it is the prompt's last.
    All {
        /// Is a token to be sampled?
        last: bool,
    },
}

impl Wanted {
    /// Is a token to be sampled?
    pub fn samples(self) -> bool {
        matches!(self, Wanted::Last | Wanted::All { last: true })
    }
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// One part a sequence.
    pub parts: Vec<BatchPart>,
}

/// What became of a sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which.
    pub id: SeqId,
    /// The token it got. None where only the prompt's logits were wanted.
    pub token: Option<u32>,
    /// Has it all the tokens it may have? Then it is gone from the scheduler.
    pub full: bool,
}

/// Why a sequence cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is nothing to go on from.
    #[error("the prompt is empty")]
    Empty,
    /// It is longer than the model's context.
    #[error("the prompt has {prompt} tokens, and the context is {context}")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// It asks for an adapter that was unloaded.
    #[error("the adapter is not loaded any more")]
    NoAdapter,
    /// It has a token that the model does not know.
    #[error("the prompt has token {token}, and the model knows those under {vocab}")]
    Unknown {
        /// The token.
        token: u32,
        /// One more than the last.
        vocab: usize,
    },
}

/// The scheduler's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a sequence, prompt and answer.
    pub context: usize,
    /// Sequences under way at once.
    pub slots: usize,
    /// Tokens in a step.
    pub budget: usize,
    /// Of these, those whose logits are all wanted: they take much more memory.
    pub all_logits: usize,
    /// Tokens in a step in which sequences are being decoded (see [`pace`](crate::step_budget)).
    pub decode_budget: usize,
    /// May a sequence go on from pages that another has filled? Not where layers keep more of it than pages.
    pub prefixes: bool,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Prompt tokens that were looked for in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens that were found there.
    pub prefix_hits: u64,
    /// Sequences that had to give way.
    pub preemptions: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    waiting: VecDeque<Seq>,
    /// In the order in which they were admitted.
    running: Vec<Seq>,
    counts: Counts,
}

impl Scheduler {
    /// A scheduler for the pages of `pool`.
    pub fn new(limits: Limits, pool: BlockPool) -> Scheduler {
        let slots = limits.slots.max(1);
        // However many sequences are being decoded, some of the budget is left for prompts.
        let (budget, all_logits) = (limits.budget.max(2 * slots), limits.all_logits.max(slots));
        let decode_budget = limits.decode_budget.clamp(2 * slots, budget);
        let limits = Limits { slots, budget, decode_budget, all_logits, ..limits };
        Scheduler { limits, pool, waiting: VecDeque::new(), running: Vec::new(), counts: Counts::default() }
    }

    /// What it keeps to.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens that a sequence may have: no longer than the context, and no more than fit the whole cache.
    pub fn context(&self) -> usize {
        self.limits.context.min(self.pool.count() * self.pool.page_len())
    }

    /// Takes a sequence in.
    pub fn submit(&mut self, new: NewSeq) -> Result<(), Unfit> {
        let (prompt, context) = (new.tokens.len(), self.context());
        if prompt == 0 {
            return Err(Unfit::Empty);
        }
        // A token of the answer must fit too, unless none is wanted.
        if prompt + usize::from(new.max_new > 0) > context {
            return Err(Unfit::TooLong { prompt, context });
        }
        self.waiting.push_back(Seq {
            id: new.id,
            prompt_len: prompt,
            most: prompt.saturating_add(new.max_new).min(context),
            tokens: new.tokens,
            computed: 0,
            blocks: Vec::new(),
            slot: SlotId::default(),
            root: new.root,
            after: new.root,
            published: 0,
            all_logits: new.all_logits,
            lora: new.lora,
            client: new.client,
            cached: None,
        });
        Ok(())
    }

    /// Sequences under way.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Is there anything to do?
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The pages.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Prompt tokens of a sequence that the prefix cache spared, once it has been admitted.
    pub fn cached(&self, id: SeqId) -> Option<usize> {
        self.running.iter().chain(&self.waiting).find(|s| s.id == id)?.cached
    }

    /// Is every page accounted for?
    pub fn check(&self) -> Result<(), String> {
        self.pool.check(self.running.iter().flat_map(|s| s.blocks.iter().copied()))
    }

    /// Forgets a sequence: it is finished, or nobody wants it any more.
    pub fn drop_seq(&mut self, id: SeqId) {
        self.waiting.retain(|s| s.id != id);
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            let seq = self.running.remove(at);
            self.pool.give_back(&seq.blocks);
        }
    }

    /// What to compute next; `None` when there is nothing.
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.make_room();
        self.admit();
        let shares = self.shares();
        let page_len = self.pool.page_len();
        let parts = self.running.iter().zip(shares).filter(|(_, rows)| *rows > 0);
        let parts: Vec<BatchPart> = parts.map(|(seq, rows)| part(seq, rows, page_len)).collect();
        (!parts.is_empty()).then_some(Batch { parts })
    }

    /// Gives each decoding sequence a page for its newest token, at the cost of the newest sequences.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let seq = &self.running[i];
            let need = seq.tokens.len().div_ceil(self.pool.page_len());
            if seq.blocks.len() >= need {
                i += 1;
            } else if let Some(block) = self.pool.take() {
                self.running[i].blocks.push(block);
            } else {
                // It may be this very one that gives way; the loop ends then.
                self.preempt_newest();
            }
        }
    }

    fn preempt_newest(&mut self) {
        if let Some(newest) = self.running.len().checked_sub(1) {
            self.preempt(newest);
        }
    }

    fn preempt(&mut self, at: usize) {
        let mut seq = self.running.remove(at);
        self.pool.give_back(&seq.blocks);
        seq.blocks.clear();
        (seq.computed, seq.published, seq.after) = (0, 0, seq.root);
        self.counts.preemptions += 1;
        self.waiting.push_front(seq);
    }

    /// Admits waiting sequences, as long as there are slots and pages.
    fn admit(&mut self) {
        while let Some(next) = self.next_waiting() {
            if self.running.len() < self.limits.slots && self.start(next) {
                continue;
            }
            match self.preempted_for(self.waiting[next].client) {
                Some(victim) => self.preempt(victim),
                None => return,
            }
        }
    }

    /// The waiting sequence to be admitted next: the first of the client that has the fewest under way. `None` where all
    /// wait for a prefix, or for a slot that is not theirs to have.
    fn next_waiting(&self) -> Option<usize> {
        let under_way = self.under_way();
        let most = under_way.values().copied().max().unwrap_or(0);
        let has_slot = self.running.len() < self.limits.slots;
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.map(|(i, seq)| (under_way.get(&seq.client).copied().unwrap_or(0), i));
        let mut order: Vec<_> = waiting.filter(|(n, _)| has_slot || is_uneven(*n, most)).collect();
        order.sort_unstable();
        // Whoever waits for a prefix that is being computed lets others pass.
        order.into_iter().map(|(_, i)| i).find(|i| !self.will_be_cached(&self.waiting[*i]))
    }

    /// How many sequences each client has under way.
    fn under_way(&self) -> HashMap<ClientId, usize> {
        let mut counts = HashMap::new();
        self.running.iter().for_each(|seq| *counts.entry(seq.client).or_default() += 1);
        counts
    }

    /// Which sequence is preempted so that this client has a slot or pages: the newest of the client that has the most,
    /// if that has more than its share.
    fn preempted_for(&self, client: ClientId) -> Option<usize> {
        let under_way = self.under_way();
        let own = under_way.get(&client).copied().unwrap_or(0);
        let count = |seq: &Seq| under_way.get(&seq.client).copied().unwrap_or(0);
        // The last of several that are equal: the newest.
        let (at, most) = self.running.iter().map(count).enumerate().max_by_key(|(_, n)| *n)?;
        is_uneven(own, most).then_some(at)
    }

    /// May what a sequence begins with come from the cache?
    fn takes_prefix(&self, seq: &Seq) -> bool {
        self.limits.prefixes && !seq.all_logits
    }

    /// Is a page that this sequence needs being computed by another at the moment?
    fn will_be_cached(&self, seq: &Seq) -> bool {
        if !self.takes_prefix(seq) {
            return false;
        }
        let page = self.pool.page_len();
        let have = self.pool.find(seq.root, usable(seq, page)).blocks.len() * page;
        self.running.iter().filter(|r| r.root == seq.root && r.computed < r.prompt_len).any(|r| {
            let shared = usable(r, page).iter().zip(usable(seq, page)).take_while(|(a, b)| a == b).count();
            shared / page * page > have
        })
    }

    /// Gives waiting sequence `i` its pages, if there are enough.
    fn start(&mut self, i: usize) -> bool {
        let (page, seq) = (self.pool.page_len(), &self.waiting[i]);
        let takes_prefix = self.takes_prefix(seq);
        let prefix = match takes_prefix {
            true => self.pool.find(seq.root, usable(seq, page)),
            false => Default::default(),
        };
        let fresh = seq.pages(page) - prefix.blocks.len();
        // Those under way will soon want a page each; without one they would have to throw this one out again.
        let spare = self.running.len();
        let need = fresh + self.pool.idle_among(&prefix.blocks) + spare;
        if need > self.pool.available() {
            return false;
        }
        let is_free = |place: &SlotId| self.running.iter().all(|s| s.slot != *place);
        let Some(place) = (0..self.limits.slots as u32).map(SlotId).find(is_free) else { return false };
        let Some(mut seq) = self.waiting.remove(i) else { return false };
        seq.slot = place;
        prefix.blocks.iter().for_each(|b| self.pool.lend(*b));
        seq.computed = prefix.blocks.len() * page;
        seq.published = prefix.blocks.len();
        seq.after = prefix.end.unwrap_or(seq.root);
        seq.blocks = prefix.blocks;
        seq.blocks.extend((0..fresh).map_while(|_| self.pool.take()));
        if seq.cached.is_none() {
            seq.cached = Some(seq.computed.min(seq.prompt_len));
            if takes_prefix {
                self.counts.prefix_queries += seq.prompt_len as u64;
                self.counts.prefix_hits += seq.computed as u64;
            }
        }
        self.running.push(seq);
        true
    }

    /// How many tokens each running sequence gets: one for those that decode, an even share of the rest of the budget
    /// for the others. Those whose logits are all wanted share the smaller budget for that besides.
    fn shares(&self) -> Vec<usize> {
        let most = |s: &Seq| if s.all_logits { s.left().min(self.limits.all_logits) } else { s.left() };
        let mut shares: Vec<usize> = self.running.iter().map(|s| usize::from(s.decodes())).collect();
        let decoding = shares.iter().sum::<usize>();
        let mut budget = if decoding > 0 { self.limits.decode_budget } else { self.limits.budget } - decoding;
        let mut scored_budget = self.limits.all_logits;
        let mut hungry: Vec<usize> = (0..shares.len()).filter(|i| !self.running[*i].decodes()).collect();
        // Those that need less than an even share leave the rest to the others.
        hungry.sort_by_key(|i| most(&self.running[*i]));
        let mut left = hungry.len();
        let mut scored_left = hungry.iter().filter(|i| self.running[**i].all_logits).count();
        for i in hungry {
            let seq = &self.running[i];
            shares[i] = seq.left().min(budget.div_ceil(left));
            if seq.all_logits {
                shares[i] = shares[i].min(scored_budget.div_ceil(scored_left));
                scored_budget -= shares[i];
                scored_left -= 1;
            }
            budget -= shares[i];
            left -= 1;
        }
        shares
    }

    /// Takes note of a step: its tokens are computed, and `sampled` has the next token of each part that wanted one.
    pub fn commit(&mut self, batch: &Batch, sampled: &[(SeqId, u32)]) -> Vec<Progress> {
        batch.parts.iter().for_each(|part| self.computed(part));
        let mut progress = Vec::new();
        for part in &batch.parts {
            // A sequence that was dropped meanwhile is no longer here.
            let Some(seq) = self.running.iter_mut().find(|s| s.id == part.id) else { continue };
            let token = sampled.iter().find(|(id, _)| *id == part.id).map(|(_, token)| *token);
            seq.tokens.extend(token);
            let full = seq.tokens.len() >= seq.most && (token.is_some() || seq.left() == 0);
            if token.is_some() || full {
                progress.push(Progress { id: part.id, token, full });
            }
            if full {
                self.drop_seq(part.id);
            }
        }
        progress
    }

    /// Publishes the pages that a part has filled.
    fn computed(&mut self, part: &BatchPart) {
        let page = self.pool.page_len();
        let Some(seq) = self.running.iter_mut().find(|s| s.id == part.id) else { return };
        seq.computed = part.start + part.tokens.len();
        if !self.limits.prefixes {
            return;
        }
        while (seq.published + 1) * page <= seq.computed {
            let at = seq.published * page;
            let (block, tokens) = (seq.blocks[seq.published], &seq.tokens[at..at + page]);
            seq.after = self.pool.publish(block, seq.after, tokens);
            seq.published += 1;
        }
    }
}

/// Are the shares more even if one goes from the client with `most` to the one with `few`?
fn is_uneven(few: usize, most: usize) -> bool {
    few + 2 <= most
}

/// The tokens whose pages may come from the cache: the last token is computed in any case, for its logits.
fn usable(seq: &Seq, page_len: usize) -> &[u32] {
    &seq.tokens[..(seq.tokens.len() - 1) / page_len * page_len]
}

/// The next `rows` tokens of a sequence.
fn part(seq: &Seq, rows: usize, page_len: usize) -> BatchPart {
    let (start, end) = (seq.computed, seq.computed + rows);
    let last = end == seq.tokens.len() && seq.tokens.len() < seq.most;
    let logits = match (seq.all_logits && start < seq.prompt_len, last) {
        (true, last) => Wanted::All { last },
        (false, true) => Wanted::Last,
        (false, false) => Wanted::None,
    };
    let blocks = seq.blocks[..end.div_ceil(page_len)].to_vec();
    let tokens = seq.tokens[start..end].to_vec();
    BatchPart { id: seq.id, tokens, start, blocks, slot: seq.slot, logits, lora: seq.lora }
}
