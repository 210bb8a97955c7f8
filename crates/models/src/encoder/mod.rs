//! [`Encoder`]: from texts to vectors and scores. It is made of the blocks that decoders are made of; its tokens see to
//! both sides, and what it has computed is not kept.

mod head;
mod input;
mod model;
mod sentence;
pub mod spec;

use tallow_core::ops::{Eltwise, Embed, Normalize, Rows, RowsTo, With};
use tallow_core::{Backend, DType, Memory, Norm, Result, Rope, Span, Step, StepPlan, Tensor, Weight};

use crate::blocks::Context;
use crate::blocks::cache::LayerCache;
use crate::blocks::layer::Layer;
use crate::error::Result as LoadResult;
use crate::weights::{Progress, Weights, named};
use head::Head;
pub use input::{Cut, InputError, Inputs};
pub use model::{AnyModel, EncoderModel};
pub use sentence::Sentence;
use spec::{EncoderSpec, Pooling};

/// Tokens in a page of keys and values: no text takes more than its own, rounded up to whole pages.
pub const PAGE: usize = 16;

/// A text as an encoder takes it, or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its tokens, with those around it.
    pub tokens: Vec<u32>,
    /// Which text each belongs to.
    pub types: Vec<u32>,
}

/// An encoder on a device.
#[derive(Debug)]
pub struct Encoder<B: Backend> {
    spec: EncoderSpec,
    embed: Weight<B>,
    positions: Option<Weight<B>>,
    types: Option<Weight<B>>,
    embed_norm: Norm<B>,
    layers: Vec<Layer<B>>,
    last_norm: Option<Norm<B>>,
    ropes: Vec<Rope<B>>,
    head: Option<Head<B>>,
}

/// Some texts on a device, and room for a layer's keys and values.
#[derive(Debug)]
pub struct Texts<B: Backend> {
    plan: StepPlan<B>,
    /// [1, tokens]: rows of the embedding of positions, if there is one.
    places: Option<Tensor<B>>,
    /// [1, tokens]: rows of the embedding of kinds of tokens, if there is one.
    types: Option<Tensor<B>>,
    /// All layers use it in turn.
    cache: LayerCache<B>,
}

impl<B: Backend> Encoder<B> {
    /// Brings a model's weights to a device.
    pub fn load(b: &B, model: &EncoderModel, progress: Progress<'_>) -> LoadResult<Encoder<B>> {
        let (spec, family) = (&model.spec, model.family);
        let names = family.names;
        let mut w = Weights::new(b, model.source(), progress);
        let ropes = spec.ropes.iter().map(|r| r.build(b, model.context())).collect::<Result<_>>()?;
        let embed = w.matrix(&named(names.embed), spec.vocab, spec.dim)?;
        let positions = spec.positions.map(|p| w.matrix(&named(names.positions), p.rows, spec.dim));
        let types = spec.types.map(|n| w.matrix(&named(family.types), n, spec.dim));
        let (positions, types) = (positions.transpose()?, types.transpose()?);
        let embed_norm = w.norm((family.embed_norm, 0), spec.dim)?;
        let layers = spec.layers.iter().enumerate().map(|(i, layer)| Layer::load(&mut w, i, layer));
        let layers = layers.collect::<LoadResult<_>>()?;
        let last_norm = spec.last_norm.then(|| w.norm((names.norm, 0), spec.dim)).transpose()?;
        let head = spec.head.map(|head| Head::load(&mut w, &head)).transpose()?;
        w.finish(family.name, |name| family.spares(name))?;
        Ok(Encoder {
            spec: spec.clone(),
            embed,
            positions,
            types,
            embed_norm,
            layers,
            last_norm,
            ropes,
            head,
        })
    }

    /// What it was made from.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// Uploads texts. Their tokens are under [`EncoderSpec::vocab`], and no more than its context.
    pub fn upload(&self, b: &B, inputs: &[Input]) -> Result<Texts<B>> {
        let mut step = Step { page_len: PAGE, ..Step::default() };
        let (mut places, mut types) = (Vec::<u32>::new(), Vec::<u32>::new());
        let mut pages = 0..0;
        for input in inputs {
            pages = pages.end..pages.end + input.tokens.len().div_ceil(PAGE) as u32;
            step.spans.push(Span { rows: input.tokens.len(), start: 0, pages: pages.clone().collect() });
            step.tokens.extend(&input.tokens);
            types.extend(&input.types);
            places.extend(self.spec.positions.map(|p| p.of(&input.tokens)).unwrap_or_default());
        }
        let cols = self.spec.layers.iter().map(|l| l.mixer.heads.kv_cols()).max().unwrap_or(0);
        let room = || b.alloc(DType::F32, pages.end as usize, PAGE * cols);
        let cache = LayerCache::Pages { k: room()?, v: room()? };
        let places = self.positions.as_ref().map(|_| b.upload_row(&places)).transpose()?;
        let types = self.types.as_ref().map(|_| b.upload_row(&types)).transpose()?;
        Ok(Texts { plan: StepPlan::new(b, step)?, places, types, cache })
    }

    /// The hidden states of the texts' tokens. The embeddings and what each layer makes of them are shown to `see` on
    /// the way, as the next layer sees them.
    pub fn forward(
        &self,
        b: &B,
        texts: &Texts<B>,
        mut see: impl FnMut(usize, &Tensor<B>) -> Result<()>,
    ) -> Result<Tensor<B>> {
        let plan = &texts.plan;
        let mut x = b.run(Embed { table: &self.embed, ids: &plan.tokens, scale: 1.0 })?; // [tokens, dim]
        for (table, ids) in [(&self.types, &texts.types), (&self.positions, &texts.places)] {
            if let (Some(table), Some(ids)) = (table, ids) {
                let more = b.run(Embed { table, ids, scale: 1.0 })?; // [tokens, dim]
                x = b.run(Eltwise { x: &x, with: With::Add(&more) })?;
            }
        }
        x = b.run(Normalize { x: &x, by: &self.embed_norm, residual: None })?;
        see(0, &x)?;
        // A layer's keys and values are of no use to the next: all have the same room.
        let cache = &texts.cache;
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&Context { b, plan, cache, ropes: &self.ropes, side: None }, &x)?; // [tokens, dim]
            if let Some(by) = self.last_norm.as_ref().filter(|_| i + 1 == self.layers.len()) {
                x = b.run(Normalize { x: &x, by, residual: None })?;
            }
            see(i + 1, &x)?;
        }
        Ok(x)
    }

    /// A vector for each text, of the hidden states of their tokens.
    pub fn pool(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>, by: Pooling) -> Result<Tensor<B>> {
        let spans = &texts.plan.host.spans;
        let gather = |at: &Tensor<B>| b.run(Rows { x, at, to: RowsTo::Gather });
        match by {
            Pooling::First => gather(&texts.plan.starts.col_range(0..spans.len())),
            Pooling::Last => {
                let ends = spans.iter().scan(0, |end, span| {
                    *end += span.rows as u32;
                    Some(*end - 1)
                });
                gather(&b.upload_row(&ends.collect::<Vec<u32>>())?)
            }
            Pooling::Mean => {
                let of: Vec<u32> =
                    (0..).zip(spans).flat_map(|(i, s)| std::iter::repeat_n(i, s.rows)).collect();
                let sums = b.zeros(DType::F32, spans.len(), x.cols())?; // [texts, dim]
                let sums = b.run(Rows { x, at: &b.upload_row(&of)?, to: RowsTo::AddInto(&sums) })?;
                let shares: Vec<f32> = spans.iter().map(|s| 1.0 / s.rows as f32).collect();
                let shares = b.upload(&shares, spans.len(), 1)?; // [texts, 1]
                b.run(Eltwise { x: &sums, with: With::Mul(&shares) })
            }
        }
    }

    /// Scores of each text, of the hidden states of their tokens; `None` where the model has no head for them.
    pub fn scores(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        let head = self.head.as_ref().zip(self.spec.head.as_ref());
        head.map(|(head, spec)| head.forward(b, &self.pool(b, texts, x, spec.pooling)?)).transpose()
    }
}

/// The first so many numbers of a vector, or all, stretched to a length of one. Vectors of models that were trained for it
/// are of use when they are cut; others lose what they mean.
pub fn shortened(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(vector.len()));
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

/// A reranker's score as a number from 0 to 1.
pub fn relevance(score: f32) -> f32 {
    1.0 / (1.0 + (-score).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_and_then_stretched() {
        assert_eq!(shortened(vec![3.0, 4.0, 12.0], None), [3.0 / 13.0, 4.0 / 13.0, 12.0 / 13.0]);
        assert_eq!(shortened(vec![3.0, 4.0, 12.0], Some(2)), [0.6, 0.8]);
        assert_eq!(shortened(vec![0.0, 0.0], None), [0.0, 0.0]);
    }

    #[test]
    fn relevance_goes_from_nothing_to_one() {
        assert_eq!([f32::MIN, 0.0, f32::MAX].map(relevance), [0.0, 0.5, 1.0]);
        assert!(relevance(1.0) > relevance(0.5));
    }
}
