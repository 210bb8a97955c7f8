//! [`PoolingHead`]: from hidden states to the vector of a text or an image, where the model has a pooling of its own.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Attend, Epilogue, IndexMode, IndexRows, Linear, Normalize, QkvPrep};
use tallow_core::{AttnSpec, Backend, Heads, LinearWeights, Norm, Result, Span, Step, StepPlan, Tensor};

use super::{PAGE, Texts, pool};
use crate::Result as LoadResult;
use crate::blocks::Context;
use crate::blocks::mlp::Mlp;
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, PoolKind, Pooling, PoolingHeadSpec};
use crate::weights::Weights;

/// Pooling, optional norm, optional linear layer.
#[derive(Debug)]
pub(super) struct PoolingHead<B: Backend> {
    kind: Pool<B>,
    norm: Option<Norm<B>>,
    project: Option<LinearWeights<B>>,
}

#[derive(Debug)]
enum Pool<B: Backend> {
    By(Pooling),
    Attention(Box<AttentionPool<B>>),
}

impl<B: Backend> PoolingHead<B> {
    pub(super) fn load(
        w: &mut Weights<'_, B>,
        of: &EncoderSpec,
        spec: &PoolingHeadSpec,
    ) -> LoadResult<PoolingHead<B>> {
        let kind = match spec.pool {
            PoolKind::By(pooling) => Pool::By(pooling),
            PoolKind::AttentionPool(name) => Pool::Attention(Box::new(AttentionPool::load(w, of, name)?)),
        };
        let norm = spec.norm.then(|| w.norm(Slot::OutputNorm, of.dim)).transpose()?;
        let project = spec.project.map(|p| w.linear(p.name, p.width, of.dim, p.bias)).transpose()?;
        Ok(PoolingHead { kind, norm, project })
    }

    /// [rows, dim] to [texts, width]
    pub(super) fn forward(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut y = match &self.kind {
            Pool::By(pooling) => pool(b, texts, x, *pooling)?,
            Pool::Attention(pool) => pool.forward(b, texts, x)?,
        };
        if let Some(norm) = &self.norm {
            y = b.run(Normalize { x: &y, norm, residual: None })?;
        }
        match &self.project {
            Some(weights) => b.run(Linear { x: &y, weights, epilogue: Epilogue::NONE }),
            None => Ok(y),
        }
    }
}

/// Attention pooling (SigLIP): a learned query attends to all rows of an input; then an FFN.
#[derive(Debug)]
struct AttentionPool<B: Backend> {
    /// [1, dim]
    query: Tensor<B>,
    qkv: LinearWeights<B>,
    o: LinearWeights<B>,
    norm: Norm<B>,
    mlp: Mlp<B>,
    heads: Heads,
    spec: AttnSpec<B>,
}

impl<B: Backend> AttentionPool<B> {
    /// Heads and FFN have the sizes of the layers'.
    fn load(w: &mut Weights<'_, B>, of: &EncoderSpec, name: &str) -> LoadResult<AttentionPool<B>> {
        let dim = of.dim;
        let Some(like) = of.layers.first() else {
            return Err(w.refuse("a head without layers", "it is made like them"));
        };
        let (heads, scale) = (like.mixer.heads, like.mixer.scale);
        let query = w.vector(&format!("{name}.probe"), &[1, 1, dim])?;
        let joint = w.unbiased_linear(&format!("{name}.attention.in_proj_weight"), 3 * dim, dim)?;
        let of_joint = Some(w.tensor_row(&format!("{name}.attention.in_proj_bias"), 3 * dim)?);
        let o = w.linear(format!("{name}.attention.out_proj").as_str(), dim, dim, Bias::Yes)?;
        let norm = w.norm(format!("{name}.layernorm").as_str(), dim)?;
        let ffn = like.ffn;
        let up = w.linear(format!("{name}.mlp.fc1").as_str(), ffn.width, dim, ffn.bias)?;
        let down = w.linear(format!("{name}.mlp.fc2").as_str(), dim, ffn.width, ffn.bias)?;
        let mlp = Mlp::new(vec![up], ffn.act, down);
        let (window, chunk, softcap, sinks, bias) = (None, None, None, None, None);
        let spec = AttnSpec { scale, window, chunk, softcap, sinks, bias, causal: false };
        Ok(AttentionPool { query, qkv: LinearWeights { bias: of_joint, ..joint }, o, norm, mlp, heads, spec })
    }

    fn forward(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let (plan, heads, spans) = (&texts.plan, self.heads, &texts.plan.host().spans);
        let (cache, kv) = (&texts.cache, texts.cache.kv()?);
        let project = |x: &Tensor<B>, weights, epilogue| b.run(Linear { x, weights, epilogue });
        let qkv = project(x, &self.qkv, Epilogue::NONE)?; // [rows, 3 * dim]
        // Only K and V are needed; they are in the cache now.
        b.run(QkvPrep { qkv: &qkv, heads, qk_norm: None, rope: None, kv, plan })?;
        // The query stands at the last row's position, so it sees all rows.
        let queries = |s: &Span| Span { rows: 1, start: s.rows.saturating_sub(1), pages: s.pages.clone() };
        let queries: Vec<Span> = spans.iter().map(queries).collect();
        let (tokens, states) = (vec![0; queries.len()], Vec::new());
        let step = Step { tokens, spans: queries, states, page_len: PAGE, ..Step::default() };
        let plan = StepPlan::new(b, step)?;
        let q = project(&self.query, &self.qkv, Epilogue::NONE)?.col_range(0..heads.q_cols()); // [1, dim]
        let all = b.upload_row(&vec![0u32; spans.len()])?;
        let q = b.run(IndexRows { x: &q, indices: &all, mode: IndexMode::Gather })?; // [texts, dim]
        let mixed = b.run(Attend { q: &q, heads, spec: &self.spec, kv, plan: &plan })?; // [texts, dim]
        let y = project(&mixed, &self.o, Epilogue::NONE)?; // [texts, dim]
        let cx = Context { b, plan: &plan, cache, ropes: &[], cross_attention: None, per_layer: None };
        self.mlp.forward(&cx, &y, Some(&self.norm), Epilogue::add_to(&y))
    }
}
