use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Tensor};

/// Epilogue of a product, applied before it is stored: `softcap(scale * y) + residual`.
#[derive(Debug)]
pub struct Epilogue<'a, B: Memory> {
    /// Multiplies the product including the bias.
    pub scale: f32,
    /// `cap * tanh(y / cap)`
    pub softcap: Option<f32>,
    /// [rows, outputs], added last.
    pub residual: Option<&'a Tensor<B>>,
}

impl<'a, B: Memory> Epilogue<'a, B> {
    /// Identity.
    pub const NONE: Epilogue<'a, B> = Epilogue { scale: 1.0, softcap: None, residual: None };

    /// Adds the product to `residual`.
    pub fn add_to(residual: &'a Tensor<B>) -> Epilogue<'a, B> {
        Epilogue { residual: Some(residual), ..Epilogue::NONE }
    }

    /// Calls `then` with the epilogue for columns `range` of the product.
    pub(crate) fn columns<R>(
        &self,
        range: std::ops::Range<usize>,
        then: impl FnOnce(Epilogue<'_, B>) -> R,
    ) -> R {
        let residual = self.residual.map(|r| r.col_range(range));
        then(Epilogue { scale: self.scale, softcap: self.softcap, residual: residual.as_ref() })
    }

    pub(super) fn check(&self, c: &Check, rows: usize, cols: usize) -> Result<()> {
        let Some(residual) = self.residual else { return Ok(()) };
        c.f32("residual", residual)?;
        c.shape("residual", residual, rows, cols)
    }
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Memory> Clone for Epilogue<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Memory> Copy for Epilogue<'_, B> {}

/// `x · weightᵀ + bias` for a dense `weight`, then the epilogue.
#[derive(Debug)]
pub struct Matmul<'a, B: Memory> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// [outputs, inputs], of any float type
    pub weight: &'a Tensor<B>,
    /// [1, outputs]
    pub bias: Option<&'a Tensor<B>>,
    /// Applied to the product.
    pub epilogue: Epilogue<'a, B>,
}

impl<B: Memory> Op for Matmul<'_, B> {
    /// [rows, outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "matmul";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.float("weight", self.weight)?;
        c.cols("x", self.x, self.weight.cols())?;
        if let Some(bias) = self.bias {
            c.row("bias", bias, self.weight.rows())?;
        }
        self.epilogue.check(&c, self.x.rows(), self.weight.rows())
    }
}

impl<B: Memory> Required<B> for Matmul<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.x.rows(), self.weight.rows())
    }
}
