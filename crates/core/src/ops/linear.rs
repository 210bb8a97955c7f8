use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{LinearWeight, LinearWeights, Memory, Norm, Result, Tensor};

/// A linear layer: `x · weightᵀ + bias`, then the epilogue.
#[derive(Debug)]
pub struct Linear<'a, B: Memory> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// [outputs, inputs]
    pub weights: &'a LinearWeights<B>,
    /// Applied to the product.
    pub epilogue: Epilogue<'a, B>,
}

/// The input, column order and bias fit the weight.
pub(super) fn check_linear<B: Memory>(c: &Check, layer: &LinearWeights<B>, inputs: usize) -> Result<()> {
    c.that(layer.weight.cols() == inputs, "x", format_args!("{} columns", layer.weight.cols()), inputs)?;
    if let LinearWeight::ActOrder { order, .. } = &layer.weight {
        c.ids("order", order, inputs)?;
    }
    layer.bias.as_ref().map_or(Ok(()), |bias| c.row("bias", bias, layer.weight.rows()))
}

/// Output columns of several linear layers side by side.
pub(super) fn joint_cols<B: Memory>(layers: &[LinearWeights<B>]) -> usize {
    layers.iter().map(|l| l.weight.rows()).sum()
}

impl<B: Memory> Op for Linear<'_, B> {
    /// [rows, outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "linear";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        check_linear(&c, self.weights, self.x.cols())?;
        self.epilogue.check(&c, self.x.rows(), self.weights.weight.rows())
    }
}

/// Several linear layers over one input, their outputs side by side, with an optional norm before them.
#[derive(Debug)]
pub struct LinearMany<'a, B: Memory> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// Norm of `x`.
    pub norm: Option<&'a Norm<B>>,
    /// [outputs, inputs] each
    pub weights: &'a [LinearWeights<B>],
}

impl<B: Memory> LinearMany<'_, B> {
    /// Columns of the result.
    pub fn cols(&self) -> usize {
        joint_cols(self.weights)
    }
}

impl<B: Memory> Op for LinearMany<'_, B> {
    /// [rows, sum of outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "linear_many";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        if let Some(norm) = self.norm {
            c.norm(norm, self.x.cols())?;
        }
        self.weights.iter().try_for_each(|l| check_linear(&c, l, self.x.cols()))
    }
}
