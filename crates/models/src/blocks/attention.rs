//! Self-attention: fused QKV projection, QK norm and RoPE and cache write ([`QkvPrep`]), attention, output projection.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Copy, Eltwise, EltwiseOp, Epilogue, Normalize, QkvPrep, Rope};
use tallow_core::{AttnSpec, Backend, Heads, LinearWeights, Norm, QkNorm, Result, Tensor};

use super::{Context, relative_bias};
use crate::Result as LoadResult;
use crate::spec::{AttentionSpec, QkNormSpec};
use crate::weights::{Weights, by_head};

/// Multi-head attention with grouped queries (GQA).
#[derive(Debug)]
pub struct Attention<B: Backend> {
    /// Q, K and V projections; behind them the output gate, if there is one.
    qkv: Vec<LinearWeights<B>>,
    o: LinearWeights<B>,
    qk_norm: Option<QkNorm<B>>,
    head_norms: Option<HeadNorms<B>>,
    v_norm: Option<Norm<B>>,
    heads: Heads,
    rope: Option<usize>,
    second_rope: Option<usize>,
    gated: bool,
    spec: AttnSpec<B>,
}

impl<B: Backend> Attention<B> {
    /// Loads layer `i`'s attention.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &AttentionSpec) -> LoadResult<Attention<B>> {
        let (dim, heads) = (w.spec().dim, spec.heads);
        let (q_cols, kv_cols) = (heads.q_cols(), heads.kv_cols());
        let qkv = match w.has((Slot::AttnQkv, i)) {
            _ if spec.gated => {
                let queries = [0, 1].map(|part| by_head(heads, part, 2).collect::<Vec<_>>());
                let mut parts = w.parts((Slot::AttnQ, i), &queries, dim, spec.qkv_bias)?;
                parts.insert(1, w.linear((Slot::AttnK, i), kv_cols, dim, spec.key_bias())?);
                parts.insert(2, w.linear((Slot::AttnV, i), kv_cols, dim, spec.qkv_bias)?);
                parts
            }
            true => vec![w.qkv(i, heads, dim, spec.qkv_bias)?],
            false => {
                let q = w.linear((Slot::AttnQ, i), q_cols, dim, spec.qkv_bias)?;
                let k = w.linear((Slot::AttnK, i), kv_cols, dim, spec.key_bias())?;
                // A tied V shares K's weight: what a LoRA adds to K is added to V too.
                let v = match spec.tie_kv {
                    true => k.clone(),
                    false => w.linear((Slot::AttnV, i), kv_cols, dim, spec.qkv_bias)?,
                };
                vec![q, k, v]
            }
        };
        let o = w.linear((Slot::AttnOut, i), dim, q_cols, spec.out_bias)?;
        let widths = match spec.qk_norm {
            QkNormSpec::None | QkNormSpec::HeadWeights | QkNormSpec::Plain => None,
            QkNormSpec::PerHead => Some((heads.dim, heads.dim)),
            QkNormSpec::AllHeads => Some((q_cols, kv_cols)),
        };
        let mut norm = |slot, width| w.norm((slot, i), width);
        let qk_norm = match widths {
            Some((q, k)) => Some(QkNorm { q: norm(Slot::AttnQNorm, q)?, k: norm(Slot::AttnKNorm, k)? }),
            None if spec.qk_norm == QkNormSpec::Plain => {
                Some(QkNorm { q: w.unit_norm(heads.dim)?, k: w.unit_norm(heads.dim)? })
            }
            None => None,
        };
        let own = spec.qk_norm == QkNormSpec::HeadWeights;
        let head_norms = own.then(|| HeadNorms::load(w, i, heads)).transpose()?;
        let v_norm = spec.v_norm.then(|| w.unit_norm(heads.dim)).transpose()?;
        let sinks = spec.sinks.then(|| w.slot_row((Slot::AttnSinks, i), heads.q)).transpose()?;
        let bias = spec
            .relative_bias
            .map(|bias| relative_bias::load(w, i, heads.q, bias, spec.causal))
            .transpose()?;
        let AttentionSpec { rope, second_rope, gated, scale, window, chunk, softcap, causal, .. } = *spec;
        let spec = AttnSpec { scale, window, chunk, softcap, sinks, bias, causal };
        Ok(Attention { qkv, o, qk_norm, head_norms, v_norm, heads, rope, second_rope, gated, spec })
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
        let rope = |i: Option<usize>| i.and_then(|i| cx.ropes.get(i));
        let all = cx.linear_many(x, norm, &self.qkv)?;
        let qkv = all.col_range(0..heads.qkv_cols()); // [tokens, (q + 2 kv) * dim]
        if let Some(norms) = &self.head_norms {
            norms.apply(b, &qkv, heads)?;
        }
        if let Some(norm) = &self.v_norm {
            let v = qkv.col_range(heads.q_cols() + heads.kv_cols()..heads.qkv_cols());
            b.run(Copy { from: &b.run(Normalize { x: &v, norm, residual: None })?, to: &v })?;
        }
        let (qk_norm, first_rope) = (self.qk_norm.as_ref(), rope(self.rope));
        let mut q = b.run(QkvPrep { qkv: &qkv, heads, qk_norm, rope: first_rope, kv, plan })?; // [tokens, q * dim]
        if let Some(rope) = rope(self.second_rope) {
            q = b.run(Rope { x: &q, head_dim: heads.dim, rope, positions: &plan.positions })?;
        }
        let mut mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        if self.gated {
            let gates = all.col_range(heads.qkv_cols()..all.cols());
            mixed = b.run(Eltwise { x: &mixed, op: EltwiseOp::Gate(&gates) })?;
        }
        cx.linear(&mixed, &self.o, epilogue)
    }
}

/// QK norm in which each head has weights of its own.
///
/// Few models have it, and no device has an op for it: heads are normalised without weights, and then multiplied by
/// them.
#[derive(Debug)]
struct HeadNorms<B: Backend> {
    /// Norm of one head's width with all weights one.
    plain: Norm<B>,
    /// [1, q * dim]
    q: Tensor<B>,
    /// [1, kv * dim]
    k: Tensor<B>,
}

impl<B: Backend> HeadNorms<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, heads: Heads) -> LoadResult<HeadNorms<B>> {
        Ok(HeadNorms {
            plain: w.unit_norm(heads.dim)?,
            q: w.per_head_norms((Slot::AttnQNorm, i), heads.q, heads.dim)?,
            k: w.per_head_norms((Slot::AttnKNorm, i), heads.kv, heads.dim)?,
        })
    }

    /// Normalises Q and K in place. `qkv`: [tokens, (q + 2 kv) * dim]
    fn apply(&self, b: &B, qkv: &Tensor<B>, heads: Heads) -> Result<()> {
        let q = qkv.col_range(0..heads.q_cols());
        let k = qkv.col_range(heads.q_cols()..heads.q_cols() + heads.kv_cols());
        for (x, weights) in [(&q, &self.q), (&k, &self.k)] {
            let y = b.run(Normalize { x, norm: &self.plain, residual: None })?;
            let y = b.run(Eltwise { x: &y, op: EltwiseOp::Mul(weights) })?;
            b.run(Copy { from: &y, to: x })?;
        }
        Ok(())
    }
}
