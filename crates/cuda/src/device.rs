//! [`Cuda`]: the device and its memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use tallow_core::{Arithmetic, DType, Error, Memory, Reading, Result, Tensor, Trace};

use crate::args::Args;
use crate::gpu::{Block, Counts, Device, Found, Gpu, Transfer};

/// Counters of CTAs.
pub(crate) const ARRIVALS: usize = 128;

/// An NVIDIA GPU as a backend.
pub struct Cuda {
    pub(crate) gpu: Rc<Gpu>,
    /// Zeros, in which the CTAs of a launch count themselves, and which the last of them leaves zero.
    pub(crate) arrivals: Tensor<Cuda>,
    pub(crate) tables: Tables,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) trace: Trace,
}

/// Tables of deltas on the device, by their bytes. Steps with the same adapters for the same rows find them there, and
/// write nothing. Since its bytes are all that a table is, one whose adapter is gone is of no use but does no harm.
#[derive(Clone, Default)]
pub(crate) struct Tables(Rc<RefCell<HashMap<Vec<u8>, Tensor<Cuda>>>>);

impl Tables {
    /// Tables that are kept, at most: a few hundred are a model's.
    const MOST: usize = 1024;

    pub(crate) fn of(&self, b: &Cuda, bytes: &[u8]) -> Result<Tensor<Cuda>> {
        if let Some(table) = self.0.borrow().get(bytes) {
            return Ok(table.clone());
        }
        let table = b.alloc(DType::U8, 1, bytes.len())?;
        b.write(&table, bytes)?;
        let mut kept = self.0.borrow_mut();
        if kept.len() >= Tables::MOST {
            kept.clear();
        }
        kept.insert(bytes.to_vec(), table.clone());
        Ok(table)
    }
}

/// Shares the device, its memory and its kernels, but has a trace of its own.
impl Clone for Cuda {
    fn clone(&self) -> Cuda {
        let (gpu, arrivals, tables) = (self.gpu.clone(), self.arrivals.clone(), self.tables.clone());
        Cuda { gpu, arrivals, tables, arithmetic: self.arithmetic, trace: Trace::default() }
    }
}

/// A tensor's memory.
#[derive(Clone, Debug)]
pub struct Buf(Block);

/// Tensors whose elements are on their way to the host.
#[derive(Debug)]
pub struct Pending {
    tensors: Vec<Tensor<Cuda>>,
    transfer: Transfer,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about().to_string())
    }
}

impl Cuda {
    /// Opens a device.
    pub fn open(found: &Found) -> Result<Cuda> {
        found.check()?;
        let gpu = Rc::new(Gpu::open(found)?);
        let arrivals = gpu.alloc((ARRIVALS * DType::U32.size()) as u64)?;
        gpu.clear(arrivals.address(), ARRIVALS * DType::U32.size())?;
        let arrivals = Tensor::whole(Buf(arrivals), DType::U32, 1, ARRIVALS);
        let (tables, arithmetic) = (Tables::default(), Arithmetic::Fast);
        Ok(Cuda { gpu, arrivals, tables, arithmetic, trace: Trace::default() })
    }

    /// The same device with linear layers computed in `arithmetic`. In [`Arithmetic::Fast`] a quantized weight is multiplied with
    /// input that is rounded to 8 bits, as on a CPU and with the same result, bit for bit; other weights with the input as it is.
    pub fn with(self, arithmetic: Arithmetic) -> Cuda {
        Cuda { arithmetic, ..self }
    }

    /// Name, driver and memory of the device.
    pub fn about(&self) -> &Device {
        self.gpu.about()
    }

    /// Total and free bytes of device memory. What this backend keeps for the next step is not free.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.gpu.memory()
    }

    /// Counts of launches and reads so far.
    pub fn counts(&self) -> Counts {
        self.gpu.counts()
    }

    /// An `f32` tensor for the result of an op.
    pub(crate) fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        self.alloc(DType::F32, rows, cols)
    }

    /// The address of a view's first element.
    pub(crate) fn address(t: &Tensor<Cuda>) -> u64 {
        t.buf().0.address() + (t.offset() * t.dtype().size()) as u64
    }

    /// A view's first byte, and the bytes from there to the end of its last element: those between rows among them.
    pub(crate) fn extent(t: &Tensor<Cuda>) -> (u64, usize) {
        let elements = match t.is_empty() {
            true => 0,
            false => (t.rows() - 1) * t.stride() + t.cols(),
        };
        (Cuda::address(t), elements * t.dtype().size())
    }

    /// True if bytes of one view may be bytes of the other.
    pub(crate) fn overlap(a: &Tensor<Cuda>, b: &Tensor<Cuda>) -> bool {
        let ((a, a_bytes), (b, b_bytes)) = (Cuda::extent(a), Cuda::extent(b));
        a < b + b_bytes as u64 && b < a + a_bytes as u64
    }
}

impl Memory for Cuda {
    type Buf = Buf;
    type Pending = Pending;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.size()));
        // Kernels count rows and columns with 32 bits.
        let fits = [rows, cols].iter().all(|n| u32::try_from(*n).is_ok());
        let bytes = bytes.filter(|_| fits).ok_or_else(|| self.gpu.out_of_memory(usize::MAX))?;
        Ok(Tensor::whole(Buf(self.gpu.alloc(bytes as u64)?), dtype, rows, cols))
    }

    fn write(&self, to: &Tensor<Cuda>, bytes: &[u8]) -> Result<()> {
        if !to.is_contiguous() || to.bytes() != bytes.len() {
            let (want, got) = (format!("{to:?} without gaps"), format!("{} bytes", bytes.len()));
            return Err(Error::Shape { op: "write", what: "the data", want, got });
        }
        self.gpu.write(Cuda::address(to), bytes)
    }

    fn fetch(&self, from: &[&Tensor<Cuda>]) -> Result<Pending> {
        let extents: Vec<_> = from.iter().map(|t| Cuda::extent(t)).collect();
        Ok(Pending { tensors: from.iter().copied().cloned().collect(), transfer: self.gpu.fetch(&extents)? })
    }

    fn wait(&self, pending: Pending, to: &mut [&mut [u8]]) -> Result<()> {
        let readings = Reading::pairs(&pending.tensors, to)?;
        self.gpu.receive(&pending.transfer, |bytes| {
            let mut at = 0;
            for Reading { from, to } in readings {
                let (size, (_, len)) = (from.dtype().size(), Cuda::extent(from));
                let (width, mut row) = (from.cols() * size, at);
                for out in to.chunks_exact_mut(width.max(1)) {
                    out.copy_from_slice(&bytes[row..row + width]);
                    row += from.stride() * size;
                }
                at += len;
            }
        })
    }

    fn zero(&self, t: &Tensor<Cuda>) -> Result<()> {
        if !t.is_contiguous() {
            let (want, got) = ("a tensor without gaps".into(), format!("{t:?}"));
            return Err(Error::Shape { op: "zero", what: "the tensor", want, got });
        }
        self.gpu.clear(Cuda::address(t), t.bytes())
    }
}

/// Tensors as arguments of kernels.
impl Args {
    /// A `Matrix` of the kernels: where the view begins, its rows, its columns, and its stride in elements.
    #[inline(always)]
    fn view(self, address: u64, [rows, cols, stride]: [usize; 3]) -> Args {
        self.wide_and(address, [rows as u32, cols as u32, stride as u32, 0])
    }

    /// A view.
    #[inline(always)]
    pub(crate) fn matrix(self, t: &Tensor<Cuda>) -> Args {
        self.view(Cuda::address(t), [t.rows(), t.cols(), t.stride()])
    }

    /// A view that may be missing: all of it is zero then.
    #[inline(always)]
    pub(crate) fn optional(self, t: Option<&Tensor<Cuda>>) -> Args {
        match t {
            Some(t) => self.matrix(t),
            None => self.view(0, [0; 3]),
        }
    }

    /// The address of a view's first element.
    #[inline(always)]
    pub(crate) fn pointer(self, t: &Tensor<Cuda>) -> Args {
        self.wide(Cuda::address(t))
    }

    /// The same of a view that may be missing.
    #[inline(always)]
    pub(crate) fn optional_pointer(self, t: Option<&Tensor<Cuda>>) -> Args {
        self.wide(t.map_or(0, Cuda::address))
    }
}
