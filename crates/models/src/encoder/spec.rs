//! [`EncoderSpec`]: everything that tells one encoder from another, as values. Families make it; blocks follow it.

use tallow_core::Activation;

use crate::blocks::rope::RopeSpec;
use crate::spec::{Bias, LayerSpec, NormSpec};

/// An encoder: embeddings and their norm, layers, perhaps a norm, perhaps a head.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the embedding: token ids are under it.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub dim: usize,
    /// The longest sequence it was made for.
    pub context: usize,
    /// Of every norm.
    pub norm: NormSpec,
    /// Positions that have an embedding of their own, if any.
    pub positions: Option<Positions>,
    /// Kinds of tokens that have an embedding of their own, if any: those of a first text, those of a second.
    pub types: Option<usize>,
    /// How images are cut up, if it takes images: then it has no vocabulary, and a position for each patch.
    pub patches: Option<PatchSpec>,
    /// The token that texts are filled up with as far as the context, if they are.
    pub fill: Option<u32>,
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// From the first to the last.
    pub layers: Vec<LayerSpec>,
    /// Is there a norm behind the last layer?
    pub last_norm: bool,
    /// What gives scores, if anything does.
    pub head: Option<HeadSpec>,
    /// What gives logits of tokens, if anything does. Only `dump` computes them.
    pub words: Option<TokenEmbedSpec>,
    /// The linear layer and hyperbolic tangent that make `pooler_output` of the first hidden state, if there are any: its
    /// name. Only `dump` computes it.
    pub pooler: Option<&'static str>,
    /// What makes a vector of hidden states, if the model has a way of its own.
    pub ending: Option<PoolingHeadSpec>,
    /// What vectors go through then, one after another.
    pub dense: Vec<DenseSpec>,
    /// Where it takes what is heard and no tokens: what that is like. Its context is half as many frames, always.
    pub sound: Option<AudioSpec>,
}

impl EncoderSpec {
    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        if let Some(dense) = self.dense.last() {
            return dense.width;
        }
        self.ending.and_then(|ending| ending.project).map_or(self.dim, |project| project.width)
    }
}

/// Images, and the squares that they are cut into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchSpec {
    /// Pixels of an image, on each side.
    pub image: usize,
    /// Pixels of a patch, on each side. What is left over of the image is not seen.
    pub side: usize,
    /// The whole name of what stands in front of the patches, if anything does.
    pub first: Option<&'static str>,
    /// Has the layer that takes them a bias?
    pub bias: Bias,
    /// What is done to pictures before, where a folder does not say it.
    pub usual: ImagePreprocessing,
}

/// What a family does to pictures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImagePreprocessing {
    /// Are they resized by their shorter side, and is a square cut out of their middle? Else they become a square.
    pub crops: bool,
    /// Of each colour.
    pub mean: [f32; CHANNELS],
    /// The standard deviation of each colour.
    pub deviation: [f32; CHANNELS],
}

/// Red, green, blue.
pub const CHANNELS: usize = 3;

impl PatchSpec {
    /// Patches of an image.
    pub fn count(&self) -> usize {
        (self.image / self.side).pow(2)
    }

    /// Rows of an image.
    pub fn rows(&self) -> usize {
        self.count() + usize::from(self.first.is_some())
    }

    /// Numbers of a patch.
    pub fn width(&self) -> usize {
        CHANNELS * self.side * self.side
    }
}

/// From hidden states to a vector: what is gathered of them, perhaps a norm, perhaps a linear layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolingHeadSpec {
    /// What is gathered.
    pub gather: PoolKind,
    /// The norm's name, if there is one.
    pub norm: Option<&'static str>,
    /// The linear layer, if there is one.
    pub project: Option<Projection>,
}

/// What is gathered of hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// What a rule says.
    By(Pooling),
    /// What a question that the model has learnt gets from all of them, through attention and a feed-forward block. This
    /// is what its tensors' names begin with.
    Probe(&'static str),
}

/// A linear layer at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projection {
    /// Its name.
    pub name: &'static str,
    /// Its outputs.
    pub width: usize,
    /// Has it a bias?
    pub bias: Bias,
}

/// A linear layer of vectors, and a bend, which stand beside a model.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseSpec {
    /// Its name.
    pub name: String,
    /// Its inputs.
    pub inputs: usize,
    /// Its outputs.
    pub width: usize,
    /// Has it a bias?
    pub bias: Bias,
    /// The bend, if there is one.
    pub bend: Option<HeadActivation>,
}

/// What an encoder hears: frames of so many bands, made half as many hidden states by two convolutions over three
/// neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioSpec {
    /// Numbers of a frame.
    pub bands: usize,
    /// Behind each convolution.
    pub act: Activation,
}

/// Embeddings of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// How many there are.
    pub rows: usize,
    /// The token that fills up short texts, where positions are counted from it: it has the row of its own id, and the
    /// other tokens of a text have the rows behind.
    pub pad: Option<u32>,
}

impl Positions {
    /// The rows of a text's tokens.
    pub fn of(&self, tokens: &[u32]) -> Vec<u32> {
        let Some(pad) = self.pad else { return (0..tokens.len() as u32).collect() };
        let count = |last: &mut u32, token: &u32| {
            *last += u32::from(*token != pad);
            Some(if *token == pad { pad } else { *last })
        };
        tokens.iter().scan(pad, count).collect()
    }
}

/// What makes one vector of a text's hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// The sum of all by the root of how many they are.
    RootMean,
    /// The mean of all, the second counting twice, the third three times.
    LaterMean,
    /// The largest number of all, in each place.
    Most,
    /// The first.
    First,
    /// The last.
    Last,
    /// That of the first token that is this one; the first of all where none is.
    At(u32),
    /// That of the token with the largest id, the first of them.
    Largest,
}

impl Pooling {
    /// Which of a text's tokens it is that stands for all, if one does.
    pub(super) fn place(self, tokens: &[u32]) -> Option<usize> {
        match self {
            Pooling::Mean | Pooling::RootMean | Pooling::LaterMean | Pooling::Most => None,
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

/// From a text's vector to scores: a linear layer, a bend, perhaps a norm, a linear layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadSpec {
    /// What the vector is.
    pub pooling: Pooling,
    /// The first layer's name.
    pub dense: &'static str,
    /// Has it a bias?
    pub dense_bias: Bias,
    /// The bend.
    pub bend: HeadActivation,
    /// The norm's name, if there is one.
    pub norm: Option<&'static str>,
    /// The last layer's name. It has a bias.
    pub out: &'static str,
    /// Scores of a text.
    pub labels: usize,
}

/// The head of a masked language model, from hidden states to logits of tokens: a linear layer, an activation, a norm,
/// and a linear layer whose matrix is the embedding unless the file has another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenEmbedSpec {
    /// The first layer's name.
    pub dense: &'static str,
    /// Has it a bias?
    pub dense_bias: Bias,
    /// What follows it.
    pub act: Activation,
    /// The norm's name.
    pub norm: &'static str,
    /// The last layer's name.
    pub out: &'static str,
    /// The whole name of the last layer's bias, if it has one.
    pub bias: Option<&'static str>,
}

/// What a head bends its numbers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadActivation {
    /// The hyperbolic tangent.
    Tanh,
    /// What feed-forward blocks have, too.
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
        let usual = ImagePreprocessing { crops: true, mean: [0.0; 3], deviation: [1.0; 3] };
        let patches = |image, side, first| PatchSpec { image, side, first, bias: Bias::No, usual };
        assert_eq!((patches(384, 14, None).rows(), patches(384, 14, None).width()), (729, 588));
        assert_eq!(patches(224, 32, Some("class")).rows(), 50);
    }

    #[test]
    fn positions_are_counted_from_the_token_that_fills() {
        let rows = |pad, tokens: &[u32]| Positions { rows: 40, pad }.of(tokens);
        assert_eq!(rows(None, &[7, 1, 7]), [0, 1, 2]);
        assert_eq!(rows(Some(1), &[0, 7, 8, 2]), [2, 3, 4, 5]);
        // As the reference has it where that token is in the middle of a text.
        assert_eq!(rows(Some(1), &[0, 1, 8, 1, 2]), [2, 1, 3, 1, 4]);
    }
}
