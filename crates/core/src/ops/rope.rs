use super::{Check, Op, Required};
use crate::{DType, Memory, Result, RopeTable, Tensor};

/// RoPE: rotates pairs of elements of each head by the angles of the row's position.
#[derive(Debug)]
pub struct Rope<'a, B: Memory> {
    /// [rows, heads * dim]
    pub x: &'a Tensor<B>,
    /// Elements of a head; those past the table's width are not rotated.
    pub head_dim: usize,
    /// Cosines and sines, and how elements are paired.
    pub rope: &'a RopeTable<B>,
    /// [1, rows], each less than the table's rows
    pub positions: &'a Tensor<B>,
}

impl<B: Memory> Op for Rope<'_, B> {
    /// Like `x`.
    type Out = Tensor<B>;
    const NAME: &'static str = "rope";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.f32("the table", &self.rope.table)?;
        let (width, dim) = (self.rope.table.cols(), self.head_dim);
        c.that(
            width <= dim && width.is_multiple_of(2),
            "the table's width",
            format_args!("even, at most {dim}"),
            width,
        )?;
        let whole = dim > 0 && self.x.cols().is_multiple_of(dim);
        c.that(whole, "x", format_args!("columns a multiple of {dim}"), self.x.cols())?;
        c.ids("positions", self.positions, self.x.rows())
    }
}

impl<B: Memory> Required<B> for Rope<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.x.rows(), self.x.cols())
    }
}
