//! [`Wgpu`]: the implementation of [`Backend`].

use std::fmt;
use std::rc::Rc;

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Epilogue, Ffn, GatedDelta, IndexMode,
    IndexRows, KvWrite, Linear, LinearMany, Matmul, Normalize, PermuteCols, QkvPrep, Rope, Route, TopK,
    TopKOut,
};
use tallow_core::{
    Backend, DType, Error, HostWeight, LinearWeights, Reading, Result, Tensor, Trace, Weight, compose,
};

use crate::gpu::{Block, Counts, Device, Found, Gpu};
use crate::kernels::block;
use crate::kernels::cache::CACHE_BLOCKS;
use crate::kernels::linear::{Part, Product};
use crate::weights::{self, LANES, Stored};

/// A GPU as a backend.
pub struct Wgpu {
    pub(crate) gpu: Rc<Gpu>,
    trace: Trace,
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

impl fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())
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
    fn buf(&self, rows: usize, row_bytes: usize, most_blocks: usize) -> Result<Buf> {
        let bytes = rows.saturating_mul(row_bytes);
        let most = usize::try_from(self.gpu.most()).unwrap_or(usize::MAX);
        if bytes <= most {
            return Ok(Buf { blocks: Rc::new([self.gpu.alloc(bytes as u64)?]), rows: rows.max(1), bytes });
        }
        // Each block begins at a row boundary that is also a word boundary.
        let each = if row_bytes.is_multiple_of(4) { most / row_bytes.max(1) } else { 0 };
        if each == 0 || rows.div_ceil(each) > most_blocks {
            return Err(Error::OutOfMemory { device: self.label(), asked: bytes });
        }
        let block = |first: usize| self.gpu.alloc((rows.min(first + each) - first) as u64 * row_bytes as u64);
        let blocks = (0..rows).step_by(each).map(block).collect::<Result<_>>()?;
        Ok(Buf { blocks, rows: each, bytes })
    }

    /// The parts of a weight, one per block. The first output goes to column `column` of the result.
    pub(crate) fn parts<'a>(
        w: &'a Weight<Wgpu>,
        bias: Option<&'a Tensor<Wgpu>>,
        column: usize,
    ) -> Result<Vec<Part<'a>>> {
        let (rows, cols) = (w.rows(), w.cols());
        Ok(match w {
            Weight::Dense(t) => vec![Part {
                stored: Stored::Rows(t.dtype()),
                block: block(t)?,
                base: t.offset(),
                step: t.stride(),
                rows,
                cols,
                bias,
                bias_at: 0,
                column,
            }],
            Weight::Blocks { data, format, .. } => {
                let each = data.buf().rows_each() * LANES;
                let part = |(i, block)| Part {
                    stored: Stored::Packed(*format),
                    block,
                    base: 0,
                    step: weights::layout(*format).units(cols),
                    rows: rows.saturating_sub(i * each).min(each),
                    cols,
                    bias,
                    bias_at: i * each,
                    column: column + i * each,
                };
                data.buf().blocks().iter().enumerate().map(part).collect()
            }
        })
    }

    /// The parts of several linear layers whose outputs are concatenated; `None` if one has act-order.
    fn side_by_side(by: &[LinearWeights<Wgpu>]) -> Result<Option<Vec<Part<'_>>>> {
        let mut column = 0;
        let mut parts = Vec::new();
        for linear in by {
            let Some(weight) = linear.weight.in_order() else { return Ok(None) };
            parts.extend(Wgpu::parts(weight, linear.bias.as_ref(), column)?);
            column += weight.rows();
        }
        Ok(Some(parts))
    }

    fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Wgpu>> {
        self.alloc(DType::F32, rows, cols)
    }

    /// Gate and up as two parts with the same outputs, where one gated kernel can compute both.
    fn gated<'a>(op: &Ffn<'a, Wgpu>) -> Result<Option<[Part<'a>; 2]>> {
        let width = op.down.weight.cols();
        if !op.is_gated() || !Wgpu::is_few(op.x.rows()) || op.down.weight.in_order().is_none() {
            return Ok(None);
        }
        let Some(parts) = Wgpu::side_by_side(op.up)? else { return Ok(None) };
        Ok(match &parts[..] {
            [gate, up] if gate.rows == width && up.rows == width => Some([*gate, *up]),
            // Gate and up fused in one weight: up must begin at a whole group of rows.
            [both] if matches!(both.stored, Stored::Packed(_)) && width.is_multiple_of(LANES) => {
                let gate = Part { rows: width, ..*both };
                Some([gate, Part { base: both.base + width / LANES, bias_at: width, ..gate }])
            }
            _ => None,
        })
    }

    /// Byte offset of a view's first element, and the bytes from there to the end of its last one.
    fn extent(t: &Tensor<Wgpu>) -> (usize, usize) {
        let size = t.dtype().size();
        let len = match t.is_empty() {
            true => 0,
            false => (t.rows() - 1) * t.stride() + t.cols(),
        };
        (t.offset() * size, len * size)
    }
}

impl Backend for Wgpu {
    type Buf = Buf;

    fn label(&self) -> String {
        self.about().to_string()
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Wgpu>> {
        let full = || Error::OutOfMemory { device: self.label(), asked: usize::MAX };
        let row = cols.checked_mul(dtype.size()).ok_or_else(full)?;
        // Kernels that bind all blocks of a tensor have a fixed number of bindings.
        let buf = self.buf(rows, row, CACHE_BLOCKS.min(self.gpu.pairs_beside(6)))?;
        // Kernels index elements with 32 bits.
        let elements = buf.rows_each().checked_mul(cols).filter(|n| u32::try_from(*n).is_ok());
        if elements.is_none() {
            return Err(Error::OutOfMemory { device: self.label(), asked: row.saturating_mul(rows) });
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

    fn read(&self, wanted: &mut [Reading<'_, Wgpu>]) -> Result<()> {
        let mut places = Vec::new();
        for reading in wanted.iter() {
            reading.check()?;
            let (start, len) = Wgpu::extent(reading.from);
            let first = start / 4 * 4;
            let len = if len == 0 { 0 } else { (start + len).next_multiple_of(4) - first };
            places.push((block(reading.from)?, first as u64, len as u64));
        }
        let bytes = self.gpu.read(&places)?;
        let mut at = 0;
        for (reading, (_, first, len)) in wanted.iter_mut().zip(&places) {
            let from = reading.from;
            let (size, (start, _)) = (from.dtype().size(), Wgpu::extent(from));
            let (width, mut row) = (from.cols() * size, at + start - *first as usize);
            for out in reading.to.chunks_exact_mut(width.max(1)) {
                out.copy_from_slice(&bytes[row..row + width]);
                row += from.stride() * size;
            }
            at += *len as usize;
        }
        Ok(())
    }

    fn copy(&self, op: &Copy<'_, Wgpu>) -> Result<()> {
        if op.from.is_empty() {
            return Ok(());
        }
        if !Wgpu::share_memory(op.from, op.to)? {
            return self.copy_apart(op);
        }
        // Through a temporary, since source and target may overlap.
        let between = self.alloc(op.from.dtype(), op.from.rows(), op.from.cols())?;
        self.copy_apart(&Copy { from: op.from, to: &between })?;
        self.copy_apart(&Copy { from: &between, to: op.to })
    }

    fn sync(&self) -> Result<()> {
        self.gpu.submit()?;
        self.gpu.wait()
    }

    fn embed(&self, op: &Embed<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.ids.cols(), op.table.cols())?;
        self.embed_into(op, &out)?;
        Ok(out)
    }

    fn normalize(&self, op: &Normalize<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.normalize_into(op, &out)?;
        Ok(out)
    }

    fn matmul(&self, op: &Matmul<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.weight.rows())?;
        let w = Weight::Dense(op.weight.clone());
        let parts = Wgpu::parts(&w, op.bias, 0)?;
        self.multiply(&Product { x: op.x, out: &out, then: op.epilogue }, &parts)?;
        Ok(out)
    }

    fn dequant(&self, op: &Dequant<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.rows.len(), op.w.cols())?;
        self.dequant_into(op, &out)?;
        Ok(out)
    }

    fn rope(&self, op: &Rope<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.rope_into(op, &out)?;
        Ok(out)
    }

    fn kv_write(&self, op: &KvWrite<'_, Wgpu>) -> Result<()> {
        self.kv_write_to(op)
    }

    fn attend(&self, op: &Attend<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.q.rows(), op.q.cols())?;
        self.attend_into(op, &out)?;
        Ok(out)
    }

    fn activate(&self, op: &Activate<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.gate.rows(), op.gate.cols())?;
        self.activate_into(op, &out)?;
        Ok(out)
    }

    fn eltwise(&self, op: &Eltwise<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.eltwise_into(op, &out)?;
        Ok(out)
    }

    fn index_rows(&self, op: &IndexRows<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = match op.mode {
            IndexMode::Gather => self.like(op.indices.cols(), op.x.cols())?,
            IndexMode::ScatterAdd(into) => into.clone(),
        };
        self.index_rows_into(op, &out)?;
        Ok(out)
    }

    fn permute_cols(&self, op: &PermuteCols<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.indices.cols())?;
        self.permute_cols_into(op, &out)?;
        Ok(out)
    }

    fn route(&self, op: &Route<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.alloc(DType::F32, op.logits.rows(), op.logits.cols())?;
        self.route_into(op, &out)?;
        Ok(out)
    }

    fn causal_conv(&self, op: &CausalConv<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.causal_conv_into(op, &out)?;
        Ok(out)
    }

    fn gated_delta(&self, op: &GatedDelta<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.v.rows(), op.v.cols())?;
        self.gated_delta_into(op, &out)?;
        Ok(out)
    }

    fn topk(&self, op: &TopK<'_, Wgpu>) -> Result<TopKOut<Wgpu>> {
        self.topk_of(op)
    }

    fn zero(&self, t: &Tensor<Wgpu>) -> Result<()> {
        if t.bytes() != t.buf().bytes {
            return compose::zero(self, t);
        }
        t.buf().blocks().iter().for_each(|block| self.gpu.clear(block));
        Ok(())
    }

    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Wgpu>> {
        let HostWeight { format, rows, cols, bytes, release, .. } = weight;
        compose::check_weight(&weight)?;
        let (layout, groups) = (weights::layout(format), rows.div_ceil(LANES));
        let words = layout.group_words(cols);
        let buf = self.buf(groups, 4 * words, usize::MAX)?;
        let group_bytes = bytes.len() / rows.max(1) * LANES;
        // A few MiB at a time, so that loading needs little host memory.
        let at_once = ((4 << 20) / (4 * words).max(1)).max(1);
        let mut packed = vec![0; at_once * words];
        for (i, block) in buf.blocks().iter().enumerate() {
            let last = groups.min((i + 1) * buf.rows_each());
            for first in (i * buf.rows_each()..last).step_by(at_once) {
                let count = at_once.min(last - first);
                for (group, out) in (first..first + count).zip(packed.chunks_exact_mut(words.max(1))) {
                    let rows = &bytes[group * group_bytes..bytes.len().min((group + 1) * group_bytes)];
                    layout.pack(format, cols, rows, out);
                }
                let at = (first - i * buf.rows_each()) * words * 4;
                self.gpu.write(block, at as u64, bytemuck::cast_slice(&packed[..count * words]))?;
                release(first * LANES..rows.min((first + count) * LANES));
            }
        }
        let data = Tensor::whole(buf, DType::U32, groups, words);
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    fn linear(&self, op: &Linear<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(weight) = op.weights.weight.in_order() else { return compose::linear(self, op) };
        let out = self.like(op.x.rows(), weight.rows())?;
        let parts = Wgpu::parts(weight, op.weights.bias.as_ref(), 0)?;
        self.multiply(&Product { x: op.x, out: &out, then: op.epilogue }, &parts)?;
        Ok(out)
    }

    fn linear_many(&self, op: &LinearMany<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(parts) = Wgpu::side_by_side(op.weights)? else { return compose::linear_many(self, op) };
        let normed =
            op.norm.map(|norm| self.normalize(&Normalize { x: op.x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
        let out = self.like(op.x.rows(), op.cols())?;
        self.multiply(&Product { x, out: &out, then: Epilogue::NONE }, &parts)?;
        Ok(out)
    }

    fn qkv_prep(&self, op: &QkvPrep<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let usual = op.qk_norm.is_none_or(|n| Wgpu::is_usual(&n.q) && Wgpu::is_usual(&n.k));
        // An 8-bit KV row has one scale per head, so a workgroup must hold whole heads to compute it.
        let is_coded = op.kv.k.dtype().max_abs().is_some();
        let whole = op.qk_norm.is_none_or(|n| !is_coded || n.k.weight.cols().is_multiple_of(op.heads.dim));
        if !usual || !whole {
            return compose::qkv_prep(self, op);
        }
        let out = self.like(op.qkv.rows(), op.heads.q_cols())?;
        self.qkv_prep_into(op, &out)?;
        Ok(out)
    }

    fn ffn(&self, op: &Ffn<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(parts) = Wgpu::gated(op)?.filter(|_| op.adapters.is_empty()) else {
            return compose::ffn(self, op);
        };
        let normed =
            op.norm.map(|norm| self.normalize(&Normalize { x: op.x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(op.x); // [rows, dim]
        let hidden = self.like(x.rows(), op.down.weight.cols())?;
        self.multiply_glu(&Product { x, out: &hidden, then: Epilogue::NONE }, &parts, op.act)?;
        self.linear(&Linear { x: &hidden, weights: op.down, epilogue: op.epilogue })
    }
}

impl Wgpu {
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
