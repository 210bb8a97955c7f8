//! The blocks that every family is made of. A forward is written here once, and nowhere else.

pub mod across;
pub mod attention;
pub mod borrowed;
pub mod cache;
pub mod delta;
mod distance;
pub mod latent;
pub mod layer;
pub mod mixture;
pub mod mlp;
pub mod rope;
pub mod side;
pub mod twofold;

use tallow_core::{Backend, LayerKv, Rope, StepPlan, Tensor};

use cache::LayerCache;

/// What a layer has made of what an encoder gave.
#[derive(Debug)]
pub struct Given<'a, B: Backend> {
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
    pub ropes: &'a [Rope<B>],
    /// What an encoder gave, if there is one.
    pub across: Option<Given<'a, B>>,
    /// What the layer gets of its own, if it gets anything: [tokens, width]
    pub side: Option<Tensor<B>>,
}
