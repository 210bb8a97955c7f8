//! Attention: joint projection, preparation, the op, projection back.

use tallow_core::ops::{Attend, Epilogue, Project, ProjectMany, QkvPrep};
use tallow_core::{AttnSpec, Backend, Heads, Linear, Norm, QkNorm, Result, Tensor};

use super::Context;
use crate::error::Result as LoadResult;
use crate::spec::{AttentionSpec, QkNormSpec};
use crate::weights::Weights;

/// Multi-head attention with grouped queries.
#[derive(Debug)]
pub struct Attention<B: Backend> {
    qkv: Vec<Linear<B>>,
    o: Linear<B>,
    qk_norm: Option<QkNorm<B>>,
    heads: Heads,
    rope: Option<usize>,
    spec: AttnSpec<B>,
}

impl<B: Backend> Attention<B> {
    /// Reads layer `i`'s attention.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &AttentionSpec) -> LoadResult<Attention<B>> {
        let (names, dim, heads) = (w.names(), w.spec().dim, spec.heads);
        let qkv = [(names.q, heads.q_cols()), (names.k, heads.kv_cols()), (names.v, heads.kv_cols())];
        let qkv = qkv.into_iter().map(|(name, rows)| w.linear((name, i), rows, dim, spec.qkv_bias));
        let qkv = qkv.collect::<LoadResult<_>>()?;
        let o = w.linear((names.o, i), dim, heads.q_cols(), spec.out_bias)?;
        let widths = match spec.qk_norm {
            QkNormSpec::None => None,
            QkNormSpec::PerHead => Some((heads.dim, heads.dim)),
            QkNormSpec::Whole => Some((heads.q_cols(), heads.kv_cols())),
        };
        let qk_norm = match widths {
            Some((q, k)) => {
                Some(QkNorm { q: w.norm((names.q_norm, i), q)?, k: w.norm((names.k_norm, i), k)? })
            }
            None => None,
        };
        let ops =
            AttnSpec { scale: spec.scale, window: spec.window, softcap: None, sinks: None, causal: true };
        Ok(Attention { qkv, o, qk_norm, heads, rope: spec.rope, spec: ops })
    }

    /// `then(attention(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, kv) = (cx.b, cx.plan, cx.kv);
        let (heads, rope) = (self.heads, self.rope.and_then(|i| cx.ropes.get(i)));
        let qkv = b.run(ProjectMany { x, norm, by: &self.qkv })?; // [tokens, (q + 2 kv) * dim]
        let q = b.run(QkvPrep { qkv: &qkv, heads, qk_norm: self.qk_norm.as_ref(), rope, kv, plan })?;
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan })?; // [tokens, q * dim]
        b.run(Project { x: &mixed, by: &self.o, then })
    }
}
