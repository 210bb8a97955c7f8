//! [`Memory`]: a device's memory, and the [`Tensor`]s in it.

mod tensor;

use std::fmt;

use crate::{DType, Elem, Error, Result};
pub use tensor::Tensor;

/// The memory of a device: what tensors, weights and ops need to know of their [`Backend`](crate::Backend).
pub trait Memory: Sized + fmt::Debug + 'static {
    /// A handle to device memory, freed (or reused) when the last clone is dropped.
    type Buf: Clone + fmt::Debug;

    /// Elements on their way to the host: what [`fetch`](Memory::fetch) asked for and [`wait`](Memory::wait) hands over.
    /// Dropping it gives them up.
    type Pending: fmt::Debug;

    /// Allocates a tensor, uninitialised.
    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>>;

    /// Copies `bytes` from the host into a contiguous tensor.
    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()>;

    /// Asks for tensors' elements, as the ops launched so far leave them; returns without waiting for those. Nothing may
    /// write to the tensors before [`wait`](Memory::wait). All outputs of a step are asked for in one call: with separate
    /// device memory a transfer costs a round trip, however small it is.
    fn fetch(&self, from: &[&Tensor<Self>]) -> Result<Self::Pending>;

    /// Waits for what was asked for, and copies it row by row: to each tensor its room, of exactly its bytes.
    fn wait(&self, pending: Self::Pending, to: &mut [&mut [u8]]) -> Result<()>;

    /// Sets every element of a contiguous tensor to zero. By default it uploads zeros.
    fn zero(&self, t: &Tensor<Self>) -> Result<()> {
        self.write(t, &vec![0; t.bytes()])
    }

    // ---- provided: transfers that wait -----------------------------------------------------------------------

    /// Copies tensors' elements to the host, row by row, waiting for the ops that compute them.
    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()> {
        wanted.iter().try_for_each(Reading::check)?;
        let pending = self.fetch(&wanted.iter().map(|reading| reading.from).collect::<Vec<_>>())?;
        let mut to: Vec<&mut [u8]> = wanted.iter_mut().map(|reading| &mut *reading.to).collect();
        self.wait(pending, &mut to)
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

impl<'a, B: Memory> Reading<'a, B> {
    /// The tensors that were asked for with the room for each. Fails unless there is one of its size for each.
    pub fn pairs(from: &'a [Tensor<B>], to: &'a mut [&mut [u8]]) -> Result<Vec<Reading<'a, B>>> {
        if from.len() != to.len() {
            let (want, got) = (format!("{} places", from.len()), to.len().to_string());
            return Err(Error::Shape { op: "read", what: "the room", want, got });
        }
        let pairs: Vec<_> = from.iter().zip(to).map(|(from, to)| Reading { from, to }).collect();
        pairs.iter().try_for_each(Reading::check)?;
        Ok(pairs)
    }

    /// Checks that the destination has the size of the source.
    pub fn check(&self) -> Result<()> {
        if self.from.bytes() == self.to.len() {
            return Ok(());
        }
        let (want, got) = (format!("{} bytes", self.from.bytes()), format!("{} bytes", self.to.len()));
        Err(Error::Shape { op: "read", what: "the room", want, got })
    }
}
