//! The meeting place of models and devices.
//!
//! Models ask for ops through [`Backend::run`]; a device answers. An op is a struct of a few named, borrowed operands;
//! operands are typed views that carry their own geometry; what is constant for a step travels in one [`StepPlan`].
//! A device must write the required methods of [`Backend`] and is then complete: every fused op has a slow, correct
//! default body in [`compose`], which is also the oracle for whoever overrides it.

mod adapter;
mod backend;
pub mod compose;
pub mod conformance;
mod dtype;
mod error;
mod heard;
mod null;
pub mod ops;
mod plan;
mod tensor;
mod trace;
mod weight;

pub use adapter::{Adapted, Adapter, LowRank, Site};
pub use backend::{Backend, Memory, Reading};
pub use dtype::{DType, Elem};
pub use error::{Error, Refusal, Result};
pub use heard::{Ear, Origin};
pub use null::Null;
pub use plan::{LayerKv, LayerState, Span, StateRows, Step, StepPlan};
pub use tallow_quant::Format;
pub use tensor::Tensor;
pub use trace::{Launch, Trace, launch_table};
pub use weight::{
    Activation, AttnSpec, DeltaHeads, Expert, Forgetting, Groups, Heads, HostWeight, Linear, Norm, NormKind,
    QkNorm, Rope, RopePairs, Routing, Scores, ShareOf, Sharing, Spent, Weight,
};
