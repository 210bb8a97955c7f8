//! Shared KV (Gemma 3n, 4): attention of a layer that has queries alone and reads an earlier layer's KV cache.

use tallow_core::ops::{Attend, Epilogue, Normalize, Rope};
use tallow_core::{AttnSpec, Backend, Heads, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::error::Result as LoadResult;
use crate::spec::{AttentionSpec, QkNormSpec};
use crate::weights::Weights;

/// Multi-head attention over the KV cache of an earlier layer.
#[derive(Debug)]
pub struct SharedKvAttention<B: Backend> {
    q: LinearWeights<B>,
    q_norm: Option<Norm<B>>,
    o: LinearWeights<B>,
    heads: Heads,
    rope: Option<usize>,
    spec: AttnSpec<B>,
}

impl<B: Backend> SharedKvAttention<B> {
    /// Loads layer `i`'s attention.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &AttentionSpec) -> LoadResult<SharedKvAttention<B>> {
        let (names, dim, heads) = (w.names(), w.spec().dim, spec.heads);
        let AttentionSpec { rope, scale, window, chunk, softcap, causal, .. } = *spec;
        let q_norm = match spec.qk_norm {
            QkNormSpec::None => None,
            QkNormSpec::PerHead => Some(w.norm((names.q_norm, i), heads.dim)?),
            _ => {
                return Err(w.refuse(
                    "such a norm of queries",
                    "one for all heads is, where keys are another layer's",
                ));
            }
        };
        if spec.sinks || spec.relative_bias.is_some() || spec.gated || spec.second_rope.is_some() {
            return Err(w.refuse(
                "a layer with keys of another",
                "plain attention is, where keys are another layer's",
            ));
        }
        Ok(SharedKvAttention {
            q: w.linear((names.q, i), heads.q_cols(), dim, spec.qkv_bias)?,
            q_norm,
            o: w.linear((names.o, i), dim, heads.q_cols(), spec.out_bias)?,
            heads,
            rope,
            spec: AttnSpec { scale, window, chunk, softcap, sinks: None, bias: None, causal },
        })
    }

    /// `then(attention(norm(x)))`. The context's cache is that of the source layer.
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, kv, heads) = (cx.b, cx.plan, cx.cache.kv()?, self.heads);
        let mut q = cx.project_many(x, norm, std::slice::from_ref(&self.q))?; // [tokens, q * dim]
        if let Some(norm) = &self.q_norm {
            q = b.run(Normalize { x: &q, norm, residual: None })?;
        }
        if let Some(rope) = self.rope.and_then(|i| cx.ropes.get(i)) {
            q = b.run(Rope { x: &q, head_dim: heads.dim, rope, positions: &plan.positions })?;
        }
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        cx.project(&mixed, &self.o, then)
    }
}
