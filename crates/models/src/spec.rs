//! [`DecoderSpec`]: everything that tells one decoder from another, as values. Families make it; blocks follow it.

use tallow_core::{Activation, Heads, NormKind};

use crate::blocks::rope::RopeSpec;

/// A decoder: an embedding, layers, a norm, a head.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// Rows of the embedding: token ids are under it.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub dim: usize,
    /// The longest sequence it was made for.
    pub context: usize,
    /// Of every norm.
    pub norm: NormSpec,
    /// Is the head the embedding?
    pub tied: bool,
    /// Has the head a bias?
    pub head_bias: Bias,
    /// Multiplies embeddings.
    pub embed_scale: f32,
    /// Positions that have an embedding of their own, which is added to the token's.
    pub positions: Option<usize>,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// Logits then go through `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// From the first to the last.
    pub layers: Vec<LayerSpec>,
}

/// What norms are alike in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Root mean square or layer.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Have they biases?
    pub bias: Bias,
    /// Added to the weights as they are stored.
    pub lift: f32,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// What mixes tokens.
    pub mixer: AttentionSpec,
    /// What works on each token.
    pub ffn: FfnSpec,
    /// Where the norms stand.
    pub order: Order,
    /// Multiplies what each block adds to the hidden state.
    pub residual_scale: f32,
}

/// Where a layer's norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In front of each block: `x + block(norm(x))`.
    Pre,
    /// Behind each block: `x + norm(block(x))`.
    Post,
    /// In front of each block and behind it: `x + norm(block(norm(x)))`.
    Sandwich,
    /// Both blocks see the layer's input, through a norm each: `x + mixer(norm(x)) + ffn(norm(x))`.
    Parallel,
    /// Both blocks see the layer's input, through the same norm.
    ParallelOneNorm,
}

/// Attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// How many, how wide.
    pub heads: Heads,
    /// Have queries, keys and values biases?
    pub qkv_bias: Bias,
    /// Has the output a bias?
    pub out_bias: Bias,
    /// Are queries and keys normalised?
    pub qk_norm: QkNormSpec,
    /// Which of the decoder's rotary embeddings, if any.
    pub rope: Option<usize>,
    /// How far back a token sees, itself included.
    pub window: Option<usize>,
    /// Multiplies scores.
    pub scale: f32,
    /// Scores then go through `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Which of the decoder's rotary embeddings queries go through once more, after the one above.
    pub again: Option<usize>,
}

/// A feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FfnSpec {
    /// Elements in the middle.
    pub width: usize,
    /// The bend.
    pub act: Activation,
    /// Is there a gate beside up?
    pub gated: bool,
    /// Have its layers biases?
    pub bias: Bias,
}

/// Does a linear layer have a bias?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It has none.
    No,
    /// It must.
    Yes,
    /// It has one if the checkpoint does: GGUF metadata does not say.
    IfThere,
}

/// How queries and keys are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormSpec {
    /// They are not.
    None,
    /// Each head on its own, all with the same weights.
    PerHead,
    /// Each head on its own, each with its own weights.
    EachHead,
    /// All heads of a token as one.
    Whole,
}
