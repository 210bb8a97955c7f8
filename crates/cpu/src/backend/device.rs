//! [`Cpu`]: the device, which splits the work of ops into pieces for its threads.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use tallow_core::{
    Arithmetic, Backend, DType, Error, HostWeight, Memory, Norm, Reading, Result, Tensor, Trace, Weight,
};

use crate::isa::Isa;
use crate::kernels::Kernels;
use crate::linear::LinearScratch;
use crate::mat::{Mat, MatMut};
use crate::memory::{Arena, Buf};
use crate::pack::{PAIR, layout, packed_bytes};
use crate::packed_file::{PackedFile, PackedFileWriter, key};
use crate::pool::Pool;
use crate::rowwise::NormTask;
use crate::topology::{Nodes, Placement};

/// Work smaller than about this many multiplications is not worth a second thread.
pub(super) const SMALL: usize = 1 << 14;

/// Scratch memory that a thread keeps from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    pub floats: Vec<f32>,
    /// Scratch of linear layers.
    pub linear: LinearScratch,
}

/// The CPU device: kernels for its instruction set, thread pool, memory arena.
pub struct Cpu {
    pub(super) kernels: &'static Kernels,
    pub(super) arithmetic: Arithmetic,
    pub(super) pool: Pool<Scratch>,
    scratch: RefCell<Scratch>,
    pub(super) arena: Rc<Arena>,
    /// Weights that need not be packed.
    packed: Vec<PackedFile>,
    /// True if the memory does not hold them all.
    pub(super) beyond_memory: bool,
    /// The file that weights are packed into, if not into memory.
    writer: Option<PackedFileWriter>,
    pub(super) trace: Trace,
    /// Bytes written to KV caches since memory was last touched ahead.
    pub(super) written: Cell<usize>,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())
    }
}

impl Cpu {
    /// A device with `threads` threads (the caller's included) and the kernels of `isa`. Fails if this CPU lacks
    /// `isa`.
    pub fn new(isa: Isa, threads: usize) -> Result<Cpu> {
        Cpu::placed(isa, threads, Placement::Anywhere)
    }

    /// The same, with the threads (the caller's included) where `placement` says.
    pub fn placed(isa: Isa, threads: usize, placement: Placement) -> Result<Cpu> {
        let failed = |why: String| Error::Device { device: "cpu".into(), why };
        let kernels = Kernels::new(isa).ok_or_else(|| failed(format!("it does not have {isa}")))?;
        let nodes = match placement {
            Placement::Anywhere => Nodes::default(),
            Placement::Nodes => Nodes::of_machine(),
        };
        nodes.keep(0, threads);
        let pool = Pool::new(threads, move |thread| nodes.keep(thread, threads));
        let pool = pool.map_err(|e| failed(format!("no more threads: {e}")))?;
        Ok(Cpu {
            kernels,
            arithmetic: Arithmetic::Fast,
            pool,
            scratch: RefCell::default(),
            arena: Rc::default(),
            packed: Vec::new(),
            beyond_memory: false,
            writer: None,
            trace: Trace::default(),
            written: Cell::default(),
        })
    }

    /// The same device with linear layers computed in `arithmetic`.
    pub fn with(self, arithmetic: Arithmetic) -> Cpu {
        Cpu { arithmetic, ..self }
    }

    /// The same device with weights that were packed by earlier loads: those that are found there are used where they lie,
    /// and neither read from their checkpoint nor packed again. `beyond_memory`: they are larger than the memory, so that those
    /// of a mixture's experts had better be asked for before they are needed.
    pub fn with_packed(self, packed: Vec<PackedFile>, beyond_memory: bool) -> Cpu {
        Cpu { packed, beyond_memory, ..self }
    }

    /// The same device, which packs the weights of checkpoint tensors into a file: to be loaded with one model, and
    /// [finished](Cpu::finish_packing).
    pub fn packing_into(self, writer: PackedFileWriter) -> Cpu {
        Cpu { writer: Some(writer), ..self }
    }

    /// Completes the file that weights were packed into. Returns its size; or, also if loading failed, why it could not be
    /// written.
    pub fn finish_packing(&self) -> std::io::Result<u64> {
        self.writer.as_ref().map_or(Ok(0), PackedFileWriter::finish)
    }

    /// A weight in one of the files of packed weights.
    pub(super) fn packed(&self, weight: &HostWeight<'_>) -> Option<Weight<Cpu>> {
        // A key may be a digest of the whole weight.
        let key = if self.packed.is_empty() { None } else { key(weight) }?;
        let HostWeight { format, rows, cols, .. } = *weight;
        let total = packed_bytes(format, rows, cols)?;
        let bytes = total.checked_add(layout(format).shape.tail_inputs(cols))?;
        let data = self.packed.iter().find_map(|file| file.find(&key, bytes))?;
        let pairs = rows.div_ceil(PAIR);
        Some(Weight::Blocks {
            data: Tensor::whole(data, DType::U8, pairs, total / pairs.max(1)),
            format,
            rows,
            cols,
        })
    }

    /// The file that a weight is packed into, if not into memory.
    pub(super) fn writer_of(&self, weight: &HostWeight<'_>) -> Option<&PackedFileWriter> {
        // What comes from no tensor would not be found.
        self.writer.as_ref().filter(|_| weight.tensor.is_some())
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `work` for each piece `0..count`: on the pool, or on the calling thread alone where `cost`
    /// (multiplications of all pieces) is small.
    pub(super) fn share(&self, count: usize, cost: usize, work: impl Fn(&mut Scratch, usize) + Sync) {
        let scratch = &mut *self.scratch.borrow_mut();
        if cost < SMALL {
            (0..count).for_each(|i| work(scratch, i));
        } else if self.trace.is_timing() {
            let began = Instant::now();
            let worked = self.pool.run_timed(scratch, count, &work);
            self.trace.add_parallel(began.elapsed(), worked);
        } else {
            self.pool.run(scratch, count, work);
        }
    }

    /// Runs `work` for each token, adjacent tokens on one thread: they are adjacent in the KV cache too, and two
    /// threads that write there would contend for cache lines.
    pub(super) fn by_tokens(&self, tokens: usize, cost: usize, work: impl Fn(&mut Scratch, usize) + Sync) {
        let piece = (tokens / (4 * self.threads())).clamp(1, 16);
        self.share(tokens.div_ceil(piece), cost, |scratch, i| {
            (i * piece..tokens.min((i + 1) * piece)).for_each(|token| work(scratch, token));
        });
    }

    /// A new f32 tensor [rows, cols], filled row by row.
    pub(super) fn by_rows(
        &self,
        rows: usize,
        cols: usize,
        row: impl Fn(&mut Scratch, usize, &mut [f32]) + Sync,
    ) -> Result<Tensor<Cpu>> {
        let out = self.alloc(DType::F32, rows, cols)?;
        let m = MatMut::<f32>::new(&out);
        // Rows per piece: about 4096 elements.
        let piece = (4096 / cols.max(1)).max(1);
        self.share(rows.div_ceil(piece), 4 * rows * cols, |scratch, i| {
            for r in i * piece..rows.min((i + 1) * piece) {
                // SAFETY: each row belongs to one piece.
                row(scratch, r, unsafe { m.row(r) });
            }
        });
        Ok(out)
    }
}

impl Memory for Cpu {
    type Buf = Buf;
    type Pending = Vec<Tensor<Cpu>>;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Cpu>> {
        let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.size())).unwrap_or(usize::MAX);
        match self.arena.alloc(bytes) {
            Some(buf) => Ok(Tensor::whole(buf, dtype, rows, cols)),
            None => Err(Error::OutOfMemory { device: "cpu".into(), asked: bytes }),
        }
    }

    fn write(&self, to: &Tensor<Cpu>, bytes: &[u8]) -> Result<()> {
        if !to.is_contiguous() || to.bytes() != bytes.len() {
            let (want, got) = (format!("{to:?} without gaps"), format!("{} bytes", bytes.len()));
            return Err(Error::Shape { op: "write", what: "the data", want, got });
        }
        // SAFETY: the view is contiguous and as long as `bytes`, and nothing else runs on this device meanwhile.
        unsafe {
            let start = to.buf().start().add(to.offset() * to.dtype().size());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
        }
        Ok(())
    }

    fn fetch(&self, from: &[&Tensor<Cpu>]) -> Result<Vec<Tensor<Cpu>>> {
        for file in &self.packed {
            file.intact().map_err(|why| Error::Device { device: "cpu".into(), why })?;
        }
        Ok(from.iter().copied().cloned().collect())
    }

    fn wait(&self, pending: Vec<Tensor<Cpu>>, to: &mut [&mut [u8]]) -> Result<()> {
        for reading in Reading::pairs(&pending, to)? {
            let from = reading.from;
            let (size, width) = (from.dtype().size(), from.cols() * from.dtype().size());
            for (r, out) in reading.to.chunks_exact_mut(width.max(1)).enumerate() {
                // SAFETY: row `r` lies within the view, and nothing writes on this device meanwhile.
                unsafe {
                    let row = from.buf().start().add((from.offset() + r * from.stride()) * size);
                    std::ptr::copy_nonoverlapping(row, out.as_mut_ptr(), width);
                }
            }
        }
        Ok(())
    }
}

/// A norm as kernels take it.
pub(super) fn norm_task(norm: &Norm<Cpu>) -> NormTask<'_> {
    let (weight, bias) = (Mat::new(&norm.weight).row(0), norm.bias.as_ref().map(|b| Mat::new(b).row(0)));
    NormTask { kind: norm.kind, weight, bias, eps: norm.eps }
}
