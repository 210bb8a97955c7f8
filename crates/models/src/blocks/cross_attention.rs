//! Cross-attention: queries of the decoder's tokens, keys and values of the encoder's output.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Epilogue, KvWrite, Linear, LinearMany};
use tallow_core::{
    AttnSpec, Backend, Heads, LayerKv, LinearWeights, Norm, PageTable, Result, Span, Step, StepPlan, Tensor,
};

use super::StepInputs;
use crate::Result as LoadResult;
use crate::spec::AttentionSpec;
use crate::weights::Weights;

/// Multi-head cross-attention, with the norm in front of it.
#[derive(Debug)]
pub struct CrossAttention<B: Backend> {
    norm: Norm<B>,
    q: LinearWeights<B>,
    k: LinearWeights<B>,
    v: LinearWeights<B>,
    o: LinearWeights<B>,
    heads: Heads,
    spec: AttnSpec<B>,
}

impl<B: Backend> CrossAttention<B> {
    /// Loads layer `i`'s cross-attention; `spec` is its self-attention.
    pub(super) fn load(
        w: &mut Weights<'_, B>,
        i: usize,
        spec: &AttentionSpec,
    ) -> LoadResult<CrossAttention<B>> {
        let (dim, heads) = (w.spec().dim, spec.heads);
        Ok(CrossAttention {
            norm: w.norm((Slot::CrossAttnNorm, i), dim)?,
            q: w.linear((Slot::CrossAttnQ, i), heads.q_cols(), dim, spec.qkv_bias)?,
            k: w.linear((Slot::CrossAttnK, i), heads.kv_cols(), dim, spec.key_bias())?,
            v: w.linear((Slot::CrossAttnV, i), heads.kv_cols(), dim, spec.qkv_bias)?,
            o: w.linear((Slot::CrossAttnOut, i), dim, heads.q_cols(), spec.out_bias)?,
            heads,
            spec: AttnSpec {
                scale: spec.scale,
                window: None,
                chunk: None,
                softcap: None,
                sinks: None,
                bias: None,
                causal: false,
            },
        })
    }

    /// Writes K and V of the encoder's output `x`: [tokens, dim]
    pub fn project_kv(&self, b: &B, x: &Tensor<B>, plan: &StepPlan<B>, kv: LayerKv<'_, B>) -> Result<()> {
        let k = b.run(Linear { x, weights: &self.k, epilogue: Epilogue::NONE })?; // [tokens, kv * dim]
        let v = b.run(Linear { x, weights: &self.v, epilogue: Epilogue::NONE })?; // [tokens, kv * dim]
        b.run(KvWrite { k: &k, v: Some(&v), heads: self.heads, kv, plan })
    }

    /// `x + attention(norm(x))`
    pub(super) fn forward(&self, b: &B, given: &StepInputs<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let (norm, heads) = (Some(&self.norm), self.heads);
        let q = b.run(LinearMany { x, norm, weights: std::slice::from_ref(&self.q) })?; // [tokens, q * dim]
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv: given.kv, plan: given.plan })?; // [tokens, q * dim]
        b.run(Linear { x: &mixed, weights: &self.o, epilogue: Epilogue::add_to(x) })
    }
}

/// A decoder sequence's rows in a step, and the encoder output that they attend to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossSpan {
    /// Tokens of the sequence that the step computes.
    pub rows: usize,
    /// Tokens of the encoder's output; at least one.
    pub read: usize,
    /// The pages that hold the K and V of the encoder's output.
    pub pages: PageTable,
}

/// The step for cross-attention. A span's rows are the last of its sequence, so where the encoder's output has fewer
/// tokens than rows attend to it, the rows are split among several spans.
pub fn looking(looks: &[CrossSpan], page_len: usize) -> Step {
    let mut spans = Vec::new();
    for look in looks {
        for first in (0..look.rows).step_by(look.read.max(1)) {
            let rows = look.read.min(look.rows - first);
            spans.push(Span { rows, start: look.read - rows, pages: look.pages.clone() });
        }
    }
    let tokens = vec![0; looks.iter().map(|look| look.rows).sum()];
    Step { tokens, spans, page_len, ..Step::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_looked_at_in_several_spans() {
        let look = |rows, read| CrossSpan { rows, read, pages: vec![3, 4].into() };
        let step = looking(&[look(1, 20), look(7, 3)], 16);
        let spans: Vec<(usize, usize)> = step.spans.iter().map(|s| (s.rows, s.start)).collect();
        assert_eq!(spans, [(1, 19), (3, 0), (3, 0), (1, 2)]);
        assert_eq!(step.tokens.len(), 8);
    }
}
