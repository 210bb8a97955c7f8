use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor};

/// Mode of [`IndexRows`].
#[derive(Debug)]
pub enum IndexMode<'a, B: Memory> {
    /// Row `i` of the result is row `indices[i]` of `x`.
    Gather,
    /// Row `i` of `x` is added to row `indices[i]` of this tensor, which is also the result.
    ScatterAdd(&'a Tensor<B>),
}

/// Row gather or scatter-add by indices on the device. Indices past the end yield rows of zeros, or add nothing.
#[derive(Debug)]
pub struct IndexRows<'a, B: Memory> {
    /// [rows, cols]
    pub x: &'a Tensor<B>,
    /// [1, count]
    pub indices: &'a Tensor<B>,
    /// Gather or scatter-add.
    pub mode: IndexMode<'a, B>,
}

impl<B: Memory> Op for IndexRows<'_, B> {
    /// [count, cols] when gathering, else the tensor added into.
    type Out = Tensor<B>;
    const NAME: &'static str = "index_rows";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        match self.mode {
            IndexMode::Gather => c.ids("indices", self.indices, self.indices.cols()),
            IndexMode::ScatterAdd(into) => {
                c.ids("indices", self.indices, self.x.rows())?;
                c.f32("into", into)?;
                c.cols("into", into, self.x.cols())
            }
        }
    }
}

impl<B: Memory> Required<B> for IndexRows<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        match self.mode {
            IndexMode::Gather => b.alloc(DType::F32, self.indices.cols(), self.x.cols()),
            IndexMode::ScatterAdd(into) => Ok(into.clone()),
        }
    }
}
