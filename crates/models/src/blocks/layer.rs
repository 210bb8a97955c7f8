//! A layer: mixer and FFN, their norms, and the order of these.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Eltwise, EltwiseOp, Epilogue, Normalize};
use tallow_core::{Backend, Norm, Result, Tensor};

use super::Context;
use super::attention::Attention;
use super::cross_attention::CrossAttention;
use super::gated_delta_net::GatedDeltaNet;
use super::mla::Mla;
use super::mlp::{Mlp, MlpSlots};
use super::moe::MoeBlock;
use super::parallel_moe::ParallelMoe;
use super::per_layer_embedding::PerLayerInput;
use super::shared_kv::SharedKvAttention;
use crate::Result as LoadResult;
use crate::spec::{self, Ffn, LayerSpec, Order};
use crate::weights::Weights;

/// The block that mixes tokens.
#[derive(Debug)]
enum Mixer<B: Backend> {
    Attention(Box<Attention<B>>),
    SharedKv(Box<SharedKvAttention<B>>),
    Mla(Box<Mla<B>>),
    GatedDelta(Box<GatedDeltaNet<B>>),
}

impl<B: Backend> Mixer<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, spec: &spec::Mixer) -> LoadResult<Mixer<B>> {
        Ok(match spec {
            spec::Mixer::Attention(spec) => Mixer::Attention(Box::new(Attention::load(w, i, spec)?)),
            spec::Mixer::SharedKv(spec) => Mixer::SharedKv(Box::new(SharedKvAttention::load(w, i, spec)?)),
            spec::Mixer::Mla(spec) => Mixer::Mla(Box::new(Mla::load(w, i, *spec)?)),
            spec::Mixer::GatedDelta(spec) => Mixer::GatedDelta(Box::new(GatedDeltaNet::load(w, i, spec)?)),
        })
    }

    /// `epilogue(block(norm(x)))`
    fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        match self {
            Mixer::Attention(block) => block.forward(cx, x, norm, epilogue),
            Mixer::SharedKv(block) => block.forward(cx, x, norm, epilogue),
            Mixer::Mla(block) => block.forward(cx, x, norm, epilogue),
            Mixer::GatedDelta(block) => block.forward(cx, x, norm, epilogue),
        }
    }
}

/// The block that works on each token alone.
#[derive(Debug)]
enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Moe(Box<MoeBlock<B>>),
    Parallel(Box<ParallelMoe<B>>),
}

impl<B: Backend> FeedForward<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, spec: &Ffn) -> LoadResult<FeedForward<B>> {
        Ok(match spec {
            Ffn::Dense(dense) => {
                let separate = !dense.gated && w.names().has(Slot::FfnUpUngated);
                let up = if separate { Slot::FfnUpUngated } else { Slot::FfnUp };
                FeedForward::Dense(Mlp::load(w, i, MlpSlots { up, ..MlpSlots::DENSE }, dense)?)
            }
            Ffn::Moe(moe) => FeedForward::Moe(Box::new(MoeBlock::load(w, i, moe)?)),
            Ffn::Parallel { dense, moe } => {
                FeedForward::Parallel(Box::new(ParallelMoe::load(w, i, dense, moe)?))
            }
        })
    }

    /// `epilogue(block(norm(x)))`
    fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        match self {
            FeedForward::Dense(block) => block.forward(cx, x, norm, epilogue),
            FeedForward::Moe(block) => block.forward(cx, x, norm, epilogue),
            FeedForward::Parallel(block) => block.forward(cx, x, norm, epilogue),
        }
    }
}

/// One layer of a decoder or an encoder.
#[derive(Debug)]
pub struct Layer<B: Backend> {
    mixer_norms: Norms<B>,
    mixer: Mixer<B>,
    cross_attention: Option<Box<CrossAttention<B>>>,
    ffn_norms: Norms<B>,
    ffn: FeedForward<B>,
    order: Order,
    residual_scale: f32,
    per_layer: Option<PerLayerInput<B>>,
    /// Multiplies the output: [1, 1].
    scale: Option<Tensor<B>>,
}

/// The norms in front of a block and behind it.
#[derive(Debug)]
struct Norms<B: Backend> {
    before: Option<Norm<B>>,
    behind: Option<Norm<B>>,
}

impl<B: Backend> Norms<B> {
    /// Loads those of layer `i` that it has.
    fn load(w: &mut Weights<'_, B>, i: usize, slots: [Option<Slot>; 2]) -> LoadResult<Norms<B>> {
        let dim = w.spec().dim;
        let [before, behind] = slots.map(|slot| slot.map(|slot| w.norm((slot, i), dim)).transpose());
        Ok(Norms { before: before?, behind: behind? })
    }
}

impl<B: Backend> Layer<B> {
    /// Loads layer `i`.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<Layer<B>> {
        let order = spec.order;
        let (per_layer, act) = (w.spec().per_layer_dim, spec.ffn.expert().act);
        let before = !matches!(order, Order::Post | Order::PostNorm);
        let behind = matches!(order, Order::Post | Order::PostNorm | Order::Sandwich);
        let before_mixer = before && order != Order::FfnPreNorm;
        let of_mixer = [before_mixer.then_some(Slot::AttnNorm), behind.then_some(Slot::AttnPostNorm)];
        let before = before && order != Order::ParallelOneNorm;
        let of_ffn = [before.then_some(Slot::FfnNorm), behind.then_some(Slot::FfnPostNorm)];
        Ok(Layer {
            mixer_norms: Norms::load(w, i, of_mixer)?,
            mixer: Mixer::load(w, i, &spec.mixer)?,
            cross_attention: match &spec.mixer {
                spec::Mixer::Attention(spec) if spec.cross_attention => {
                    Some(Box::new(CrossAttention::load(w, i, spec)?))
                }
                _ => None,
            },
            ffn_norms: Norms::load(w, i, of_ffn)?,
            ffn: FeedForward::load(w, i, &spec.ffn)?,
            order,
            residual_scale: spec.residual_scale,
            per_layer: per_layer.map(|width| PerLayerInput::load(w, i, width, act)).transpose()?,
            scale: spec.layer_scale.then(|| w.slot_row((Slot::LayerOutScale, i), 1)).transpose()?,
        })
    }

    /// Its cross-attention, if it has one.
    pub fn cross_attention(&self) -> Option<&CrossAttention<B>> {
        self.cross_attention.as_deref()
    }

    /// The layer's output. `x`: [tokens, dim]
    pub fn forward(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let (of_mixer, of_ffn) = (&self.mixer_norms, &self.ffn_norms);
        let before = of_mixer.before.as_ref();
        let mut mixed = self.add(cx, x, of_mixer, |epilogue| self.mixer.forward(cx, x, before, epilogue))?; // [tokens, dim]
        if let Some((block, given)) = self.cross_attention.as_ref().zip(cx.cross_attention.as_ref()) {
            mixed = block.forward(cx.b, given, &mixed)?;
        }
        let (x, before) = match self.order {
            Order::Pre | Order::Post | Order::PostNorm | Order::FfnPreNorm | Order::Sandwich => {
                (&mixed, of_ffn.before.as_ref())
            }
            Order::Parallel => (x, of_ffn.before.as_ref()),
            Order::ParallelOneNorm => (x, before),
        };
        let mut x = self.add(cx, &mixed, of_ffn, |epilogue| self.ffn.forward(cx, x, before, epilogue))?;
        if let Some(block) = &self.per_layer {
            x = block.forward(cx, &x)?;
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
