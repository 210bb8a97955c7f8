//! [`DecoderSpec`]: everything that tells one decoder from another, as values. Families make it; blocks follow it.

use tallow_core::{Activation, DType, DeltaHeads, Groups, Heads, NormKind, Scores, ShareOf};

use crate::blocks::rope::RopeSpec;

/// A decoder: an embedding, layers, a norm, a head.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// Have GGUF files of the family queries and keys in another order than the files of its makers?
    pub gguf_permutes_qk: bool,
    /// Rows of the embedding: token ids are under it.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub dim: usize,
    /// The longest sequence it was made for.
    pub context: usize,
    /// Of every norm.
    pub norm: NormSpec,
    /// Is the head the embedding?
    pub tied_embeddings: bool,
    /// Has the head a bias?
    pub head_bias: Bias,
    /// Multiplies embeddings.
    pub embed_scale: f32,
    /// Positions that have an embedding of their own, which is added to the token's.
    pub positions: Option<usize>,
    /// Elements of what each layer gets of its own beside the hidden state, if it gets anything.
    pub per_layer_dim: Option<usize>,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// Logits then go through `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// How many layers follow the last that only guess further tokens: they are left alone.
    pub mtp_layers: usize,
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
    pub weight_offset: f32,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// What mixes tokens.
    pub mixer: AttentionSpec,
    /// Where keys and values come from one narrow row: `mixer` then is attention over such rows.
    pub mla: Option<MlaSpec>,
    /// Where a state stands in for keys and values: nothing looks at `mixer` then.
    pub gated_delta: Option<GatedDeltaSpec>,
    /// What works on each token.
    pub ffn: FfnSpec,
    /// Where there are several such blocks, how a token gets some of them.
    pub experts: Option<ExpertsSpec>,
    /// A block that works beside those, where both have norms of their own.
    pub dense_ffn: Option<FfnSpec>,
    /// Where the norms stand.
    pub order: Order,
    /// Multiplies what each block adds to the hidden state.
    pub residual_scale: f32,
    /// Does a number of its own multiply what it gives?
    pub layer_scale: bool,
    /// Does it look at what an encoder gave, too, with as many heads and biases? That stands between the other two, and has
    /// a norm in front.
    pub cross_attention: bool,
}

/// Where a layer's norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In front of each block: `x + block(norm(x))`.
    Pre,
    /// Behind each block: `x + norm(block(x))`.
    Post,
    /// Behind each sum: `norm(x + block(x))`.
    PostNorm,
    /// In front of the feed-forward block alone: the first layer's input comes from a norm already.
    FfnPreNorm,
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
    /// Are values, each head on its own, without weights?
    pub v_norm: bool,
    /// Which of the decoder's rotary embeddings, if any.
    pub rope: Option<usize>,
    /// Does a token see only itself and what comes before it? Else it sees to both sides.
    pub causal: bool,
    /// How far a token sees to each side that it sees, itself included.
    pub window: Option<usize>,
    /// Chunks that sequences are cut into, out of which no token sees.
    pub chunk: Option<usize>,
    /// Has each head a score of its own beside those of tokens?
    pub sinks: bool,
    /// Multiplies scores.
    pub scale: f32,
    /// Scores then go through `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Which of the decoder's rotary embeddings queries go through once more, after the one above.
    pub second_rope: Option<usize>,
    /// Does each element of a query head's result have a gate, which comes with the queries?
    pub gated: bool,
    /// What is added to scores by how far tokens are apart, if anything is.
    pub relative_bias: Option<RelativeBiasSpec>,
    /// Have keys no bias, where queries and values have one?
    pub no_k_bias: bool,
    /// Are values what keys are before these are normalised and turned?
    pub tie_kv: bool,
    /// The layer in front whose keys and values it looks at, if it has none of its own.
    pub kv_source: Option<usize>,
}

/// Numbers that are added to scores. Distances are sorted into buckets, and each bucket has a number for each head: small
/// distances have one of their own, larger ones share them, the more the further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeBiasSpec {
    /// How many there are; where tokens see to both sides, for both together.
    pub buckets: usize,
    /// From this distance on all is one.
    pub max_distance: usize,
}

impl AttentionSpec {
    /// Have keys a bias?
    pub fn key_bias(&self) -> Bias {
        if self.no_k_bias { Bias::No } else { self.qkv_bias }
    }

    /// The most that a token sees, itself included, if not all before it.
    pub fn sees(&self) -> Option<usize> {
        self.window.into_iter().chain(self.chunk).min()
    }
}

/// Keys and values of all heads that come from one narrow row of each token. The cache holds that row and what turns of
/// keys, as one head as wide as both; queries are brought to that width, and what attention gives back from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaSpec {
    /// Elements of the row.
    pub kv_lora_rank: usize,
    /// Elements of what queries come from, if that is not the input.
    pub q_lora_rank: Option<usize>,
    /// Elements of a query that do not turn.
    pub qk_nope_dim: usize,
    /// Elements of a query that turn, behind those.
    pub qk_rope_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
    /// Of the norms of narrow rows.
    pub eps: f32,
}

/// Heads that keep a matrix of their sequence each, behind a convolution over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaSpec {
    /// How many, how wide.
    pub heads: DeltaHeads,
    /// Tokens that the convolution sees.
    pub kernel: usize,
}

impl GatedDeltaSpec {
    /// Numbers that the convolution keeps of a sequence.
    pub fn window_len(&self) -> usize {
        (self.kernel - 1) * self.heads.cols()
    }
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

/// Several feed-forward blocks, of which a token goes through some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// How many there are.
    pub count: usize,
    /// How many a token goes through.
    pub top_k: usize,
    /// Have their logits biases?
    pub router_bias: Bias,
    /// What their logits become.
    pub scores: Scores,
    /// What a token's share of one multiplies.
    pub share_of: ShareOf,
    /// Is there a bias that has a say in which are chosen, and none in how much they count?
    pub bias: bool,
    /// Groups of them that are chosen first.
    pub groups: Option<Groups>,
    /// Do those chosen count for one together?
    pub norm_weights: bool,
    /// Multiplies what they count.
    pub scale: f32,
    /// A block that every token goes through besides.
    pub shared: Option<SharedExpertSpec>,
    /// Does what chooses them see the hidden state through a norm of its own?
    pub router_norm: bool,
    /// Has each a number that multiplies what it counts?
    pub expert_scale: bool,
}

/// A feed-forward block beside experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Elements in the middle.
    pub width: usize,
    /// Does each token say how much it counts?
    pub gated: bool,
}

impl ExpertsSpec {
    /// Experts chosen by a softmax over all.
    pub fn softmax(count: usize, top_k: usize) -> ExpertsSpec {
        let scores = Scores::Softmax;
        ExpertsSpec {
            count,
            top_k,
            router_bias: Bias::No,
            scores,
            share_of: ShareOf::Result,
            bias: false,
            groups: None,
            norm_weights: false,
            scale: 1.0,
            shared: None,
            router_norm: false,
            expert_scale: false,
        }
    }
}

impl DecoderSpec {
    /// Has any layer a state in place of keys and values? Then what came before a token is not in the pages alone.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.gated_delta.is_some())
    }

    /// The longest sequence for which rotary embeddings are as the model was trained with them. Past it, those that grow
    /// with the context are stretched for all sequences alike.
    pub fn trained_context(&self) -> usize {
        let dynamic = self.ropes.iter().filter_map(RopeSpec::dynamic).map(|(_, original)| original);
        dynamic.chain([self.context]).min().unwrap_or(self.context)
    }
}

impl LayerSpec {
    /// Columns of a cache of that type that a token's keys take, or its values.
    pub fn cache_cols(&self, dtype: DType) -> usize {
        let keeps_none = self.gated_delta.is_some() || self.mixer.kv_source.is_some();
        if keeps_none { 0 } else { self.mixer.heads.cache_cols(dtype) }
    }

    /// Numbers of a sequence's state.
    pub fn state_len(&self) -> usize {
        self.gated_delta.map_or(0, |delta| delta.window_len() + delta.heads.state_len())
    }

    /// Weights of what mixes tokens, for hidden states of `dim` elements.
    pub fn mixer_params(&self, dim: usize) -> usize {
        if let Some(GatedDeltaSpec { heads, .. }) = self.gated_delta {
            return dim * (heads.cols() + 2 * heads.value_cols() + 2 * heads.values);
        }
        let heads = self.mixer.heads;
        let Some(MlaSpec { kv_lora_rank, q_lora_rank, qk_nope_dim, qk_rope_dim, v_dim, .. }) = self.mla
        else {
            let gates = if self.mixer.gated { heads.q_cols() } else { 0 };
            let own = if self.mixer.kv_source.is_some() { heads.q_cols() } else { heads.qkv_cols() };
            return dim * (own + heads.q_cols() + gates);
        };
        let queries = heads.q * (qk_nope_dim + qk_rope_dim);
        let queries = q_lora_rank.map_or(dim * queries, |narrow| narrow * (dim + queries));
        queries
            + dim * (kv_lora_rank + qk_rope_dim)
            + heads.q * (kv_lora_rank * (qk_nope_dim + v_dim) + v_dim * dim)
    }

    /// Elements in the middle of all feed-forward blocks that a token goes through.
    pub fn active_ffn_width(&self) -> usize {
        let beside = self.dense_ffn.map_or(0, |block| block.width);
        let of = |e: ExpertsSpec| e.top_k * self.ffn.width + e.shared.map_or(0, |s| s.width) + beside;
        self.experts.map_or(self.ffn.width, of)
    }
}

/// Does a linear layer have a bias?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It has none.
    No,
    /// It must.
    Yes,
    /// It has one if the checkpoint does: GGUF metadata does not say.
    IfPresent,
}

/// How queries and keys are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormSpec {
    /// They are not.
    None,
    /// Each head on its own, without weights.
    Plain,
    /// Each head on its own, all with the same weights.
    PerHead,
    /// Each head on its own, each with its own weights.
    HeadWeights,
    /// All heads of a token as one.
    AllHeads,
}
