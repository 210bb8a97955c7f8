use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{Backend, Linear, Norm, Result, Tensor, compose, heard};

/// A linear layer: `x · weightᵀ + bias`, then the epilogue.
#[derive(Debug)]
pub struct Project<'a, B: Backend> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// [outputs, inputs]
    pub by: &'a Linear<B>,
    /// What happens next.
    pub then: Epilogue<'a, B>,
}

/// The input and the bias fit the weight.
pub(super) fn check_linear<B: Backend>(c: &Check, by: &Linear<B>, inputs: usize) -> Result<()> {
    c.that(by.weight.cols() == inputs, "x", format_args!("{} columns", by.weight.cols()), inputs)?;
    by.order.as_ref().map_or(Ok(()), |order| c.ids("the order", order, inputs))?;
    by.bias.as_ref().map_or(Ok(()), |bias| c.row("bias", bias, by.weight.rows()))
}

/// Columns that several linear layers give side by side.
pub(super) fn joint_cols<B: Backend>(by: &[Linear<B>]) -> usize {
    by.iter().map(|l| l.weight.rows()).sum()
}

impl<B: Backend> Op<B> for Project<'_, B> {
    /// [rows, outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "project";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        check_linear(&c, self.by, self.x.cols())?;
        self.then.check(&c, self.x.rows(), self.by.weight.rows())
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        heard::hear(b, self.x, self.by)?;
        match &self.by.order {
            Some(at) => compose::project_shuffled(b, self, at),
            None => b.project(self),
        }
    }
}

/// Several linear layers over one input, their outputs side by side. The input is normalised first if `norm` is there.
#[derive(Debug)]
pub struct ProjectMany<'a, B: Backend> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// Of `x`.
    pub norm: Option<&'a Norm<B>>,
    /// [outputs, inputs] each
    pub by: &'a [Linear<B>],
}

impl<B: Backend> ProjectMany<'_, B> {
    /// Columns of the result.
    pub fn cols(&self) -> usize {
        joint_cols(self.by)
    }
}

impl<B: Backend> Op<B> for ProjectMany<'_, B> {
    /// [rows, sum of outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "project_many";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        if let Some(norm) = self.norm {
            c.norm(norm, self.x.cols())?;
        }
        self.by.iter().try_for_each(|l| check_linear(&c, l, self.x.cols()))
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        match b.trace().is_heard() || Linear::shuffled(self.by) {
            true => compose::project_many(b, self),
            false => b.project_many(self),
        }
    }
}
