use super::{Check, Op, Required};
use crate::{Memory, Result, Tensor};

/// Copies a view into another of the same shape and type.
#[derive(Debug)]
pub struct Copy<'a, B: Memory> {
    /// [rows, cols]
    pub from: &'a Tensor<B>,
    /// [rows, cols]
    pub to: &'a Tensor<B>,
}

impl<B: Memory> Op for Copy<'_, B> {
    type Out = ();
    const NAME: &'static str = "copy";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.shape("the target", self.to, self.from.rows(), self.from.cols())?;
        c.that(self.to.dtype() == self.from.dtype(), "the target's type", self.from.dtype(), self.to.dtype())
    }
}

impl<B: Memory> Required<B> for Copy<'_, B> {
    fn out(&self, _b: &B) -> Result<Self::Out> {
        Ok(())
    }
}
