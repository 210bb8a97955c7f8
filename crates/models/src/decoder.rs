//! [`Decoder`]: the one forward pass that all families share.

use std::collections::HashSet;

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Eltwise, EltwiseOp, Embed, Epilogue, Head, Normalize};
use tallow_core::{
    Adapter, Backend, Error, LinearWeights, Norm, Result, RopeTable, StepPlan, Tensor, Weight,
};

use crate::Model;
use crate::adapter::{AdapterFile, Targets};
use crate::blocks::cache::LayerCache;
use crate::blocks::layer::Layer;
use crate::blocks::per_layer_embedding::PerLayerEmbeddings;
use crate::blocks::{Context, StepInputs};
use crate::error::{LoadError, Result as LoadResult};
use crate::mtp::{Hidden, Mtp, Shared};
use crate::spec::DecoderSpec;
use crate::weights::{Progress, Weights};

/// A decoder on a device.
#[derive(Debug)]
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    embed: Weight<B>,
    positions: Option<Weight<B>>,
    per_layer: Option<PerLayerEmbeddings<B>>,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
    head: LinearWeights<B>,
    ropes: Vec<RopeTable<B>>,
    targets: Option<Targets>,
    mtp: Option<Mtp<B>>,
    mtp_fault: Option<String>,
}

impl<B: Backend> Decoder<B> {
    /// Loads a model's weights onto a device, for sequences of at most `context` tokens.
    pub fn load(b: &B, model: &Model, context: usize, progress: Progress<'_>) -> LoadResult<Decoder<B>> {
        let (spec, names) = (&model.spec, model.names());
        let mut w = Weights::new(b, model.source(), progress);
        let mut decoder = Decoder::read(&mut w, spec, context, None)?;
        decoder.targets = Some(Targets::new(model, w.targets()));
        if let Some(layer) = spec.mtp_layer().filter(|_| model.mtp && model.has_mtp()) {
            match Mtp::load(&mut w, model.mtp_names(), &layer, &decoder.shared()) {
                Ok(mtp) => decoder.mtp = Some(mtp),
                // Without it the answers are the same.
                Err(LoadError::File(why)) => decoder.mtp_fault = Some(why.to_string()),
                Err(why) => return Err(why),
            }
            w.with_names(names);
        }
        // Files may hold K and V weights of layers that read another layer's cache.
        let sharing = spec.layers.iter().enumerate().filter(|(_, layer)| layer.mixer.kv_source().is_some());
        let unused = |i| {
            [Slot::AttnK, Slot::AttnV, Slot::AttnKNorm].into_iter().filter_map(move |s| names.weight(s, i))
        };
        let unused: HashSet<String> = sharing.flat_map(|(i, _)| unused(i)).collect();
        let is_unused = |name: &str| unused.contains(name);
        w.finish(model.family.name, |name| {
            let tied_head = spec.tied_embeddings && names.weight(Slot::Output, 0).as_deref() == Some(name);
            tied_head || model.is_of_mtp(name) || model.family.reads(name) || is_unused(name)
        })?;
        Ok(decoder)
    }

    /// Loads a decoder as part of a larger model, such as a seq2seq one. `embed`: the embedding, if it is loaded
    /// already.
    pub(crate) fn read(
        w: &mut Weights<'_, B>,
        spec: &DecoderSpec,
        context: usize,
        embed: Option<&Weight<B>>,
    ) -> LoadResult<Decoder<B>> {
        let b = w.device();
        let ropes = spec.ropes.iter().map(|r| r.build(b, context)).collect::<Result<_>>()?;
        let embed = match embed {
            Some(embed) => embed.clone(),
            None => w.weight(Slot::TokenEmbd, spec.vocab, spec.dim)?,
        };
        let positions = spec.positions.map(|n| w.weight(Slot::PosEmbd, n, spec.dim));
        let positions = positions.transpose()?;
        let per_layer = spec
            .per_layer_dim
            .map(|width| PerLayerEmbeddings::load(w, width, spec.vocab, spec.layers.len()))
            .transpose()?;
        let layers = spec.layers.iter().enumerate().map(|(i, layer)| Layer::load(w, i, layer));
        let layers = layers.collect::<LoadResult<_>>()?;
        let norm = w.norm(Slot::OutputNorm, spec.dim)?;
        let head = match spec.tied_embeddings {
            true => LinearWeights::new(embed.clone(), None),
            false => w.unbiased_linear(&w.weight_name(Slot::Output)?, spec.vocab, spec.dim)?,
        };
        let head = LinearWeights { bias: w.bias(Slot::Output, spec.vocab, spec.head_bias)?, ..head };
        Ok(Decoder {
            spec: spec.clone(),
            embed,
            positions,
            per_layer,
            layers,
            norm,
            head,
            ropes,
            targets: None,
            mtp: None,
            mtp_fault: None,
        })
    }

    /// Loads a LoRA adapter for this model onto its device.
    pub fn adapter(&self, b: &B, file: &AdapterFile) -> LoadResult<Adapter<B>> {
        match &self.targets {
            Some(targets) => file.load(b, targets),
            None => Err(LoadError::unsupported(&file.path, "an adapter", "the model writes with an encoder")),
        }
    }

    /// The spec it was built from.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Its MTP layer, if that was loaded.
    pub fn mtp(&self) -> Option<&Mtp<B>> {
        self.mtp.as_ref()
    }

    /// Why its MTP layer was not loaded although it was wanted.
    pub fn mtp_fault(&self) -> Option<&str> {
        self.mtp_fault.as_deref()
    }

    /// Hidden states of the MTP layer for a step whose tokens are those that follow the positions: [tokens, dim]. `hidden` has
    /// the hidden states of the positions themselves.
    pub fn mtp_forward(
        &self,
        b: &B,
        plan: &StepPlan<B>,
        hidden: &Hidden<B>,
        cache: &LayerCache<B>,
    ) -> Result<Tensor<B>> {
        self.need_mtp()?.forward(b, &self.shared(), plan, hidden, cache)
    }

    /// Logits of the MTP layer for the step's outputs, from its hidden states of the tokens: [outputs, vocabulary]
    pub fn mtp_logits(&self, b: &B, plan: &StepPlan<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        self.need_mtp()?.logits(b, &self.shared(), plan, x)
    }

    fn need_mtp(&self) -> Result<&Mtp<B>> {
        let (want, got) = ("one with an MTP layer".into(), "one without".into());
        self.mtp.as_ref().ok_or(Error::Shape { op: "mtp", what: "the model", want, got })
    }

    fn shared(&self) -> Shared<'_, B> {
        let Decoder { spec, embed, norm, head, ropes, .. } = self;
        Shared { spec, embed, norm, head, ropes }
    }

    /// Hidden states of a step's tokens after the last layer: [tokens, dim]. `caches` has one per layer. `see` is
    /// called with 0 and the embeddings, then with `i + 1` and the output of layer `i`.
    pub fn forward(
        &self,
        b: &B,
        plan: &StepPlan<B>,
        caches: &[LayerCache<B>],
        see: impl FnMut(usize, &Tensor<B>) -> Result<()>,
    ) -> Result<Tensor<B>> {
        self.forward_with_encoder(b, plan, caches, None, see)
    }

    /// [`forward`](Self::forward) with cross-attention: `given` is its plan and, per layer, the KV that
    /// [`project_kv`](Self::project_kv) wrote.
    pub fn forward_with_encoder(
        &self,
        b: &B,
        plan: &StepPlan<B>,
        caches: &[LayerCache<B>],
        given: Option<(&StepPlan<B>, &[LayerCache<B>])>,
        mut see: impl FnMut(usize, &Tensor<B>) -> Result<()>,
    ) -> Result<Tensor<B>> {
        // Journey, stop 5: the decoder. Tokens become hidden states, layer by layer.
        let mut x = b.run(Embed { table: &self.embed, ids: &plan.tokens, scale: self.spec.embed_scale })?;
        if let Some(table) = &self.positions {
            let at = b.run(Embed { table, ids: &plan.positions, scale: 1.0 })?; // [tokens, dim]
            x = b.run(Eltwise { x: &x, op: EltwiseOp::Add(&at) })?;
        }
        see(0, &x)?;
        let embedded = self.per_layer.as_ref().map(|block| block.forward(b, plan, &x)).transpose()?;
        for (i, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            // Journey, stop 6: a layer's blocks.
            let per_layer =
                self.per_layer.as_ref().zip(embedded.as_ref()).map(|(block, all)| block.part(all, i));
            let given = given.and_then(|(plan, all)| Some((plan, all.get(i)?)));
            let given = given.map(|(plan, cache)| Ok::<_, Error>(StepInputs { plan, kv: cache.kv()? }));
            let cross_attention = given.transpose()?;
            let source = self.spec.layers[i].mixer.kv_source().and_then(|source| caches.get(source));
            let cx = Context {
                b,
                plan,
                cache: source.unwrap_or(cache),
                ropes: &self.ropes,
                cross_attention,
                per_layer,
            };
            x = layer.forward(&cx, &x)?; // [tokens, dim]
            see(i + 1, &x)?;
        }
        Ok(x)
    }

    /// Cross-attention: writes each layer's K and V of the encoder's output `x`: [tokens, dim]
    pub fn project_kv(
        &self,
        b: &B,
        x: &Tensor<B>,
        plan: &StepPlan<B>,
        caches: &[LayerCache<B>],
    ) -> Result<()> {
        let layers = self.layers.iter().zip(caches);
        let mut blocks = layers.filter_map(|(layer, cache)| Some((layer.cross_attention()?, cache)));
        blocks.try_for_each(|(block, cache)| block.project_kv(b, x, plan, cache.kv()?))
    }

    /// Final norm: hidden states after the last layer, as the head reads them.
    pub fn normed(&self, b: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
        b.run(Normalize { x, norm: &self.norm, residual: None })
    }

    /// Logits of the step's outputs, from the hidden states of its tokens.
    pub fn logits(&self, b: &B, plan: &StepPlan<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let epilogue =
            Epilogue { scale: self.spec.logit_scale, softcap: self.spec.logit_softcap, residual: None };
        b.run(Head { x, rows: &plan.outputs, norm: &self.norm, weights: &self.head, epilogue })
    }
}
