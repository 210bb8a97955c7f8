//! [`Wgpu`]: the device and its memory.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use tallow_core::{DType, Error, Memory, Reading, Result, Tensor, Trace};

use crate::gpu::{Block, Counts, Device, Found, Gpu, Transfer};

/// Most blocks of a tensor other than a weight: kernels that bind all of them have a fixed number of bindings.
pub(crate) const MAX_BLOCKS: usize = 4;

/// A GPU as a backend.
pub struct Wgpu {
    pub(crate) gpu: Rc<Gpu>,
    pub(crate) trace: Trace,
}

/// Shares the device, its memory and its compiled kernels, but has a trace of its own.
impl Clone for Wgpu {
    fn clone(&self) -> Wgpu {
        Wgpu { gpu: self.gpu.clone(), trace: Trace::default() }
    }
}

/// A tensor's memory. A tensor larger than one storage binding is split into several blocks of the same number of whole
/// rows.
#[derive(Clone, Debug)]
pub struct Buf {
    blocks: Rc<[Block]>,
    rows: usize,
    /// Size of the tensor that it was allocated for; the blocks may be a little larger.
    bytes: usize,
}

impl Buf {
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Rows per block; the last block may have fewer.
    pub(crate) fn rows_each(&self) -> usize {
        self.rows
    }
}

/// Tensors whose elements are on their way to the host.
#[derive(Debug)]
pub struct Pending {
    tensors: Vec<Tensor<Wgpu>>,
    transfer: Transfer,
}

impl fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about().to_string())
    }
}

impl Wgpu {
    /// Opens a device.
    pub fn open(found: &Found) -> Result<Wgpu> {
        found.check()?;
        Ok(Wgpu { gpu: Rc::new(Gpu::open(found)?), trace: Trace::default() })
    }

    #[cfg(test)]
    pub(crate) fn within(found: &Found, most: u64) -> Result<Wgpu> {
        Ok(Wgpu { gpu: Rc::new(Gpu::within(found, most)?), trace: Trace::default() })
    }

    /// Name, driver and memory of the device.
    pub fn about(&self) -> &Device {
        self.gpu.about()
    }

    /// Counts of dispatches, submissions and reads so far.
    pub fn counts(&self) -> Counts {
        self.gpu.counts()
    }

    /// Allocates `rows` rows of `row_bytes` bytes in at most `most_blocks` blocks.
    pub(crate) fn buf(&self, rows: usize, row_bytes: usize, most_blocks: usize) -> Result<Buf> {
        let bytes = rows.saturating_mul(row_bytes);
        let most = usize::try_from(self.gpu.most()).unwrap_or(usize::MAX);
        if bytes <= most {
            return Ok(Buf { blocks: Rc::new([self.gpu.alloc(bytes as u64)?]), rows: rows.max(1), bytes });
        }
        // Each block begins at a row boundary that is also a word boundary.
        let each = if row_bytes.is_multiple_of(4) { most / row_bytes.max(1) } else { 0 };
        if each == 0 || rows.div_ceil(each) > most_blocks {
            return Err(Error::OutOfMemory { device: self.about().to_string(), asked: bytes });
        }
        let block = |first: usize| self.gpu.alloc((rows.min(first + each) - first) as u64 * row_bytes as u64);
        let blocks = (0..rows).step_by(each).map(block).collect::<Result<_>>()?;
        Ok(Buf { blocks, rows: each, bytes })
    }

    /// As [`buf`](Wgpu::buf), for `count` matrices of `rows` rows each, none of which is split among blocks; `None` if
    /// one is larger than a block.
    pub(crate) fn stack_buf(&self, count: usize, rows: usize, row_bytes: usize) -> Result<Option<Buf>> {
        let matrix = rows.saturating_mul(row_bytes);
        if matrix == 0 || matrix as u64 > self.gpu.most() {
            return Ok(None);
        }
        let buf = self.buf(count, matrix, usize::MAX)?;
        Ok(Some(Buf { rows: buf.rows * rows, ..buf }))
    }

    /// An `f32` tensor for the result of an op.
    pub(crate) fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Wgpu>> {
        self.alloc(DType::F32, rows, cols)
    }

    /// Byte offset of a view's first element, and the bytes from there to the end of its last one.
    pub(crate) fn extent(t: &Tensor<Wgpu>) -> (usize, usize) {
        let size = t.dtype().size();
        let len = match t.is_empty() {
            true => 0,
            false => (t.rows() - 1) * t.stride() + t.cols(),
        };
        (t.offset() * size, len * size)
    }

    /// The bytes of the whole words that a view's elements lie in; none if it has no elements.
    fn words(t: &Tensor<Wgpu>) -> Range<u64> {
        let (start, len) = Wgpu::extent(t);
        let first = start / 4 * 4;
        let end = if len == 0 { first } else { (start + len).next_multiple_of(4) };
        first as u64..end as u64
    }

    /// Writes bytes at any offset. wgpu writes whole words only, so partly covered words are read first.
    fn write_bytes(&self, block: &Block, at: usize, bytes: &[u8]) -> Result<()> {
        if at.is_multiple_of(4) && bytes.len().is_multiple_of(4) {
            return self.gpu.write(block, at as u64, bytes);
        }
        let (first, last) = (at / 4 * 4, (at + bytes.len()).next_multiple_of(4));
        let mut words = self.gpu.read(&[(block, first as u64, (last - first) as u64)])?;
        words[at - first..at - first + bytes.len()].copy_from_slice(bytes);
        self.gpu.write(block, first as u64, &words)
    }
}

impl Memory for Wgpu {
    type Buf = Buf;
    type Pending = Pending;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Wgpu>> {
        let full = || Error::OutOfMemory { device: self.about().to_string(), asked: usize::MAX };
        let row = cols.checked_mul(dtype.size()).ok_or_else(full)?;
        let buf = self.buf(rows, row, MAX_BLOCKS.min(self.gpu.pairs_beside(6)))?;
        // Kernels index elements with 32 bits.
        let elements = buf.rows_each().checked_mul(cols).filter(|n| u32::try_from(*n).is_ok());
        if elements.is_none() {
            return Err(Error::OutOfMemory {
                device: self.about().to_string(),
                asked: row.saturating_mul(rows),
            });
        }
        Ok(Tensor::whole(buf, dtype, rows, cols))
    }

    fn write(&self, to: &Tensor<Wgpu>, bytes: &[u8]) -> Result<()> {
        if !to.is_contiguous() || to.bytes() != bytes.len() {
            let (want, got) = (format!("{to:?} without gaps"), format!("{} bytes", bytes.len()));
            return Err(Error::Shape { op: "write", what: "the data", want, got });
        }
        let block_bytes = match to.buf().blocks() {
            [_] => usize::MAX,
            _ => to.buf().rows_each() * to.stride() * to.dtype().size(),
        };
        let (mut at, _) = Wgpu::extent(to);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (block, start) = (&to.buf().blocks()[at / block_bytes], at % block_bytes);
            let (now, later) = rest.split_at(rest.len().min(block_bytes - start));
            self.write_bytes(block, start, now)?;
            (rest, at) = (later, at + now.len());
        }
        Ok(())
    }

    fn fetch(&self, from: &[&Tensor<Wgpu>]) -> Result<Pending> {
        let places: Vec<_> = from.iter().map(|t| Ok((block(t)?, Wgpu::words(t)))).collect::<Result<_>>()?;
        let ranges: Vec<_> =
            places.iter().map(|(block, words)| (*block, words.start, words.end - words.start)).collect();
        Ok(Pending { tensors: from.iter().copied().cloned().collect(), transfer: self.gpu.fetch(&ranges)? })
    }

    fn wait(&self, pending: Pending, to: &mut [&mut [u8]]) -> Result<()> {
        let readings = Reading::pairs(&pending.tensors, to)?;
        let bytes = self.gpu.receive(pending.transfer)?;
        let mut at = 0;
        for Reading { from, to } in readings {
            let (size, (start, _), words) = (from.dtype().size(), Wgpu::extent(from), Wgpu::words(from));
            let (width, mut row) = (from.cols() * size, at + start - words.start as usize);
            for out in to.chunks_exact_mut(width.max(1)) {
                out.copy_from_slice(&bytes[row..row + width]);
                row += from.stride() * size;
            }
            at += (words.end - words.start) as usize;
        }
        Ok(())
    }

    fn zero(&self, t: &Tensor<Wgpu>) -> Result<()> {
        if t.bytes() != t.buf().bytes {
            return self.write(t, &vec![0; t.bytes()]);
        }
        t.buf().blocks().iter().for_each(|block| self.gpu.clear(block));
        Ok(())
    }
}

/// Consecutive rows of a tensor in one block.
pub(crate) struct Run<'a> {
    pub block: &'a Block,
    /// Row of the block at which they begin.
    pub at: usize,
    /// Its rows of the tensor.
    pub rows: Range<usize>,
}

/// A view of whole rows, by the blocks that they lie in.
pub(crate) fn runs(t: &Tensor<Wgpu>) -> impl Iterator<Item = Run<'_>> {
    let (first, each) = (t.offset() / t.stride().max(1), t.buf().rows_each());
    let end = first + t.rows();
    t.buf().blocks().iter().enumerate().filter_map(move |(i, block)| {
        let (start, end) = (first.max(i * each), end.min((i + 1).saturating_mul(each)));
        (start < end).then(|| Run { block, at: start - i * each, rows: start - first..end - first })
    })
}

/// The one block of a tensor. Only weights and KV caches, whose kernels support it, may have several.
pub(crate) fn block(t: &Tensor<Wgpu>) -> Result<&Block> {
    match t.buf().blocks() {
        [block] => Ok(block),
        blocks => {
            let most = blocks.first().map_or(0, Block::size);
            let why = format!("{t:?} has {} bytes, and a kernel sees {most} of them at once", t.bytes());
            Err(Error::Device { device: "the GPU".into(), why })
        }
    }
}
