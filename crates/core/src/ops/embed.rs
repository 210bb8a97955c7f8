use super::{Check, Op};
use crate::{Backend, Result, Tensor, Weight};

/// Embedding lookup: rows of a table as `f32`, scaled.
#[derive(Debug)]
pub struct Embed<'a, B: Backend> {
    /// [vocabulary, dim]. Ids past the end yield rows of zeros.
    pub table: &'a Weight<B>,
    /// [1, tokens]
    pub ids: &'a Tensor<B>,
    /// Multiplies every element.
    pub scale: f32,
}

impl<B: Backend> Op<B> for Embed<'_, B> {
    /// [tokens, dim]
    type Out = Tensor<B>;
    const NAME: &'static str = "embed";

    fn check(&self) -> Result<()> {
        Check(Self::NAME).ids("ids", self.ids, self.ids.cols())
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        b.embed(self)
    }
}
