//! The blocks that every family is made of. A forward is written here once, and nowhere else.

pub mod attention;
pub mod latent;
pub mod layer;
pub mod mixture;
pub mod mlp;
pub mod rope;
pub mod side;

use tallow_core::{Backend, LayerKv, Rope, StepPlan, Tensor};

/// What a layer's forward needs besides its input.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    /// The device.
    pub b: &'a B,
    /// The step.
    pub plan: &'a StepPlan<B>,
    /// The layer's part of the cache.
    pub kv: LayerKv<'a, B>,
    /// The decoder's rotary embeddings.
    pub ropes: &'a [Rope<B>],
    /// What the layer gets of its own, if it gets anything: [tokens, width]
    pub side: Option<Tensor<B>>,
}
