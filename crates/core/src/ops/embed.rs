use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor, Weight};

/// Embedding lookup: rows of a table as `f32`, scaled.
#[derive(Debug)]
pub struct Embed<'a, B: Memory> {
    /// [vocabulary, dim]. Ids past the end yield rows of zeros.
    pub table: &'a Weight<B>,
    /// [1, tokens]
    pub ids: &'a Tensor<B>,
    /// Multiplies every element.
    pub scale: f32,
}

impl<B: Memory> Op for Embed<'_, B> {
    /// [tokens, dim]
    type Out = Tensor<B>;
    const NAME: &'static str = "embed";

    fn check(&self) -> Result<()> {
        Check(Self::NAME).ids("ids", self.ids, self.ids.cols())
    }
}

impl<B: Memory> Required<B> for Embed<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.ids.cols(), self.table.cols())
    }
}
