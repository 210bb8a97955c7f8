use super::{Check, Op};
use crate::{Backend, Result, Tensor};

/// Columns in another order: column `i` of the result is column `at[i]` of `x`. Indices past the end give zeros.
#[derive(Debug)]
pub struct Columns<'a, B: Backend> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// [1, count]
    pub at: &'a Tensor<B>,
}

impl<B: Backend> Op<B> for Columns<'_, B> {
    /// [rows, count]
    type Out = Tensor<B>;
    const NAME: &'static str = "columns";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.ids("at", self.at, self.at.cols())
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        b.columns(self)
    }
}
