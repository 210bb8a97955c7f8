//! The dense feed-forward block (FFN).

use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::FfnSpec;
use crate::weights::Weights;

/// `down(act(up(x)))`, or gated (GLU) `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp<B: Backend> {
    up: Vec<LinearWeights<B>>,
    act: Activation,
    down: LinearWeights<B>,
}

impl<B: Backend> Mlp<B> {
    /// Loads layer `i`'s FFN. `names`: gate, up, gate and up in one tensor, down.
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
        let adapters = &cx.plan.loras[..];
        cx.b.run(Ffn { x, norm, up: &self.up, act: self.act, down: &self.down, epilogue, adapters })
    }
}
