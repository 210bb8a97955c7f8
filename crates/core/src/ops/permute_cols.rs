use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor};

/// Column permutation (act-order): column `i` of the result is column `indices[i]` of `x`. Indices past the end yield
/// zeros.
#[derive(Debug)]
pub struct PermuteCols<'a, B: Memory> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// [1, count]
    pub indices: &'a Tensor<B>,
}

impl<B: Memory> Op for PermuteCols<'_, B> {
    /// [rows, count]
    type Out = Tensor<B>;
    const NAME: &'static str = "permute_cols";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.ids("indices", self.indices, self.indices.cols())
    }
}

impl<B: Memory> Required<B> for PermuteCols<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.x.rows(), self.indices.cols())
    }
}
