//! The blocks that every family is built from. Each forward pass is written here once, and nowhere else.

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
pub mod shared_kv;

use tallow_core::ops::{Epilogue, Linear, LinearMany, Lora};
use tallow_core::{Backend, LayerKv, LinearWeights, Norm, Result, RopeTable, StepPlan, Tensor};

use cache::LayerCache;

/// Inputs of a layer's cross-attention.
#[derive(Debug)]
pub struct StepInputs<'a, B: Backend> {
    /// The encoder output to which each of the step's tokens attends.
    pub plan: &'a StepPlan<B>,
    /// K and V of the encoder's output.
    pub kv: LayerKv<'a, B>,
}

/// Arguments of a layer's forward pass besides its input.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    /// The device.
    pub b: &'a B,
    /// The step.
    pub plan: &'a StepPlan<B>,
    /// The layer's KV cache or recurrent state; with shared KV, that of the source layer.
    pub cache: &'a LayerCache<B>,
    /// RoPE tables of the decoder.
    pub ropes: &'a [RopeTable<B>],
    /// Cross-attention inputs, in a decoder with an encoder.
    pub cross_attention: Option<StepInputs<'a, B>>,
    /// The layer's per-layer embedding (PLE), if the model has one: [tokens, width]
    pub per_layer: Option<Tensor<B>>,
}

impl<B: Backend> Context<'_, B> {
    /// A linear layer, `epilogue(weights(x))`, with the LoRA adapters of the step's rows.
    pub(crate) fn linear(
        &self,
        x: &Tensor<B>,
        weights: &LinearWeights<B>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        linear(self.b, self.plan, x, weights, epilogue)
    }

    /// Linear layers side by side over `norm(x)`, with the LoRA adapters of the step's rows.
    pub(crate) fn linear_many(
        &self,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        weights: &[LinearWeights<B>],
    ) -> Result<Tensor<B>> {
        match &self.plan.loras[..] {
            [] => self.b.run(LinearMany { x, norm, weights }),
            adapters => self.b.run(Lora { x, norm, weights, epilogue: Epilogue::NONE, adapters }),
        }
    }
}

/// A linear layer, `epilogue(weights(x))`, with the LoRA adapters of the step's rows.
pub(crate) fn linear<B: Backend>(
    b: &B,
    plan: &StepPlan<B>,
    x: &Tensor<B>,
    weights: &LinearWeights<B>,
    epilogue: Epilogue<'_, B>,
) -> Result<Tensor<B>> {
    match &plan.loras[..] {
        [] => b.run(Linear { x, weights, epilogue }),
        adapters => b.run(Lora { x, norm: None, weights: std::slice::from_ref(weights), epilogue, adapters }),
    }
}
