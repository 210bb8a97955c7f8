//! What each layer gets of its own beside the hidden state: a little of each token, from a table and from its embedding.

use std::f32::consts::FRAC_1_SQRT_2;

use tallow_core::ops::{Activate, Eltwise, EltwiseOp, Embed, Epilogue, Normalize};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, StepPlan, Tensor, Weight};

use super::Context;
use crate::error::Result as LoadResult;
use crate::spec::{Bias, FfnSpec};
use crate::weights::{Weights, named};

/// Where it comes from, for all layers.
#[derive(Debug)]
pub struct PerLayerEmbeddings<B: Backend> {
    table: Weight<B>,
    from: LinearWeights<B>,
    norm: Norm<B>,
    width: usize,
}

impl<B: Backend> PerLayerEmbeddings<B> {
    /// Reads where parts of so many elements come from, for so many tokens and layers.
    pub fn load(
        w: &mut Weights<'_, B>,
        width: usize,
        vocab: usize,
        layers: usize,
    ) -> LoadResult<PerLayerEmbeddings<B>> {
        let (names, dim, all) = (w.names(), w.spec().dim, layers * width);
        Ok(PerLayerEmbeddings {
            table: w.matrix(&named(names.side_table), vocab, all)?,
            from: w.linear((names.side_from, 0), all, dim, Bias::No)?,
            norm: w.norm((names.side_norm, 0), width)?,
            width,
        })
    }

    /// The parts of all layers side by side, from a step's tokens and their embeddings.
    pub fn forward(&self, b: &B, plan: &StepPlan<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let scale = FRAC_1_SQRT_2 * (self.width as f32).sqrt();
        let of_tokens = b.run(Embed { table: &self.table, ids: &plan.tokens, scale })?; // [tokens, layers * width]
        let then = Epilogue { scale: 1.0 / (x.cols() as f32).sqrt(), ..Epilogue::NONE };
        let of_states = super::project(b, plan, x, &self.from, then)?; // [tokens, layers * width]
        let of_states = b.run(Normalize { x: &of_states, norm: &self.norm, residual: None })?;
        b.run(Eltwise { x: &of_tokens, op: EltwiseOp::AddScaled(&of_states, FRAC_1_SQRT_2) })
    }

    /// Layer `i`'s part of all.
    pub fn part(&self, all: &Tensor<B>, i: usize) -> Tensor<B> {
        all.col_range(i * self.width..(i + 1) * self.width)
    }
}

/// What a layer does with its part.
#[derive(Debug)]
pub struct PerLayerInput<B: Backend> {
    gate: LinearWeights<B>,
    back: LinearWeights<B>,
    behind: Norm<B>,
    act: Activation,
}

impl<B: Backend> PerLayerInput<B> {
    /// Reads layer `i`'s block.
    pub fn load(
        w: &mut Weights<'_, B>,
        i: usize,
        width: usize,
        ffn: &FfnSpec,
    ) -> LoadResult<PerLayerInput<B>> {
        let (names, dim) = (w.names(), w.spec().dim);
        Ok(PerLayerInput {
            gate: w.linear((names.side_gate, i), width, dim, Bias::No)?,
            back: w.linear((names.side_back, i), dim, width, Bias::No)?,
            behind: w.norm((names.side_behind, i), dim)?,
            act: ffn.act,
        })
    }

    /// `x + norm(back(act(gate(x)) * part))`
    pub fn forward(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let b = cx.b;
        let gate = cx.project(x, &self.gate, Epilogue::NONE)?; // [tokens, width]
        let y = b.run(Activate { gate: &gate, up: cx.side.as_ref(), act: self.act })?;
        let y = cx.project(&y, &self.back, Epilogue::NONE)?; // [tokens, dim]
        b.run(Normalize { x: &y, norm: &self.behind, residual: Some(x) })
    }
}
