//! Per-layer embeddings (PLE, Gemma 3n): a second input of each layer, from a table and from the token embedding.

use std::f32::consts::FRAC_1_SQRT_2;

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Activate, Eltwise, EltwiseOp, Embed, Epilogue, Normalize};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, StepPlan, Tensor, Weight};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::Bias;
use crate::weights::Weights;

/// The table and the projection that per-layer embeddings of all layers come from.
#[derive(Debug)]
pub struct PerLayerEmbeddings<B: Backend> {
    table: Weight<B>,
    model_proj: LinearWeights<B>,
    norm: Norm<B>,
    width: usize,
}

impl<B: Backend> PerLayerEmbeddings<B> {
    /// Loads the table of `vocab` tokens for `layers` layers, `width` elements each.
    pub fn load(
        w: &mut Weights<'_, B>,
        width: usize,
        vocab: usize,
        layers: usize,
    ) -> LoadResult<PerLayerEmbeddings<B>> {
        let (dim, all) = (w.spec().dim, layers * width);
        Ok(PerLayerEmbeddings {
            table: w.weight(Slot::PerLayerTokenEmbd, vocab, all)?,
            model_proj: w.linear(Slot::PerLayerModelProj, all, dim, Bias::No)?,
            norm: w.norm(Slot::PerLayerProjNorm, width)?,
            width,
        })
    }

    /// Per-layer embeddings of all layers side by side, from a step's tokens and their embeddings `x`.
    pub fn forward(&self, b: &B, plan: &StepPlan<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let scale = FRAC_1_SQRT_2 * (self.width as f32).sqrt();
        let of_tokens = b.run(Embed { table: &self.table, ids: &plan.tokens, scale })?; // [tokens, layers * width]
        let then = Epilogue { scale: 1.0 / (x.cols() as f32).sqrt(), ..Epilogue::NONE };
        let of_states = super::linear(b, plan, x, &self.model_proj, then)?; // [tokens, layers * width]
        let of_states = b.run(Normalize { x: &of_states, norm: &self.norm, residual: None })?;
        b.run(Eltwise { x: &of_tokens, op: EltwiseOp::AddScaled(&of_states, FRAC_1_SQRT_2) })
    }

    /// Layer `i`'s columns of `all`.
    pub fn part(&self, all: &Tensor<B>, i: usize) -> Tensor<B> {
        all.col_range(i * self.width..(i + 1) * self.width)
    }
}

/// A layer's use of its per-layer embedding.
#[derive(Debug)]
pub struct PerLayerInput<B: Backend> {
    inp_gate: LinearWeights<B>,
    proj: LinearWeights<B>,
    post_norm: Norm<B>,
    act: Activation,
}

impl<B: Backend> PerLayerInput<B> {
    /// Loads layer `i`'s block.
    pub fn load(
        w: &mut Weights<'_, B>,
        i: usize,
        width: usize,
        act: Activation,
    ) -> LoadResult<PerLayerInput<B>> {
        let dim = w.spec().dim;
        Ok(PerLayerInput {
            inp_gate: w.linear((Slot::PerLayerInpGate, i), width, dim, Bias::No)?,
            proj: w.linear((Slot::PerLayerProj, i), dim, width, Bias::No)?,
            post_norm: w.norm((Slot::PerLayerPostNorm, i), dim)?,
            act,
        })
    }

    /// `x + norm(proj(act(inp_gate(x)) * e))`, where `e` is the layer's per-layer embedding
    pub fn forward(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let b = cx.b;
        let gate = cx.linear(x, &self.inp_gate, Epilogue::NONE)?; // [tokens, width]
        let y = b.run(Activate { gate: &gate, up: cx.per_layer.as_ref(), act: self.act })?;
        let y = cx.linear(&y, &self.proj, Epilogue::NONE)?; // [tokens, dim]
        b.run(Normalize { x: &y, norm: &self.post_norm, residual: Some(x) })
    }
}
