//! The dense feed-forward block (FFN).

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Activation, Backend, LinearWeights, Norm, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::FfnSpec;
use crate::weights::Weights;

/// `down(act(up(x)))`, or gated (GLU) `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
pub struct Mlp<B: Backend> {
    up: Vec<LinearWeights<B>>,
    act: Activation,
    down: LinearWeights<B>,
}

/// Slots of an FFN's tensors.
#[derive(Debug, Clone, Copy)]
pub struct MlpSlots {
    /// Gate, if it is gated.
    pub gate: Slot,
    /// Up.
    pub up: Slot,
    /// Gate and up fused, if files may have them so.
    pub gate_up: Option<Slot>,
    /// Down.
    pub down: Slot,
}

impl MlpSlots {
    /// Slots of a layer's dense FFN.
    pub const DENSE: MlpSlots = MlpSlots {
        gate: Slot::FfnGate,
        up: Slot::FfnUp,
        gate_up: Some(Slot::FfnGateUp),
        down: Slot::FfnDown,
    };

    /// Slots of a shared expert.
    pub const SHARED: MlpSlots =
        MlpSlots { gate: Slot::FfnGateShexp, up: Slot::FfnUpShexp, gate_up: None, down: Slot::FfnDownShexp };
}

impl<B: Backend> Mlp<B> {
    /// Loads layer `i`'s FFN.
    pub fn load(w: &mut Weights<'_, B>, i: usize, slots: MlpSlots, spec: &FfnSpec) -> LoadResult<Mlp<B>> {
        let (MlpSlots { gate, up, gate_up, down }, dim) = (slots, w.spec().dim);
        let gate_up = gate_up.filter(|slot| w.names().has(*slot));
        let mut linear = |slot, rows, cols| w.linear((slot, i), rows, cols, spec.bias);
        let up = match (spec.gated, gate_up) {
            (false, _) => vec![linear(up, spec.width, dim)?],
            (true, None) => vec![linear(gate, spec.width, dim)?, linear(up, spec.width, dim)?],
            (true, Some(gate_up)) => vec![linear(gate_up, 2 * spec.width, dim)?],
        };
        Ok(Mlp::new(up, spec.act, linear(down, dim, spec.width)?))
    }

    /// `up`: gate and up, fused or not; up alone if it is ungated.
    pub(crate) fn new(up: Vec<LinearWeights<B>>, act: Activation, down: LinearWeights<B>) -> Mlp<B> {
        Mlp { up, act, down }
    }

    /// `epilogue(block(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let adapters = &cx.plan.loras[..];
        cx.b.run(Ffn { x, norm, up: &self.up, act: self.act, down: &self.down, epilogue, adapters })
    }
}
