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
    /// Rotary embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// From the first to the last.
    pub layers: Vec<LayerSpec>,
    /// Is there a norm behind the last layer?
    pub last_norm: bool,
    /// What gives scores, if anything does.
    pub head: Option<HeadSpec>,
    /// Where it takes what is heard and no tokens: what that is like. Its context is half as many frames, always.
    pub sound: Option<SoundSpec>,
}

/// What an encoder hears: frames of so many bands, made half as many hidden states by two convolutions over three
/// neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoundSpec {
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
    /// The first.
    First,
    /// The last.
    Last,
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
    pub bend: Bend,
    /// The norm's name, if there is one.
    pub norm: Option<&'static str>,
    /// The last layer's name. It has a bias.
    pub out: &'static str,
    /// Scores of a text.
    pub labels: usize,
}

/// What a head bends its numbers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// The hyperbolic tangent.
    Tanh,
    /// What feed-forward blocks have, too.
    Like(Activation),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_counted_from_the_token_that_fills() {
        let rows = |pad, tokens: &[u32]| Positions { rows: 40, pad }.of(tokens);
        assert_eq!(rows(None, &[7, 1, 7]), [0, 1, 2]);
        assert_eq!(rows(Some(1), &[0, 7, 8, 2]), [2, 3, 4, 5]);
        // As the reference has it where that token is in the middle of a text.
        assert_eq!(rows(Some(1), &[0, 1, 8, 1, 2]), [2, 1, 3, 1, 4]);
    }
}
