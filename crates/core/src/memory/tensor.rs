//! [`Tensor`]: a 2-D strided view into device memory.
//!
//! Everything a language model computes on is a matrix: rows are tokens (or weights' outputs, or KV cache pages),
//! columns are features. So a tensor has two dimensions, its columns are contiguous, and a view of some rows or some
//! columns is free. Heads, groups and halves are ranges of columns.

use std::fmt;
use std::ops::Range;

use super::Memory;
use crate::DType;

/// A view of `rows` x `cols` elements in a buffer of backend `B`. Cloning it clones the view, not the memory.
pub struct Tensor<B: Memory> {
    buf: B::Buf,
    dtype: DType,
    rows: usize,
    cols: usize,
    stride: usize,
    offset: usize,
}

impl<B: Memory> Tensor<B> {
    /// A contiguous tensor over a whole buffer. For backends; models get tensors from ops.
    pub fn whole(buf: B::Buf, dtype: DType, rows: usize, cols: usize) -> Tensor<B> {
        Tensor { buf, dtype, rows, cols, stride: cols, offset: 0 }
    }

    /// The same view, with backend `C`'s handle to the buffer.
    pub(crate) fn of<C: Memory>(&self, buf: C::Buf) -> Tensor<C> {
        let Tensor { dtype, rows, cols, stride, offset, .. } = *self;
        Tensor { buf, dtype, rows, cols, stride, offset }
    }

    /// The underlying buffer.
    pub fn buf(&self) -> &B::Buf {
        &self.buf
    }

    /// Element type.
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

    /// Row stride, in elements.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Offset of the first element in the buffer, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True if the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// Bytes of the elements, without gaps.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// A view of a range of columns.
    ///
    /// The range must lie within the tensor; callers compute it from shapes that `check` has verified.
    pub fn col_range(&self, range: Range<usize>) -> Tensor<B> {
        debug_assert!(range.start <= range.end && range.end <= self.cols, "{range:?} of {self:?}");
        Tensor { offset: self.offset + range.start, cols: range.len(), ..self.clone() }
    }

    /// A contiguous [rows, cols] view into this contiguous tensor, starting at element `at`.
    pub fn matrix(&self, at: usize, rows: usize, cols: usize) -> Tensor<B> {
        let fits = self.is_contiguous() && at + rows * cols <= self.len();
        debug_assert!(fits, "{rows} x {cols} at {at} of {self:?}");
        Tensor { offset: self.offset + at, rows, cols, stride: cols, ..self.clone() }
    }

    /// A view of a range of rows.
    pub fn row_range(&self, range: Range<usize>) -> Tensor<B> {
        debug_assert!(range.start <= range.end && range.end <= self.rows, "{range:?} of {self:?}");
        Tensor { offset: self.offset + range.start * self.stride, rows: range.len(), ..self.clone() }
    }
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Memory> Clone for Tensor<B> {
    fn clone(&self) -> Self {
        Tensor { buf: self.buf.clone(), ..*self }
    }
}

impl<B: Memory> fmt::Debug for Tensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, {}]", self.dtype, self.rows, self.cols)?;
        if !self.is_contiguous() {
            write!(f, " stride {}", self.stride)?;
        }
        Ok(())
    }
}
