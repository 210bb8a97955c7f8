use super::matmul::Epilogue;
use super::project::check_linear;
use super::{Check, Op};
use crate::{Backend, Linear, Norm, Result, Tensor, compose};

/// The logits of some rows.
#[derive(Debug)]
pub struct Head<'a, B: Backend> {
    /// [tokens, dim]
    pub x: &'a Tensor<B>,
    /// [1, outputs]: which rows
    pub rows: &'a Tensor<B>,
    /// Of those rows.
    pub norm: &'a Norm<B>,
    /// [vocabulary, dim]
    pub by: &'a Linear<B>,
    /// Scaling and capping of logits.
    pub then: Epilogue<'a, B>,
}

impl<B: Backend> Op<B> for Head<'_, B> {
    /// [outputs, vocabulary]
    type Out = Tensor<B>;
    const NAME: &'static str = "head";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.ids("rows", self.rows, self.rows.cols())?;
        c.norm(self.norm, self.x.cols())?;
        check_linear(&c, self.by, self.x.cols())?;
        self.then.check(&c, self.rows.cols(), self.by.weight.rows())
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        match b.trace().is_heard() || Linear::shuffled([self.by]) {
            true => compose::head(b, self),
            false => b.head(self),
        }
    }
}
