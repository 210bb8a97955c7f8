//! [`Memory`]: a device's memory, and the [`Tensor`]s in it.

mod tensor;

use std::fmt;

use crate::{DType, Elem, Error, Result};
pub use tensor::Tensor;

/// The memory of a device: what tensors, weights and ops need to know of their [`Backend`](crate::Backend).
pub trait Memory: Sized + fmt::Debug + 'static {
    /// A handle to device memory, freed (or reused) when the last clone is dropped.
    type Buf: Clone + fmt::Debug;

    /// Allocates a tensor, uninitialised.
    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>>;

    /// Copies `bytes` from the host into a contiguous tensor.
    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()>;

    /// Copies tensors' elements to the host, row by row, waiting for the ops that compute them. All outputs of a step
    /// are read in one call: with separate device memory a read costs a round trip, however small it is.
    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()>;

    /// Sets every element of a contiguous tensor to zero. By default it uploads zeros.
    fn zero(&self, t: &Tensor<Self>) -> Result<()> {
        self.write(t, &vec![0; t.bytes()])
    }

    // ---- provided: typed transfers ---------------------------------------------------------------------------

    /// Uploads `data` as a [rows, cols] tensor.
    fn upload<T: Elem>(&self, data: &[T], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        if rows.checked_mul(cols) != Some(data.len()) {
            let (want, got) = (format!("{rows} x {cols} elements"), data.len().to_string());
            return Err(Error::Shape { op: "upload", what: "data", want, got });
        }
        let t = self.alloc(T::DTYPE, rows, cols)?;
        self.write(&t, bytemuck::cast_slice(data))?;
        Ok(t)
    }

    /// Uploads `data` as a [1, len] tensor.
    fn upload_row<T: Elem>(&self, data: &[T]) -> Result<Tensor<Self>> {
        self.upload(data, 1, data.len())
    }

    /// Downloads a tensor's elements, row by row.
    fn download<T: Elem>(&self, t: &Tensor<Self>) -> Result<Vec<T>> {
        if t.dtype() != T::DTYPE {
            let (what, want) = ("the tensor's elements", T::DTYPE.name());
            return Err(Error::Type { op: "download", what, want, got: t.dtype() });
        }
        let mut data = vec![T::zeroed(); t.len()];
        self.read(&mut [Reading { from: t, to: bytemuck::cast_slice_mut(&mut data) }])?;
        Ok(data)
    }

    /// Allocates a tensor of zeros.
    fn zeros(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        let t = self.alloc(dtype, rows, cols)?;
        self.zero(&t)?;
        Ok(t)
    }
}

/// A read request: a tensor and the host buffer that receives its elements, row by row.
#[derive(Debug)]
pub struct Reading<'a, B: Memory> {
    /// Source.
    pub from: &'a Tensor<B>,
    /// Destination, of exactly `from.bytes()` bytes.
    pub to: &'a mut [u8],
}

impl<B: Memory> Reading<'_, B> {
    /// Checks that the destination has the size of the source.
    pub fn check(&self) -> Result<()> {
        if self.from.bytes() == self.to.len() {
            return Ok(());
        }
        let (want, got) = (format!("{} bytes", self.from.bytes()), format!("{} bytes", self.to.len()));
        Err(Error::Shape { op: "read", what: "the room", want, got })
    }
}
