//! [`Cpu`]: the `Backend`. Each op is split into pieces for the thread pool.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, EltwiseOp, Embed, Epilogue, Ffn, GatedDelta, Head,
    IndexMode, IndexRows, KvWrite, Linear, LinearMany, Lora, Matmul, Moe, Normalize, PermuteCols, QkvPrep,
    Rope, Route, TopK, TopKOut,
};
use tallow_core::{
    Backend, DType, Error, HostWeight, Norm, QkNorm, Reading, Result, Tensor, Trace, Weight, compose,
};

use crate::cache::{CacheWriter, Prep};
use crate::kernels::{AttendTask, Kernels, NormTask, Pages, Partials, Stage};
use crate::lora::LoraDeltas;
use crate::mat::{Mat, MatMut};
use crate::memory::{Arena, Buf};
use crate::packed::{PAIR, layout, pack_pair, packed_bytes};
use crate::phases::{OutputColumns, dense, source};
use crate::pool::{Pool, Scratch};
use crate::{Arithmetic, Isa};

/// Work smaller than about this many multiplications is not worth a second thread.
const SMALL: usize = 1 << 14;
/// Most bytes of a source weight that a thread packs before it releases them (`HostWeight::release`).
const HELD: usize = 1 << 20;

/// The CPU device: kernels for its instruction set, thread pool, memory arena.
pub struct Cpu {
    pub(crate) kernels: &'static Kernels,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) pool: Pool,
    scratch: RefCell<Scratch>,
    arena: Rc<Arena>,
    trace: Trace,
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
        let failed = |why: String| Error::Device { device: "cpu".into(), why };
        let kernels = Kernels::new(isa).ok_or_else(|| failed(format!("it does not have {isa}")))?;
        let pool = Pool::new(threads).map_err(|e| failed(format!("no more threads: {e}")))?;
        let (arithmetic, scratch, arena) = (Arithmetic::Fast, RefCell::default(), Rc::default());
        Ok(Cpu { kernels, arithmetic, pool, scratch, arena, trace: Trace::default() })
    }

    /// The same device with linear layers computed in `arithmetic`.
    pub fn with(self, arithmetic: Arithmetic) -> Cpu {
        Cpu { arithmetic, ..self }
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
    pub(crate) fn share(&self, count: usize, cost: usize, work: impl Fn(&mut Scratch, usize) + Sync) {
        let scratch = &mut *self.scratch.borrow_mut();
        if cost < SMALL {
            (0..count).for_each(|i| work(scratch, i));
        } else {
            self.pool.run(scratch, count, work);
        }
    }

    /// Runs `work` for each token, adjacent tokens on one thread: they are adjacent in the KV cache too, and two
    /// threads that write there would contend for cache lines.
    fn by_tokens(&self, tokens: usize, cost: usize, work: impl Fn(&mut Scratch, usize) + Sync) {
        let piece = (tokens / (4 * self.threads())).clamp(1, 16);
        self.share(tokens.div_ceil(piece), cost, |scratch, i| {
            (i * piece..tokens.min((i + 1) * piece)).for_each(|token| work(scratch, token));
        });
    }

    /// A new f32 tensor [rows, cols], filled row by row.
    pub(crate) fn by_rows(
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

impl Cpu {
    /// Split-KV attention for few tasks: about `pieces` pieces, each some key segments of one task, then a merge of
    /// their partial results (Flash-Decoding).
    fn attend_in_parts(&self, tasks: &[AttendTask<'_>], pieces: usize) -> Result<()> {
        let Some(cols) = tasks.first().map(AttendTask::partial_cols) else { return Ok(()) };
        let segments: usize = tasks.iter().map(|t| t.segments().len()).sum();
        let piece = segments.div_ceil(pieces).max(1);
        let (mut parts, mut starts, mut rows) = (Vec::new(), Vec::new(), 0);
        for (i, task) in tasks.iter().enumerate() {
            let all = task.segments();
            parts.extend(all.clone().step_by(piece).map(|at| (i, at..all.end.min(at + piece))));
            starts.push(rows);
            rows += all.len() * task.count();
        }
        let kept = self.alloc(DType::F32, rows, cols)?;
        let (m, kernels) = (MatMut::new(&kept), self.kernels);
        let kept = |i: usize| Partials { rows: &m, first: starts[i] };
        self.share(parts.len(), SMALL, |scratch, p| {
            let (i, segments) = parts[p].clone();
            tasks[i].run(kernels, &Stage::Segments(segments, kept(i)), &mut scratch.floats);
        });
        self.share(tasks.len(), rows * cols, |scratch, i| {
            tasks[i].run(kernels, &Stage::Merge(kept(i)), &mut scratch.floats);
        });
        Ok(())
    }
}

pub(crate) fn norm_task(by: &Norm<Cpu>) -> NormTask<'_> {
    let (weight, bias) = (Mat::new(&by.weight).row(0), by.bias.as_ref().map(|b| Mat::new(b).row(0)));
    NormTask { kind: by.kind, weight, bias, eps: by.eps }
}

impl Backend for Cpu {
    type Buf = Buf;

    fn label(&self) -> String {
        format!("cpu ({}, {} threads)", self.isa(), self.threads())
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

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

    fn read(&self, wanted: &mut [Reading<'_, Cpu>]) -> Result<()> {
        for reading in wanted {
            reading.check()?;
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

    fn copy(&self, op: &Copy<'_, Cpu>) -> Result<()> {
        let (size, width) = (op.from.dtype().size(), op.from.cols() * op.from.dtype().size());
        let row = |t: &Tensor<Cpu>, r: usize| {
            // SAFETY: row `r` lies within the view.
            unsafe { t.buf().start().add((t.offset() + r * t.stride()) * size) }
        };
        for r in 0..op.from.rows() {
            // SAFETY: both rows lie within their views, which have the same width; `ptr::copy` allows overlap.
            unsafe { std::ptr::copy(row(op.from, r), row(op.to, r), width) };
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&self, op: &Embed<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (k, table, ids) = (self.kernels, source(op.table), Mat::<u32>::new(op.ids).row(0));
        let (rows, scale) = (op.table.rows(), op.scale);
        self.by_rows(ids.len(), op.table.cols(), |scratch, r, out| match ids[r] as usize {
            id if id < rows => {
                table.unpack_row(k, id, &mut scratch.room, out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
            _ => out.fill(0.0),
        })
    }

    fn normalize(&self, op: &Normalize<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, task, residual) = (Mat::new(op.x), norm_task(op.norm), op.residual.map(Mat::<f32>::new));
        let k = self.kernels;
        self.by_rows(x.rows, x.cols, |_, r, out| {
            (k.norm)(&task, x.row(r), out);
            if let Some(residual) = residual {
                (k.add_scaled)(out, 1.0, residual.row(r));
            }
        })
    }

    fn matmul(&self, op: &Matmul<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let out = self.alloc(DType::F32, op.x.rows(), op.weight.rows())?;
        let part = OutputColumns {
            w: dense(op.weight),
            bias: op.bias.map(Mat::new),
            outputs: op.weight.rows(),
            column: 0,
        };
        let parts = [part];
        let x = self.input(op.x, None, parts.iter().map(|p| &p.w))?;
        self.multiply(&x, &parts, &out, op.epilogue, &LoraDeltas::default().over(self.kernels, &x));
        Ok(out)
    }

    fn dequant(&self, op: &Dequant<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (k, w, first) = (self.kernels, source(op.w), op.rows.start);
        self.by_rows(op.rows.len(), op.w.cols(), |scratch, r, out| {
            w.unpack_row(k, first + r, &mut scratch.room, out)
        })
    }

    fn rope(&self, op: &Rope<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, positions) = (Mat::<f32>::new(op.x), Mat::<u32>::new(op.positions).row(0));
        let rope = Some((Mat::new(&op.rope.table), op.rope.pairs));
        let (k, prep) = (self.kernels, Prep { norm: None, rope, dim: op.head_dim });
        self.by_rows(x.rows, x.cols, |_, r, out| prep.run(k, x.row(r), positions[r], out))
    }

    fn kv_write(&self, op: &KvWrite<'_, Cpu>) -> Result<()> {
        let (k, v) = (Mat::<f32>::new(op.k), Mat::<f32>::new(op.v));
        let writer = CacheWriter::new(self.kernels, op.kv, op.plan, op.heads.dim);
        self.by_tokens(k.rows, 4 * op.k.len(), |_, token| {
            // SAFETY: each token belongs to one piece.
            unsafe { writer.put(token, k.row(token), v.row(token)) };
        });
        Ok(())
    }

    fn attend(&self, op: &Attend<'_, Cpu>) -> Result<Tensor<Cpu>> {
        // Journey, stop 7: attention. Each token attends to those before it, in the pages of the KV cache.
        let out = self.alloc(DType::F32, op.q.rows(), op.q.cols())?;
        let (m, q, kernels) = (MatMut::new(&out), Mat::new(op.q), self.kernels);
        let (k, v) = (Pages::new(op.kv.k), Pages::new(op.kv.v));
        let group = op.heads.q / op.heads.kv;
        // Tokens per task: enough query rows to use a segment of keys well, few enough to balance the threads.
        let enough = 4 * self.threads();
        let each = op.q.rows() * op.heads.kv / enough;
        let tokens = each.clamp(16usize.div_ceil(group), 128usize.div_ceil(group));
        let (mut tasks, mut first, mut cost) = (Vec::new(), 0, 0);
        for span in &op.plan.host.spans {
            for at in (0..span.rows).step_by(tokens) {
                let rows = first + at..first + span.rows.min(at + tokens);
                for head in 0..op.heads.kv {
                    tasks.push(AttendTask {
                        q,
                        out: &m,
                        rows: rows.clone(),
                        position: span.start + at,
                        len: span.end(),
                        pages: &span.pages,
                        page_len: op.plan.host.page_len,
                        k,
                        v,
                        heads: op.heads,
                        head,
                        scale: op.spec.scale,
                        window: op.spec.window,
                        chunk: op.spec.chunk,
                        softcap: op.spec.softcap,
                        sinks: op.spec.sinks.as_ref().map(Mat::new),
                        bias: op.spec.bias.as_ref().map(Mat::new),
                        causal: op.spec.causal,
                    });
                }
            }
            first += span.rows;
            cost += span.rows * span.end() * op.heads.q_cols();
        }
        if tasks.len() >= enough || self.threads() == 1 || cost < SMALL {
            // The last tasks of a prompt are the largest: they start first, so that no thread ends up waiting for
            // them.
            self.share(tasks.len(), cost, |scratch, i| {
                tasks[tasks.len() - 1 - i].run(kernels, &Stage::Whole, &mut scratch.floats);
            });
            return Ok(out);
        }
        self.attend_in_parts(&tasks, enough)?;
        Ok(out)
    }

    fn activate(&self, op: &Activate<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (k, act) = (self.kernels, op.act);
        let (gate, up) = (Mat::<f32>::new(op.gate), op.up.map(Mat::<f32>::new));
        self.by_rows(gate.rows, gate.cols, |_, r, out| {
            (k.activate)(act, gate.row(r), up.map(|u| u.row(r)), out)
        })
    }

    fn eltwise(&self, op: &Eltwise<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (k, x, y) = (self.kernels, Mat::<f32>::new(op.x), op.other().map(Mat::<f32>::new));
        let copy = |r: usize, out: &mut [f32]| out.copy_from_slice(x.row(r));
        let (rows, cols) = (x.rows, x.cols);
        // Row `r` of the other operand; a single row or a single column is broadcast.
        fn other<'a>(y: Option<Mat<'a, f32>>, r: usize, cols: usize, room: &'a mut Vec<f32>) -> &'a [f32] {
            match y.map(|y| y.row(if y.rows == 1 { 0 } else { r })) {
                Some(&[one]) if cols != 1 => {
                    room.clear();
                    room.resize(cols, one);
                    room
                }
                row => row.unwrap_or_default(),
            }
        }
        match op.op {
            EltwiseOp::Add(_) => self.by_rows(rows, cols, |scratch, r, out| {
                copy(r, out);
                (k.add_scaled)(out, 1.0, other(y, r, cols, &mut scratch.floats));
            }),
            EltwiseOp::AddScaled(_, scale) => self.by_rows(rows, cols, |scratch, r, out| {
                copy(r, out);
                (k.add_scaled)(out, scale, other(y, r, cols, &mut scratch.floats));
            }),
            EltwiseOp::Mul(_) => self.by_rows(rows, cols, |scratch, r, out| {
                let y = other(y, r, cols, &mut scratch.floats);
                out.iter_mut().zip(x.row(r)).zip(y).for_each(|((o, x), y)| *o = x * y);
            }),
            EltwiseOp::Scale(scale) => self.by_rows(rows, cols, |_, r, out| {
                out.iter_mut().zip(x.row(r)).for_each(|(o, x)| *o = x * scale);
            }),
            EltwiseOp::SoftCap(cap) => self.by_rows(rows, cols, |_, r, out| {
                copy(r, out);
                (k.softcap)(out, cap);
            }),
            EltwiseOp::Gate(_) => self.by_rows(rows, cols, |scratch, r, out| {
                copy(r, out);
                (k.gate)(out, other(y, r, cols, &mut scratch.floats));
            }),
        }
    }

    fn index_rows(&self, op: &IndexRows<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, at) = (Mat::<f32>::new(op.x), Mat::<u32>::new(op.indices).row(0));
        match op.mode {
            IndexMode::Gather => self.by_rows(at.len(), x.cols, |_, r, out| match at[r] as usize {
                row if row < x.rows => out.copy_from_slice(x.row(row)),
                _ => out.fill(0.0),
            }),
            IndexMode::ScatterAdd(into) => {
                let sums = MatMut::<f32>::new(into);
                // In order, on this thread: several rows may be added to the same one.
                for (r, to) in at.iter().enumerate().filter(|(_, to)| (**to as usize) < sums.rows) {
                    // SAFETY: only this thread uses the tensor, and the slice of the row before is no longer alive.
                    (self.kernels.add_scaled)(unsafe { sums.row(*to as usize) }, 1.0, x.row(r));
                }
                Ok(into.clone())
            }
        }
    }

    fn permute_cols(&self, op: &PermuteCols<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, at) = (Mat::<f32>::new(op.x), Mat::<u32>::new(op.indices).row(0));
        self.by_rows(x.rows, at.len(), |_, r, out| {
            let x = x.row(r);
            let from = |at: &u32| x.get(*at as usize).copied().unwrap_or(0.0);
            out.iter_mut().zip(at).for_each(|(out, at)| *out = from(at));
        })
    }

    fn route(&self, op: &Route<'_, Cpu>) -> Result<Tensor<Cpu>> {
        self.routed(op)
    }

    fn causal_conv(&self, op: &CausalConv<'_, Cpu>) -> Result<Tensor<Cpu>> {
        self.convolution(op)
    }

    fn gated_delta(&self, op: &GatedDelta<'_, Cpu>) -> Result<Tensor<Cpu>> {
        self.recall(op)
    }

    fn topk(&self, op: &TopK<'_, Cpu>) -> Result<TopKOut<Cpu>> {
        let x = Mat::<f32>::new(op.x);
        let ids = self.alloc(DType::U32, x.rows, op.k)?;
        let values = self.alloc(DType::F32, x.rows, op.k)?;
        let (i, v) = (MatMut::<u32>::new(&ids), MatMut::<f32>::new(&values));
        let k = self.kernels;
        self.share(x.rows, x.rows * x.cols, |_, r| {
            // SAFETY: each row belongs to one piece.
            let (ids, values) = unsafe { (i.row(r), v.row(r)) };
            (k.largest)(x.row(r), ids);
            ids.iter().zip(values).for_each(|(id, value)| *value = x.row(r)[*id as usize]);
        });
        Ok(TopKOut { values, ids })
    }

    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Cpu>> {
        compose::check_weight(&weight)?;
        let HostWeight { format, rows, cols, bytes, release, .. } = weight;
        let pairs = rows.div_ceil(PAIR);
        let out_of_reach = || Error::OutOfMemory { device: "cpu".into(), asked: usize::MAX };
        let total = packed_bytes(format, rows, cols).ok_or_else(out_of_reach)?;
        let out_of_memory = || Error::OutOfMemory { device: "cpu".into(), asked: total };
        let past = layout(format).shape.tail_inputs(cols);
        let data = self.arena.alloc_weights(total.saturating_add(past)).ok_or_else(out_of_memory)?;
        let data = Tensor::whole(data, DType::U8, pairs, total / pairs.max(1));
        let (out, width) = (MatMut::<u8>::new(&data), bytes.len() / rows.max(1));
        let piece = (pairs / (2 * self.threads())).clamp(1, (HELD / (PAIR * width).max(1)).max(1));
        self.share(pairs.div_ceil(piece), bytes.len(), |_, i| {
            let last = pairs.min((i + 1) * piece);
            for pair in i * piece..last {
                let rows = &bytes[pair * PAIR * width..bytes.len().min((pair + 1) * PAIR * width)];
                // SAFETY: each pair of panels belongs to one piece.
                pack_pair(format, rows, width, cols, unsafe { out.row(pair) });
            }
            release(i * piece * PAIR..rows.min(last * PAIR));
        });
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    fn linear(&self, op: &Linear<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let Linear { x, weights, epilogue } = *op;
        let weights = std::slice::from_ref(weights);
        match OutputColumns::side_by_side(weights) {
            Some(parts) => {
                self.linear_with_lora(&Lora { x, norm: None, weights, epilogue, adapters: &[] }, &parts)
            }
            None => compose::linear(self, op),
        }
    }

    fn linear_many(&self, op: &LinearMany<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let LinearMany { x, norm, weights } = *op;
        let epilogue = Epilogue::NONE;
        match OutputColumns::side_by_side(weights) {
            Some(parts) => self.linear_with_lora(&Lora { x, norm, weights, epilogue, adapters: &[] }, &parts),
            None => compose::linear_many(self, op),
        }
    }

    fn lora(&self, op: &Lora<'_, Cpu>) -> Result<Tensor<Cpu>> {
        match OutputColumns::side_by_side(op.weights) {
            Some(parts) => self.linear_with_lora(op, &parts),
            None => compose::lora(self, op),
        }
    }

    fn qkv_prep(&self, op: &QkvPrep<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (heads, qkv) = (op.heads, Mat::<f32>::new(op.qkv));
        let positions = Mat::<u32>::new(&op.plan.positions).row(0);
        let prep = |norm: fn(&QkNorm<Cpu>) -> &Norm<Cpu>| Prep {
            norm: op.qk_norm.map(|n| norm_task(norm(n))),
            rope: op.rope.map(|rope| (Mat::new(&rope.table), rope.pairs)),
            dim: heads.dim,
        };
        let (for_q, for_k) = (prep(|n| &n.q), prep(|n| &n.k));
        let writer = CacheWriter::new(self.kernels, op.kv, op.plan, heads.dim);
        let out = self.alloc(DType::F32, qkv.rows, heads.q_cols())?;
        let (m, kernels) = (MatMut::<f32>::new(&out), self.kernels);
        self.by_tokens(qkv.rows, 8 * op.qkv.len(), |scratch, token| {
            let (q, kv) = qkv.row(token).split_at(heads.q_cols());
            let (k, v) = kv.split_at(heads.kv_cols());
            scratch.floats.resize(scratch.floats.len().max(k.len()), 0.0);
            let turned = &mut scratch.floats[..k.len()];
            // SAFETY: each token, and so each row, belongs to one piece.
            unsafe {
                for_q.run(kernels, q, positions[token], m.row(token));
                for_k.run(kernels, k, positions[token], turned);
                writer.put(token, turned, v);
            }
        });
        Ok(out)
    }

    fn ffn(&self, op: &Ffn<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (weights, epilogue, adapters) = (std::slice::from_ref(op.down), op.epilogue, op.adapters);
        let parts = [op.up, weights].map(OutputColumns::side_by_side);
        let [Some(up), Some(down)] = parts else { return compose::ffn(self, op) };
        let bent = self.gated_up(op, &up)?; // [rows, width]
        self.linear_with_lora(&Lora { x: &bent, norm: None, weights, epilogue, adapters }, &down)
    }

    fn moe(&self, op: &Moe<'_, Cpu>) -> Result<Tensor<Cpu>> {
        // All experts count, also those without rows: a row's result must not depend on which others are computed.
        let mut layers = op.experts.iter().flat_map(|e| e.up.iter().chain([&e.down]));
        match layers.all(|l| l.weight.in_order().is_some()) {
            true => self.moe_phases(op),
            false => compose::moe(self, op),
        }
    }

    fn head(&self, op: &Head<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, at, task) = (Mat::<f32>::new(op.x), Mat::<u32>::new(op.rows).row(0), norm_task(op.norm));
        let k = self.kernels;
        let normed = self.by_rows(at.len(), x.cols, |_, r, out| match at[r] as usize {
            row if row < x.rows => (k.norm)(&task, x.row(row), out),
            _ => out.fill(0.0),
        })?;
        self.linear(&Linear { x: &normed, weights: op.weights, epilogue: op.epilogue })
    }
}

#[cfg(test)]
mod tests {
    use tallow_core::Format;
    use tallow_core::conformance::Suite;

    use super::*;

    /// Reference quantization of the input: 8-bit codes with one scale per 256 inputs.
    fn eight_bits(format: Format, x: &[f32]) -> Vec<f32> {
        let part = |x: &[f32]| {
            let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
            let (scale, by) = (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 });
            x.iter().map(|x| (x * by).round_ties_even() * scale).collect::<Vec<f32>>()
        };
        // Float weights are multiplied with unquantized input.
        if format.is_plain() || format == Format::F8 {
            x.to_vec()
        } else {
            x.chunks(256).flat_map(part).collect()
        }
    }

    /// A device with that instruction set, or the scalar one where this machine lacks it.
    fn cpu(isa: Isa, threads: usize, arithmetic: Arithmetic) -> Cpu {
        let isa = if isa.is_available() { isa } else { Isa::Scalar };
        Cpu::new(isa, threads).unwrap().with(arithmetic)
    }

    /// The conformance suite for every instruction set, with one thread and with several.
    macro_rules! suites {
        ($($name:ident: $isa:expr, $threads:literal;)*) => {
            $(mod $name {
                use super::*;

                mod exact {
                    use super::*;
                    tallow_core::conformance!(Suite::exact(), cpu($isa, $threads, Arithmetic::Exact));
                }

                mod fast {
                    use super::*;
                    tallow_core::conformance!(
                        Suite::rounding(eight_bits, 8e-3),
                        cpu($isa, $threads, Arithmetic::Fast)
                    );
                }
            })*
        };
    }

    suites! {
        scalar: Isa::Scalar, 2;
        avx2: Isa::Avx2, 2;
        avxvnni: Isa::AvxVnni, 2;
        best: Isa::best(), 3;
        one_thread: Isa::best(), 1;
    }

    mod observed {
        use tallow_core::Observed;

        use super::*;
        tallow_core::conformance!(Suite::exact(), Observed::new(cpu(Isa::best(), 2, Arithmetic::Exact)));
    }

    #[test]
    fn what_the_cpu_lacks_is_refused() {
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            assert!(Cpu::new(isa, 1).is_err());
        }
    }
}
