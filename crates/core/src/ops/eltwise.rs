use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor};

/// The operation of [`Eltwise`]. `y` broadcasts: one row over all rows of `x`, one column over all columns.
#[derive(Debug)]
pub enum EltwiseOp<'a, B: Memory> {
    /// `x + y`
    Add(&'a Tensor<B>),
    /// `x + scale * y`
    AddScaled(&'a Tensor<B>, f32),
    /// `x * y`
    Mul(&'a Tensor<B>),
    /// `x * scale`
    Scale(f32),
    /// `cap * tanh(x / cap)`
    SoftCap(f32),
    /// `x * sigmoid(y)`
    Gate(&'a Tensor<B>),
}

/// Element-wise op on `x`, with an optional second tensor.
#[derive(Debug)]
pub struct Eltwise<'a, B: Memory> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// The operation.
    pub op: EltwiseOp<'a, B>,
}

impl<'a, B: Memory> Eltwise<'a, B> {
    /// The second operand `y`, if the operation has one.
    pub fn other(&self) -> Option<&'a Tensor<B>> {
        match self.op {
            EltwiseOp::Add(y) | EltwiseOp::AddScaled(y, _) | EltwiseOp::Mul(y) | EltwiseOp::Gate(y) => {
                Some(y)
            }
            EltwiseOp::Scale(_) | EltwiseOp::SoftCap(_) => None,
        }
    }
}

impl<B: Memory> Op for Eltwise<'_, B> {
    /// Like `x`.
    type Out = Tensor<B>;
    const NAME: &'static str = "eltwise";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        let Some(y) = self.other() else { return Ok(()) };
        c.f32("y", y)?;
        let rows = if y.rows() == 1 { 1 } else { self.x.rows() };
        let cols = if y.cols() == 1 { 1 } else { self.x.cols() };
        c.shape("y", y, rows, cols)
    }
}

impl<B: Memory> Required<B> for Eltwise<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.x.rows(), self.x.cols())
    }
}
