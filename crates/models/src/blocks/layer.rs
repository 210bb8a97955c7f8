//! A layer: two blocks, two norms, and the order they stand in.

use tallow_core::ops::{Epilogue, Normalize};
use tallow_core::{Backend, Norm, Result, Tensor};

use super::Context;
use super::attention::Attention;
use super::mixture::Mixture;
use super::mlp::Mlp;
use crate::error::Result as LoadResult;
use crate::spec::{LayerSpec, Order};
use crate::weights::Weights;

/// What works on each token.
#[derive(Debug)]
enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Experts(Mixture<B>),
}

impl<B: Backend> FeedForward<B> {
    fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<FeedForward<B>> {
        let names = w.names();
        Ok(match &spec.experts {
            None => FeedForward::Dense(Mlp::load(w, i, [names.gate, names.up, names.down], &spec.ffn)?),
            Some(experts) => FeedForward::Experts(Mixture::load(w, i, &spec.ffn, experts)?),
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
        }
    }
}

/// One layer of a decoder.
#[derive(Debug)]
pub struct Layer<B: Backend> {
    mixer_norm: Norm<B>,
    mixer: Attention<B>,
    ffn_norm: Norm<B>,
    ffn: FeedForward<B>,
    order: Order,
    residual_scale: f32,
}

impl<B: Backend> Layer<B> {
    /// Reads layer `i`.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &LayerSpec) -> LoadResult<Layer<B>> {
        let (names, dim) = (w.names(), w.spec().dim);
        Ok(Layer {
            mixer_norm: w.norm((names.mixer_norm, i), dim)?,
            mixer: Attention::load(w, i, &spec.mixer)?,
            ffn_norm: w.norm((names.ffn_norm, i), dim)?,
            ffn: FeedForward::load(w, i, spec)?,
            order: spec.order,
            residual_scale: spec.residual_scale,
        })
    }

    /// The next hidden state. `x`: [tokens, dim]
    pub fn forward(&self, cx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let scale = self.residual_scale;
        match self.order {
            Order::Pre => {
                let then = Epilogue { scale, ..Epilogue::add_to(x) };
                let x = self.mixer.forward(cx, x, Some(&self.mixer_norm), then)?;
                let then = Epilogue { scale, ..Epilogue::add_to(&x) };
                self.ffn.forward(cx, &x, Some(&self.ffn_norm), then)
            }
            Order::Post => {
                let then = Epilogue { scale, ..Epilogue::NONE };
                let y = self.mixer.forward(cx, x, None, then)?;
                let x = cx.b.run(Normalize { x: &y, by: &self.mixer_norm, residual: Some(x) })?;
                let y = self.ffn.forward(cx, &x, None, then)?;
                cx.b.run(Normalize { x: &y, by: &self.ffn_norm, residual: Some(&x) })
            }
        }
    }
}
