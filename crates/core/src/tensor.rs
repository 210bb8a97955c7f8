//! [`Tensor`]: a matrix view into device memory that carries its own geometry.
//!
//! Everything a language model computes on is a matrix: rows are tokens (or weights' outputs, or cache pages), columns
//! are features. So a tensor has two dimensions, its columns lie side by side, and a view of some rows or some columns
//! costs nothing. Heads, groups and halves are ranges of columns.

use std::fmt;
use std::ops::Range;

use crate::{Backend, DType};

/// A view of `rows` x `cols` elements in a buffer of backend `B`. Cloning it clones the view, not the memory.
pub struct Tensor<B: Backend> {
    buf: B::Buf,
    dtype: DType,
    rows: usize,
    cols: usize,
    stride: usize,
    offset: usize,
}

impl<B: Backend> Tensor<B> {
    /// The whole of a fresh buffer. For backends: models get tensors from ops.
    pub fn whole(buf: B::Buf, dtype: DType, rows: usize, cols: usize) -> Tensor<B> {
        Tensor { buf, dtype, rows, cols, stride: cols, offset: 0 }
    }

    /// The memory behind the view.
    pub fn buf(&self) -> &B::Buf {
        &self.buf
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from the start of one row to the start of the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Elements from the start of the buffer to the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Has it no elements?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Do its rows follow each other without a gap?
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// A view of some columns of every row.
    ///
    /// The range must lie within the tensor: the caller computes it from shapes that `check` has verified.
    pub fn col_range(&self, range: Range<usize>) -> Tensor<B> {
        debug_assert!(range.start <= range.end && range.end <= self.cols, "{range:?} of {self:?}");
        Tensor { offset: self.offset + range.start, cols: range.len(), ..self.clone() }
    }

    /// The matrix that lies, row after row, in this tensor of one row, from column `at` on.
    pub fn matrix(&self, at: usize, rows: usize, cols: usize) -> Tensor<B> {
        debug_assert!(self.rows == 1 && at + rows * cols <= self.cols, "{rows} x {cols} at {at} of {self:?}");
        Tensor { offset: self.offset + at, rows, cols, stride: cols, ..self.clone() }
    }

    /// A view of some rows.
    pub fn row_range(&self, range: Range<usize>) -> Tensor<B> {
        debug_assert!(range.start <= range.end && range.end <= self.rows, "{range:?} of {self:?}");
        Tensor { offset: self.offset + range.start * self.stride, rows: range.len(), ..self.clone() }
    }
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Backend> Clone for Tensor<B> {
    fn clone(&self) -> Self {
        Tensor { buf: self.buf.clone(), ..*self }
    }
}

impl<B: Backend> fmt::Debug for Tensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, {}]", self.dtype, self.rows, self.cols)?;
        if !self.is_contiguous() {
            write!(f, " stride {}", self.stride)?;
        }
        Ok(())
    }
}
