use super::{Check, Op, Required};
use crate::{DType, Memory, Norm, Result, Tensor};

/// RMSNorm or LayerNorm of each group of columns of each row, plus `residual` if there is one.
#[derive(Debug)]
pub struct Normalize<'a, B: Memory> {
    /// [rows, groups * width]
    pub x: &'a Tensor<B>,
    /// Kind, weight and epsilon; a group is as wide as the weight.
    pub norm: &'a Norm<B>,
    /// [rows, groups * width]
    pub residual: Option<&'a Tensor<B>>,
}

impl<B: Memory> Op for Normalize<'_, B> {
    /// Like `x`.
    type Out = Tensor<B>;
    const NAME: &'static str = "normalize";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.norm(self.norm, self.x.cols())?;
        let Some(residual) = self.residual else { return Ok(()) };
        c.f32("residual", residual)?;
        c.shape("residual", residual, self.x.rows(), self.x.cols())
    }
}

impl<B: Memory> Required<B> for Normalize<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.x.rows(), self.x.cols())
    }
}
