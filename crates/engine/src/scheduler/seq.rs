//! [`Seq`]: a sequence in the scheduler, its tokens and its pages.

use super::{BatchPart, ClientId, CrossPart, NewSeq, SeqId, SlotId, Wanted};
use crate::block_pool::{BlockId, Chain};
use crate::encoder_input::{EncoderOutput, InputDigest};
use crate::lora::LoraRef;

/// A sequence in the scheduler.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) id: SeqId,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Maximum tokens, prompt and answer together.
    pub(super) most: usize,
    /// Tokens whose K and V are in the KV cache.
    pub(super) computed: usize,
    pub(super) blocks: Vec<BlockId>,
    /// Cross-attention, in a model with an encoder.
    pub(super) cross: Option<CrossKv>,
    /// Valid while the sequence is running.
    pub(super) slot: SlotId,
    pub(super) root: Chain,
    /// Chain that the next published page follows.
    pub(super) after: Chain,
    /// Pages published, or found in the prefix cache.
    pub(super) published: usize,
    pub(super) all_logits: bool,
    lora: Option<LoraRef>,
    pub(super) client: ClientId,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub(super) cached: Option<usize>,
}

/// Cross-attention K and V of a sequence.
#[derive(Debug)]
pub(super) struct CrossKv {
    /// Output of the encoder.
    pub(super) output: EncoderOutput,
    /// Pages, all of them while the sequence is running, none while it waits.
    pub(super) blocks: Vec<BlockId>,
    /// Whether the pages hold K and V; otherwise the next step of the sequence encodes the input.
    pub(super) encoded: bool,
}

impl Seq {
    /// A waiting sequence of at most `context` tokens.
    pub(super) fn new(new: NewSeq, context: usize) -> Seq {
        let prompt_len = new.tokens.len();
        Seq {
            id: new.id,
            prompt_len,
            most: prompt_len.saturating_add(new.max_new).min(context),
            tokens: new.tokens,
            computed: 0,
            blocks: Vec::new(),
            cross: new.cross.map(|output| CrossKv { output, blocks: Vec::new(), encoded: false }),
            slot: SlotId::default(),
            root: new.root,
            after: new.root,
            published: 0,
            all_logits: new.all_logits,
            lora: new.lora,
            client: new.client,
            cached: None,
        }
    }

    /// Forgets its pages, which were given back: all of it is computed again.
    pub(super) fn reset(&mut self) {
        self.blocks.clear();
        (self.computed, self.published, self.after) = (0, 0, self.root);
        if let Some(cross) = &mut self.cross {
            cross.blocks.clear();
            cross.encoded = false;
        }
    }

    /// Its pages. Those for cross-attention come first, so that they are evicted last: they take longer to compute.
    pub(super) fn held(&self) -> Vec<BlockId> {
        let cross = self.cross.iter().flat_map(|cross| &cross.blocks);
        cross.chain(&self.blocks).copied().collect()
    }

    /// Digest of its encoder input.
    pub(super) fn input(&self) -> Option<&InputDigest> {
        self.cross.as_ref().map(|cross| &cross.output.input)
    }

    /// Whether its next step encodes its input.
    pub(super) fn will_encode(&self) -> bool {
        self.cross.as_ref().is_some_and(|cross| !cross.encoded)
    }

    pub(super) fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether only the newest generated token is left to compute.
    pub(super) fn decodes(&self) -> bool {
        self.left() == 1 && self.tokens.len() > self.prompt_len && !self.will_encode()
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
            (true, last) => Wanted::All { last },
            (false, true) => Wanted::Last,
            (false, false) => Wanted::None,
        };
        let blocks = self.blocks[..end.div_ceil(page_len)].to_vec();
        let tokens = self.tokens[start..end].to_vec();
        let cross = self.cross.as_ref().map(|cross| CrossPart {
            tokens: cross.output.tokens,
            blocks: cross.blocks.clone(),
            encode: !cross.encoded,
        });
        BatchPart { id: self.id, tokens, start, blocks, slot: self.slot, logits, lora: self.lora, cross }
    }
}
