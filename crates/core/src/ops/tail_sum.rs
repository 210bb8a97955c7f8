use super::{Check, Op, Required, TopKOut};
use crate::{DType, Memory, Result, Tensor};

/// Softmax mass outside the top k: for each row the sum of `exp((x - max) / temperature)` over the elements that
/// [`TopK`](super::TopK) left out, once for each of the row's temperatures.
///
/// Off by at most [`TAIL_SUM_ERROR`] of the sum, and by [`TAIL_ELEMENT_ERROR`] for each element of the row. NaN if the row holds NaN;
/// undefined if its maximum is infinite.
#[derive(Debug)]
pub struct TailSum<'a, B: Memory> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// The top k of `x`: [rows, k] each
    pub top: &'a TopKOut<B>,
    /// [rows, n], from 0.001 to 1000
    pub temperatures: &'a Tensor<B>,
}

/// Bound of the error of a [`TailSum`] relative to it.
pub const TAIL_SUM_ERROR: f64 = 2e-5;
/// Bound of its error for each element beside that: `exp` in `f32` is inexact far below the maximum.
pub const TAIL_ELEMENT_ERROR: f64 = 1e-15;

impl<B: Memory> Op for TailSum<'_, B> {
    /// [rows, n]
    type Out = Tensor<B>;
    const NAME: &'static str = "tail_sum";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        let (rows, cols) = (self.x.rows(), self.x.cols());
        let k = self.top.values.cols();
        c.that((1..=cols).contains(&k), "k", format_args!("1 to {cols}"), k)?;
        c.f32("the top values", &self.top.values)?;
        c.shape("the top values", &self.top.values, rows, k)?;
        c.dtype("the top ids", &self.top.ids, "u32", |d| d == DType::U32)?;
        c.shape("the top ids", &self.top.ids, rows, k)?;
        c.f32("the temperatures", self.temperatures)?;
        c.shape("the temperatures", self.temperatures, rows, self.temperatures.cols())
    }
}

impl<B: Memory> Required<B> for TailSum<'_, B> {
    fn out(&self, b: &B) -> Result<Tensor<B>> {
        b.alloc(DType::F32, self.x.rows(), self.temperatures.cols())
    }
}
