use super::{Check, Op, Required};
use crate::{Activation, DType, Memory, Result, Tensor};

/// Activation: `act(gate) * up`, or `act(gate)` alone. [`Activation::Clamped`] also clamps `up` and adds 1.
#[derive(Debug)]
pub struct Activate<'a, B: Memory> {
    /// [rows, cols]
    pub gate: &'a Tensor<B>,
    /// [rows, cols]
    pub up: Option<&'a Tensor<B>>,
    /// Activation function.
    pub act: Activation,
}

impl<B: Memory> Op for Activate<'_, B> {
    /// [rows, cols]
    type Out = Tensor<B>;
    const NAME: &'static str = "activate";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("gate", self.gate)?;
        let Some(up) = self.up else { return Ok(()) };
        c.f32("up", up)?;
        c.shape("up", up, self.gate.rows(), self.gate.cols())
    }
}

impl<B: Memory> Required<B> for Activate<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.gate.rows(), self.gate.cols())
    }
}
