//! [`Slot`]: a tensor's place in a model, and [`Slots`], the table of the names that such tensors have in a file.

use super::pattern::Pattern;

/// Place of a tensor in a model, named as llama.cpp's `LLM_TENSOR_*`. Converted files have their tensors in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "most are the field's own names")]
pub enum Slot {
    TokenEmbd,
    /// Learned position embedding.
    PosEmbd,
    OutputNorm,
    /// LM head.
    Output,
    /// Norm before the mixer (attention, MLA, ...).
    AttnNorm,
    /// Norm behind the mixer.
    AttnPostNorm,
    /// Fused Q, K and V. Where a file lacks it, they are three tensors.
    AttnQkv,
    AttnQ,
    AttnK,
    AttnV,
    AttnOut,
    AttnQNorm,
    AttnKNorm,
    /// Attention sinks, one score per head.
    AttnSinks,
    /// MLA: Q down-projection.
    AttnQA,
    AttnQANorm,
    /// MLA: Q up-projection.
    AttnQB,
    /// MLA: KV down-projection to the latent row and the RoPE part of K.
    AttnKvAMqa,
    AttnKvANorm,
    /// Norm before the FFN.
    FfnNorm,
    /// Norm behind the FFN.
    FfnPostNorm,
    FfnGate,
    FfnUp,
    /// Fused gate and up. Where a file lacks it, or the FFN is ungated, they are two tensors.
    FfnGateUp,
    FfnDown,
    /// Router.
    FfnGateInp,
    /// Bias used for expert selection only.
    FfnExpProbsB,
    /// Weight of the norm before the router.
    FfnGateInpNorm,
    /// Factor per expert on the routing weights.
    FfnDownExpsScale,
    /// Parallel MoE: norm behind the dense FFN.
    FfnPostNorm1,
    /// Parallel MoE: norm before the experts.
    FfnPreNorm2,
    /// Parallel MoE: norm behind the experts.
    FfnPostNorm2,
    /// Fused gate and up of all experts, with a row per output.
    FfnGateUpExps,
    /// Down of all experts, with a row per output, in files with [`FfnGateUpExps`](Self::FfnGateUpExps).
    FfnDownExpsStacked,
    /// Gate of one expert, or, if the name has no expert, of all.
    FfnGateExps,
    FfnUpExps,
    FfnDownExps,
    /// Per-layer embedding (PLE).
    PerLayerTokenEmbd,
    PerLayerModelProj,
    PerLayerProjNorm,
    PerLayerInpGate,
    PerLayerProj,
    PerLayerPostNorm,
    /// Factor on a layer's output.
    LayerOutScale,
    /// Shared expert.
    FfnGateShexp,
    FfnUpShexp,
    FfnDownShexp,
    /// Gate of the shared expert.
    FfnGateInpShexp,
    /// Gated DeltaNet: fused Q, K and V.
    SsmQkv,
    /// Gated DeltaNet: output gate z.
    SsmGate,
    /// Gated DeltaNet: fused beta (write strength) and alpha (decay), grouped by key head. Where a file lacks it, they are
    /// two tensors.
    SsmBetaAlpha,
    SsmBeta,
    SsmAlpha,
    /// Gated DeltaNet: weights of the causal convolution.
    SsmConv1d,
    /// Gated DeltaNet: decay rate per value head, as [`Rate`](super::Rate) says.
    SsmA,
    /// Gated DeltaNet: bias of the decay's input, `dt_bias`.
    SsmDt,
    SsmNorm,
    SsmOut,
    /// Gated DeltaNet: fused Q, K, V and z, grouped by key head. Where a file lacks it, they are `SsmQkv` and `SsmGate`.
    SsmIn,
    /// MLA: KV up-projection from the latent row to K and V, head by head.
    AttnKvB,
    /// MLA, in files that split `AttnKvB`: from each head's queries to the latent row.
    AttnKB,
    /// MLA, in files that split `AttnKvB`: from the latent row to V.
    AttnVB,
    /// Fused gate and up of all experts, with a row per input unless they are quantized, laid out as
    /// [`Joint`](super::Joint) says. `FfnDownExps` has a row per input, too.
    FfnGateUpExpsT,
    /// Up projection of an ungated FFN, if it has another name.
    FfnUpUngated,
    /// Relative position bias. Where the name has no layer, all layers share it.
    AttnRelB,
    CrossAttnNorm,
    CrossAttnQ,
    CrossAttnK,
    CrossAttnV,
    CrossAttnOut,
    /// Token type embedding.
    TokenTypes,
    /// Norm behind the embeddings.
    TokenEmbdNorm,
    /// The two convolutions of an audio stem.
    EncConv1,
    EncConv2,
    /// MTP layer: projection of the next token's embedding and the hidden state, side by side, to a hidden state.
    NextnEhProj,
    /// MTP layer: token embedding of its own.
    NextnEmbedTokens,
    /// MTP layer: norm of the embedding.
    NextnEnorm,
    /// MTP layer: norm of the hidden state.
    NextnHnorm,
    /// MTP layer: LM head of its own.
    NextnSharedHeadHead,
    /// MTP layer: norm in front of the LM head.
    NextnSharedHeadNorm,
}

impl Slot {
    const COUNT: usize = Slot::NextnSharedHeadNorm as usize + 1;

    /// True if it is a tensor of its own, whose name is complete. The others are layers, which may have a weight and a
    /// bias, and their names come without `.weight` and `.bias`.
    pub fn is_whole(self) -> bool {
        use Slot::*;
        matches!(
            self,
            AttnSinks
                | FfnExpProbsB
                | FfnGateInpNorm
                | FfnDownExpsScale
                | FfnGateUpExps
                | FfnDownExpsStacked
                | FfnGateUpExpsT
                | LayerOutScale
                | SsmA
                | SsmDt
        )
    }

    /// True if it is a norm whose weights may be stored minus an offset.
    pub fn is_norm(self) -> bool {
        use Slot::*;
        matches!(
            self,
            OutputNorm
                | AttnNorm
                | AttnPostNorm
                | AttnQNorm
                | AttnKNorm
                | AttnQANorm
                | AttnKvANorm
                | FfnNorm
                | FfnPostNorm
                | FfnPostNorm1
                | FfnPreNorm2
                | FfnPostNorm2
                | PerLayerProjNorm
                | PerLayerPostNorm
                | NextnEnorm
                | NextnHnorm
                | NextnSharedHeadNorm
        )
    }

    /// True if it is a table with a row per token or position, in whatever layout a file has linear layers.
    pub fn is_table(self) -> bool {
        use Slot::*;
        matches!(
            self,
            TokenEmbd | PosEmbd | Output | PerLayerTokenEmbd | NextnEmbedTokens | NextnSharedHeadHead
        )
    }

    /// True if only an MTP layer has it.
    pub fn is_nextn(self) -> bool {
        use Slot::*;
        matches!(
            self,
            NextnEhProj
                | NextnEmbedTokens
                | NextnEnorm
                | NextnHnorm
                | NextnSharedHeadHead
                | NextnSharedHeadNorm
        )
    }

    /// True if it is a tensor of Gated DeltaNet.
    pub fn is_gated_delta(self) -> bool {
        use Slot::*;
        matches!(
            self,
            SsmIn
                | SsmQkv
                | SsmGate
                | SsmBetaAlpha
                | SsmBeta
                | SsmAlpha
                | SsmConv1d
                | SsmA
                | SsmDt
                | SsmNorm
                | SsmOut
        )
    }
}

/// Names of the tensors that a file may have, by slot.
#[derive(Debug, Clone, Copy)]
pub struct Slots([Option<(Slot, Pattern)>; Slot::COUNT]);

impl Slots {
    /// The names in `table`.
    pub(super) const fn new(table: &[(Slot, &'static str)]) -> Slots {
        Slots([None; Slot::COUNT]).with(table)
    }

    /// These names, and those in `table` in the place of the same slots' here.
    pub(super) const fn with(mut self, table: &[(Slot, &'static str)]) -> Slots {
        let mut i = 0;
        while i < table.len() {
            let (slot, name) = table[i];
            self.0[slot as usize] = Some((slot, Pattern::new(name)));
            i += 1;
        }
        self
    }

    /// The name in a slot, if such files have the tensor.
    pub(super) fn get(&self, slot: Slot) -> Option<Pattern> {
        self.0[slot as usize].map(|(_, name)| name)
    }

    /// All names, in the order of the slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, Pattern)> {
        self.0.iter().copied().flatten()
    }
}
