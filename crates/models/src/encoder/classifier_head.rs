//! [`ClassifierHead`]: from a text's vector to scores.

use tallow_core::ops::{Activate, Epilogue, Linear, Normalize};
use tallow_core::{Backend, LinearWeights, Norm, Result, Tensor};

use crate::Result as LoadResult;
use crate::spec::Bias;
use crate::spec::encoder::{HeadActivation, HeadSpec};
use crate::weights::Weights;

/// Linear layer, activation, optional norm, linear layer.
#[derive(Debug)]
pub(super) struct ClassifierHead<B: Backend> {
    dense: LinearWeights<B>,
    act: HeadActivation,
    norm: Option<Norm<B>>,
    out: LinearWeights<B>,
}

impl<B: Backend> ClassifierHead<B> {
    pub(super) fn load(w: &mut Weights<'_, B>, spec: &HeadSpec) -> LoadResult<ClassifierHead<B>> {
        let dim = w.spec().dim;
        Ok(ClassifierHead {
            dense: w.linear(spec.dense, dim, dim, spec.dense_bias)?,
            act: spec.act,
            norm: spec.norm.map(|name| w.norm(name, dim)).transpose()?,
            out: w.linear(spec.out, spec.labels, dim, Bias::Yes)?,
        })
    }

    /// [texts, dim] to [texts, labels]
    pub(super) fn forward(&self, b: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
        let y = linear_act(b, x, &self.dense, Some(self.act))?;
        let normed =
            self.norm.as_ref().map(|norm| b.run(Normalize { x: &y, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(&y);
        b.run(Linear { x, weights: &self.out, epilogue: Epilogue::NONE })
    }
}

/// Linear layer with an optional activation.
pub(super) fn linear_act<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    weights: &LinearWeights<B>,
    act: Option<HeadActivation>,
) -> Result<Tensor<B>> {
    // A softcap of 1 is tanh.
    let softcap = (act == Some(HeadActivation::Tanh)).then_some(1.0);
    let gate = b.run(Linear { x, weights, epilogue: Epilogue { softcap, ..Epilogue::NONE } })?;
    match act {
        Some(HeadActivation::Like(act)) => b.run(Activate { gate: &gate, up: None, act }),
        Some(HeadActivation::Tanh) | None => Ok(gate),
    }
}
