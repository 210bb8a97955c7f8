//! [`DecoderSpec`]: a decoder's architecture as plain values. Families build it from a model's settings; blocks read
//! it.

use tallow_core::{Activation, DType, DeltaHeads, Groups, Heads, NormKind, RoutingWeightOn, Scores};

use crate::blocks::rope::RopeSpec;

/// A decoder: token embedding, layers, final norm, LM head.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// Whether GGUF files of the family store Q and K rows in another order than the original checkpoints.
    pub gguf_permutes_qk: bool,
    /// Rows of the embedding; token ids are below it.
    pub vocab: usize,
    /// Width of a hidden state.
    pub dim: usize,
    /// Longest sequence that the model supports (`n_ctx_train`).
    pub context: usize,
    /// Settings shared by all norms.
    pub norm: NormSpec,
    /// Whether the LM head is the embedding matrix.
    pub tied_embeddings: bool,
    /// Bias of the LM head.
    pub head_bias: Bias,
    /// Multiplies token embeddings.
    pub embed_scale: f32,
    /// Learned absolute position embeddings: how many there are. They are added to the token embeddings.
    pub positions: Option<usize>,
    /// Width of the per-layer embedding (PLE, Gemma 3n), if there is one.
    pub per_layer_dim: Option<usize>,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// Softcap: logits then become `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// RoPE variants that layers refer to by index.
    pub ropes: Vec<RopeSpec>,
    /// MTP layers (nextn) stored behind the last layer. They are skipped.
    pub mtp_layers: usize,
    /// First to last.
    pub layers: Vec<LayerSpec>,
}

/// Settings shared by all norms of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// RMSNorm or LayerNorm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Whether norms have a bias.
    pub bias: Bias,
    /// Added to the stored weights (1 in Gemma).
    pub weight_offset: f32,
}

/// One decoder or encoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Attention, unless `gated_delta` is set.
    pub mixer: AttentionSpec,
    /// MLA (DeepSeek V2). `mixer` then describes attention over the latent KV rows.
    pub mla: Option<MlaSpec>,
    /// Gated delta rule (Qwen3-Next): a recurrent state in place of K and V. `mixer` is then unused.
    pub gated_delta: Option<GatedDeltaSpec>,
    /// The FFN; with `experts`, one expert.
    pub ffn: FfnSpec,
    /// MoE: number of experts and how a token is routed.
    pub experts: Option<ExpertsSpec>,
    /// Parallel MoE (Gemma 4): a dense FFN beside the experts, each with norms of its own.
    pub dense_ffn: Option<FfnSpec>,
    /// Placement of the norms.
    pub order: Order,
    /// Multiplies each block's output before it is added to the residual stream.
    pub residual_scale: f32,
    /// Whether a learned scalar multiplies the layer's output.
    pub layer_scale: bool,
    /// Cross-attention to the encoder's output, with the same heads and biases as `mixer`. It runs between the mixer
    /// and the FFN, with a norm in front of it.
    pub cross_attention: bool,
}

/// Placement of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Pre-norm: `x + block(norm(x))`.
    Pre,
    /// Norm of each block's output: `x + norm(block(x))`.
    Post,
    /// Post-norm of the original Transformer: `norm(x + block(x))`.
    PostNorm,
    /// Pre-norm in front of the FFN alone: the first layer's input comes from a norm already.
    FfnPreNorm,
    /// Norms in front of and behind each block: `x + norm(block(norm(x)))`.
    Sandwich,
    /// Both blocks read the layer's input, each through its own norm: `x + mixer(norm(x)) + ffn(norm(x))`.
    Parallel,
    /// Both blocks read the layer's input through the same norm.
    ParallelOneNorm,
}

/// Self-attention.
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
    /// Whether each head of V is normalised, without weights.
    pub v_norm: bool,
    /// RoPE variant: index into [`DecoderSpec::ropes`]. `None`: no position encoding (NoPE).
    pub rope: Option<usize>,
    /// Causal mask; otherwise attention is bidirectional.
    pub causal: bool,
    /// Sliding window: positions that a token attends to in each visible direction, itself included.
    pub window: Option<usize>,
    /// Chunked attention (Llama 4): the sequence is cut into chunks of this length, and no token attends outside its
    /// own.
    pub chunk: Option<usize>,
    /// Attention sinks (gpt-oss): each head has a learned score beside those of tokens.
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
    /// Whether K has no bias where Q and V have one (Whisper).
    pub no_k_bias: bool,
    /// Whether V is K before QK norm and RoPE.
    pub tie_kv: bool,
    /// Shared KV (Gemma 3n, 4): the earlier layer whose KV cache this one reads.
    pub kv_source: Option<usize>,
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
    /// Bias of the K projection.
    pub fn key_bias(&self) -> Bias {
        if self.no_k_bias { Bias::No } else { self.qkv_bias }
    }

    /// Most positions that a token attends to, itself included; `None` if all before it.
    pub fn sees(&self) -> Option<usize> {
        self.window.into_iter().chain(self.chunk).min()
    }
}

/// MLA (multi-head latent attention, DeepSeek V2): K and V of all heads come from one latent row per token. The KV
/// cache holds `[k_rope, latent]` as a single KV head; queries are projected to that width, and the attention output
/// from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaSpec {
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

/// A feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FfnSpec {
    /// Intermediate size.
    pub width: usize,
    /// Activation function.
    pub act: Activation,
    /// Whether there is a gate projection (GLU).
    pub gated: bool,
    /// Bias of its linear layers.
    pub bias: Bias,
}

/// Mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Bias of the router's logits.
    pub router_bias: Bias,
    /// How logits become scores.
    pub scores: Scores,
    /// What a token's expert weight multiplies: the expert's output or its input.
    pub weight_on: RoutingWeightOn,
    /// Whether a bias takes part in the selection only, not in the expert weights (`e_score_correction_bias`, DeepSeek
    /// V3).
    pub bias: bool,
    /// Group-limited routing: groups are chosen first.
    pub groups: Option<Groups>,
    /// Whether the weights of the chosen experts are normalised to sum to 1 (`norm_topk_prob`).
    pub norm_weights: bool,
    /// Multiplies expert weights (`routed_scaling_factor`).
    pub scale: f32,
    /// Shared expert, which every token goes through.
    pub shared: Option<SharedExpertSpec>,
    /// Whether the router reads the hidden state through a norm of its own.
    pub router_norm: bool,
    /// Whether a learned scalar per expert multiplies its weight.
    pub expert_scale: bool,
}

/// Shared expert: an FFN beside the routed experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Intermediate size.
    pub width: usize,
    /// Whether a gate per token scales its output (Qwen2-MoE).
    pub gated: bool,
}

impl ExpertsSpec {
    /// Softmax over all experts, then top-k; everything else off.
    pub fn softmax(count: usize, top_k: usize) -> ExpertsSpec {
        let scores = Scores::Softmax;
        ExpertsSpec {
            count,
            top_k,
            router_bias: Bias::No,
            scores,
            weight_on: RoutingWeightOn::Output,
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
    /// Whether any layer has a recurrent state in place of K and V. Pages alone then do not hold a sequence's past.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.gated_delta.is_some())
    }

    /// Longest sequence for which RoPE is as in training. Past it, dynamic variants are stretched for all sequences
    /// alike.
    pub fn trained_context(&self) -> usize {
        let dynamic = self.ropes.iter().filter_map(RopeSpec::dynamic).map(|(_, original)| original);
        dynamic.chain([self.context]).min().unwrap_or(self.context)
    }
}

impl LayerSpec {
    /// Columns of a KV cache of `dtype` for one token's keys, or for its values.
    pub fn cache_cols(&self, dtype: DType) -> usize {
        let keeps_none = self.gated_delta.is_some() || self.mixer.kv_source.is_some();
        if keeps_none { 0 } else { self.mixer.heads.cache_cols(dtype) }
    }

    /// Floats of a sequence's recurrent state.
    pub fn state_len(&self) -> usize {
        self.gated_delta.map_or(0, |delta| delta.window_len() + delta.heads.state_len())
    }

    /// Weights of the mixer, for hidden states of width `dim`.
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

    /// Intermediate sizes of all FFNs that a token goes through, summed.
    pub fn active_ffn_width(&self) -> usize {
        let beside = self.dense_ffn.map_or(0, |block| block.width);
        let of = |e: ExpertsSpec| e.top_k * self.ffn.width + e.shared.map_or(0, |s| s.width) + beside;
        self.experts.map_or(self.ffn.width, of)
    }
}

/// Whether a linear layer has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Never.
    No,
    /// Always; loading fails without it.
    Yes,
    /// If the checkpoint has one: GGUF metadata does not say.
    IfPresent,
}

/// QK norm: how Q and K are normalised before RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNormSpec {
    /// No QK norm.
    None,
    /// Per head, without weights.
    Plain,
    /// Per head, the same weights for all.
    PerHead,
    /// Per head, with weights of its own.
    HeadWeights,
    /// Over all heads of a token at once.
    AllHeads,
}
