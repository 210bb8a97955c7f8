use super::{Check, Op};
use crate::{Backend, Result, Tensor};

/// What [`Eltwise`] does to each element. A tensor of one row serves every row of `x`, one of one column every
/// column.
#[derive(Debug)]
pub enum EltwiseOp<'a, B: Backend> {
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

/// A tensor with something done to each element.
#[derive(Debug)]
pub struct Eltwise<'a, B: Backend> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// What is done.
    pub op: EltwiseOp<'a, B>,
}

impl<'a, B: Backend> Eltwise<'a, B> {
    /// The other tensor, if there is one.
    pub fn other(&self) -> Option<&'a Tensor<B>> {
        match self.op {
            EltwiseOp::Add(y) | EltwiseOp::AddScaled(y, _) | EltwiseOp::Mul(y) | EltwiseOp::Gate(y) => {
                Some(y)
            }
            EltwiseOp::Scale(_) | EltwiseOp::SoftCap(_) => None,
        }
    }
}

impl<B: Backend> Op<B> for Eltwise<'_, B> {
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

    fn launch(&self, b: &B) -> Result<Self::Out> {
        b.eltwise(self)
    }
}
