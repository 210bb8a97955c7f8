//! MLA (multi-head latent attention, DeepSeek V2): K and V come from one latent row per token, which the KV cache
//! holds.
//!
//! A head's K and V are linear in the latent row. So instead of expanding every cached row, queries are multiplied by
//! the K up-projection once, attention runs on the latent rows, and its output goes through the V up-projection (weight
//! absorption).

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Copy, Epilogue, KvWrite, Linear, Normalize, Rope};
use tallow_core::{AttnSpec, Backend, DType, Heads, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::{Bias, MlaSpec};
use crate::weights::{MlaHead, Weights};

/// Multi-head latent attention.
#[derive(Debug)]
pub struct Mla<B: Backend> {
    /// Query down-projection and the norm behind it.
    q_down: Option<(LinearWeights<B>, Norm<B>)>,
    q: LinearWeights<B>,
    down: LinearWeights<B>,
    norm: Norm<B>,
    per_head: Vec<MlaHead<B>>,
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
        let (q_down, q) = match q_lora_rank {
            None => (None, w.linear((Slot::AttnQ, i), queries, dim, Bias::No)?),
            Some(narrow) => {
                let down = w.linear((Slot::AttnQA, i), narrow, dim, latent.down_bias)?;
                let norm = Norm { eps, ..w.norm((Slot::AttnQANorm, i), narrow)? };
                (Some((down, norm)), w.linear((Slot::AttnQB, i), queries, narrow, Bias::No)?)
            }
        };
        let down = w.linear((Slot::AttnKvAMqa, i), kv_lora_rank + qk_rope_dim, dim, latent.down_bias)?;
        let norm = Norm { eps, ..w.norm((Slot::AttnKvANorm, i), kv_lora_rank)? };
        let per_head = w.latent_heads(i, &latent)?;
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
        Ok(Mla { q_down, q, down, norm, per_head, o, heads, latent, spec })
    }

    /// `then(attention(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, kv, heads) = (cx.b, cx.plan, cx.cache.kv()?, self.heads);
        let normed = norm.map(|norm| b.run(Normalize { x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(x); // [tokens, dim]
        let (mut q, mut k) = (self.queries(cx, x)?, self.keys(cx, x)?); // [tokens, q * dim], [tokens, dim]
        if let Some(rope) = cx.ropes.get(self.latent.rope) {
            // The RoPE part comes first in each head.
            let apply =
                |x: &Tensor<B>| b.run(Rope { x, head_dim: heads.dim, rope, positions: &plan.positions });
            (q, k) = (apply(&q)?, apply(&k)?);
        }
        b.run(KvWrite { k: &k, v: &k, heads, kv, plan })?;
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        let values = self.values(b, &mixed)?; // [tokens, q * v_dim]
        cx.project(&values, &self.o, then)
    }

    /// Queries in the latent space: per head `[q_rope, k * q_nope]`, [tokens, q * (qk_rope_dim + kv_lora_rank)]
    fn queries(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let b = cx.b;
        let MlaSpec { qk_nope_dim, qk_rope_dim, .. } = self.latent;
        let q = match &self.q_down {
            None => cx.project(x, &self.q, Epilogue::NONE)?,
            Some((down, norm)) => {
                let narrow = cx.project(x, down, Epilogue::NONE)?; // [tokens, q_lora_rank]
                let by = std::slice::from_ref(&self.q);
                cx.project_many(&narrow, Some(norm), by)?
            }
        }; // [tokens, q * (qk_nope_dim + qk_rope_dim)]
        let out = b.alloc(DType::F32, x.rows(), self.heads.q_cols())?;
        for (i, head) in self.per_head.iter().enumerate() {
            let (from, to) = (i * (qk_nope_dim + qk_rope_dim), i * self.heads.dim);
            let turns = q.col_range(from + qk_nope_dim..from + qk_nope_dim + qk_rope_dim);
            b.run(Copy { from: &turns, to: &out.col_range(to..to + qk_rope_dim) })?;
            let rest = q.col_range(from..from + qk_nope_dim);
            let rest = b.run(Linear { x: &rest, weights: &head.k, epilogue: Epilogue::NONE })?; // [tokens, rank]
            b.run(Copy { from: &rest, to: &out.col_range(to + qk_rope_dim..to + self.heads.dim) })?;
        }
        Ok(out)
    }

    /// The row for the KV cache: `[k_rope, norm(latent)]`, [tokens, qk_rope_dim + kv_lora_rank]
    fn keys(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let b = cx.b;
        let MlaSpec { kv_lora_rank, qk_rope_dim, .. } = self.latent;
        let both = cx.project(x, &self.down, Epilogue::NONE)?; // [tokens, kv_lora_rank + qk_rope_dim]
        let row =
            b.run(Normalize { x: &both.col_range(0..kv_lora_rank), norm: &self.norm, residual: None })?;
        let out = b.alloc(DType::F32, x.rows(), qk_rope_dim + kv_lora_rank)?;
        b.run(Copy {
            from: &both.col_range(kv_lora_rank..kv_lora_rank + qk_rope_dim),
            to: &out.col_range(0..qk_rope_dim),
        })?;
        b.run(Copy { from: &row, to: &out.col_range(qk_rope_dim..qk_rope_dim + kv_lora_rank) })?;
        Ok(out)
    }

    /// Each head's output through its V up-projection: [tokens, q * v_dim]
    fn values(&self, b: &B, mixed: &Tensor<B>) -> Result<Tensor<B>> {
        let MlaSpec { qk_rope_dim, v_dim, .. } = self.latent;
        let out = b.alloc(DType::F32, mixed.rows(), self.per_head.len() * v_dim)?;
        for (i, head) in self.per_head.iter().enumerate() {
            let at = i * self.heads.dim;
            let row = mixed.col_range(at + qk_rope_dim..at + self.heads.dim); // [tokens, rank]
            let y = b.run(Linear { x: &row, weights: &head.v, epilogue: Epilogue::NONE })?; // [tokens, v_dim]
            b.run(Copy { from: &y, to: &out.col_range(i * v_dim..(i + 1) * v_dim) })?;
        }
        Ok(out)
    }
}
