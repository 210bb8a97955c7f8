//! Shared KV (Gemma 3n, 4): attention of a layer that has queries alone and reads an earlier layer's KV cache.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Epilogue, Normalize, Rope};
use tallow_core::{AttnSpec, Backend, Heads, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::SharedKvSpec;
use crate::weights::Weights;

/// Multi-head attention over the KV cache of an earlier layer.
#[derive(Debug)]
pub struct SharedKvAttention<B: Backend> {
    q: LinearWeights<B>,
    q_norm: Norm<B>,
    o: LinearWeights<B>,
    heads: Heads,
    rope: Option<usize>,
    spec: AttnSpec<B>,
}

impl<B: Backend> SharedKvAttention<B> {
    /// Loads layer `i`'s attention.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &SharedKvSpec) -> LoadResult<SharedKvAttention<B>> {
        let dim = w.spec().dim;
        let SharedKvSpec { heads, q_bias, out_bias, rope, window, scale, .. } = *spec;
        Ok(SharedKvAttention {
            q_norm: w.norm((Slot::AttnQNorm, i), heads.dim)?,
            q: w.linear((Slot::AttnQ, i), heads.q_cols(), dim, q_bias)?,
            o: w.linear((Slot::AttnOut, i), dim, heads.q_cols(), out_bias)?,
            heads,
            rope,
            spec: AttnSpec {
                scale,
                window,
                chunk: None,
                softcap: None,
                sinks: None,
                bias: None,
                causal: true,
            },
        })
    }

    /// `epilogue(attention(norm(x)))`. The context's cache is that of the source layer.
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, kv, heads) = (cx.b, cx.cache.plan(cx.plan)?, cx.cache.kv()?, self.heads);
        let q = cx.linear_many(x, norm, std::slice::from_ref(&self.q))?; // [tokens, q * dim]
        let mut q = b.run(Normalize { x: &q, norm: &self.q_norm, residual: None })?;
        if let Some(rope) = self.rope.and_then(|i| cx.ropes.get(i)) {
            q = b.run(Rope { x: &q, head_dim: heads.dim, rope, positions: &plan.positions })?;
        }
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        cx.linear(&mixed, &self.o, epilogue)
    }
}
