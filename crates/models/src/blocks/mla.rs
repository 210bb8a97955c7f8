//! MLA (multi-head latent attention, DeepSeek V2): K and V come from one latent row per token, which the KV cache
//! holds once.
//!
//! A head's K and V are linear in the latent row. So instead of expanding every cached row, queries are multiplied by
//! the K up-projection once, attention runs on the latent rows, and its output goes through the V up-projection (weight
//! absorption).

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Epilogue, LatentWrite, LinearHeads, Rope};
use tallow_core::{AttnSpec, Backend, Heads, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::{Bias, MlaSpec};
use crate::weights::{UpProjections, Weights};

/// Multi-head latent attention.
#[derive(Debug)]
pub struct Mla<B: Backend> {
    /// Layers over the hidden state: the queries' (or their down-projection) and the down-projection of K and V.
    down: [LinearWeights<B>; 2],
    /// Norm and up-projection behind the queries' down-projection, if they have one.
    q_up: Option<(Norm<B>, LinearWeights<B>)>,
    /// Norm of the latent row.
    norm: Norm<B>,
    up: UpProjections<B>,
    o: LinearWeights<B>,
    heads: Heads,
    latent: MlaSpec,
    spec: AttnSpec<B>,
}

impl<B: Backend> Mla<B> {
    /// Loads layer `i`'s attention.
    pub fn load(w: &mut Weights<'_, B>, i: usize, latent: MlaSpec) -> LoadResult<Mla<B>> {
        let (dim, heads) = (w.spec().dim, latent.heads());
        let MlaSpec { kv_lora_rank, q_lora_rank, qk_nope_dim, qk_rope_dim, v_dim, eps, .. } = latent;
        let queries = heads.q * (qk_nope_dim + qk_rope_dim);
        let (q, q_up) = match q_lora_rank {
            None => (w.linear((Slot::AttnQ, i), queries, dim, Bias::No)?, None),
            Some(rank) => {
                let down = w.linear((Slot::AttnQA, i), rank, dim, latent.down_bias)?;
                let norm = Norm { eps, ..w.norm((Slot::AttnQANorm, i), rank)? };
                (down, Some((norm, w.linear((Slot::AttnQB, i), queries, rank, Bias::No)?)))
            }
        };
        let kv = w.linear((Slot::AttnKvAMqa, i), kv_lora_rank + qk_rope_dim, dim, latent.down_bias)?;
        let norm = Norm { eps, ..w.norm((Slot::AttnKvANorm, i), kv_lora_rank)? };
        let up = w.up_projections(i, &latent)?;
        let o = w.linear((Slot::AttnOut, i), dim, heads.q * v_dim, latent.out_bias)?;
        let spec = AttnSpec {
            scale: latent.scale,
            window: None,
            chunk: None,
            softcap: None,
            sinks: None,
            bias: None,
            causal: true,
        };
        Ok(Mla { down: [q, kv], q_up, norm, up, o, heads, latent, spec })
    }

    /// `epilogue(attention(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, kv, heads) = (cx.b, cx.cache.plan(cx.plan)?, cx.cache.kv()?, self.heads);
        let both = cx.linear_many(x, norm, &self.down)?; // [tokens, queries (or q_lora_rank) + kv_lora_rank + qk_rope_dim]
        let (q, latent) = (0..self.down[0].weight.rows(), self.down[0].weight.rows()..both.cols());
        let mut q = self.queries(cx, both.col_range(q))?; // [tokens, q * dim]
        // The RoPE part comes first in each head.
        let rope = cx.ropes.get(self.latent.rope);
        if let Some(rope) = rope {
            q = b.run(Rope { x: &q, head_dim: heads.dim, rope, positions: &plan.positions })?;
        }
        let x = &both.col_range(latent); // [tokens, dim]
        b.run(LatentWrite { x, norm: &self.norm, rope, heads, kv, plan })?;
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        let (head_dim, inputs) = (heads.dim, self.latent.qk_rope_dim..heads.dim);
        let values = b.run(LinearHeads { x: &mixed, head_dim, inputs, copied: 0..0, weights: &self.up.v })?; // [tokens, q * v_dim]
        cx.linear(&values, &self.o, epilogue)
    }

    /// Queries in the latent space: per head `[q_rope, k * q_nope]`, [tokens, q * (qk_rope_dim + kv_lora_rank)]
    fn queries(&self, cx: &Context<'_, B>, q: Tensor<B>) -> Result<Tensor<B>> {
        let MlaSpec { qk_nope_dim, qk_rope_dim, .. } = self.latent;
        let q = match &self.q_up {
            None => q,
            Some((norm, up)) => cx.linear_many(&q, Some(norm), std::slice::from_ref(up))?,
        }; // [tokens, q * (qk_nope_dim + qk_rope_dim)]
        let head_dim = qk_nope_dim + qk_rope_dim;
        let (inputs, copied) = (0..qk_nope_dim, qk_nope_dim..head_dim);
        cx.b.run(LinearHeads { x: &q, head_dim, inputs, copied, weights: &self.up.k })
    }
}
