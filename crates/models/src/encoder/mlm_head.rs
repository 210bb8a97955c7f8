//! [`MlmHead`]: the masked language model head, from hidden states to logits of tokens.

use tallow_core::ops::{Epilogue, Linear, Normalize};
use tallow_core::{Backend, LinearWeights, Norm, Result, Tensor, Weight};

use super::classifier_head::linear_act;
use crate::Result as LoadResult;
use crate::spec::Bias;
use crate::spec::encoder::{HeadActivation, MlmHeadSpec};
use crate::weights::Weights;

/// Masked language model head.
#[derive(Debug)]
pub(super) struct MlmHead<B: Backend> {
    dense: LinearWeights<B>,
    act: HeadActivation,
    norm: Norm<B>,
    out: LinearWeights<B>,
}

impl<B: Backend> MlmHead<B> {
    /// Loads the head; `table` is the token embedding of `vocab` tokens.
    pub(super) fn load(
        w: &mut Weights<'_, B>,
        spec: &MlmHeadSpec,
        (table, vocab): (&Weight<B>, usize),
    ) -> LoadResult<MlmHead<B>> {
        let dim = w.spec().dim;
        let out = match w.has(spec.out) {
            true => w.linear(spec.out, vocab, dim, Bias::No)?,
            false => LinearWeights::new(table.clone(), None),
        };
        let bias = spec.bias.map(|name| w.tensor_row(name, vocab)).transpose()?;
        Ok(MlmHead {
            dense: w.linear(spec.dense, dim, dim, spec.dense_bias)?,
            act: HeadActivation::Like(spec.act),
            norm: w.norm(spec.norm, dim)?,
            out: LinearWeights { bias, ..out },
        })
    }

    /// [tokens, dim] to [tokens, vocabulary]
    pub(super) fn forward(&self, b: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
        let y = linear_act(b, x, &self.dense, Some(self.act))?;
        let x = b.run(Normalize { x: &y, norm: &self.norm, residual: None })?;
        b.run(Linear { x: &x, weights: &self.out, epilogue: Epilogue::NONE })
    }
}
