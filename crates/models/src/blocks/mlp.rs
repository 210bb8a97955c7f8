//! The feed-forward block.

use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::error::Result as LoadResult;
use crate::spec::FfnSpec;
use crate::weights::Weights;

/// Up, with a gate or without, the bend, down.
#[derive(Debug)]
pub struct Mlp<B: Backend> {
    up: Vec<LinearWeights<B>>,
    act: Activation,
    down: LinearWeights<B>,
}

impl<B: Backend> Mlp<B> {
    /// Reads layer `i`'s block: gate, up, both as one, and down by these names.
    pub fn load(w: &mut Weights<'_, B>, i: usize, names: [&str; 4], spec: &FfnSpec) -> LoadResult<Mlp<B>> {
        let ([gate, up, both, down], dim) = (names, w.spec().dim);
        let mut linear = |name, rows, cols| w.linear((name, i), rows, cols, spec.bias);
        let up = match (spec.gated, both) {
            (false, _) => vec![linear(up, spec.width, dim)?],
            (true, "") => vec![linear(gate, spec.width, dim)?, linear(up, spec.width, dim)?],
            (true, both) => vec![linear(both, 2 * spec.width, dim)?],
        };
        Ok(Mlp { up, act: spec.act, down: linear(down, dim, spec.width)? })
    }

    /// `then(block(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let adapters = &cx.plan.adapted[..];
        cx.b.run(Ffn { x, norm, up: &self.up, act: self.act, down: &self.down, epilogue, adapters })
    }
}
