//! [`Encoder`]: from texts, images or audio to hidden states, vectors and scores. It is built from the same blocks as
//! decoders; attention is bidirectional, and no KV cache survives a forward pass.

mod audio_stem;
mod classes;
mod classifier_head;
mod clip_similarity;
mod dense;
mod input;
mod mlm_head;
mod model;
mod patch_embed;
mod patches;
mod pooling_head;
mod sentence_transformers;

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Eltwise, EltwiseOp, Embed, IndexMode, IndexRows, Normalize};
use tallow_core::{
    Backend, DType, Error, LinearWeights, Norm, Result, RopeTable, Span, Step, StepPlan, Tensor, Weight,
};

use crate::Result as LoadResult;
use crate::blocks::Context;
use crate::blocks::cache::LayerCache;
use crate::blocks::layer::Layer;
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, HeadActivation, Pooling};
use crate::weights::{Progress, Weights};
use audio_stem::AudioStem;
pub use classes::Classes;
use classifier_head::ClassifierHead;
pub use clip_similarity::ClipSimilarity;
use dense::Dense;
pub use input::{First, InputError, Inputs, Truncation};
use mlm_head::MlmHead;
pub use model::EncoderModel;
use patch_embed::PatchEmbed;
pub use patches::PatchProcessor;
use pooling_head::PoolingHead;
pub use sentence_transformers::SentenceTransformers;

/// Tokens per page of the temporary KV cache: a text takes its length rounded up to whole pages.
pub const PAGE: usize = 16;

/// A text, or a pair of texts, as encoder input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Tokens, including special ones.
    pub tokens: Vec<u32>,
    /// Token types: which text each token belongs to.
    pub types: Vec<u32>,
}

/// An image as encoder input.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Pixel values, patch after patch: of each patch all red values, then green, then blue, row by row.
    pub patches: Vec<f32>,
    /// Rows of hidden states that it takes.
    pub rows: usize,
}

/// An input of an encoder.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A text, or a pair of texts.
    Text(Input),
    /// An image.
    Image(Image),
}

impl Item {
    /// Rows of hidden states: tokens of a text, patches of an image (and its class row).
    pub fn rows(&self) -> usize {
        match self {
            Item::Text(text) => text.tokens.len(),
            Item::Image(image) => image.rows,
        }
    }

    /// Memory that it takes while it is queued, in units of a text's token.
    pub fn weight(&self) -> usize {
        match self {
            Item::Text(text) => text.tokens.len(),
            // A token has an id and a type, so it is as large as two pixel values.
            Item::Image(image) => image.patches.len().div_ceil(2),
        }
    }
}

impl From<Input> for Item {
    fn from(text: Input) -> Item {
        Item::Text(text)
    }
}

impl From<Image> for Item {
    fn from(image: Image) -> Item {
        Item::Image(image)
    }
}

/// The input layer.
#[derive(Debug)]
enum Front<B: Backend> {
    /// Token embedding, and token type embedding if there is one.
    Tokens { table: Weight<B>, types: Option<Weight<B>> },
    /// Patch embedding of images.
    Patches(PatchEmbed<B>),
    /// Convolutional stem for audio.
    Sounds(Box<AudioStem<B>>),
}

/// The error for an input of a kind that the encoder does not take.
fn other() -> Error {
    let (want, got) = ("images or sounds".to_owned(), "texts".to_owned());
    Error::Shape { op: "encoder", what: "its input", want, got }
}

/// An encoder on a device.
#[derive(Debug)]
pub struct Encoder<B: Backend> {
    spec: EncoderSpec,
    front: Front<B>,
    positions: Option<Weight<B>>,
    embed_norm: Option<Norm<B>>,
    layers: Vec<Layer<B>>,
    last_norm: Option<Norm<B>>,
    ropes: Vec<RopeTable<B>>,
    head: Option<ClassifierHead<B>>,
    mlm_head: Option<MlmHead<B>>,
    pooler: Option<LinearWeights<B>>,
    pooling_head: Option<PoolingHead<B>>,
    dense: Vec<Dense<B>>,
}

/// A batch of texts, images or audio clips on a device, with a KV cache for one layer.
#[derive(Debug)]
pub struct Texts<B: Backend> {
    plan: StepPlan<B>,
    /// [1, tokens]: rows of the position embedding, if there is one.
    places: Option<Tensor<B>>,
    /// [1, tokens]: token types, if they have an embedding.
    types: Option<Tensor<B>>,
    /// [patches or frames, values], for images and audio.
    numbers: Option<Tensor<B>>,
    /// Shared by all layers, one after another.
    cache: LayerCache<B>,
}

impl<B: Backend> Encoder<B> {
    /// Loads a model's weights onto a device.
    pub fn load(b: &B, model: &EncoderModel, progress: Progress<'_>) -> LoadResult<Encoder<B>> {
        let family = model.family;
        let mut w = Weights::new(b, model.source(), progress);
        let mut spec = model.spec.clone();
        if !model.extras {
            (spec.mlm_head, spec.pooler) = (None, None);
        }
        let encoder = Encoder::read(&mut w, &spec, model.context())?;
        w.finish(family.name(), |name| family.is_unused(name))?;
        Ok(encoder)
    }

    /// Loads an encoder as part of a larger model, for texts of up to `context` tokens.
    pub(crate) fn read(w: &mut Weights<'_, B>, spec: &EncoderSpec, context: usize) -> LoadResult<Encoder<B>> {
        let b = w.device();
        let ropes = spec.ropes.iter().map(|r| r.build(b, context)).collect::<Result<_>>()?;
        let front = match (spec.patches, spec.audio) {
            (Some(patches), _) => Front::Patches(PatchEmbed::load(w, patches)?),
            (None, Some(sound)) => Front::Sounds(Box::new(AudioStem::load(w, sound, spec.dim)?)),
            (None, None) => {
                let table = w.weight(Slot::TokenEmbd, spec.vocab, spec.dim)?;
                let types = spec.types.map(|n| w.weight(Slot::TokenTypes, n, spec.dim)).transpose()?;
                Front::Tokens { table, types }
            }
        };
        let positions = spec.positions.map(|p| w.weight(Slot::PosEmbd, p.rows, spec.dim));
        let positions = positions.transpose()?;
        let is_normed = w.names().has(Slot::TokenEmbdNorm);
        let embed_norm = is_normed.then(|| w.norm(Slot::TokenEmbdNorm, spec.dim)).transpose()?;
        let layers =
            spec.layers.iter().enumerate().map(|(i, layer)| Layer::load(w, i, &layer.clone().into()));
        let layers = layers.collect::<LoadResult<_>>()?;
        let last_norm = spec.last_norm.then(|| w.norm(Slot::OutputNorm, spec.dim)).transpose()?;
        let head = spec.head.map(|head| ClassifierHead::load(w, &head)).transpose()?;
        let mlm_head = match (&spec.mlm_head, &front) {
            (Some(head), Front::Tokens { table, .. }) => Some(MlmHead::load(w, head, (table, spec.vocab))?),
            _ => None,
        };
        let pooler = spec.pooler.map(|name| w.linear(name, spec.dim, spec.dim, Bias::Yes)).transpose()?;
        let pooling_head = spec.pooling_head.map(|head| PoolingHead::load(w, spec, &head)).transpose()?;
        let dense = spec.dense.iter().map(|dense| Dense::load(w, dense)).collect::<LoadResult<_>>()?;
        Ok(Encoder {
            spec: spec.clone(),
            front,
            positions,
            embed_norm,
            layers,
            last_norm,
            ropes,
            head,
            mlm_head,
            pooler,
            pooling_head,
            dense,
        })
    }

    /// The token embedding, if it takes tokens.
    pub(crate) fn embedding(&self) -> Option<&Weight<B>> {
        match &self.front {
            Front::Tokens { table, .. } => Some(table),
            Front::Patches(_) | Front::Sounds(_) => None,
        }
    }

    /// The spec it was built from.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// Uploads texts. Token ids must be below [`EncoderSpec::vocab`], lengths at most its context.
    pub fn upload(&self, b: &B, inputs: &[Input]) -> Result<Texts<B>> {
        let texts = self.side_by_side(b, inputs.iter().map(|input| &input.tokens[..]))?;
        let types: Vec<u32> = inputs.iter().flat_map(|input| &input.types).copied().collect();
        let has_types = matches!(self.front, Front::Tokens { types: Some(_), .. });
        Ok(Texts { types: has_types.then(|| b.upload_row(&types)).transpose()?, ..texts })
    }

    /// Uploads images, cut into patches as [`EncoderSpec::patches`] says.
    pub fn upload_images(&self, b: &B, images: &[Image]) -> Result<Texts<B>> {
        let (count, rows, width) = match self.spec.patches {
            Some(patches) => (patches.count(), patches.rows(), patches.width()),
            None => (0, 0, 0),
        };
        // Images have no tokens, but the step needs one per row.
        let tokens = vec![0; rows];
        let texts = self.side_by_side(b, images.iter().map(|_| &tokens[..]))?;
        let numbers: Vec<f32> = images.iter().flat_map(|image| &image.patches).copied().collect();
        Ok(Texts { numbers: Some(b.upload(&numbers, images.len() * count, width)?), ..texts })
    }

    /// Lays out the rows of a batch side by side, and allocates their KV cache.
    fn side_by_side<'a>(&self, b: &B, all: impl Iterator<Item = &'a [u32]>) -> Result<Texts<B>> {
        let mut step = Step { page_len: PAGE, ..Step::default() };
        let (mut places, mut pages) = (Vec::<u32>::new(), 0..0);
        for tokens in all {
            pages = pages.end..pages.end + tokens.len().div_ceil(PAGE) as u32;
            step.spans.push(Span { rows: tokens.len(), start: 0, pages: pages.clone().collect() });
            step.tokens.extend(tokens);
            places.extend(self.spec.positions.map(|p| p.of(tokens)).unwrap_or_default());
        }
        let cols = self.spec.layers.iter().map(|l| l.mixer.heads.kv_cols()).max().unwrap_or(0);
        let room = || b.alloc(DType::F32, pages.end as usize, PAGE * cols);
        let cache = LayerCache::Pages { k: room()?, v: Some(room()?), swa: false };
        let places = self.positions.as_ref().map(|_| b.upload_row(&places)).transpose()?;
        Ok(Texts { plan: StepPlan::new(b, step)?, places, types: None, numbers: None, cache })
    }

    /// Input of the first layer: embeddings, summed, and their norm.
    fn begin(&self, b: &B, texts: &Texts<B>) -> Result<Tensor<B>> {
        let scaled = |table: &Weight<B>, ids: &Tensor<B>, scale: f32| b.run(Embed { table, ids, scale });
        let embed = |table: &Weight<B>, ids: &Tensor<B>| scaled(table, ids, 1.0);
        let (plan, places) = (&texts.plan, self.positions.as_ref().zip(texts.places.as_ref()));
        let (mut x, more) = match (&self.front, &texts.numbers) {
            (Front::Tokens { table, types }, _) => {
                let types = types.as_ref().zip(texts.types.as_ref());
                (scaled(table, &plan.tokens, self.spec.embed_scale)?, vec![types, places]) // [tokens, dim]
            }
            (Front::Sounds(stem), Some(frames)) => {
                (stem.forward(b, frames, plan.host().spans.len())?, vec![places]) // [tokens, dim]
            }
            (Front::Patches(patches), Some(numbers)) => {
                let places = places.map(|(table, ids)| embed(table, ids)).transpose()?;
                let Some(places) = places else { return Err(other()) };
                (patches.forward(b, numbers, plan.host().spans.len(), &places)?, Vec::new())
            }
            (Front::Sounds(_) | Front::Patches(_), None) => return Err(other()),
        };
        for (table, ids) in more.into_iter().flatten() {
            let more = embed(table, ids)?; // [tokens, dim]
            x = b.run(Eltwise { x: &x, op: EltwiseOp::Add(&more) })?;
        }
        match &self.embed_norm {
            Some(norm) => b.run(Normalize { x: &x, norm, residual: None }),
            None => Ok(x),
        }
    }

    /// Uploads log-mel frames of audio clips, one clip after another: two frames per position of the context.
    pub fn upload_sounds(&self, b: &B, sounds: &[&[f32]]) -> Result<Texts<B>> {
        let (context, bands) = (self.spec.context, self.spec.audio.map_or(0, |sound| sound.bands));
        let tokens = vec![0; context];
        let texts = self.side_by_side(b, sounds.iter().map(|_| &tokens[..]))?;
        let frames = b.upload(&sounds.concat(), 2 * context * sounds.len(), bands)?;
        Ok(Texts { numbers: Some(frames), ..texts })
    }

    /// Hidden states of the batch: [tokens, dim]. `see` is called with 0 and the embeddings, then with `i + 1` and the
    /// output of layer `i`, as the next layer reads it.
    pub fn forward(
        &self,
        b: &B,
        texts: &Texts<B>,
        mut see: impl FnMut(usize, &Tensor<B>) -> Result<()>,
    ) -> Result<Tensor<B>> {
        let plan = &texts.plan;
        let mut x = self.begin(b, texts)?; // [tokens, dim]
        see(0, &x)?;
        // No layer needs another's K and V: all share one cache.
        let cache = &texts.cache;
        for (i, layer) in self.layers.iter().enumerate() {
            let cx = Context { b, plan, cache, ropes: &self.ropes, cross_attention: None, per_layer: None };
            x = layer.forward(&cx, &x)?; // [tokens, dim]
            if let Some(norm) = self.last_norm.as_ref().filter(|_| i + 1 == self.layers.len()) {
                x = b.run(Normalize { x: &x, norm, residual: None })?;
            }
            see(i + 1, &x)?;
        }
        Ok(x)
    }

    /// A vector per text or image: by the model's own pooling head, or by `pooling` if it has none; then through the dense
    /// layers.
    pub fn vectors(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>, pooling: Pooling) -> Result<Tensor<B>> {
        let vectors = match &self.pooling_head {
            Some(head) => head.forward(b, texts, x)?,
            None => pool(b, texts, x, pooling)?,
        };
        self.dense.iter().try_fold(vectors, |x, dense| dense.forward(b, &x))
    }

    /// A vector per text, pooled by `pooling`.
    pub fn pool(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>, pooling: Pooling) -> Result<Tensor<B>> {
        pool(b, texts, x, pooling)
    }

    /// Scores of each text: [texts, labels]; `None` if the model has no classification head.
    pub fn scores(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        let head = self.head.as_ref().zip(self.spec.head.as_ref());
        head.map(|(head, spec)| head.forward(b, &self.pool(b, texts, x, spec.pooling)?)).transpose()
    }
}

impl<B: Backend> Encoder<B> {
    /// Logits of the masked language model head: [tokens, vocab]; `None` if the model has none or it was not loaded.
    pub fn mlm_logits(&self, b: &B, x: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        self.mlm_head.as_ref().map(|head| head.forward(b, x)).transpose()
    }

    /// `pooler_output` of transformers: a vector per text from its first token's hidden state; `None` if the model has
    /// no pooler or it was not loaded.
    pub fn pooler_output(&self, b: &B, texts: &Texts<B>, x: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        let Some(pooler) = &self.pooler else { return Ok(None) };
        let first = pool(b, texts, x, Pooling::First)?; // [texts, dim]
        classifier_head::linear_act(b, &first, pooler, Some(HeadActivation::Tanh)).map(Some)
    }
}

/// Pools hidden states: one row per text, by selection, mean or maximum.
fn pool<B: Backend>(b: &B, texts: &Texts<B>, x: &Tensor<B>, pooling: Pooling) -> Result<Tensor<B>> {
    let lengths: Vec<usize> = texts.plan.host().spans.iter().map(|span| span.rows).collect();
    let share: fn(usize) -> f32 = match pooling {
        Pooling::Mean => |n| 1.0 / n as f32,
        Pooling::RootMean => |n| 1.0 / (n as f32).sqrt(),
        Pooling::WeightedMean => |n| 2.0 / (n * (n + 1)) as f32,
        Pooling::Max => return max(b, x, &lengths),
        Pooling::First | Pooling::Last | Pooling::At(_) | Pooling::Largest => {
            return rows(b, &texts.plan.host().tokens, x, (&lengths, pooling));
        }
    };
    let counted = |n: &usize| (1..=*n).map(|i| i as f32).collect::<Vec<_>>();
    let counts: Vec<f32> = lengths.iter().flat_map(counted).collect();
    let counts =
        (pooling == Pooling::WeightedMean).then(|| b.upload(&counts, counts.len(), 1)).transpose()?;
    let counted = counts.map(|counts| b.run(Eltwise { x, op: EltwiseOp::Mul(&counts) })).transpose()?;
    let of: Vec<u32> = (0..).zip(&lengths).flat_map(|(i, n)| std::iter::repeat_n(i, *n)).collect();
    let sums = b.zeros(DType::F32, lengths.len(), x.cols())?; // [texts, dim]
    let x = counted.as_ref().unwrap_or(x);
    let sums = b.run(IndexRows { x, indices: &b.upload_row(&of)?, mode: IndexMode::ScatterAdd(&sums) })?;
    let shares: Vec<f32> = lengths.iter().map(|n| share(*n)).collect();
    let shares = b.upload(&shares, lengths.len(), 1)?; // [texts, 1]
    b.run(Eltwise { x: &sums, op: EltwiseOp::Mul(&shares) })
}

/// Pooling by selection: one row of each text.
fn rows<B: Backend>(
    b: &B,
    mut tokens: &[u32],
    x: &Tensor<B>,
    (lengths, by): (&[usize], Pooling),
) -> Result<Tensor<B>> {
    let (all, mut rows) = (tokens.len(), Vec::with_capacity(lengths.len()));
    for length in lengths {
        let (of, rest) = tokens.split_at((*length).min(tokens.len()));
        rows.push((all - tokens.len() + by.place(of).unwrap_or(0)) as u32);
        tokens = rest;
    }
    b.run(IndexRows { x, indices: &b.upload_row(&rows)?, mode: IndexMode::Gather })
}

/// Max pooling, on the host: few models use it, and no device has an op for it.
fn max<B: Backend>(b: &B, x: &Tensor<B>, lengths: &[usize]) -> Result<Tensor<B>> {
    let (numbers, dim) = (b.download::<f32>(x)?, x.cols());
    let (mut rows, mut most) = (numbers.chunks(dim.max(1)), vec![f32::NEG_INFINITY; lengths.len() * dim]);
    for (n, most) in lengths.iter().zip(most.chunks_mut(dim.max(1))) {
        for row in rows.by_ref().take(*n) {
            most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(*x));
        }
    }
    b.upload(&most, lengths.len(), dim)
}

/// The first `dimensions` elements of a vector (or all), L2-normalised. Only models trained for it (Matryoshka) keep
/// their quality when truncated.
pub fn shortened(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(vector.len()));
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

/// Sigmoid of a reranker's score.
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
