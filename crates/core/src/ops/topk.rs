use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor};

/// Top-k: the `k` largest elements of each row, largest first; ties go to the lower column. NaN ranks smallest.
#[derive(Debug)]
pub struct TopK<'a, B: Memory> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// At least 1, at most `cols`.
    pub k: usize,
}

/// Result of [`TopK`].
#[derive(Debug)]
pub struct TopKOut<B: Memory> {
    /// [rows, k]
    pub values: Tensor<B>,
    /// [rows, k]: their columns
    pub ids: Tensor<B>,
}

impl<B: Memory> Op for TopK<'_, B> {
    type Out = TopKOut<B>;
    const NAME: &'static str = "topk";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        let most = self.x.cols();
        c.that((1..=most).contains(&self.k), "k", format_args!("1 to {most}"), self.k)
    }
}

impl<B: Memory> Required<B> for TopK<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        let values = b.alloc(DType::F32, self.x.rows(), self.k)?;
        Ok(TopKOut { values, ids: b.alloc(DType::U32, self.x.rows(), self.k)? })
    }
}
