//! [`Encoder`]: from texts to vectors and scores. It is made of the blocks that decoders are made of; its tokens see to
//! both sides, and what it has computed is not kept.

mod ears;
mod head;
mod input;
mod model;
mod sentence;
pub mod spec;

use tallow_core::ops::{Eltwise, Embed, Normalize, Rows, RowsTo, With};
use tallow_core::{
    Backend, DType, Error, LayerKv, Memory, Norm, Result, Rope, Span, Step, StepPlan, Tensor, Weight,
};

use crate::blocks::Context;
use crate::blocks::layer::Layer;
use crate::error::Result as LoadResult;
use crate::weights::{Progress, Weights, named};
use ears::Ears;
use head::Head;
pub use input::{Cut, InputError, Inputs};
pub use model::EncoderModel;
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
    takes: Takes<B>,
    positions: Option<Weight<B>>,
    types: Option<Weight<B>>,
    embed_norm: Option<Norm<B>>,
    layers: Vec<Layer<B>>,
    last_norm: Option<Norm<B>>,
    ropes: Vec<Rope<B>>,
    head: Option<Head<B>>,
}

/// What an encoder takes.
#[derive(Debug)]
enum Takes<B: Backend> {
    /// Tokens, by their embedding.
    Words(Weight<B>),
    /// What is heard.
    Sounds(Box<Ears<B>>),
}

/// What an encoder's tensors are called beside those of its layers. Names may be empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    /// The embedding of kinds of tokens.
    pub types: &'static str,
    /// The norm of embeddings.
    pub embed_norm: &'static str,
    /// The two convolutions of what is heard.
    pub ears: [&'static str; 2],
}

/// Some texts on a device, and room for a layer's keys and values.
#[derive(Debug)]
pub struct Texts<B: Backend> {
    plan: StepPlan<B>,
    /// [frames, bands]: what is heard, where that is taken.
    heard: Option<Tensor<B>>,
    /// [1, tokens]: rows of the embedding of positions, if there is one.
    places: Option<Tensor<B>>,
    /// [1, tokens]: rows of the embedding of kinds of tokens, if there is one.
    types: Option<Tensor<B>>,
    k: Tensor<B>,
    v: Tensor<B>,
}

impl<B: Backend> Encoder<B> {
    /// Brings a model's weights to a device.
    pub fn load(b: &B, model: &EncoderModel, progress: Progress<'_>) -> LoadResult<Encoder<B>> {
        let family = model.family;
        let mut w = Weights::new(b, model.source(), progress);
        let parts = Parts { types: family.types, embed_norm: family.embed_norm, ears: [""; 2] };
        let encoder = Encoder::read(&mut w, &model.spec, &parts, model.context())?;
        w.finish(family.name, |name| family.spares(name))?;
        Ok(encoder)
    }

    /// Reads an encoder among other things, for texts of up to so many tokens.
    pub(crate) fn read(
        w: &mut Weights<'_, B>,
        spec: &EncoderSpec,
        parts: &Parts,
        context: usize,
    ) -> LoadResult<Encoder<B>> {
        let (names, b) = (w.names(), w.device());
        let ropes = spec.ropes.iter().map(|r| r.build(b, context)).collect::<Result<_>>()?;
        let takes = match spec.sound {
            None => Takes::Words(w.matrix(&named(names.embed), spec.vocab, spec.dim)?),
            Some(sound) => Takes::Sounds(Box::new(Ears::load(w, parts.ears, sound, spec.dim)?)),
        };
        let positions = spec.positions.map(|p| w.matrix(&named(names.positions), p.rows, spec.dim));
        let types = spec.types.map(|n| w.matrix(&named(parts.types), n, spec.dim));
        let (positions, types) = (positions.transpose()?, types.transpose()?);
        let normed = !parts.embed_norm.is_empty();
        let embed_norm = normed.then(|| w.norm((parts.embed_norm, 0), spec.dim)).transpose()?;
        let layers = spec.layers.iter().enumerate().map(|(i, layer)| Layer::load(w, i, layer));
        let layers = layers.collect::<LoadResult<_>>()?;
        let last_norm = spec.last_norm.then(|| w.norm((names.norm, 0), spec.dim)).transpose()?;
        let head = spec.head.map(|head| Head::load(w, &head)).transpose()?;
        Ok(Encoder {
            spec: spec.clone(),
            takes,
            positions,
            types,
            embed_norm,
            layers,
            last_norm,
            ropes,
            head,
        })
    }

    /// The embedding of tokens, if it takes those.
    pub(crate) fn embedding(&self) -> Option<&Weight<B>> {
        match &self.takes {
            Takes::Words(table) => Some(table),
            Takes::Sounds(_) => None,
        }
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
        let (k, v) = (room()?, room()?);
        let places = self.positions.as_ref().map(|_| b.upload_row(&places)).transpose()?;
        let types = self.types.as_ref().map(|_| b.upload_row(&types)).transpose()?;
        Ok(Texts { plan: StepPlan::new(b, step)?, heard: None, places, types, k, v })
    }

    /// Uploads what is heard, for an encoder of that: the frames of each sound, one after another. Each has two frames
    /// for every position of the context.
    pub fn upload_sounds(&self, b: &B, sounds: &[&[f32]]) -> Result<Texts<B>> {
        let frames = 2 * self.spec.context;
        let bands = self.spec.sound.map_or(0, |sound| sound.bands);
        let input = Input { tokens: vec![0; self.spec.context], types: vec![0; self.spec.context] };
        let texts = self.upload(b, &vec![input; sounds.len()])?;
        let heard = b.upload(&sounds.concat(), frames * sounds.len(), bands)?;
        Ok(Texts { heard: Some(heard), ..texts })
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
        let mut x = match (&self.takes, &texts.heard) {
            (Takes::Words(table), _) => b.run(Embed { table, ids: &plan.tokens, scale: 1.0 })?,
            (Takes::Sounds(ears), Some(heard)) => ears.forward(b, heard, plan.host.spans.len())?,
            (Takes::Sounds(_), None) => {
                let (want, got) = ("sounds".to_owned(), "texts".to_owned());
                return Err(Error::Shape { op: "encoder", what: "its input", want, got });
            }
        }; // [tokens, dim]
        for (table, ids) in [(&self.types, &texts.types), (&self.positions, &texts.places)] {
            if let (Some(table), Some(ids)) = (table, ids) {
                let more = b.run(Embed { table, ids, scale: 1.0 })?; // [tokens, dim]
                x = b.run(Eltwise { x: &x, with: With::Add(&more) })?;
            }
        }
        if let Some(by) = &self.embed_norm {
            x = b.run(Normalize { x: &x, by, residual: None })?;
        }
        see(0, &x)?;
        // A layer's keys and values are of no use to the next: all have the same room.
        let kv = LayerKv { k: &texts.k, v: &texts.v };
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&Context { b, plan, kv, ropes: &self.ropes, across: None, side: None }, &x)?; // [tokens, dim]
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
