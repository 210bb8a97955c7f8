//! [`DecoderSpec`]: a decoder's architecture as plain values. Families build it from a model's settings; blocks read
//! it.

pub mod encoder;
mod ffn;
mod mixer;
pub mod rope;
pub mod seq2seq;

use tallow_core::{DType, NormKind};

pub use ffn::{ExpertsSpec, Ffn, FfnSpec, MoeSpec, SharedExpertSpec};
pub use mixer::{AttentionSpec, GatedDeltaSpec, Mixer, MlaSpec, QkNormSpec, RelativeBiasSpec, SharedKvSpec};
use rope::RopeSpec;

/// A decoder: token embedding, layers, final norm, LM head.
///
/// Families begin with a [`DenseDecoderSpec`], of whose layers they can set anything that attention or a dense FFN has;
/// then they exchange what a layer has instead ([`with_mixers`](DecoderSpec::with_mixers),
/// [`with_ffns`](DecoderSpec::with_ffns)).
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec<L = LayerSpec> {
    /// True if GGUF files of the family store Q and K rows in another order than the original checkpoints.
    pub gguf_permutes_qk: bool,
    /// Rows of the embedding; token ids are below it.
    pub vocab: usize,
    /// Width of a hidden state.
    pub dim: usize,
    /// Longest sequence that the model supports (`n_ctx_train`).
    pub context: usize,
    /// Settings shared by all norms.
    pub norm: NormSpec,
    /// True if the LM head is the embedding matrix.
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
    /// MTP layers (nextn) stored behind the last layer. Only the first is ever loaded, to draft tokens
    /// ([`Mtp`](crate::mtp::Mtp)).
    pub mtp_layers: usize,
    /// First to last.
    pub layers: Vec<L>,
}

/// A decoder whose layers all have attention and a dense FFN.
pub type DenseDecoderSpec = DecoderSpec<DenseLayerSpec>;

/// Settings shared by all norms of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// RMSNorm or LayerNorm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Bias of the norms.
    pub bias: Bias,
    /// Added to the stored weights (1 in Gemma).
    pub weight_offset: f32,
}

/// One decoder or encoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec<M = Mixer, F = Ffn> {
    /// The block that mixes tokens.
    pub mixer: M,
    /// The feed-forward block.
    pub ffn: F,
    /// Placement of the norms.
    pub order: Order,
    /// Multiplies each block's output before it is added to the residual stream.
    pub residual_scale: f32,
    /// True if a learned scalar multiplies the layer's output.
    pub layer_scale: bool,
}

/// A layer with attention and a dense FFN. Encoders have no other.
pub type DenseLayerSpec = LayerSpec<AttentionSpec, FfnSpec>;

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

impl<L> DecoderSpec<L> {
    /// Longest sequence for which RoPE is as in training. Past it, dynamic variants are stretched for all sequences
    /// alike.
    pub fn trained_context(&self) -> usize {
        let dynamic = self.ropes.iter().filter_map(RopeSpec::dynamic).map(|(_, original)| original);
        dynamic.chain([self.context]).min().unwrap_or(self.context)
    }

    fn with_layers<T>(mut self, to: impl FnMut((usize, L)) -> T) -> DecoderSpec<T> {
        let layers = std::mem::take(&mut self.layers).into_iter().enumerate().map(to).collect();
        self.of_layers(layers)
    }

    /// The decoder with those layers in place of its own.
    fn of_layers<T>(self, layers: Vec<T>) -> DecoderSpec<T> {
        DecoderSpec {
            gguf_permutes_qk: self.gguf_permutes_qk,
            vocab: self.vocab,
            dim: self.dim,
            context: self.context,
            norm: self.norm,
            tied_embeddings: self.tied_embeddings,
            head_bias: self.head_bias,
            embed_scale: self.embed_scale,
            positions: self.positions,
            per_layer_dim: self.per_layer_dim,
            logit_scale: self.logit_scale,
            logit_softcap: self.logit_softcap,
            ropes: self.ropes,
            mtp_layers: self.mtp_layers,
            layers,
        }
    }
}

impl DenseDecoderSpec {
    /// The decoder whose layer `i` has `mixer(i, its attention)`.
    pub fn with_mixers(
        self,
        mut mixer: impl FnMut(usize, AttentionSpec) -> Mixer,
    ) -> DecoderSpec<LayerSpec<Mixer, FfnSpec>> {
        self.with_layers(|(i, layer)| layer.with(|attention| mixer(i, attention), |ffn| ffn))
    }
}

impl<M: Into<Mixer>> DecoderSpec<LayerSpec<M, FfnSpec>> {
    /// The decoder whose layer `i` has `ffn(i, its FFN)`.
    pub fn with_ffns(self, mut ffn: impl FnMut(usize, FfnSpec) -> Ffn) -> DecoderSpec {
        self.with_layers(|(i, layer)| layer.with(M::into, |dense| ffn(i, dense)))
    }

    /// The decoder whose layer `i` has the MoE `experts(i)`, if there is one; its FFN is that of an expert.
    pub fn with_experts(self, experts: impl Fn(usize) -> Option<ExpertsSpec>) -> DecoderSpec {
        self.with_ffns(|i, expert| match experts(i) {
            Some(experts) => Ffn::Moe(MoeSpec { expert, experts }),
            None => Ffn::Dense(expert),
        })
    }
}

impl<M: Into<Mixer>> From<DecoderSpec<LayerSpec<M, FfnSpec>>> for DecoderSpec {
    fn from(spec: DecoderSpec<LayerSpec<M, FfnSpec>>) -> DecoderSpec {
        spec.with_ffns(|_, ffn| Ffn::Dense(ffn))
    }
}

/// A block of a decoder that an encoder cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotDense(pub &'static str);

impl TryFrom<DecoderSpec> for DenseDecoderSpec {
    type Error = NotDense;

    /// The same decoder, if its layers all have attention with a KV cache of one size, and a dense FFN.
    fn try_from(mut spec: DecoderSpec) -> Result<DenseDecoderSpec, NotDense> {
        if spec.per_layer_dim.is_some() {
            return Err(NotDense("per-layer embeddings"));
        }
        let layers = std::mem::take(&mut spec.layers).into_iter().map(DenseLayerSpec::try_from);
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let mut cols = layers.iter().map(|layer| layer.mixer.heads.kv_cols());
        match cols.next().is_none_or(|first| cols.all(|cols| cols == first)) {
            true => Ok(spec.of_layers(layers)),
            false => Err(NotDense("KV caches of several sizes")),
        }
    }
}

impl TryFrom<LayerSpec> for DenseLayerSpec {
    type Error = NotDense;

    fn try_from(layer: LayerSpec) -> Result<DenseLayerSpec, NotDense> {
        let mixer = match layer.mixer {
            Mixer::Attention(attention) => attention,
            Mixer::SharedKv(_) => return Err(NotDense("shared KV")),
            Mixer::Mla(_) => return Err(NotDense("multi-head latent attention")),
            Mixer::GatedDelta(_) => return Err(NotDense("the gated delta rule")),
        };
        let Ffn::Dense(ffn) = layer.ffn else { return Err(NotDense("experts")) };
        let LayerSpec { order, residual_scale, layer_scale, .. } = layer;
        Ok(LayerSpec { mixer, ffn, order, residual_scale, layer_scale })
    }
}

impl DecoderSpec {
    /// True if any layer sees the tokens behind a token, too. Such a model cannot generate.
    pub fn is_bidirectional(&self) -> bool {
        let attends = |layer: &LayerSpec| matches!(&layer.mixer, Mixer::Attention(a) if !a.causal);
        self.layers.iter().any(attends)
    }

    /// True if any layer has a recurrent state in place of K and V. Pages alone then do not hold a sequence's past.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.gated_delta().is_some())
    }

    /// The MTP layer's own architecture: attention to all positions, and the FFN of the last layer. `None` if the model has no
    /// such layer, or nothing like it.
    pub fn mtp_layer(&self) -> Option<LayerSpec> {
        let attends = |layer: &&LayerSpec| {
            layer.cache_cols(DType::F32) > 0
                && layer.mixer.sees().is_none()
                && layer.mixer.kv_source().is_none()
        };
        let like = self.layers.iter().rev().find(attends).filter(|_| self.mtp_layers > 0)?;
        let is_moe = |layer: &&LayerSpec| layer.ffn.moe().is_some();
        let ffn = self.layers.iter().rev().find(is_moe).unwrap_or(like).ffn;
        Some(LayerSpec { ffn, ..like.clone() })
    }

    /// Most positions that a token attends to in the layers in which it does not attend to all before it (sliding windows,
    /// chunked attention); `None` if there are none.
    pub fn swa_window(&self) -> Option<usize> {
        self.layers.iter().filter_map(|layer| layer.mixer.sees()).max()
    }
}

impl<M, F> LayerSpec<M, F> {
    /// Pre-norm, and nothing but the two blocks.
    pub fn new(mixer: M, ffn: F) -> LayerSpec<M, F> {
        LayerSpec { mixer, ffn, order: Order::Pre, residual_scale: 1.0, layer_scale: false }
    }

    fn with<N, G>(self, mixer: impl FnOnce(M) -> N, ffn: impl FnOnce(F) -> G) -> LayerSpec<N, G> {
        LayerSpec {
            mixer: mixer(self.mixer),
            ffn: ffn(self.ffn),
            order: self.order,
            residual_scale: self.residual_scale,
            layer_scale: self.layer_scale,
        }
    }
}

impl From<DenseLayerSpec> for LayerSpec {
    fn from(layer: DenseLayerSpec) -> LayerSpec {
        layer.with(Mixer::Attention, Ffn::Dense)
    }
}

impl LayerSpec {
    /// Columns of a KV cache of `dtype` for one token's keys, or for its values if they are not the keys.
    pub fn cache_cols(&self, dtype: DType) -> usize {
        match &self.mixer {
            Mixer::Attention(attention) => attention.heads.cache_cols(dtype),
            Mixer::Mla(mla) => mla.heads().cache_cols(dtype),
            Mixer::SharedKv(_) | Mixer::GatedDelta(_) => 0,
        }
    }

    /// Columns of a KV cache of `dtype` for one token's keys and values together. Those of MLA are the same row.
    pub fn kv_cache_cols(&self, dtype: DType) -> usize {
        let tensors = if matches!(self.mixer, Mixer::Mla(_)) { 1 } else { 2 };
        tensors * self.cache_cols(dtype)
    }

    /// Floats of a sequence's recurrent state.
    pub fn state_len(&self) -> usize {
        self.mixer.gated_delta().map_or(0, |delta| delta.window_len() + delta.heads.state_len())
    }

    /// Weights of the mixer, for hidden states of width `dim`.
    pub fn mixer_params(&self, dim: usize) -> usize {
        match &self.mixer {
            Mixer::Attention(AttentionSpec { heads, gated, .. }) => {
                let gates = if *gated { heads.q_cols() } else { 0 };
                dim * (heads.qkv_cols() + heads.q_cols() + gates)
            }
            Mixer::SharedKv(shared) => dim * 2 * shared.heads.q_cols(),
            Mixer::Mla(mla) => mla.params(dim),
            Mixer::GatedDelta(GatedDeltaSpec { heads, .. }) => {
                dim * (heads.cols() + 2 * heads.value_cols() + 2 * heads.values)
            }
        }
    }

    /// Intermediate sizes of all FFNs that a token goes through, summed.
    pub fn active_ffn_width(&self) -> usize {
        let experts = |MoeSpec { expert, experts }: &MoeSpec| {
            experts.top_k * expert.width + experts.shared.map_or(0, |shared| shared.width)
        };
        self.ffn.dense().map_or(0, |dense| dense.width) + self.ffn.moe().map_or(0, experts)
    }
}

/// Bias of a linear layer: there is one, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Never.
    No,
    /// Always; loading fails without it.
    Yes,
    /// If the checkpoint has one: GGUF metadata does not say.
    IfPresent,
}
