//! Which waiting sequence starts next, and whether there is room for it.

use std::collections::HashMap;

use super::seq::{Seq, SwaKv};
use super::{ClientId, Scheduler};
use crate::block_pool::{BlockId, Prefix};

/// Pages with which a waiting sequence can be admitted.
struct Fitting {
    /// Its prefix in the prefix cache.
    prefix: Prefix,
    /// Pages with its encoder input, if it is encoded already.
    encoded: Vec<BlockId>,
    /// Pages that it needs beside these.
    fresh: usize,
    /// Pages for cross-attention that it needs.
    fresh_cross: usize,
}

impl Scheduler {
    /// Admits waiting sequences while there are slots and pages.
    pub(super) fn admit(&mut self) {
        while let Some(next) = self.next_waiting() {
            match self.fitting(next) {
                Some(fits) => self.start(next, fits),
                None => match self.preempted_for(self.waiting[next].client) {
                    Some(victim) => self.preempt(victim),
                    None => return,
                },
            }
        }
    }

    /// True if a waiting sequence is about to be admitted, or another to be preempted for it.
    pub(super) fn will_admit(&self) -> bool {
        self.next_waiting().is_some_and(|next| {
            self.fitting(next).is_some() || self.preempted_for(self.waiting[next].client).is_some()
        })
    }

    /// Index of the waiting sequence to admit next: the first one of the client with the fewest running. `None` if all
    /// of them wait for a prefix, or for a slot that their client has no claim to.
    fn next_waiting(&self) -> Option<usize> {
        // So it is in most steps: no need to count the running sequences of each client.
        if self.waiting.is_empty() {
            return None;
        }
        let under_way = self.under_way();
        let most = under_way.values().copied().max().unwrap_or(0);
        let has_slot = self.running.len() < self.limits.slots;
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.map(|(i, seq)| (under_way.get(&seq.client).copied().unwrap_or(0), i));
        let mut order: Vec<_> = waiting.filter(|(n, _)| has_slot || is_uneven(*n, most)).collect();
        order.sort_unstable();
        // A sequence whose prefix is being computed lets others go first.
        order.into_iter().map(|(_, i)| i).find(|i| !self.will_be_cached(&self.waiting[*i]))
    }

    /// Running sequences per client.
    fn under_way(&self) -> HashMap<ClientId, usize> {
        let mut counts = HashMap::new();
        self.running.iter().for_each(|seq| *counts.entry(seq.client).or_default() += 1);
        counts
    }

    /// Running sequence to preempt so that `client` gets a slot or pages: the newest of the client with the most, if
    /// that client has more than its share.
    fn preempted_for(&self, client: ClientId) -> Option<usize> {
        let under_way = self.under_way();
        let own = under_way.get(&client).copied().unwrap_or(0);
        let count = |seq: &Seq| under_way.get(&seq.client).copied().unwrap_or(0);
        // `max_by_key` returns the last of equal elements: the newest sequence.
        let (at, most) = self.running.iter().map(count).enumerate().max_by_key(|(_, n)| *n)?;
        is_uneven(own, most).then_some(at)
    }

    /// True if another running sequence is computing a page that this sequence needs.
    fn will_be_cached(&self, seq: &Seq) -> bool {
        if seq.cross.is_some() && self.running.iter().any(|r| r.will_encode() && r.input() == seq.input()) {
            return true;
        }
        if seq.all_logits {
            return false;
        }
        let page = self.pool.page_len();
        let have = self.pool.find(seq.root, seq.usable(page)).blocks.len() * page;
        self.running.iter().filter(|r| r.root == seq.root && r.computed < r.prompt_len).any(|r| {
            let shared = r.shared_with(seq, page);
            match self.pool.has_states() {
                true => r.snapshots.range(have + 1..).next().is_some_and(|(at, _)| *at <= shared),
                // Of what is published already it can get no more.
                false => shared > have && r.published * page < shared,
            }
        })
    }

    /// The pages of waiting sequence `i`, if there is a slot for it and there are enough.
    fn fitting(&self, i: usize) -> Option<Fitting> {
        if self.running.len() >= self.limits.slots {
            return None;
        }
        let (page, seq) = (self.pool.page_len(), &self.waiting[i]);
        let prefix = match seq.all_logits {
            true => Prefix::default(),
            false => self.pool.find(seq.root, seq.usable(page)),
        };
        let cross_pages = seq.cross.as_ref().map_or(0, |cross| cross.output.tokens.div_ceil(page));
        let encoded = seq.input().and_then(|input| self.pool.find_input(input, cross_pages));
        let fresh_cross = if encoded.is_some() { 0 } else { cross_pages };
        let encoded = encoded.unwrap_or_default();
        let fresh = seq.pages(page) - prefix.blocks.len();
        // Running sequences will soon need one page each; without these spare pages they would preempt this sequence
        // again.
        let spare = self.running.len();
        let idle = self.pool.idle_among(&prefix.blocks) + self.pool.idle_among(&encoded);
        let need = fresh + fresh_cross + idle + spare;
        (need <= self.pool.available()).then_some(Fitting { prefix, encoded, fresh, fresh_cross })
    }

    /// Moves waiting sequence `i` to the running ones and allocates its pages.
    fn start(&mut self, i: usize, Fitting { prefix, encoded, fresh, fresh_cross }: Fitting) {
        let Some(mut seq) = self.waiting.remove(i) else { return };
        let page = self.pool.page_len();
        prefix.blocks.iter().chain(&encoded).for_each(|b| self.pool.lend(*b));
        if let Some((page, row)) = prefix.blocks.last().zip(prefix.state) {
            self.pool.lend_state(*page, row);
        }
        prefix.swa.iter().for_each(|page| self.pool.lend_swa(*page));
        seq.state = prefix.state;
        seq.computed = prefix.blocks.len() * page;
        seq.published = prefix.blocks.len();
        seq.after = prefix.end.unwrap_or(seq.root);
        let drafted = self.pool.with_draft_kv(&prefix.blocks);
        seq.model.iter_mut().for_each(|model| model.start(drafted, page));
        seq.blocks = prefix.blocks.into_iter().collect();
        seq.blocks.extend((0..fresh).map_while(|_| self.pool.take()));
        if self.pool.has_states() {
            // A quarter of the rows is left to those that are not kept, and what a step makes comes on top: enough for two prompts.
            seq.plan_snapshots(prefix.published * page, page, self.pool.state_rows() / 5);
        }
        if self.pool.has_swa() {
            seq.swa = SwaKv::new(seq.published, &prefix.swa);
            seq.plan_swa_ends(prefix.published * page, page);
        }
        self.waiting.iter().for_each(|other| seq.keep_for(other, &self.pool));
        if let Some(cross) = &mut seq.cross {
            cross.encoded = fresh_cross == 0;
            cross.blocks = encoded.into_iter().collect();
            cross.blocks.extend((0..fresh_cross).map_while(|_| self.pool.take()));
        }
        if seq.cached.is_none() {
            seq.cached = Some(seq.computed.min(seq.prompt_len));
            if !seq.all_logits {
                self.counts.prefix_queries += seq.prompt_len as u64;
                self.counts.prefix_hits += seq.computed as u64;
            }
        }
        self.running.push(seq);
    }
}

/// True if moving one slot from a client with `most` to one with `few` makes the shares more even.
fn is_uneven(few: usize, most: usize) -> bool {
    few + 2 <= most
}
