//! [`Batch`]: the tokens that a step computes, and what it needs to know of their sequences.

use tallow_core::{PageTable, StateRows};

use super::SeqId;
use crate::block_pool::StateRow;
use crate::lora::LoraRef;

/// Tokens of one sequence that a step computes.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPart {
    /// Sequence of these tokens.
    pub id: SeqId,
    /// Tokens to compute.
    pub tokens: Vec<u32>,
    /// Number of them, at the end, that are a draft: guesses of what sampling will choose.
    pub drafted: usize,
    /// Index of the part of the step in flight that samples this part's token, if the host does not know it yet: `tokens` has
    /// any token in its place.
    pub follows: Option<usize>,
    /// Position of the first token.
    pub start: usize,
    /// Pages of the sequence, up to the one with the last of these tokens.
    pub blocks: PageTable,
    /// Its pages in the sliding-window layers, if these have their own. Those that no window reaches are not its any more.
    pub swa_blocks: Option<PageTable>,
    /// Rows of its recurrent state before and after the step, in a model that has any.
    pub state: Option<StateRows>,
    /// Snapshots of its recurrent state on the way: after so many of these tokens, and to which row.
    pub snapshots: Vec<(usize, StateRow)>,
    /// The tokens among these that need logits.
    pub logits: LogitsRows,
    /// LoRA adapter.
    pub lora: Option<LoraRef>,
    /// Cross-attention, in a model with an encoder.
    pub cross: Option<CrossPart>,
}

impl BatchPart {
    /// A part of a sequence from its start on, with K and V in these pages, and nothing else.
    pub fn new(id: SeqId, tokens: Vec<u32>, blocks: PageTable, logits: LogitsRows) -> BatchPart {
        BatchPart {
            id,
            tokens,
            drafted: 0,
            follows: None,
            start: 0,
            blocks,
            swa_blocks: None,
            state: None,
            snapshots: Vec::new(),
            logits,
            lora: None,
            cross: None,
        }
    }

    /// Tokens that the step computes, in the encoder and in the decoder.
    pub fn computed(&self) -> usize {
        let encoded = self.cross.as_ref().filter(|cross| cross.encode).map_or(0, |cross| cross.tokens);
        encoded + self.tokens.len()
    }
}

/// Cross-attention of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossPart {
    /// Tokens of the encoder's output.
    pub tokens: usize,
    /// Pages of their K and V.
    pub blocks: PageTable,
    /// True if the step encodes the input and fills the pages, before it computes the part.
    pub encode: bool,
}

/// The logits of a part that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsRows {
    /// None: no token is sampled after this part.
    None,
    /// The last token's, to sample the next token; with a draft, those of the token before it and of the draft.
    Last,
    /// Every token's; the next token is sampled from the last one's if `last`.
    All {
        /// True if the next token is sampled from the last one's logits.
        last: bool,
    },
}

impl LogitsRows {
    /// True if a token is sampled.
    pub fn samples(self) -> bool {
        matches!(self, LogitsRows::Last | LogitsRows::All { last: true })
    }
}

/// Tokens computed in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// One part per sequence.
    pub parts: Vec<BatchPart>,
}
