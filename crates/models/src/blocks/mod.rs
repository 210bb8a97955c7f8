//! The blocks that every family is made of. A forward is written here once, and nowhere else.

pub mod attention;
pub mod cache;
pub mod cross_attention;
pub mod gated_delta_net;
pub mod layer;
pub mod mla;
pub mod mlp;
pub mod moe;
pub mod parallel_moe;
pub mod per_layer_embedding;
mod relative_bias;
pub mod rope;
pub mod shared_kv;

use tallow_core::ops::{Epilogue, Linear, LinearMany, Lora};
use tallow_core::{Backend, LayerKv, LinearWeights, Norm, Result, RopeTable, StepPlan, Tensor};

use cache::LayerCache;

/// What a layer has made of what an encoder gave.
#[derive(Debug)]
pub struct StepInputs<'a, B: Backend> {
    /// Which of the step's tokens look at what.
    pub plan: &'a StepPlan<B>,
    /// Keys and values.
    pub kv: LayerKv<'a, B>,
}

/// What a layer's forward needs besides its input.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    /// The device.
    pub b: &'a B,
    /// The step.
    pub plan: &'a StepPlan<B>,
    /// What the layer keeps of sequences.
    pub cache: &'a LayerCache<B>,
    /// The decoder's rotary embeddings.
    pub ropes: &'a [RopeTable<B>],
    /// What an encoder gave, if there is one.
    pub across: Option<StepInputs<'a, B>>,
    /// What the layer gets of its own, if it gets anything: [tokens, width]
    pub side: Option<Tensor<B>>,
}

impl<B: Backend> Context<'_, B> {
    /// `then(by(x))`, and what the adapters of rows add to it.
    pub(crate) fn project(
        &self,
        x: &Tensor<B>,
        by: &LinearWeights<B>,
        then: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        project(self.b, self.plan, x, by, then)
    }

    /// Layers side by side over `norm(x)`, and what the adapters of rows add to them.
    pub(crate) fn project_many(
        &self,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        weights: &[LinearWeights<B>],
    ) -> Result<Tensor<B>> {
        match &self.plan.adapted[..] {
            [] => self.b.run(LinearMany { x, norm, weights }),
            adapters => self.b.run(Lora { x, norm, weights, epilogue: Epilogue::NONE, adapters }),
        }
    }
}

/// `then(by(x))`, and what the adapters of a step's rows add to it.
pub(crate) fn project<B: Backend>(
    b: &B,
    plan: &StepPlan<B>,
    x: &Tensor<B>,
    weights: &LinearWeights<B>,
    epilogue: Epilogue<'_, B>,
) -> Result<Tensor<B>> {
    match &plan.adapted[..] {
        [] => b.run(Linear { x, weights, epilogue }),
        adapters => b.run(Lora { x, norm: None, weights: std::slice::from_ref(weights), epilogue, adapters }),
    }
}
