//! [`BlockPool`]: who has which page of the cache, and what the pages hold.
//!
//! Host bookkeeping only: nothing here touches a tensor. A full page whose tokens are computed is *published* under the
//! page before it and its own tokens; a later sequence that begins the same way is lent the same page. Keys are compared
//! in full, so no collision can hand one user another's cache.

use std::collections::{BTreeMap, HashMap};

/// A page of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// What a page follows: the published page before it, or the beginning of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain(u64);

impl Chain {
    /// The beginning of sequences that share their pages with all others.
    pub const ROOT: Chain = Chain(0);

    /// The beginning of sequences that share their pages only with those of the same salt.
    pub fn salted(salt: u64) -> Chain {
        // Published pages are counted from 1, and never come this far.
        Chain(salt | 1 << 63)
    }
}

/// What a published page holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    after: Chain,
    tokens: Box<[u32]>,
}

#[derive(Debug, Default)]
struct Block {
    /// Sequences that have it.
    users: u32,
    /// What it holds, and what may follow it, once that is published.
    published: Option<(Content, Chain)>,
    /// When it came back; its place in line to be reused.
    returned: u64,
}

/// Pages that begin a sequence and are in the cache already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// In order.
    pub blocks: Vec<BlockId>,
    /// What follows the last of them; `None` where there are none.
    pub end: Option<Chain>,
}

/// All pages.
#[derive(Debug)]
pub struct BlockPool {
    page_len: usize,
    blocks: Vec<Block>,
    /// Pages that hold nothing of use.
    blank: Vec<BlockId>,
    /// Pages that nobody has but that hold something, in the order in which they came back.
    idle: BTreeMap<u64, BlockId>,
    index: HashMap<Content, BlockId>,
    returns: u64,
    chains: u64,
}

impl BlockPool {
    /// `count` pages of `page_len` tokens.
    pub fn new(count: usize, page_len: usize) -> BlockPool {
        let count = count.min(u32::MAX as usize);
        BlockPool {
            page_len,
            blocks: (0..count).map(|_| Block::default()).collect(),
            blank: (0..count as u32).rev().map(BlockId).collect(),
            idle: BTreeMap::new(),
            index: HashMap::new(),
            returns: 0,
            chains: 0,
        }
    }

    /// Tokens in a page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// All pages there are.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Pages that can be had.
    pub fn available(&self) -> usize {
        self.blank.len() + self.idle.len()
    }

    /// Pages that sequences have.
    pub fn in_use(&self) -> usize {
        self.count().saturating_sub(self.available())
    }

    /// The published pages that `tokens` begin with, after `root`.
    pub fn find(&self, root: Chain, tokens: &[u32]) -> Prefix {
        let mut prefix = Prefix::default();
        let mut after = root;
        for page in tokens.chunks_exact(self.page_len) {
            let content = Content { after, tokens: page.into() };
            let Some(id) = self.index.get(&content) else { break };
            let Some((_, chain)) = &self.blocks[id.0 as usize].published else { break };
            after = *chain;
            prefix.blocks.push(*id);
            prefix.end = Some(after);
        }
        prefix
    }

    /// How many of these pages are idle, so that lending them makes fewer available.
    pub fn idle_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|b| self.blocks[b.0 as usize].users == 0).count()
    }

    /// Gives one more sequence a page that is in the cache.
    pub fn lend(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.users == 0 {
            self.idle.remove(&block.returned);
        }
        block.users += 1;
    }

    /// A page to write to: a blank one, or the one that has been idle longest, which is forgotten.
    pub fn take(&mut self) -> Option<BlockId> {
        let id = match self.blank.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.idle.pop_first()?;
                if let Some((content, _)) = self.blocks[id.0 as usize].published.take() {
                    self.index.remove(&content);
                }
                id
            }
        };
        self.blocks[id.0 as usize].users = 1;
        Some(id)
    }

    /// Says that a page holds `tokens`, computed after `after`. What follows it chains to what is returned.
    pub fn publish(&mut self, id: BlockId, after: Chain, tokens: &[u32]) -> Chain {
        let content = Content { after, tokens: tokens.into() };
        if let Some(twin) = self.index.get(&content)
            && let Some((_, chain)) = &self.blocks[twin.0 as usize].published
        {
            // Somebody else computed the same: theirs is found, ours is not.
            return *chain;
        }
        self.chains += 1;
        let chain = Chain(self.chains);
        self.index.insert(content.clone(), id);
        self.blocks[id.0 as usize].published = Some((content, chain));
        chain
    }

    /// Takes back a sequence's pages. The last go first in line to be reused: without what comes before them they
    /// are of no use.
    pub fn give_back(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            let block = &mut self.blocks[id.0 as usize];
            block.users = block.users.saturating_sub(1);
            if block.users > 0 {
                continue;
            }
            if block.published.is_some() {
                self.returns += 1;
                block.returned = self.returns;
                self.idle.insert(self.returns, *id);
            } else {
                self.blank.push(*id);
            }
        }
    }

    /// Nobody has any page: can all be had, and is each that holds something found? By their counts, which takes no
    /// time; [`check`](Self::check) looks at every page.
    pub fn at_rest(&self) -> Result<(), String> {
        let (count, available) = (self.count(), self.available());
        let (idle, indexed) = (self.idle.len(), self.index.len());
        match (available == count, idle == indexed) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("nobody uses any page, and {available} of {count} can be had")),
            (_, false) => Err(format!("{idle} pages hold something, and {indexed} are indexed")),
        }
    }

    /// Is every page in one place, and one place only? `held`: the pages of all sequences, each as often as it is had.
    pub fn check(&self, held: impl IntoIterator<Item = BlockId>) -> Result<(), String> {
        let mut users = vec![0u32; self.count()];
        held.into_iter().for_each(|id| users[id.0 as usize] += 1);
        let mut places = vec![0u32; self.count()];
        self.blank.iter().chain(self.idle.values()).for_each(|id| places[id.0 as usize] += 1);
        for (i, block) in self.blocks.iter().enumerate() {
            if block.users != users[i] {
                return Err(format!("page {i} counts {} users and has {}", block.users, users[i]));
            }
            let want = u32::from(block.users == 0);
            if places[i] != want {
                return Err(format!("page {i} has {} users and stands in {} lists", block.users, places[i]));
            }
            if let Some((content, _)) = &block.published
                && self.index.get(content) != Some(&BlockId(i as u32))
            {
                return Err(format!("page {i} is published and cannot be found"));
            }
        }
        let published = self.blocks.iter().filter(|b| b.published.is_some()).count();
        match published == self.index.len() {
            true => Ok(()),
            false => Err(format!("{published} pages are published and {} are indexed", self.index.len())),
        }
    }
}
