//! [`Mtp`]: a model's multi-token prediction layer (MTP, nextn), which guesses the token after the next one.
//!
//! For the token at a position it reads the model's hidden state there and the embedding of the token that follows, and attends
//! to its own K and V of the positions before (DeepSeek V3, <https://arxiv.org/abs/2412.19437>, 2.2). A model may have several
//! such layers, each trained to see one token further; like vLLM, the first is used for all guesses: for the second token it
//! reads its own output in place of the model's.

use tallow_checkpoint::tensor_names::{Names, Slot};
use tallow_core::ops::{Copy, Embed, Epilogue, Head, Linear, Normalize};
use tallow_core::{Backend, DType, LinearWeights, Norm, Result, RopeTable, StepPlan, Tensor, Weight};

use crate::Result as LoadResult;
use crate::blocks::Context;
use crate::blocks::cache::LayerCache;
use crate::blocks::layer::Layer;
use crate::spec::{DecoderSpec, LayerSpec};
use crate::weights::Weights;

/// An MTP layer on a device.
#[derive(Debug)]
pub struct Mtp<B: Backend> {
    spec: LayerSpec,
    embed: Weight<B>,
    embed_norm: Norm<B>,
    hidden_norm: Norm<B>,
    /// [dim, 2 * dim]
    projection: LinearWeights<B>,
    layer: Layer<B>,
    /// In front of the head; `None` if it is the decoder's.
    norm: Option<Norm<B>>,
    /// `None` if it is the decoder's.
    head: Option<LinearWeights<B>>,
}

/// What an MTP layer has of its decoder.
#[derive(Debug)]
pub(crate) struct Shared<'a, B: Backend> {
    pub spec: &'a DecoderSpec,
    pub embed: &'a Weight<B>,
    pub norm: &'a Norm<B>,
    pub head: &'a LinearWeights<B>,
    pub ropes: &'a [RopeTable<B>],
}

/// Hidden states that an MTP layer reads, as a last layer left them; it reads them behind the norm that follows: [tokens, dim]
#[derive(Debug, Clone)]
pub enum Hidden<B: Backend> {
    /// The model's, after its last layer.
    OfModel(Tensor<B>),
    /// The MTP layer's own.
    OfMtp(Tensor<B>),
}

impl<B: Backend> Mtp<B> {
    /// Loads the layer that has number `i` in these names. What its files do not have, or have twice, is the decoder's.
    pub(crate) fn load<'a>(
        w: &mut Weights<'a, B>,
        (names, i): (&'a Names, usize),
        spec: &LayerSpec,
        decoder: &Shared<'_, B>,
    ) -> LoadResult<Mtp<B>> {
        w.with_names(names);
        let (vocab, dim) = (decoder.spec.vocab, decoder.spec.dim);
        let embed = match w.repeats((Slot::NextnEmbedTokens, i), Slot::TokenEmbd) {
            true => decoder.embed.clone(),
            false => w.weight((Slot::NextnEmbedTokens, i), vocab, dim)?,
        };
        let main = if decoder.spec.tied_embeddings { Slot::TokenEmbd } else { Slot::Output };
        let head = match w.repeats((Slot::NextnSharedHeadHead, i), main) {
            true => None,
            false => Some(w.unbiased_linear(&w.weight_name((Slot::NextnSharedHeadHead, i))?, vocab, dim)?),
        };
        let norm = match w.has((Slot::NextnSharedHeadNorm, i)) {
            true => Some(w.norm((Slot::NextnSharedHeadNorm, i), dim)?),
            false => None,
        };
        Ok(Mtp {
            spec: spec.clone(),
            embed,
            embed_norm: w.norm((Slot::NextnEnorm, i), dim)?,
            hidden_norm: w.norm((Slot::NextnHnorm, i), dim)?,
            projection: w.unbiased_linear(&w.weight_name((Slot::NextnEhProj, i))?, dim, 2 * dim)?,
            layer: Layer::load(w, i, spec)?,
            norm,
            head,
        })
    }

    /// The layer's architecture.
    pub fn spec(&self) -> &LayerSpec {
        &self.spec
    }

    /// See [`Decoder::mtp_forward`](crate::decoder::Decoder::mtp_forward).
    pub(crate) fn forward(
        &self,
        b: &B,
        decoder: &Shared<'_, B>,
        plan: &StepPlan<B>,
        hidden: &Hidden<B>,
        cache: &LayerCache<B>,
    ) -> Result<Tensor<B>> {
        let (dim, scale) = (decoder.spec.dim, decoder.spec.embed_scale);
        let normalize = |x: &Tensor<B>, norm: &Norm<B>| b.run(Normalize { x, norm, residual: None });
        let hidden = match hidden {
            Hidden::OfModel(x) => normalize(x, decoder.norm)?,
            Hidden::OfMtp(x) => normalize(x, self.norm(decoder))?,
        };
        let token = b.run(Embed { table: &self.embed, ids: &plan.tokens, scale })?; // [tokens, dim]
        let both = b.alloc(DType::F32, hidden.rows(), 2 * dim)?;
        b.run(Copy { from: &normalize(&token, &self.embed_norm)?, to: &both.col_range(0..dim) })?;
        b.run(Copy { from: &normalize(&hidden, &self.hidden_norm)?, to: &both.col_range(dim..2 * dim) })?;
        let x = b.run(Linear { x: &both, weights: &self.projection, epilogue: Epilogue::NONE })?; // [tokens, dim]
        let ropes = decoder.ropes;
        let cx = Context { b, plan, cache, ropes, cross_attention: None, per_layer: None };
        self.layer.forward(&cx, &x)
    }

    /// See [`Decoder::mtp_logits`](crate::decoder::Decoder::mtp_logits).
    pub(crate) fn logits(
        &self,
        b: &B,
        decoder: &Shared<'_, B>,
        plan: &StepPlan<B>,
        x: &Tensor<B>,
    ) -> Result<Tensor<B>> {
        let (scale, softcap) = (decoder.spec.logit_scale, decoder.spec.logit_softcap);
        let epilogue = Epilogue { scale, softcap, residual: None };
        let weights = self.head.as_ref().unwrap_or(decoder.head);
        b.run(Head { x, rows: &plan.outputs, norm: self.norm(decoder), weights, epilogue })
    }

    fn norm<'a>(&'a self, decoder: &Shared<'a, B>) -> &'a Norm<B> {
        self.norm.as_ref().unwrap_or(decoder.norm)
    }
}
