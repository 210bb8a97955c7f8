//! [`Seq`]: a sequence in the scheduler, its tokens and its pages.

use std::collections::{BTreeMap, BTreeSet};

use tallow_core::{PageTable, StateRows};

use super::accuracy::Accuracy;
use super::draft_lengths::Guesses;
use super::model_guess::{DraftModelRecord, ModelGuess};
use super::prompt_lookup::PromptLookup;
use super::{BatchPart, ClientId, CrossPart, LogitsRows, MOST_DRAFTED, NewSeq, SNAPSHOT_EVERY, SeqId};
use crate::block_pool::{BlockId, BlockPool, Chain, StateRow, SwaPage};
use crate::encoder_input::{EncoderOutput, InputDigest};
use crate::lora::LoraRef;

/// Near the end of a prompt, how much further from it each snapshot is than the one after it: what is computed again where a
/// message is edited is at most about a fifth of what is new.
const TAIL_GROWTH: f64 = 1.2;

/// Why a snapshot of the state is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Snapshot {
    /// Near the end of a prompt, where messages are edited.
    Tail,
    /// At regular intervals.
    Regular,
    /// At the end of a prompt, and where prompts part.
    Due,
}

/// A sequence in the scheduler.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) id: SeqId,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Maximum tokens, prompt and answer together.
    pub(super) most: usize,
    /// Tokens whose K and V are in the KV cache, or will be after the step that is under way.
    pub(super) computed: usize,
    /// Tokens after these that were computed and must be again, beside the newest: the recurrent state after a draft of which
    /// a token was wrong is of no use, and the next step goes on from the one before it.
    pub(super) again: usize,
    pub(super) blocks: PageTable,
    /// Pages of the sliding-window layers, if these have their own.
    pub(super) swa: SwaKv,
    /// Cross-attention, in a model with an encoder.
    pub(super) cross: Option<CrossKv>,
    /// Row of its recurrent state after the computed tokens; `None` at its start, and in a model without.
    pub(super) state: Option<StateRow>,
    /// Row that its next step writes.
    pub(super) next_state: Option<StateRow>,
    /// Row that the step after that writes, if it was launched ahead.
    pub(super) ahead_state: Option<StateRow>,
    /// Prompt positions after which snapshots of the state are planned.
    pub(super) snapshots: BTreeMap<usize, Snapshot>,
    /// Those that its next step makes on its way, and their rows.
    on_its_way: Vec<(usize, StateRow)>,
    /// The newest snapshot within the answer. The next one replaces it.
    answer_snapshot: Option<(BlockId, StateRow)>,
    pub(super) root: Chain,
    /// Chain that the next published page follows.
    pub(super) after: Chain,
    /// Pages published, or found in the prefix cache.
    pub(super) published: usize,
    pub(super) all_logits: bool,
    /// Guesses its tokens, if that is allowed.
    lookup: Option<PromptLookup>,
    /// As does the draft model, if there is one.
    pub(super) model: Option<ModelGuess>,
    /// Tokens that must come next, whatever the model says.
    pub(super) forced: Vec<u32>,
    /// The draft that its next step computes.
    pub(super) draft: Vec<u32>,
    lora: Option<LoraRef>,
    pub(super) client: ClientId,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub(super) cached: Option<usize>,
}

/// K and V of a sequence in the sliding-window layers, if these have pages of their own.
#[derive(Debug, Default)]
pub(super) struct SwaKv {
    blocks: PageTable,
    /// The pages before were given back: no window reaches them any more.
    first: usize,
    /// Positions after which other sequences are likely to go on: what a window reaches from there is kept for them.
    ends: BTreeSet<usize>,
}

impl SwaKv {
    /// Pages of a sequence that begins with a prefix of so many pages, the last of which are these.
    pub(super) fn new(prefix: usize, swa: &[SwaPage]) -> SwaKv {
        let first = prefix - swa.len();
        // What is not reached is not read.
        let blocks = std::iter::repeat_n(0, first).chain(swa.iter().map(|page| page.0)).collect();
        SwaKv { blocks, first, ends: BTreeSet::new() }
    }

    /// Keeps what a window reaches from the ends up to `position`.
    pub(super) fn keep(&mut self, position: usize, pool: &mut BlockPool) {
        while let Some(end) = self.ends.pop_first() {
            if end > position {
                self.ends.insert(end);
                return;
            }
            let pages = pool.first_reached(end)..end / pool.page_len();
            pages.filter_map(|at| self.page(at)).for_each(|page| pool.keep_swa(page));
        }
    }

    /// Takes pages for all tokens up to `end`. There are enough for all slots; were there not, the step would be refused.
    pub(super) fn extend(&mut self, end: usize, pool: &mut BlockPool) {
        let need = end.div_ceil(pool.page_len());
        let fresh = (self.blocks.len()..need).map_while(|_| pool.take_swa());
        self.blocks.extend(fresh.map(|page| page.0));
    }

    /// The page number `at`, unless it was given back.
    pub(super) fn page(&self, at: usize) -> Option<SwaPage> {
        self.blocks.get(at).filter(|_| at >= self.first).map(|page| SwaPage(*page))
    }

    /// Gives back the pages that the window of the token at `position` does not reach, nor that of a sequence that goes on after
    /// the last full page before it.
    pub(super) fn release(&mut self, position: usize, pool: &mut BlockPool) {
        let position = position - position % pool.page_len();
        let first = pool.first_reached(position).clamp(self.first, self.blocks.len());
        self.blocks[self.first..first].iter().for_each(|page| pool.give_back_swa(SwaPage(*page)));
        self.first = first;
    }

    /// The pages that it has.
    pub(super) fn held(&self) -> impl Iterator<Item = SwaPage> {
        self.blocks[self.first..].iter().map(|page| SwaPage(*page))
    }

    /// Page table of the first `len` pages; `None` if these layers have no pages of their own.
    fn table(&self, len: usize) -> Option<PageTable> {
        (!self.blocks.is_empty()).then(|| self.blocks.first(len))
    }
}

/// Cross-attention K and V of a sequence.
#[derive(Debug)]
pub(super) struct CrossKv {
    /// Output of the encoder.
    pub(super) output: EncoderOutput,
    /// Pages, all of them while the sequence is running, none while it waits.
    pub(super) blocks: PageTable,
    /// True if the pages hold K and V; otherwise the next step of the sequence encodes the input.
    pub(super) encoded: bool,
}

impl Seq {
    /// A waiting sequence of at most `context` tokens.
    pub(super) fn new(new: NewSeq, context: usize, model: Option<ModelGuess>) -> Seq {
        let prompt_len = new.tokens.len();
        Seq {
            id: new.id,
            prompt_len,
            most: prompt_len.saturating_add(new.max_new).min(context),
            tokens: new.tokens,
            computed: 0,
            again: 0,
            blocks: PageTable::default(),
            swa: SwaKv::default(),
            cross: new.cross.map(|output| CrossKv { output, blocks: PageTable::default(), encoded: false }),
            state: None,
            next_state: None,
            ahead_state: None,
            snapshots: BTreeMap::new(),
            on_its_way: Vec::new(),
            answer_snapshot: None,
            root: new.root,
            after: new.root,
            published: 0,
            all_logits: new.all_logits,
            lookup: new.drafts.then(PromptLookup::default),
            model: model.filter(|_| new.drafts),
            forced: Vec::new(),
            draft: Vec::new(),
            lora: new.lora,
            client: new.client,
            cached: None,
        }
    }

    /// Forgets its pages and states, which were given back: all of it is computed again.
    pub(super) fn reset(&mut self) {
        (self.blocks, self.swa) = (PageTable::default(), SwaKv::default());
        self.snapshots.clear();
        self.on_its_way.clear();
        (self.state, self.next_state, self.ahead_state) = (None, None, None);
        self.answer_snapshot = None;
        (self.computed, self.again, self.published, self.after) = (0, 0, 0, self.root);
        self.model.iter_mut().for_each(ModelGuess::forget);
        if let Some(cross) = &mut self.cross {
            cross.blocks = PageTable::default();
            cross.encoded = false;
        }
    }

    /// Its pages. Those for cross-attention come first, so that they are evicted last: they take longer to compute.
    pub(super) fn held(&self) -> Vec<BlockId> {
        let cross = self.cross.iter().flat_map(|cross| cross.blocks.iter());
        cross.chain(self.blocks.iter()).map(|page| BlockId(*page)).collect()
    }

    /// Rows of its recurrent states.
    pub(super) fn states(&self) -> impl Iterator<Item = StateRow> {
        let on_its_way = self.on_its_way.iter().map(|(_, row)| *row);
        self.state.into_iter().chain(self.next_state).chain(self.ahead_state).chain(on_its_way)
    }

    /// Tokens of whole pages with which its prompt begins, and another sequence too.
    pub(super) fn shared_with(&self, other: &Seq, page_len: usize) -> usize {
        let both = self.usable(page_len).iter().zip(other.usable(page_len));
        both.take_while(|(a, b)| a == b).count() / page_len * page_len
    }

    /// Plans a snapshot, or to keep what a window reaches, where a waiting sequence leaves its prompt.
    pub(super) fn keep_for(&mut self, other: &Seq, pool: &BlockPool) {
        let is_due = pool.has_states() || pool.has_swa();
        if is_due && self.root == other.root && !other.all_logits && self.computed < self.prompt_len {
            let shared = self.shared_with(other, pool.page_len());
            if pool.has_states() {
                self.snapshot_at(shared, Snapshot::Due);
            }
            if pool.has_swa() && shared > self.computed {
                self.swa.ends.insert(shared);
            }
        }
    }

    /// Plans to keep what a window reaches at the end of the last full page of its prompt, and where it leaves the `published`
    /// tokens that others computed.
    pub(super) fn plan_swa_ends(&mut self, published: usize, page_len: usize) {
        let end = self.usable(page_len).len();
        self.swa.ends.extend([end, published.min(end)].into_iter().filter(|end| *end > self.computed));
    }

    /// Plans a snapshot after `tokens` tokens, if they are still to be computed.
    fn snapshot_at(&mut self, tokens: usize, why: Snapshot) {
        if tokens > self.computed {
            let planned = self.snapshots.entry(tokens).or_insert(why);
            *planned = why.max(*planned);
        }
    }

    /// Plans the snapshots of its prompt: at the end of its last full page, where it leaves the `published` tokens that
    /// others computed, at regular intervals, and near its end, at most about `tail`: the further from it, the fewer.
    /// Whoever edits a message there computes little more than what is new.
    pub(super) fn plan_snapshots(&mut self, published: usize, page_len: usize, tail: usize) {
        let end = self.usable(page_len).len();
        let every = SNAPSHOT_EVERY.next_multiple_of(page_len);
        self.snapshot_at(end, Snapshot::Due);
        self.snapshot_at(published.min(end), Snapshot::Due);
        (self.computed / every + 1..=end / every)
            .for_each(|i| self.snapshot_at(i * every, Snapshot::Regular));
        let mut behind = 2.0 * page_len as f64;
        let growth = (every as f64 / behind).powf(1.0 / tail.max(1) as f64).max(TAIL_GROWTH);
        while tail > 0 && behind < every as f64 {
            let tokens = (behind as usize).next_multiple_of(page_len);
            self.snapshot_at(end.saturating_sub(tokens), Snapshot::Tail);
            behind *= growth;
        }
    }

    /// Takes rows for the snapshots that its next `rows` tokens pass. Returns how many of them it may compute: up to a
    /// snapshot that is due, if there is no row for it, since the step writes a state at its end in any case.
    pub(super) fn take_snapshots(&mut self, rows: usize, pool: &mut BlockPool) -> usize {
        // Those of a step that was planned, and not run.
        self.on_its_way.drain(..).for_each(|(_, row)| pool.give_back_state(row));
        let passed: Vec<_> = self.snapshots.range(self.computed + 1..self.computed + rows).collect();
        for (at, why) in passed {
            match pool.take_state() {
                Some(row) => self.on_its_way.push((*at, row)),
                None if *why == Snapshot::Due => return at - self.computed,
                None => {}
            }
        }
        rows
    }

    /// Publishes the snapshots that the step has made on its way; `blocks`: the pages that it has filled, and where they end.
    pub(super) fn publish_snapshots(&mut self, blocks: &[(usize, BlockId)], pool: &mut BlockPool) {
        for (at, row) in std::mem::take(&mut self.on_its_way) {
            if let Some((_, block)) = blocks.iter().find(|(end, _)| *end == at) {
                self.snapshot(at, *block, row, pool);
            }
            pool.give_back_state(row);
        }
        // There were no rows for some.
        self.snapshots = self.snapshots.split_off(&self.computed);
    }

    /// Publishes the state after `at` tokens, at the end of a page. Within an answer it replaces the one before it. Within a
    /// prompt it is one if that is planned, and kept if it is due, or a regular one and there is room.
    pub(super) fn snapshot(&mut self, at: usize, block: BlockId, row: StateRow, pool: &mut BlockPool) {
        let why = self.snapshots.remove(&at);
        if at > self.prompt_len {
            let older = self.answer_snapshot.take();
            older.into_iter().for_each(|(block, row)| pool.forget_state(block, row));
            self.answer_snapshot = pool.publish_state(block, row, true).then_some((block, row));
        } else {
            let is_kept = match why {
                Some(Snapshot::Due) => true,
                Some(Snapshot::Regular) => pool.spare_states() > 0,
                Some(Snapshot::Tail) => false,
                None => return,
            };
            if pool.publish_state(block, row, is_kept) && is_kept {
                pool.settle_state(block, row);
            }
        }
    }

    /// Ends its answer, or is preempted: the newest snapshot within the answer is not replaced.
    pub(super) fn settle_snapshot(&self, pool: &mut BlockPool) {
        self.answer_snapshot.iter().for_each(|(block, row)| pool.settle_state(*block, *row));
    }

    /// The tokens that are forced, or else what prompt lookup guesses, of its next tokens: at most `room`, and as many as
    /// `pages` more pages hold.
    pub(super) fn look_up(&mut self, room: usize, page_len: usize, pages: usize) -> Guesses {
        let most = self.draft_room(room, page_len, pages);
        if !self.forced.is_empty() {
            return Guesses {
                count: self.forced.len().min(most).min(MOST_DRAFTED),
                accuracy: Accuracy::CERTAIN,
            };
        }
        self.lookup.as_mut().map_or_else(Guesses::default, |lookup| lookup.guess(&self.tokens, most))
    }

    /// Drafts `count` tokens of those that are forced or of prompt lookup's guess, or what the draft model has guessed: at
    /// most `room`, and as many as `pages` more pages hold, of which it takes what it needs. Returns how many.
    pub(super) fn draft(&mut self, count: usize, room: usize, page_len: usize, pages: &mut usize) -> usize {
        let most = self.draft_room(room, page_len, *pages);
        self.draft.clear();
        if !self.forced.is_empty() {
            self.draft.extend(self.forced.iter().take(count.min(most)));
        } else if let Some(lookup) = &self.lookup {
            self.draft.extend(lookup.draft(count.min(most)));
        }
        if let Some(model) = self.model.as_ref().filter(|_| self.draft.is_empty()) {
            self.draft.extend(model.draft(most));
        }
        let need = (self.tokens.len() + self.draft.len()).div_ceil(page_len);
        *pages -= need.saturating_sub(self.blocks.len());
        self.draft.len()
    }

    /// Most tokens of a draft: at most `room`, and as many as its pages and `pages` more hold.
    pub(super) fn draft_room(&self, room: usize, page_len: usize, pages: usize) -> usize {
        // The last token is sampled, not computed.
        let left = self.most.saturating_sub(self.tokens.len() + 1);
        let fits = ((self.blocks.len() + pages) * page_len).saturating_sub(self.tokens.len());
        // A step ends at the end of a page, so that there is a state to be published with it.
        let page_end = match self.state {
            Some(_) => (self.computed / page_len + 1) * page_len,
            None => usize::MAX,
        };
        room.min(left).min(fits).min(page_end.saturating_sub(self.tokens.len()))
    }

    /// Adds sampled tokens; those before them have been computed, `through` in all.
    pub(super) fn extend(&mut self, sampled: &[u32], through: usize, draft_model: &mut DraftModelRecord) {
        if !sampled.is_empty() {
            self.lookup.iter_mut().for_each(|lookup| lookup.learn(sampled));
            self.model.iter_mut().for_each(|model| model.learn(sampled, through, draft_model));
        }
        self.tokens.extend(sampled);
        self.forced.clear();
        self.draft.clear();
    }

    /// Digest of its encoder input.
    pub(super) fn input(&self) -> Option<&InputDigest> {
        self.cross.as_ref().map(|cross| &cross.output.input)
    }

    /// True if its next step encodes its input.
    pub(super) fn will_encode(&self) -> bool {
        self.cross.as_ref().is_some_and(|cross| !cross.encoded)
    }

    pub(super) fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// True if only the newest generated token is left to compute, and what has to be computed again.
    pub(super) fn decodes(&self) -> bool {
        self.left() == 1 + self.again && self.tokens.len() > self.prompt_len && !self.will_encode()
    }

    /// Pages for all its tokens and the next one.
    pub(super) fn pages(&self, page_len: usize) -> usize {
        (self.tokens.len() + 1).min(self.most).max(self.tokens.len()).div_ceil(page_len)
    }

    /// Tokens whose pages may come from the prefix cache. The last token is always computed, for its logits.
    pub(super) fn usable(&self, page_len: usize) -> &[u32] {
        &self.tokens[..(self.tokens.len() - 1) / page_len * page_len]
    }

    /// Batch part of its next `rows` tokens.
    pub(super) fn part(&self, rows: usize, page_len: usize) -> BatchPart {
        let (start, end) = (self.computed, self.computed + rows);
        let last = end == self.tokens.len() && self.tokens.len() < self.most;
        let logits = match (self.all_logits && start < self.prompt_len, last) {
            (true, last) => LogitsRows::All { last },
            (false, true) => LogitsRows::Last,
            (false, false) => LogitsRows::None,
        };
        let tokens = [&self.tokens[start..end], &self.draft[..]].concat();
        let rows = |to: StateRow| StateRows { from: self.state.unwrap_or(to).0, to: to.0 };
        let state = self.next_state.map(rows);
        let drafted = self.draft.len();
        let snapshots = self.on_its_way.iter().map(|(at, row)| (at - start, *row)).collect();
        BatchPart { drafted, state, snapshots, logits, ..self.part_at(start, tokens, page_len) }
    }

    /// Batch part of the token that part `follows` of the step in flight samples.
    pub(super) fn part_ahead(&self, follows: usize, page_len: usize) -> BatchPart {
        let rows = |(from, to): (StateRow, StateRow)| StateRows { from: from.0, to: to.0 };
        let state = self.next_state.zip(self.ahead_state).map(rows);
        let part = self.part_at(self.tokens.len(), vec![0], page_len);
        BatchPart { follows: Some(follows), state, logits: LogitsRows::Last, ..part }
    }

    /// Batch part of some tokens from a position on, without logits.
    fn part_at(&self, start: usize, tokens: Vec<u32>, page_len: usize) -> BatchPart {
        let pages = (start + tokens.len()).div_ceil(page_len);
        let cross = self.cross.as_ref().map(|cross| CrossPart {
            tokens: cross.output.tokens,
            blocks: cross.blocks.clone(),
            encode: !cross.encoded,
        });
        BatchPart {
            start,
            swa_blocks: self.swa.table(pages),
            lora: self.lora,
            cross,
            ..BatchPart::new(self.id, tokens, self.blocks.first(pages), LogitsRows::None)
        }
    }
}
