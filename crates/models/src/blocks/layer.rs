//! A layer: mixer and FFN, their norms, and the order of these.

use tallow_core::ops::{Eltwise, EltwiseOp, Epilogue, Normalize};
use tallow_core::{Backend, Norm, Result, Tensor};

use super::Context;
use super::attention::Attention;
use super::cross_attention::CrossAttention;
use super::gated_delta_net::GatedDeltaNet;
use super::mla::Mla;
use super::mlp::Mlp;
use super::moe::MoeBlock;
use super::parallel_moe::ParallelMoe;
use super::per_layer_embedding::PerLayerInput;
use super::shared_kv::SharedKvAttention;
use crate::error::Result as LoadResult;
use crate::formats::names::of_layer;
use crate::spec::{LayerSpec, Order};
use crate::weights::Weights;

/// The block that mixes tokens.
#[derive(Debug)]
enum Mixer<B: Backend> {
    Attention(Box<Attention<B>>),
    Borrowed(Box<SharedKvAttention<B>>),
    Latent(Box<Mla<B>>),
    Delta(Box<GatedDeltaNet<B>>),
}

impl<B: Backend> Mixer<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<Mixer<B>> {
        Ok(match (spec.gated_delta, spec.mla) {
            (Some(delta), _) => Mixer::Delta(Box::new(GatedDeltaNet::load(w, i, &delta)?)),
            (None, None) if spec.mixer.kv_source.is_some() => {
                Mixer::Borrowed(Box::new(SharedKvAttention::load(w, i, &spec.mixer)?))
            }
            (None, None) => Mixer::Attention(Box::new(Attention::load(w, i, &spec.mixer)?)),
            (None, Some(latent)) => Mixer::Latent(Box::new(Mla::load(w, i, &spec.mixer, latent)?)),
        })
    }

    /// `then(block(norm(x)))`
    fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        match self {
            Mixer::Attention(block) => block.forward(cx, x, norm, then),
            Mixer::Borrowed(block) => block.forward(cx, x, norm, then),
            Mixer::Latent(block) => block.forward(cx, x, norm, then),
            Mixer::Delta(block) => block.forward(cx, x, norm, then),
        }
    }
}

/// The block that works on each token alone.
#[derive(Debug)]
enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Experts(Box<MoeBlock<B>>),
    Twofold(Box<ParallelMoe<B>>),
}

impl<B: Backend> FeedForward<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<FeedForward<B>> {
        let names = w.names();
        let alone = !spec.ffn.gated && !names.up_alone.is_empty();
        let up = if alone { names.up_alone } else { names.up };
        Ok(match (&spec.experts, &spec.dense_ffn) {
            (None, _) => {
                FeedForward::Dense(Mlp::load(w, i, [names.gate, up, names.gate_up, names.down], &spec.ffn)?)
            }
            (Some(experts), None) => {
                FeedForward::Experts(Box::new(MoeBlock::load(w, i, &spec.ffn, experts)?))
            }
            (Some(experts), Some(dense)) => {
                FeedForward::Twofold(Box::new(ParallelMoe::load(w, i, (dense, &spec.ffn), experts)?))
            }
        })
    }

    /// `then(block(norm(x)))`
    fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        match self {
            FeedForward::Dense(block) => block.forward(cx, x, norm, then),
            FeedForward::Experts(block) => block.forward(cx, x, norm, then),
            FeedForward::Twofold(block) => block.forward(cx, x, norm, then),
        }
    }
}

/// One layer of a decoder or an encoder.
#[derive(Debug)]
pub struct Layer<B: Backend> {
    mixer_norms: Norms<B>,
    mixer: Mixer<B>,
    across: Option<Box<CrossAttention<B>>>,
    ffn_norms: Norms<B>,
    ffn: FeedForward<B>,
    order: Order,
    residual_scale: f32,
    side: Option<PerLayerInput<B>>,
    /// [1, 1]
    scale: Option<Tensor<B>>,
}

/// The norms in front of a block and behind it.
#[derive(Debug)]
struct Norms<B: Backend> {
    before: Option<Norm<B>>,
    behind: Option<Norm<B>>,
}

impl<B: Backend> Norms<B> {
    /// Loads those of layer `i` that have a name.
    fn load(w: &mut Weights<'_, B>, i: usize, names: [Option<&str>; 2]) -> LoadResult<Norms<B>> {
        let dim = w.spec().dim;
        let [before, behind] = names.map(|name| name.map(|name| w.norm((name, i), dim)).transpose());
        Ok(Norms { before: before?, behind: behind? })
    }
}

impl<B: Backend> Layer<B> {
    /// Loads layer `i`.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<Layer<B>> {
        let (names, order) = (w.names(), spec.order);
        let before = !matches!(order, Order::Post | Order::PostNorm);
        let behind = matches!(order, Order::Post | Order::PostNorm | Order::Sandwich);
        let before_mixer = before && order != Order::FfnPreNorm;
        let of_mixer = [before_mixer.then_some(names.mixer_norm), behind.then_some(names.mixer_behind)];
        let before = before && order != Order::ParallelOneNorm;
        let of_ffn = [before.then_some(names.ffn_norm), behind.then_some(names.ffn_behind)];
        Ok(Layer {
            mixer_norms: Norms::load(w, i, of_mixer)?,
            mixer: Mixer::load(w, i, spec)?,
            across: spec
                .cross_attention
                .then(|| CrossAttention::load(w, i, &spec.mixer).map(Box::new))
                .transpose()?,
            ffn_norms: Norms::load(w, i, of_ffn)?,
            ffn: FeedForward::load(w, i, spec)?,
            order,
            residual_scale: spec.residual_scale,
            side: w.spec().side.map(|width| PerLayerInput::load(w, i, width, &spec.ffn)).transpose()?,
            scale: spec.layer_scale.then(|| w.tensor_row(&of_layer(names.scale, i), 1)).transpose()?,
        })
    }

    /// Its cross-attention, if it has one.
    pub fn across(&self) -> Option<&CrossAttention<B>> {
        self.across.as_deref()
    }

    /// The layer's output. `x`: [tokens, dim]
    pub fn forward(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let (of_mixer, of_ffn) = (&self.mixer_norms, &self.ffn_norms);
        let before = of_mixer.before.as_ref();
        let mut mixed = self.add(cx, x, of_mixer, |then| self.mixer.forward(cx, x, before, then))?; // [tokens, dim]
        if let Some((across, given)) = self.across.as_ref().zip(cx.across.as_ref()) {
            mixed = across.forward(cx.b, given, &mixed)?;
        }
        let (x, before) = match self.order {
            Order::Pre | Order::Post | Order::PostNorm | Order::FfnPreNorm | Order::Sandwich => {
                (&mixed, of_ffn.before.as_ref())
            }
            Order::Parallel => (x, of_ffn.before.as_ref()),
            Order::ParallelOneNorm => (x, before),
        };
        let mut x = self.add(cx, &mixed, of_ffn, |then| self.ffn.forward(cx, x, before, then))?;
        if let Some(side) = &self.side {
            x = side.forward(cx, &x)?;
        }
        match &self.scale {
            None => Ok(x),
            Some(by) => cx.b.run(Eltwise { x: &x, op: EltwiseOp::Mul(by) }),
        }
    }

    /// `to` + the block's output, with the norm behind the block or behind the sum if there is one.
    fn add(
        &self,
        cx: &Context<'_, B>,
        to: &Tensor<B>,
        norms: &Norms<B>,
        block: impl FnOnce(Epilogue<'_, B>) -> Result<Tensor<B>>,
    ) -> Result<Tensor<B>> {
        let scale = self.residual_scale;
        let add = Epilogue { scale, ..Epilogue::add_to(to) };
        let Some(norm) = &norms.behind else { return block(add) };
        if self.order == Order::PostNorm {
            let sum = block(add)?;
            return cx.b.run(Normalize { x: &sum, norm, residual: None });
        }
        let y = block(Epilogue { scale, ..Epilogue::NONE })?;
        cx.b.run(Normalize { x: &y, norm, residual: Some(to) })
    }
}
