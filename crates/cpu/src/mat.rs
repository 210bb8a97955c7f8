//! [`Mat`] and [`MatMut`]: views of a tensor's elements that kernels use on any thread.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use tallow_core::{Backend, Tensor};

use crate::memory::Buf;

/// Read-only view of a tensor's rows.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, T> {
    start: *const T,
    pub rows: usize,
    pub cols: usize,
    stride: usize,
    of: PhantomData<&'a T>,
}

// SAFETY: it only reads plain data that nobody writes while it exists (see `Mat::new`).
unsafe impl<T: Sync> Send for Mat<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mat<'_, T> {}

impl<'a, T: bytemuck::Pod> Mat<'a, T> {
    /// A view of `t`, whose elements are `T`s: ops have been checked.
    ///
    /// Ops write only into tensors they have just allocated, or into the KV cache, whose pages no other operand
    /// shares. So what a `Mat` reads does not change while the op runs.
    pub(crate) fn new<B: Backend<Buf = Buf>>(t: &'a Tensor<B>) -> Mat<'a, T> {
        debug_assert_eq!(t.dtype().size(), size_of::<T>());
        let last = t.rows().saturating_sub(1) * t.stride() + t.cols();
        debug_assert!(t.is_empty() || (t.offset() + last) * size_of::<T>() <= t.buf().len(), "{t:?}");
        // SAFETY: the view lies within its buffer.
        let start = unsafe { t.buf().start().cast::<T>().add(t.offset()) };
        Mat { start, rows: t.rows(), cols: t.cols(), stride: t.stride(), of: PhantomData }
    }

    /// A view whose rows are `more` elements longer, reaching into the next one. The buffer has as many after the
    /// last row, too.
    pub(crate) fn and_past<B: Backend<Buf = Buf>>(t: &'a Tensor<B>, more: usize) -> Mat<'a, T> {
        let m = Mat::new(t);
        let last = m.rows.saturating_sub(1) * m.stride + m.cols + more;
        assert!(more == 0 || (t.offset() + last) * size_of::<T>() <= t.buf().len(), "{t:?} and {more} more");
        Mat { cols: m.cols + more, ..m }
    }

    /// A view of `rows` rows without columns.
    pub(crate) fn without_columns(rows: usize) -> Mat<'a, T> {
        Mat { start: NonNull::dangling().as_ptr(), rows, cols: 0, stride: 0, of: PhantomData }
    }

    /// Elements from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Some of the rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Mat<'a, T> {
        debug_assert!(rows.end <= self.rows);
        // SAFETY: the rows lie within the view (where there are none, the address is not used).
        let start = unsafe { self.start.add(rows.start * self.stride) };
        Mat { start, rows: rows.len(), ..*self }
    }

    /// Some of the columns.
    pub(crate) fn columns(&self, cols: Range<usize>) -> Mat<'a, T> {
        debug_assert!(cols.end <= self.cols);
        // SAFETY: the columns lie within the view.
        let start = unsafe { self.start.add(cols.start) };
        Mat { start, cols: cols.len(), ..*self }
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [T] {
        debug_assert!(r < self.rows);
        // SAFETY: row `r` lies within the view, which lies within its buffer.
        unsafe { std::slice::from_raw_parts(self.start.add(r * self.stride), self.cols) }
    }
}

/// Writable view of a tensor, filled by several threads, each its own part.
pub(crate) struct MatMut<'a, T> {
    start: *mut T,
    pub rows: usize,
    pub cols: usize,
    stride: usize,
    of: PhantomData<&'a T>,
}

// SAFETY: who asks for a part guarantees that nobody else has it (see `MatMut::part`).
unsafe impl<T: Send> Send for MatMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for MatMut<'_, T> {}

impl<'a, T: bytemuck::Pod> MatMut<'a, T> {
    /// A view of `t`, whose elements are `T`s and which the op may write.
    pub(crate) fn new<B: Backend<Buf = Buf>>(t: &'a Tensor<B>) -> MatMut<'a, T> {
        let m = Mat::<T>::new(t);
        MatMut { start: m.start.cast_mut(), rows: m.rows, cols: m.cols, stride: m.stride, of: PhantomData }
    }

    /// Some of the columns; the caller writes no others.
    pub(crate) fn columns(&self, cols: Range<usize>) -> MatMut<'a, T> {
        debug_assert!(cols.end <= self.cols);
        // SAFETY: the columns lie within the view.
        let start = unsafe { self.start.add(cols.start) };
        MatMut { start, cols: cols.len(), ..*self }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    ///
    /// Nobody else may hold any of these elements while the slice lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "threads fill parts of one matrix; the contract keeps them apart")]
    pub(crate) unsafe fn part(&self, r: usize, cols: Range<usize>) -> &'a mut [T] {
        debug_assert!(r < self.rows && cols.end <= self.cols);
        // SAFETY: the part lies within the view, and the caller guarantees that nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(r * self.stride + cols.start), cols.len()) }
    }

    /// A whole row, under the contract of [`part`](MatMut::part).
    ///
    /// # Safety
    ///
    /// Nobody else may hold any element of the row while the slice lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "as for `part`")]
    pub(crate) unsafe fn row(&self, r: usize) -> &'a mut [T] {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.part(r, 0..self.cols) }
    }

    /// Sets one element.
    ///
    /// # Safety
    ///
    /// Nobody else may use the element meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, r: usize, c: usize, x: T) {
        debug_assert!(r < self.rows && c < self.cols);
        // SAFETY: the element lies within the view, and the caller guarantees that nobody else uses it.
        unsafe { self.start.add(r * self.stride + c).write(x) }
    }
}
