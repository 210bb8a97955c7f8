//! Mixers: the blocks of a layer that mix tokens.

use tallow_core::{DeltaHeads, Heads};

use super::Bias;

/// The block of a layer that mixes tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Self-attention with K and V of its own.
    Attention(AttentionSpec),
    /// Self-attention over the KV cache of an earlier layer (Gemma 3n, 4).
    SharedKv(SharedKvSpec),
    /// Multi-head latent attention (DeepSeek V2).
    Mla(MlaSpec),
    /// Gated delta rule (Qwen3-Next).
    GatedDelta(GatedDeltaSpec),
}

impl From<AttentionSpec> for Mixer {
    fn from(attention: AttentionSpec) -> Mixer {
        Mixer::Attention(attention)
    }
}

impl Mixer {
    /// Heads of the attention, with those of the KV cache that it reads; `None` if it has no attention.
    pub fn heads(&self) -> Option<Heads> {
        match self {
            Mixer::Attention(attention) => Some(attention.heads),
            Mixer::SharedKv(shared) => Some(shared.heads),
            Mixer::Mla(mla) => Some(mla.heads()),
            Mixer::GatedDelta(_) => None,
        }
    }

    /// The sliding window, if there is one.
    pub fn window(&self) -> Option<usize> {
        match self {
            Mixer::Attention(attention) => attention.window,
            Mixer::SharedKv(shared) => shared.window,
            Mixer::Mla(_) | Mixer::GatedDelta(_) => None,
        }
    }

    /// Chunked attention: the length of a chunk.
    pub fn chunk(&self) -> Option<usize> {
        match self {
            Mixer::Attention(attention) => attention.chunk,
            Mixer::SharedKv(_) | Mixer::Mla(_) | Mixer::GatedDelta(_) => None,
        }
    }

    /// Most positions that a token attends to, itself included; `None` if all before it.
    pub fn sees(&self) -> Option<usize> {
        self.window().into_iter().chain(self.chunk()).min()
    }

    /// Shared KV: the layer whose KV cache it reads.
    pub fn kv_source(&self) -> Option<usize> {
        match self {
            Mixer::SharedKv(shared) => Some(shared.kv_source),
            Mixer::Attention(_) | Mixer::Mla(_) | Mixer::GatedDelta(_) => None,
        }
    }

    /// The multi-head latent attention, if it is one.
    pub fn mla(&self) -> Option<&MlaSpec> {
        match self {
            Mixer::Mla(mla) => Some(mla),
            Mixer::Attention(_) | Mixer::SharedKv(_) | Mixer::GatedDelta(_) => None,
        }
    }

    /// The gated delta rule, if it is one.
    pub fn gated_delta(&self) -> Option<&GatedDeltaSpec> {
        match self {
            Mixer::GatedDelta(delta) => Some(delta),
            Mixer::Attention(_) | Mixer::SharedKv(_) | Mixer::Mla(_) => None,
        }
    }
}

/// Self-attention with K and V of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Number of query and KV heads, and their width.
    pub heads: Heads,
    /// Bias of the Q, K and V projections.
    pub qkv_bias: Bias,
    /// Bias of the output projection.
    pub out_bias: Bias,
    /// QK norm.
    pub qk_norm: QkNormSpec,
    /// True if each head of V is normalised, without weights.
    pub v_norm: bool,
    /// RoPE variant: index into [`DecoderSpec::ropes`](super::DecoderSpec::ropes). `None`: no position encoding (NoPE).
    pub rope: Option<usize>,
    /// Causal mask; otherwise attention is bidirectional.
    pub causal: bool,
    /// Sliding window: positions that a token attends to in each visible direction, itself included.
    pub window: Option<usize>,
    /// Chunked attention (Llama 4): the sequence is cut into chunks of this length, and no token attends outside its
    /// own.
    pub chunk: Option<usize>,
    /// Attention sinks (gpt-oss): each head has a learned score in addition to those of tokens.
    pub sinks: bool,
    /// Multiplies attention scores.
    pub scale: f32,
    /// Softcap: scores then become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Second RoPE variant, applied to queries alone, after `rope`.
    pub second_rope: Option<usize>,
    /// Output gate: each element of a query head's result has a gate, projected together with Q.
    pub gated: bool,
    /// Relative position bias (T5), added to scores.
    pub relative_bias: Option<RelativeBiasSpec>,
    /// True if K has no bias where Q and V have one (Whisper).
    pub no_k_bias: bool,
    /// True if V is K before QK norm and RoPE.
    pub tie_kv: bool,
    /// Cross-attention to the encoder's output, with the same heads, biases and scale. It runs between this block and
    /// the FFN, with a norm in front of it.
    pub cross_attention: bool,
}

/// Shared KV (Gemma 3n, 4): causal self-attention that has queries alone, with a norm of each head.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedKvSpec {
    /// The earlier layer whose KV cache this one reads.
    pub kv_source: usize,
    /// Number of query heads, of the source layer's KV heads, and their width.
    pub heads: Heads,
    /// Bias of the Q projection.
    pub q_bias: Bias,
    /// Bias of the output projection.
    pub out_bias: Bias,
    /// RoPE variant: index into [`DecoderSpec::ropes`](super::DecoderSpec::ropes). `None`: no position encoding (NoPE).
    pub rope: Option<usize>,
    /// Sliding window: positions that a token attends to, itself included.
    pub window: Option<usize>,
    /// Multiplies attention scores.
    pub scale: f32,
}

/// Relative position bias (T5): distances fall into buckets, with one learned bias per bucket and head. Short distances
/// have a bucket each, longer ones share logarithmically wider ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeBiasSpec {
    /// Number of buckets; in bidirectional attention, of both directions together.
    pub buckets: usize,
    /// All distances from here on share the last bucket.
    pub max_distance: usize,
}

impl AttentionSpec {
    /// Causal attention with RoPE 0 and scores divided by the root of the head's width; everything else off.
    pub fn new(heads: Heads) -> AttentionSpec {
        AttentionSpec {
            heads,
            qkv_bias: Bias::No,
            out_bias: Bias::No,
            qk_norm: QkNormSpec::None,
            v_norm: false,
            rope: Some(0),
            causal: true,
            window: None,
            chunk: None,
            sinks: false,
            scale: (1.0 / (heads.dim as f64).sqrt()) as f32,
            softcap: None,
            second_rope: None,
            gated: false,
            relative_bias: None,
            no_k_bias: false,
            tie_kv: false,
            cross_attention: false,
        }
    }

    /// Bias of the K projection.
    pub fn key_bias(&self) -> Bias {
        if self.no_k_bias { Bias::No } else { self.qkv_bias }
    }
}

/// MLA (multi-head latent attention, DeepSeek V2): K and V of all heads come from one latent row per token. The KV
/// cache holds `[k_rope, latent]` as a single KV head; queries are projected to that width, and the attention output
/// from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaSpec {
    /// Number of query heads.
    pub q_heads: usize,
    /// Width of the latent KV row.
    pub kv_lora_rank: usize,
    /// Width of the latent query row; `None` if Q is projected from the input directly.
    pub q_lora_rank: Option<usize>,
    /// Elements of a query head without RoPE.
    pub qk_nope_dim: usize,
    /// Elements of a query head with RoPE, behind those.
    pub qk_rope_dim: usize,
    /// Elements of a value head.
    pub v_dim: usize,
    /// Epsilon of the norms of latent rows.
    pub eps: f32,
    /// Bias of the down-projections.
    pub down_bias: Bias,
    /// Bias of the output projection.
    pub out_bias: Bias,
    /// RoPE variant: index into [`DecoderSpec::ropes`](super::DecoderSpec::ropes).
    pub rope: usize,
    /// Multiplies attention scores.
    pub scale: f32,
}

impl MlaSpec {
    /// Heads of the attention over latent rows.
    pub fn heads(&self) -> Heads {
        Heads { q: self.q_heads, kv: 1, dim: self.qk_rope_dim + self.kv_lora_rank }
    }

    /// Weights, for hidden states of width `dim`.
    pub(super) fn params(&self, dim: usize) -> usize {
        let MlaSpec { q_heads, kv_lora_rank, q_lora_rank, qk_nope_dim, qk_rope_dim, v_dim, .. } = *self;
        let queries = q_heads * (qk_nope_dim + qk_rope_dim);
        q_lora_rank.map_or(dim * queries, |narrow| narrow * (dim + queries))
            + dim * (kv_lora_rank + qk_rope_dim)
            + q_heads * (kv_lora_rank * (qk_nope_dim + v_dim) + v_dim * dim)
    }
}

/// Gated delta rule (Gated DeltaNet, Qwen3-Next): each value head keeps a state matrix; a causal convolution precedes
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaSpec {
    /// Number of key and value heads, and their widths.
    pub heads: DeltaHeads,
    /// Kernel size of the causal convolution, in tokens.
    pub kernel: usize,
}

impl GatedDeltaSpec {
    /// Floats of a sequence's convolution state: `(kernel - 1) * cols`.
    pub fn window_len(&self) -> usize {
        (self.kernel - 1) * self.heads.cols()
    }
}

/// QK norm: how Q and K are normalised before RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormSpec {
    /// No QK norm.
    None,
    /// Norm of each head, without weights.
    Plain,
    /// Norm of each head, with the same weights for all.
    PerHead,
    /// Norm of each head, with its own weights.
    HeadWeights,
    /// Norm over all heads of a token at once.
    AllHeads,
}
