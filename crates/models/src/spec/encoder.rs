//! [`EncoderSpec`]: an encoder's architecture as plain values. Families build it from a model's settings; blocks read
//! it.

use tallow_core::Activation;
pub use tallow_media::image::{CHANNELS, ImageDefaults};

use super::rope::RopeSpec;
use super::{Bias, DenseDecoderSpec, DenseLayerSpec, NormSpec};

/// An encoder: embeddings and their norm, layers, optional final norm, optional head.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the embedding; token ids are below it.
    pub vocab: usize,
    /// Width of a hidden state.
    pub dim: usize,
    /// Longest sequence that the model supports.
    pub context: usize,
    /// Settings shared by all norms.
    pub norm: NormSpec,
    /// Multiplies token embeddings.
    pub embed_scale: f32,
    /// Learned absolute position embeddings, if any.
    pub positions: Option<Positions>,
    /// Number of token types with an embedding (first text, second text), if any.
    pub types: Option<usize>,
    /// Patch embedding, if it takes images: then it has no vocabulary, and a position per patch.
    pub patches: Option<PatchSpec>,
    /// The token that texts are padded with to the full context, if they are (SigLIP).
    pub pad: Option<u32>,
    /// RoPE variants that layers refer to by index.
    pub ropes: Vec<RopeSpec>,
    /// First to last.
    pub layers: Vec<DenseLayerSpec>,
    /// True if there is a norm behind the last layer.
    pub last_norm: bool,
    /// Classification head, if there is one.
    pub head: Option<HeadSpec>,
    /// Masked language model head, if there is one. Only `dump` computes it.
    pub mlm_head: Option<MlmHeadSpec>,
    /// Name of the pooler (linear layer and tanh over the first hidden state, `pooler_output`), if there is one. Only
    /// `dump` computes it.
    pub pooler: Option<&'static str>,
    /// Pooling head, if the model has one of its own.
    pub pooling_head: Option<PoolingHeadSpec>,
    /// Dense layers that vectors go through then, in order.
    pub dense: Vec<DenseSpec>,
    /// Audio stem, if it takes audio instead of tokens (Whisper). An input then always has `2 * context` frames.
    pub audio: Option<AudioSpec>,
}

impl From<DenseDecoderSpec> for EncoderSpec {
    /// The encoder with those embeddings and layers, a norm behind the last one, and no head.
    fn from(spec: DenseDecoderSpec) -> EncoderSpec {
        EncoderSpec {
            vocab: spec.vocab,
            dim: spec.dim,
            context: spec.context,
            norm: spec.norm,
            embed_scale: spec.embed_scale,
            positions: spec.positions.map(|rows| Positions { rows, pad: None }),
            types: None,
            patches: None,
            pad: None,
            ropes: spec.ropes,
            layers: spec.layers,
            last_norm: true,
            head: None,
            mlm_head: None,
            pooler: None,
            pooling_head: None,
            dense: Vec::new(),
            audio: None,
        }
    }
}

impl EncoderSpec {
    /// Width of a vector.
    pub fn width(&self) -> usize {
        if let Some(dense) = self.dense.last() {
            return dense.width;
        }
        self.pooling_head.and_then(|head| head.project).map_or(self.dim, |project| project.width)
    }
}

/// Images, and the patches that they are cut into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchSpec {
    /// Pixels per side of an image.
    pub image: usize,
    /// Pixels per side of a patch. A remainder of the image is dropped.
    pub side: usize,
    /// Full name of the class embedding in front of the patches, if there is one.
    pub first: Option<&'static str>,
    /// Bias of the patch projection.
    pub bias: Bias,
    /// Preprocessing of images where the folder does not say.
    pub usual: ImageDefaults,
}

impl PatchSpec {
    /// Patches of an image.
    pub fn count(&self) -> usize {
        (self.image / self.side).pow(2)
    }

    /// Rows of an image: its patches and the class row, if there is one.
    pub fn rows(&self) -> usize {
        self.count() + usize::from(self.first.is_some())
    }

    /// Values of a patch.
    pub fn width(&self) -> usize {
        CHANNELS * self.side * self.side
    }
}

/// From hidden states to a vector: pooling, optional norm, optional linear layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolingHeadSpec {
    /// Pooling of hidden states.
    pub pool: PoolKind,
    /// True if the encoder's last norm is applied to what was pooled.
    pub norm: bool,
    /// The projection, if there is one.
    pub project: Option<Projection>,
}

/// Pooling of hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Pooling by a fixed rule.
    By(Pooling),
    /// Attention pooling (SigLIP): a learned query attends to all of them, and an FFN follows. Prefix of its tensors'
    /// names.
    AttentionPool(&'static str),
}

/// Projection at the end of a pooling head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projection {
    /// Name of its tensors.
    pub name: &'static str,
    /// Outputs.
    pub width: usize,
    /// Bias of the linear layer.
    pub bias: Bias,
}

/// A dense layer of sentence-transformers: linear layer with an optional activation, stored next to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseSpec {
    /// Name of its tensors.
    pub name: String,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub width: usize,
    /// Bias of the linear layer.
    pub bias: Bias,
    /// The activation, if there is one.
    pub act: Option<HeadActivation>,
}

/// Audio stem (Whisper): log-mel frames of `bands` values; two convolutions of kernel size 3 halve their number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioSpec {
    /// Values of a frame (mel bands).
    pub bands: usize,
    /// Activation behind each convolution.
    pub act: Activation,
}

/// Learned absolute position embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// Rows of the table.
    pub rows: usize,
    /// The padding token, where positions are counted from its id (RoBERTa): padding has row `pad`, the other tokens
    /// have the rows behind it.
    pub pad: Option<u32>,
}

impl Positions {
    /// The position rows of a text's tokens.
    pub fn of(&self, tokens: &[u32]) -> Vec<u32> {
        let Some(pad) = self.pad else { return (0..tokens.len() as u32).collect() };
        let count = |last: &mut u32, token: &u32| {
            *last += u32::from(*token != pad);
            Some(if *token == pad { pad } else { *last })
        };
        tokens.iter().scan(pad, count).collect()
    }
}

/// Pooling: how the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all.
    Mean,
    /// Sum of all divided by the square root of their number.
    RootMean,
    /// Mean weighted by position: 1, 2, 3, ...
    WeightedMean,
    /// Element-wise maximum.
    Max,
    /// First token (CLS).
    First,
    /// Last token.
    Last,
    /// First occurrence of this token; the first token if it does not occur.
    At(u32),
    /// The token with the largest id, its first occurrence (CLIP).
    Largest,
}

impl Pooling {
    /// Index of the selected token; `None` if all tokens take part.
    pub(crate) fn place(self, tokens: &[u32]) -> Option<usize> {
        match self {
            Pooling::Mean | Pooling::RootMean | Pooling::WeightedMean | Pooling::Max => None,
            Pooling::First => Some(0),
            Pooling::Last => Some(tokens.len().saturating_sub(1)),
            Pooling::At(end) => Some(tokens.iter().position(|token| *token == end).unwrap_or(0)),
            Pooling::Largest => {
                let most = tokens.iter().max();
                Some(tokens.iter().position(|token| Some(token) == most).unwrap_or(0))
            }
        }
    }
}

/// Classification head: linear layer, activation, optional norm, linear layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadSpec {
    /// Pooling of the text's vector.
    pub pooling: Pooling,
    /// Name of the first linear layer.
    pub dense: &'static str,
    /// Bias of the first linear layer.
    pub dense_bias: Bias,
    /// The activation.
    pub act: HeadActivation,
    /// Name of the norm, if there is one.
    pub norm: Option<&'static str>,
    /// Name of the last linear layer, which has a bias.
    pub out: &'static str,
    /// Scores per text.
    pub labels: usize,
}

/// Masked language model head, from hidden states to logits of tokens: linear layer, activation, norm, and a linear
/// layer whose matrix is the token embedding unless the file has another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlmHeadSpec {
    /// Name of the first linear layer.
    pub dense: &'static str,
    /// Bias of the first linear layer.
    pub dense_bias: Bias,
    /// The activation.
    pub act: Activation,
    /// Name of the norm.
    pub norm: &'static str,
    /// Name of the last linear layer.
    pub out: &'static str,
    /// Full name of the last layer's bias, if it has one.
    pub bias: Option<&'static str>,
}

/// Activation function of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// Any activation that FFNs have.
    Like(Activation),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_that_stands_for_all() {
        let tokens = [9, 4, 30, 7, 30, 4];
        let places = [
            (Pooling::Mean, None),
            (Pooling::First, Some(0)),
            (Pooling::Last, Some(5)),
            (Pooling::At(4), Some(1)),
            (Pooling::At(5), Some(0)),
            (Pooling::Largest, Some(2)),
        ];
        for (by, place) in places {
            assert_eq!(by.place(&tokens), place, "{by:?}");
        }
    }

    #[test]
    fn what_is_left_over_of_an_image_is_not_seen() {
        let usual = ImageDefaults { crops: true, mean: [0.0; 3], deviation: [1.0; 3] };
        let patches = |image, side, first| PatchSpec { image, side, first, bias: Bias::No, usual };
        assert_eq!((patches(384, 14, None).rows(), patches(384, 14, None).width()), (729, 588));
        assert_eq!(patches(224, 32, Some("class")).rows(), 50);
    }

    #[test]
    fn positions_are_counted_from_the_token_that_fills() {
        let rows = |pad, tokens: &[u32]| Positions { rows: 40, pad }.of(tokens);
        assert_eq!(rows(None, &[7, 1, 7]), [0, 1, 2]);
        assert_eq!(rows(Some(1), &[0, 7, 8, 2]), [2, 3, 4, 5]);
        // As in the reference, where padding occurs in the middle of a text.
        assert_eq!(rows(Some(1), &[0, 1, 8, 1, 2]), [2, 1, 3, 1, 4]);
    }
}
