//! [`Scheduler`]: which tokens of which sequences the next step computes.
//!
//! A pure state machine: no device, no clock, no threads. Each step has a token budget, and a smaller one
//! ([`DecodeBudget`]) while sequences decode, because they all wait for the step to finish. Decoding sequences come
//! first, one token each; half of the rest of the budget goes to the oldest sequence in prefill, and the other half to the
//! shortest (chunked prefill), so that a long prompt delays neither decoding sequences nor shorter prompts, and always
//! advances. When the KV cache is full the newest
//! sequence is preempted: its pages are freed, it goes back to the head of the queue, and it is recomputed later
//! (mostly from the prefix cache, if enabled). The oldest sequence always makes progress, so every sequence finishes.
//!
//! Clients share the slots evenly: the next sequence admitted belongs to the client with the fewest running; if no slot
//! is free, the newest sequence of the client with the most is preempted, as long as that evens out the shares.
//!
//! In a model with recurrent state, snapshots of it are published with the pages: after the last full page of a prompt,
//! where a prompt leaves what another sequence computed, after the last full page of an answer, and every
//! [`SNAPSHOT_EVERY`] tokens while there are free rows; and, evicted first, near the end of a prompt, for those who edit
//! their last message. A step makes those that it passes on its way.
//!
//! Where sliding-window layers have pages of their own, there are enough of them for all slots, so that a sequence never waits
//! for one. A sequence takes them step by step, and gives those back that no window reaches any more; their content stays
//! attached to the pages of the other layers, for prefixes that end there, until the memory is needed: longest where others
//! are likely to go on, at the end of a prompt or an answer, and where prompts part.
//!
//! Where the tokens that follow can be guessed and the step is expected to be worth it, a decoding sequence computes
//! them as a draft with its last token, and keeps those that sampling chooses (speculative decoding). Tokens that a
//! constraint forces are such a draft, which is always right.
//!
//! A sequence of an encoder-decoder model has pages for the cross-attention K and V of its encoder input too, all of
//! them from its start on. Its input is encoded in its first step, one input per step, because those that decode wait
//! for it; then the pages are published, and found by others with the same input.

use std::collections::VecDeque;
use std::time::Duration;

use crate::block_pool::{BlockId, BlockPool, Chain};
use crate::encoder_input::EncoderOutput;
use crate::failure::Unfit;
use crate::lora::LoraRef;

mod accuracy;
mod admit;
mod ahead;
mod batch;
mod draft_costs;
mod draft_lengths;
mod draft_model;
mod model_guess;
mod mtp;
mod prompt_lookup;
mod seq;

pub use batch::{Batch, BatchPart, CrossPart, LogitsRows};
pub use draft_costs::{DraftCosts, DraftModelCost, StepCost};
use draft_lengths::{DraftLengths, Guesses};
pub use model_guess::Guess;
use model_guess::{DraftModelRecord, Trials};
use seq::{CrossKv, Seq};

/// Tokens between the snapshots of a long prompt that are made while there are free rows.
pub const SNAPSHOT_EVERY: usize = 1024;

/// Most tokens of a draft.
pub const MOST_DRAFTED: usize = 8;

/// Sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Client that sends requests, for fair sharing of the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// A sequence to submit.
#[derive(Clone, Debug)]
pub struct NewSeq {
    /// Id, never used before.
    pub id: SeqId,
    /// Prompt tokens.
    pub tokens: Vec<u32>,
    /// Maximum tokens to generate.
    pub max_new: usize,
    /// Start of the prefix hash chain: sequences with the same root may share prefix pages.
    pub root: Chain,
    /// True to compute the logits of every prompt token. If so, the prefix cache is not used.
    pub all_logits: bool,
    /// LoRA adapter. Sequences with different adapters or scales must not share a prefix: the caller gives them
    /// different `root`s.
    pub lora: Option<LoraRef>,
    /// Client of the request; clients share the slots evenly.
    pub client: ClientId,
    /// True if its tokens may be guessed (speculative decoding).
    pub drafts: bool,
    /// Output of the encoder that it attends to. Sequences that attend to different ones must not share a prefix: the
    /// caller gives them different `root`s.
    pub cross: Option<EncoderOutput>,
}

/// The scheduler's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum tokens of a sequence, prompt and answer.
    pub context: usize,
    /// Maximum running sequences.
    pub slots: usize,
    /// Token budget of a step.
    pub budget: usize,
    /// Of these, tokens of sequences that need the logits of all tokens; those take much more memory.
    pub all_logits: usize,
    /// Token budget of a step while sequences decode (see [`step_budget`](crate::step_budget)).
    pub decode_budget: DecodeBudget,
    /// Costs of drafts, which are made only where they are worth it; `None` if there are none.
    pub drafts: Option<DraftCosts>,
}

/// Token budget of a step while sequences decode: those wait for it, so prefill may make it three quarters longer, and with
/// what steps differ in anyway few take twice as long as without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeBudget {
    /// Tokens that any such step may have: it is short enough.
    pub least: usize,
    /// Tokens that take as long to compute as what a step does once, however many tokens it has: reading the weights.
    pub fixed: usize,
}

impl DecodeBudget {
    /// The same number of tokens, however many sequences decode.
    pub fn of_tokens(tokens: usize) -> DecodeBudget {
        DecodeBudget { least: tokens, fixed: 0 }
    }

    /// Budget of a step in which so many sequences decode.
    pub fn of(self, decoding: usize) -> usize {
        // Prefill always advances.
        self.least.max(decoding + (3 * (decoding + self.fixed) / 4).max(1))
    }

    /// Tokens that make a step in which so many sequences decode a sixth longer: that is hardly seen.
    fn in_passing(self, decoding: usize) -> usize {
        ((decoding + self.fixed) / 6).max(1)
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Preempted sequences.
    pub preemptions: u64,
    /// Tokens that were computed as drafts.
    pub drafted: u64,
    /// Drafted tokens that sampling chose.
    pub accepted: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    waiting: VecDeque<Seq>,
    /// Running sequences in order of admission.
    running: Vec<Seq>,
    /// Sequences that have ended, of which the MTP layer has not read all hidden states yet. Their pages are given back.
    ended: Vec<Seq>,
    draft_model: DraftModelRecord,
    /// Trials of prompt lookup's guesses.
    trials: Trials,
    /// Place of the sequence that is the first to compute forced tokens in the next step, where not all of them can.
    turn: usize,
    counts: Counts,
}

impl Scheduler {
    /// A scheduler for the pages of `pool`.
    pub fn new(limits: Limits, pool: BlockPool) -> Scheduler {
        let slots = limits.slots.max(1);
        // A step of a sequence reads one row of states and writes another.
        let slots = if pool.has_states() { slots.min(pool.state_rows() / 2) } else { slots };
        // If there are too few pages for one slot, no sequence fits.
        let swa_slots = if pool.has_swa() { slots_with_swa(&pool, slots, limits.budget) } else { slots };
        let context = if swa_slots == 0 { 0 } else { limits.context };
        let slots = swa_slots.max(1);
        // However many sequences decode, part of the budget is left for prefill.
        let (budget, all_logits) = (limits.budget.max(2 * slots), limits.all_logits.max(slots));
        let limits = Limits { context, slots, budget, all_logits, ..limits };
        let (waiting, running, ended) = (VecDeque::new(), Vec::new(), Vec::new());
        let (draft_model, trials, counts) =
            (DraftModelRecord::default(), Trials::default(), Counts::default());
        Scheduler { limits, pool, waiting, running, ended, draft_model, trials, turn: 0, counts }
    }

    /// Limits after clamping.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Maximum tokens of a sequence: the context limit, or the size of the whole KV cache if smaller.
    pub fn context(&self) -> usize {
        self.context_beside(0)
    }

    /// Maximum tokens of a sequence that needs some pages for cross-attention.
    fn context_beside(&self, cross_pages: usize) -> usize {
        let pages = self.pool.count().saturating_sub(cross_pages);
        self.limits.context.min(pages * self.pool.page_len())
    }

    /// Queues a sequence.
    pub fn submit(&mut self, new: NewSeq) -> Result<(), Unfit> {
        let page = self.pool.page_len();
        let (prompt, read) = (new.tokens.len(), new.cross.map(|cross| cross.tokens));
        if prompt == 0 || read == Some(0) {
            return Err(Unfit::Empty);
        }
        let cross_pages = read.unwrap_or(0).div_ceil(page);
        if cross_pages >= self.pool.count() {
            let room = self.pool.count().saturating_sub(1) * page;
            return Err(Unfit::LongInput { tokens: read.unwrap_or(0), room });
        }
        let context = self.context_beside(cross_pages);
        // One token of the answer must fit too, unless none is requested.
        if prompt + usize::from(new.max_new > 0) > context {
            return Err(Unfit::TooLong { prompt, context });
        }
        let model = self.limits.drafts.and_then(|drafts| drafts.model).map(|_| self.draft_model.new_guess());
        let seq = Seq::new(new, context, model);
        self.running.iter_mut().for_each(|running| running.keep_for(&seq, &self.pool));
        self.waiting.push_back(seq);
        Ok(())
    }

    /// Number of running sequences.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting sequences.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True if no sequence is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Block pool.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Block pool, for a disk cache. Pages may be published and evicted; those of sequences stay as they are.
    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Prompt tokens of a sequence found in the prefix cache; `None` before it is first admitted.
    pub fn cached(&self, id: SeqId) -> Option<usize> {
        self.running.iter().chain(&self.waiting).find(|s| s.id == id)?.cached
    }

    /// Checks that every page is accounted for.
    pub fn check(&self) -> Result<(), String> {
        let running = || self.running.iter();
        let swa = running().flat_map(|seq| seq.swa.held());
        self.pool.check(running().flat_map(Seq::held), running().flat_map(Seq::states), swa)
    }

    /// Removes a sequence, finished or abandoned, and frees its pages.
    pub fn drop_seq(&mut self, id: SeqId) {
        self.waiting.retain(|s| s.id != id);
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            self.end(at);
        }
    }

    /// Removes a running sequence.
    fn end(&mut self, at: usize) {
        let seq = self.running.remove(at);
        self.give_back(&seq);
        if self.has_mtp() && seq.has_mtp() && seq.unread() > 0 {
            self.ended.push(seq);
        }
    }

    /// Frees the pages and the states of a sequence.
    fn give_back(&mut self, seq: &Seq) {
        seq.settle_snapshot(&mut self.pool);
        seq.states().for_each(|row| self.pool.give_back_state(row));
        // The next turn goes on from here.
        for page in seq.swa.held() {
            self.pool.keep_swa(page);
            self.pool.give_back_swa(page);
        }
        self.pool.give_back(&seq.held());
    }

    /// Next step's batch; `None` if there is nothing to compute.
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.preempt_for_room();
        self.admit();
        let shares = self.shares();
        self.draft(&shares);
        let page_len = self.pool.page_len();
        let mut parts = Vec::with_capacity(shares.len());
        let has_states = self.pool.has_states();
        // Snapshots have what is left.
        for (seq, _) in self.running.iter_mut().zip(&shares).filter(|(_, rows)| has_states && **rows > 0) {
            if seq.next_state.is_none() {
                seq.next_state = self.pool.take_state();
            }
        }
        for (seq, mut rows) in self.running.iter_mut().zip(shares).filter(|(_, rows)| *rows > 0) {
            if has_states {
                rows = seq.take_snapshots(rows, &mut self.pool);
            }
            let end = seq.computed + rows + seq.draft.len();
            if self.pool.has_swa() {
                seq.swa.extend(end, &mut self.pool);
            }
            parts.push(seq.part(rows, page_len));
        }
        (!parts.is_empty()).then_some(Batch { parts })
    }

    /// Allocates a page for the newest token of each decoding sequence, preempting the newest sequences if needed.
    fn preempt_for_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let seq = &self.running[i];
            let need = seq.tokens.len().div_ceil(self.pool.page_len());
            if seq.blocks.len() >= need {
                i += 1;
            } else if let Some(block) = self.pool.take() {
                self.running[i].blocks.extend([block]);
            } else {
                // This sequence itself may be the one preempted; then the loop ends.
                self.preempt_newest();
            }
        }
    }

    /// Token budget of a step in which so many sequences decode.
    pub fn decode_budget(&self, decoding: usize) -> usize {
        self.limits.decode_budget.of(decoding).min(self.limits.budget)
    }

    fn preempt_newest(&mut self) {
        if let Some(newest) = self.running.len().checked_sub(1) {
            self.preempt(newest);
        }
    }

    fn preempt(&mut self, at: usize) {
        let mut seq = self.running.remove(at);
        self.give_back(&seq);
        seq.reset();
        self.counts.preemptions += 1;
        self.waiting.push_front(seq);
    }

    /// Tokens that each running sequence gets in the next step: one if it decodes, and those that it computes again. Of the
    /// remaining budget the oldest sequence in prefill gets half, and the others what is left, those with the fewest tokens
    /// left first. Sequences that need all logits additionally share the smaller `all_logits` budget. Of those whose input is
    /// not encoded yet only the first gets any.
    fn shares(&self) -> Vec<usize> {
        let mut shares: Vec<usize> =
            self.running.iter().map(|s| if s.decodes() { s.left() } else { 0 }).collect();
        let decoding = shares.iter().sum::<usize>();
        let budget = if decoding > 0 { self.decode_budget(decoding) } else { self.limits.budget };
        let mut budget = budget.saturating_sub(decoding);
        let mut scored_budget = self.limits.all_logits;
        let encodes = self.running.iter().position(Seq::will_encode);
        let may =
            |i: usize| !self.running[i].decodes() && (!self.running[i].will_encode() || encodes == Some(i));
        let mut prefilling: Vec<usize> = (0..shares.len()).filter(|i| may(*i)).collect();
        let half = |i: usize| match self.running[i].all_logits {
            true => scored_budget.min(budget).div_ceil(2),
            false => budget.div_ceil(2),
        };
        let oldest = prefilling.first().map(|oldest| (*oldest, half(*oldest)));
        prefilling.sort_by_key(|i| self.running[*i].left());
        let each = prefilling.into_iter().map(|i| (i, usize::MAX));
        for (i, most) in oldest.into_iter().chain(each) {
            let seq = &self.running[i];
            let mut more = (seq.left() - shares[i]).min(most).min(budget);
            if seq.all_logits {
                more = more.min(scored_budget);
                scored_budget -= more;
            }
            shares[i] += more;
            budget -= more;
        }
        shares
    }

    /// Tells it of the tokens that must come next in each sequence that decodes, if there are any: they are drafted before
    /// all that is guessed.
    pub fn force(&mut self, forced: impl Fn(SeqId) -> Vec<u32>) {
        for seq in self.running.iter_mut().filter(|seq| seq.decodes()) {
            seq.forced = forced(seq.id);
        }
    }

    fn has_forced(&self) -> bool {
        self.running.iter().any(|seq| !seq.forced.is_empty())
    }

    /// Drafts tokens, in steps in which all sequences decode: those that are forced, or that prompt lookup guesses, or else
    /// those that the draft model has guessed.
    fn draft(&mut self, shares: &[usize]) {
        if self.limits.drafts.is_none() && !self.has_forced() {
            return;
        }
        let decodes = |(seq, rows): (&Seq, &usize)| seq.decodes() && *rows == seq.left();
        let only_decoding = self.running.iter().zip(shares).all(decodes);
        let rows = shares.iter().sum();
        let mut budget = if only_decoding { self.decode_budget(rows).saturating_sub(rows) } else { 0 };
        if self.limits.drafts.is_none() && self.running.len() > 1 {
            // Costs are not known, and a sequence's forced tokens keep the others waiting.
            budget = budget.min(self.limits.decode_budget.in_passing(rows));
        }
        // Without room for drafts, too: guesses that are not computed are learned from.
        let lengths = self.draft_lengths(rows, budget);
        if lengths.loss > 0.0 {
            self.trials.pay(lengths.loss);
        }
        // Pages are left for the next tokens of all.
        let mut pages = self.pool.available().saturating_sub(self.running.len());
        for (at, seq) in self.running.iter_mut().enumerate() {
            if !seq.decodes() {
                seq.draft.clear();
                continue;
            }
            let drafted = seq.draft(lengths.of(at), budget, self.pool.page_len(), &mut pages);
            let need = (seq.tokens.len() + drafted).div_ceil(self.pool.page_len());
            seq.blocks.extend((seq.blocks.len()..need).map_while(|_| self.pool.take()));
            budget -= drafted;
            self.counts.drafted += drafted as u64;
        }
    }

    /// Lengths of the drafts of what is forced and of prompt lookup's, at most `room` tokens in all, in a step of `rows`
    /// tokens without them.
    fn draft_lengths(&mut self, rows: usize, room: usize) -> DraftLengths {
        let Some(costs) = self.limits.drafts else {
            return DraftLengths { each: self.shares_of_forced(room), loss: 0.0 };
        };
        let (page_len, pages) =
            (self.pool.page_len(), self.pool.available().saturating_sub(self.running.len()));
        let guesses: Vec<Guesses> =
            self.running.iter_mut().map(|seq| seq.look_up(room, page_len, pages)).collect();
        let lengths = costs.lengths(rows, &guesses, room, self.pool.has_states());
        // A draft model has its own trials.
        let may_try = costs.step.is_learned() && costs.model.is_none() && self.trials.can_pay(lengths.loss);
        if lengths.loss > 0.0 && !may_try { DraftLengths::default() } else { lengths }
    }

    /// How many of its forced tokens each sequence computes, of `room` in all: as many as the others, one more at a time. They
    /// take turns at those that are left.
    fn shares_of_forced(&mut self, room: usize) -> Vec<usize> {
        let (count, mut room) = (self.running.len(), room);
        let (mut each, first) = (vec![0; count], self.turn);
        for n in 0..MOST_DRAFTED {
            let order = (first..first + count).map(|at| at % count);
            let forced: Vec<usize> = order.filter(|at| self.running[*at].forced.len() > n).collect();
            for at in forced.iter().copied().take(room) {
                each[at] += 1;
                self.turn = at + 1;
            }
            room = room.saturating_sub(forced.len());
            if forced.is_empty() || room == 0 {
                break;
            }
        }
        each
    }

    /// Learns how long a step took in which all sequences decode.
    pub fn step_took(&mut self, sequences: usize, tokens: usize, time: Duration) {
        let Some(drafts) = &mut self.limits.drafts else { return };
        drafts.step.learn(sequences, tokens, time);
        self.trials.save(drafts.step.of(sequences, sequences));
    }

    /// Records a step that is under way: what is asked of the scheduler before [`commit`](Self::commit) concerns the tokens
    /// after it.
    pub fn advance(&mut self, batch: &Batch) {
        let mut next = 0;
        for part in &batch.parts {
            let Some(at) = self.place(part.id, next) else { continue };
            self.running[at].computed = part.start + part.tokens.len() - part.drafted;
            next = at + 1;
        }
    }

    /// Index of a running sequence; at once if it is the one at `next`, where parts are in the order of the sequences.
    /// `None` if it has been dropped.
    fn place(&self, id: SeqId, next: usize) -> Option<usize> {
        let mut places = (next..self.running.len()).chain(0..next.min(self.running.len()));
        places.find(|i| self.running[*i].id == id)
    }

    /// Records a finished step: its tokens are computed. `sampled` has the next tokens of each part: none, or one, and one
    /// more for each token of its draft that was right. Returns for each part whether its sequence has reached its maximum
    /// length and is no longer in the scheduler.
    pub fn commit(&mut self, batch: &Batch, sampled: &[Vec<u32>]) -> Vec<bool> {
        let mut next = 0;
        let mut commit_one = |(part, tokens): (&BatchPart, &Vec<u32>)| {
            let Some(at) = self.place(part.id, next) else { return false };
            self.computed(at, part, tokens);
            let seq = &self.running[at];
            let full = seq.tokens.len() >= seq.most && (!tokens.is_empty() || seq.left() == 0);
            if full {
                self.end(at);
            }
            next = at + usize::from(!full);
            full
        };
        batch.parts.iter().zip(sampled).map(&mut commit_one).collect()
    }

    /// Adds the sampled tokens to a part's sequence, and publishes the pages that the part has filled.
    fn computed(&mut self, at: usize, part: &BatchPart, sampled: &[u32]) {
        let (page, seq) = (self.pool.page_len(), &mut self.running[at]);
        let accepted = sampled.len().saturating_sub(1).min(part.drafted);
        self.counts.accepted += accepted as u64;
        let through = part.start + part.tokens.len() - part.drafted + accepted;
        let goes_back = part.state.is_some() && accepted < part.drafted;
        seq.computed = if goes_back { part.start } else { through };
        seq.again = through - seq.computed;
        seq.model.iter_mut().for_each(|model| model.saw(part.start..through));
        seq.extend(sampled, through, &mut self.draft_model);
        if !goes_back {
            if let Some(next) = seq.next_state.take()
                && let Some(read) = seq.state.replace(next)
            {
                self.pool.give_back_state(read);
            }
            seq.next_state = seq.ahead_state.take();
        }
        if let Some(CrossKv { output, blocks, encoded }) = seq.cross.as_mut().filter(|cross| !cross.encoded) {
            self.pool.publish_input(&output.input, blocks.iter().copied().map(BlockId));
            *encoded = true;
        }
        let mut filled = Vec::new();
        while (seq.published + 1) * page <= seq.computed {
            let at = seq.published * page;
            let (block, tokens) = (BlockId(seq.blocks[seq.published]), &seq.tokens[at..at + page]);
            let published = self.pool.publish(block, seq.after, tokens);
            if let Some(swa) = seq.swa.page(seq.published) {
                self.pool.publish_swa(published.block, swa);
            }
            seq.after = published.chain;
            seq.published += 1;
            filled.push((seq.published * page, published.block));
        }
        if self.pool.has_swa() {
            seq.swa.keep(seq.computed, &mut self.pool);
            seq.swa.release(seq.computed, &mut self.pool);
        }
        if self.pool.has_states() {
            seq.publish_snapshots(&filled, &mut self.pool);
            if let Some(((end, block), row)) = filled.last().zip(seq.state)
                && seq.computed == *end
            {
                seq.snapshot(*end, *block, row, &mut self.pool);
            }
        }
        self.record_draft_kv(at);
    }
}

/// Slots for which there are enough pages of the sliding-window layers.
fn slots_with_swa(pool: &BlockPool, slots: usize, budget: usize) -> usize {
    let needed = |slots: usize| {
        let step = budget.max(2 * slots);
        pool.window().pages_needed(slots, step, pool.page_len())
    };
    (1..=slots).rev().find(|slots| needed(*slots) <= pool.swa_pages()).unwrap_or(0)
}
