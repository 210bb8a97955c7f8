//! Parallel MoE (Gemma 4): a dense FFN and experts on the same input, with norms of their own, summed.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Eltwise, EltwiseOp, Epilogue, Normalize};
use tallow_core::{Backend, Norm, Result, Tensor};

use super::Context;
use super::mlp::{Mlp, MlpSlots};
use super::moe::MoeBlock;
use crate::Result as LoadResult;
use crate::spec::{FfnSpec, MoeSpec};
use crate::weights::Weights;

/// A dense FFN and an MoE whose outputs are added.
#[derive(Debug)]
pub struct ParallelMoe<B: Backend> {
    dense: Mlp<B>,
    dense_post_norm: Norm<B>,
    before: Norm<B>,
    experts: MoeBlock<B>,
    behind: Norm<B>,
}

impl<B: Backend> ParallelMoe<B> {
    /// Loads layer `i`'s block.
    pub fn load(
        w: &mut Weights<'_, B>,
        i: usize,
        dense: &FfnSpec,
        moe: &MoeSpec,
    ) -> LoadResult<ParallelMoe<B>> {
        let dim = w.spec().dim;
        Ok(ParallelMoe {
            dense: Mlp::load(w, i, MlpSlots::DENSE, dense)?,
            dense_post_norm: w.norm((Slot::FfnPostNorm1, i), dim)?,
            before: w.norm((Slot::FfnPreNorm2, i), dim)?,
            experts: MoeBlock::load(w, i, moe)?,
            behind: w.norm((Slot::FfnPostNorm2, i), dim)?,
        })
    }

    /// `epilogue(norm(dense(norm(x))) + norm(experts(norm(x))))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let b = cx.b;
        let dense = self.dense.forward(cx, x, norm, Epilogue::NONE)?;
        let dense = b.run(Normalize { x: &dense, norm: &self.dense_post_norm, residual: None })?;
        let some = self.experts.forward(cx, x, Some(&self.before), Epilogue::NONE)?;
        let y = b.run(Normalize { x: &some, norm: &self.behind, residual: Some(&dense) })?; // [tokens, dim]
        match epilogue.residual {
            Some(to) => b.run(Eltwise { x: to, op: EltwiseOp::AddScaled(&y, epilogue.scale) }),
            None if epilogue.scale == 1.0 => Ok(y),
            None => b.run(Eltwise { x: &y, op: EltwiseOp::Scale(epilogue.scale) }),
        }
    }
}
