//! The feed-forward block.

use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Activation, Backend, Linear, Norm, Result, Tensor};

use super::Context;
use crate::error::Result as LoadResult;
use crate::spec::FfnSpec;
use crate::weights::Weights;

/// Gate and up, the bend, down.
#[derive(Debug)]
pub struct Mlp<B: Backend> {
    up: Vec<Linear<B>>,
    act: Activation,
    down: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    /// Reads layer `i`'s block: gate, up and down by these names.
    pub fn load(w: &mut Weights<'_, B>, i: usize, names: [&str; 3], spec: &FfnSpec) -> LoadResult<Mlp<B>> {
        let ([gate, up, down], dim) = (names, w.spec().dim);
        let gate = w.linear((gate, i), spec.width, dim, spec.bias)?;
        let up = w.linear((up, i), spec.width, dim, spec.bias)?;
        let down = w.linear((down, i), dim, spec.width, spec.bias)?;
        Ok(Mlp { up: vec![gate, up], act: spec.act, down })
    }

    /// `then(block(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        cx.b.run(Ffn { x, norm, up: &self.up, act: self.act, down: &self.down, then })
    }
}
