use super::linear::check_linear;
use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{LinearWeights, Memory, Norm, Result, Tensor};

/// LM head: norm and logits of some rows.
#[derive(Debug)]
pub struct Head<'a, B: Memory> {
    /// [tokens, dim]
    pub x: &'a Tensor<B>,
    /// [1, outputs]: rows of `x` whose logits are computed
    pub rows: &'a Tensor<B>,
    /// Final norm.
    pub norm: &'a Norm<B>,
    /// [vocabulary, dim]
    pub weights: &'a LinearWeights<B>,
    /// Scale and softcap of the logits.
    pub epilogue: Epilogue<'a, B>,
}

impl<B: Memory> Op for Head<'_, B> {
    /// [outputs, vocabulary]
    type Out = Tensor<B>;
    const NAME: &'static str = "head";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.ids("rows", self.rows, self.rows.cols())?;
        c.norm(self.norm, self.x.cols())?;
        check_linear(&c, self.weights, self.x.cols())?;
        self.epilogue.check(&c, self.rows.cols(), self.weights.weight.rows())
    }
}
