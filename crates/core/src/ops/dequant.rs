use std::ops::Range;

use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor, Weight};

/// Dequantizes some rows of a weight to `f32`.
#[derive(Debug)]
pub struct Dequant<'a, B: Memory> {
    /// [outputs, inputs]
    pub w: &'a Weight<B>,
    /// Range of outputs.
    pub rows: Range<usize>,
}

impl<B: Memory> Op for Dequant<'_, B> {
    /// [rows, inputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "dequant";

    fn check(&self) -> Result<()> {
        let (c, have) = (Check(Self::NAME), self.w.rows());
        let within = self.rows.start <= self.rows.end && self.rows.end <= have;
        c.that(within, "the rows", format_args!("within 0..{have}"), format_args!("{:?}", self.rows))
    }
}

impl<B: Memory> Required<B> for Dequant<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.rows.len(), self.w.cols())
    }
}
