//! The [`Backend`] trait and its ops: the interface between models and devices.
//!
//! Models launch ops through [`Backend::run`]. An op is a struct of a few named, borrowed operands; operands are typed
//! views that carry their own shape and stride; everything constant for a step is in one [`StepPlan`]. A device that
//! implements the required methods of [`Backend`] is complete: every fused op has a slow, correct default body in
//! [`compose`], which is also the oracle that overrides are tested against.

mod arithmetic;
mod backend;
pub mod conformance;
mod dtype;
mod error;
mod lora;
mod memory;
mod null;
mod observe;
mod op_times;
pub mod ops;
mod page_table;
mod plan;
mod trace;
mod weight;

pub use arithmetic::Arithmetic;
pub use backend::{Backend, Dispatch, Replay, compose};
pub use dtype::{DType, Elem};
pub use error::{Error, Refusal, Result};
pub use lora::{Adapter, LoraPair, LoraRows};
pub use memory::{Memory, Reading, Tensor};
pub use null::Null;
pub use observe::{Observed, Observer};
pub use op_times::OpTimes;
pub use page_table::PageTable;
pub use plan::{DecodePlan, DecodeRoom, LayerKv, LayerState, Scratch, Span, StateRows, Step, StepPlan};
pub use tallow_quant::Format;
pub use trace::{Launch, Trace, launch_table};
pub use weight::{
    Activation, AttnSpec, Decay, DeltaHeads, Expert, Groups, Heads, HostWeight, LinearWeight, LinearWeights,
    LoraTarget, Norm, NormKind, QkNorm, ReleaseRows, RopePairs, RopeTable, Routing, RoutingWeightOn, Scores,
    Sharing, Stack, TensorId, Weight,
};
