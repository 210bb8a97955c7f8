//! The `Backend` of the CPU: each op is split into pieces for the thread pool, and kernels compute them.
//!
//! ```text
//!   linear --> input: rows quantized to int8 --> crate::linear: GEMV or GEMM over packed panels, then the epilogue
//!   lora  wraps linear and ffn;  moe  runs both for rows sorted by expert
//! ```

mod attend;
mod device;
mod ffn;
mod input;
mod kv_cache;
mod linear;
mod lora;
mod moe;
mod recurrent;
mod roofline;

use tallow_core::ops::Epilogue;
use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, EltwiseOp, Embed, Ffn, GatedDelta, Head, IndexMode,
    IndexRows, KvWrite, LatentWrite, Linear, LinearHeads, LinearMany, Lora, Matmul, Moe, Normalize,
    PermuteCols, QkvPrep, Rope, Route, TailSum, TopK, TopKOut,
};
use tallow_core::{
    Backend, DType, Error, HostWeight, Memory, Norm, QkNorm, Result, Tensor, Trace, Weight, compose,
};

pub use device::Cpu;
use device::norm_task;
use kv_cache::{CacheWriter, Prep};
use linear::{OutputColumns, dense, source};
pub use roofline::ReadProbe;

use crate::mat::{Mat, MatMut};
use crate::memory::Buf;
use crate::pack::{PAIR, layout, pack_pair, packed_bytes};
use crate::rowwise::TailTask;

/// Most bytes of a source weight that a thread packs before it releases them (`HostWeight::release`).
const HELD: usize = 1 << 20;

impl Backend for Cpu {
    fn label(&self) -> String {
        let (isa, threads) = (self.isa(), self.threads());
        format!("cpu ({isa}, {threads} thread{})", if threads == 1 { "" } else { "s" })
    }

    fn trace(&self) -> &Trace {
        &self.trace
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
                table.unpack_row(k, id, &mut scratch.linear, out);
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
        let bias = op.bias.map(Mat::new);
        let layer = [OutputColumns { w: dense(op.weight), bias, outputs: op.weight.rows(), column: 0 }];
        let x = self.input(op.x, None, layer.iter().map(|l| &l.w))?;
        self.run_linear(&self.linear_tasks(&x, &layer, &out, op.epilogue), |_| ());
        Ok(out)
    }

    fn dequant(&self, op: &Dequant<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (k, w, first) = (self.kernels, source(op.w), op.rows.start);
        self.by_rows(op.rows.len(), op.w.cols(), |scratch, r, out| {
            w.unpack_row(k, first + r, &mut scratch.linear, out)
        })
    }

    fn rope(&self, op: &Rope<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, positions) = (Mat::<f32>::new(op.x), Mat::<u32>::new(op.positions).row(0));
        let rope = Some((Mat::new(&op.rope.table), op.rope.pairs));
        let (k, prep) = (self.kernels, Prep { norm: None, rope, dim: op.head_dim });
        self.by_rows(x.rows, x.cols, |_, r, out| prep.run(k, x.row(r), positions[r], out))
    }

    fn kv_write(&self, op: &KvWrite<'_, Cpu>) -> Result<()> {
        let (k, v) = (Mat::<f32>::new(op.k), op.v.map(Mat::<f32>::new));
        self.touch_ahead(&op.kv, op.plan);
        let writer = CacheWriter::new(self.kernels, op.kv, op.plan, op.heads.dim);
        self.by_tokens(k.rows, 4 * op.k.len(), |_, token| {
            // SAFETY: each token belongs to one piece.
            unsafe { writer.put(token, k.row(token), v.as_ref().map(|v| v.row(token))) };
        });
        Ok(())
    }

    fn attend(&self, op: &Attend<'_, Cpu>) -> Result<Tensor<Cpu>> {
        self.attend_paged(op)
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
        fn other<'a>(y: Option<Mat<'a, f32>>, r: usize, cols: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
            match y.map(|y| y.row(if y.rows == 1 { 0 } else { r })) {
                Some(&[one]) if cols != 1 => {
                    scratch.clear();
                    scratch.resize(cols, one);
                    scratch
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
        self.run_gated_delta(op)
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

    fn tail_sum(&self, op: &TailSum<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, top, temperatures) = (Mat::new(op.x), Mat::new(&op.top.values), Mat::new(op.temperatures));
        let k = self.kernels;
        let out = self.alloc(DType::F32, x.rows, temperatures.cols)?;
        let sums = MatMut::<f32>::new(&out);
        self.share(x.rows, x.rows * x.cols, |_, r| {
            let task = TailTask { x: x.row(r), top: top.row(r), temperatures: temperatures.row(r) };
            // SAFETY: each row belongs to one piece.
            (k.tail_sum)(&task, unsafe { sums.row(r) });
        });
        Ok(out)
    }

    fn find_packed(&self, weight: &HostWeight<'_>) -> Option<Weight<Cpu>> {
        self.packed(weight)
    }

    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Cpu>> {
        compose::check_weight(&weight)?;
        if let Some(found) = self.find_packed(&weight) {
            return Ok(found);
        }
        let HostWeight { format, rows, cols, bytes, release, .. } = weight;
        let pairs = rows.div_ceil(PAIR);
        let out_of_reach = || Error::OutOfMemory { device: "cpu".into(), asked: usize::MAX };
        let total = packed_bytes(format, rows, cols).ok_or_else(out_of_reach)?;
        let out_of_memory = || Error::OutOfMemory { device: "cpu".into(), asked: total };
        let past = layout(format).shape.tail_inputs(cols);
        let (writer, all) = (self.writer_of(&weight), total.saturating_add(past));
        let memory =
            if writer.is_some() { self.arena.alloc_zeroed(all) } else { self.arena.alloc_weights(all) };
        let tensor = |memory: Buf| Tensor::whole(memory, DType::U8, pairs, total / pairs.max(1));
        let data: Tensor<Cpu> = tensor(memory.ok_or_else(out_of_memory)?);
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
        let data = match writer {
            Some(writer) => {
                // SAFETY: the buffer has that many bytes, and nobody writes them any more.
                let packed = unsafe { std::slice::from_raw_parts(data.buf().start(), all) };
                tensor(writer.add(&weight, packed)?)
            }
            None => data,
        };
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    fn linear(&self, op: &Linear<'_, Cpu>) -> Result<Tensor<Cpu>> {
        match OutputColumns::side_by_side(std::slice::from_ref(op.weights)) {
            Some(layers) => self.linear_layers(op.x, None, &layers, op.epilogue),
            None => compose::linear(self, op),
        }
    }

    fn linear_many(&self, op: &LinearMany<'_, Cpu>) -> Result<Tensor<Cpu>> {
        match OutputColumns::side_by_side(op.weights) {
            Some(layers) => self.linear_layers(op.x, op.norm, &layers, Epilogue::NONE),
            None => compose::linear_many(self, op),
        }
    }

    fn linear_heads(&self, op: &LinearHeads<'_, Cpu>) -> Result<Tensor<Cpu>> {
        match OutputColumns::side_by_side(op.weights) {
            Some(layers) => self.linear_by_head(op, &layers),
            None => compose::linear_heads(self, op),
        }
    }

    fn lora(&self, op: &Lora<'_, Cpu>) -> Result<Tensor<Cpu>> {
        match OutputColumns::side_by_side(op.weights) {
            Some(layers) => self.linear_with_lora(op, &layers),
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
        self.touch_ahead(&op.kv, op.plan);
        let writer = CacheWriter::new(self.kernels, op.kv, op.plan, heads.dim);
        let out = self.alloc(DType::F32, qkv.rows, heads.q_cols())?;
        let (m, kernels) = (MatMut::<f32>::new(&out), self.kernels);
        self.by_tokens(qkv.rows, 8 * op.qkv.len(), |scratch, token| {
            let (q, kv) = qkv.row(token).split_at(heads.q_cols());
            let (k, v) = kv.split_at(heads.kv_cols());
            scratch.floats.resize(scratch.floats.len().max(k.len()), 0.0);
            let rotated = &mut scratch.floats[..k.len()];
            // SAFETY: each token, and so each row, belongs to one piece.
            unsafe {
                for_q.run(kernels, q, positions[token], m.row(token));
                for_k.run(kernels, k, positions[token], rotated);
                writer.put(token, rotated, Some(v));
            }
        });
        Ok(out)
    }

    fn latent_write(&self, op: &LatentWrite<'_, Cpu>) -> Result<()> {
        let (x, dim, latent) = (Mat::<f32>::new(op.x), op.heads.dim, op.norm.weight.cols());
        let others = op.rotated();
        let positions = Mat::<u32>::new(&op.plan.positions).row(0);
        let rope = op.rope.map(|rope| (Mat::new(&rope.table), rope.pairs));
        let (of_latent, of_others) = (
            Prep { norm: Some(norm_task(op.norm)), rope: None, dim: latent },
            Prep { norm: None, rope, dim: others },
        );
        self.touch_ahead(&op.kv, op.plan);
        let writer = CacheWriter::new(self.kernels, op.kv, op.plan, dim);
        let kernels = self.kernels;
        self.by_tokens(x.rows, 8 * op.x.len(), |scratch, token| {
            scratch.floats.resize(scratch.floats.len().max(dim), 0.0);
            let row = &mut scratch.floats[..dim];
            let (from, (front, back)) = (x.row(token), row.split_at_mut(others));
            of_others.run(kernels, &from[latent..], positions[token], front);
            of_latent.run(kernels, &from[..latent], positions[token], back);
            // SAFETY: each token belongs to one piece.
            unsafe { writer.put(token, row, None) };
        });
        Ok(())
    }

    fn ffn(&self, op: &Ffn<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (weights, epilogue, adapters) = (std::slice::from_ref(op.down), op.epilogue, op.adapters);
        let layers = [op.up, weights].map(OutputColumns::side_by_side);
        let [Some(up), Some(down)] = layers else { return compose::ffn(self, op) };
        if adapters.is_empty() {
            return self.linear_layers(&self.gated_up(op, &up)?, None, &down, epilogue);
        }
        let x = &self.gated_up_with_lora(op, &up)?; // [rows, width]
        self.linear_with_lora(&Lora { x, norm: None, weights, epilogue, adapters }, &down)
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
    use tallow_core::Arithmetic;
    use tallow_core::conformance::Suite;

    use super::*;
    use crate::isa::Isa;
    use crate::kernels::Kernels;

    /// A device with that instruction set, or the scalar one where this machine lacks it.
    fn cpu(isa: Isa, threads: usize, arithmetic: Arithmetic) -> Cpu {
        let isa = if isa.is_available() { isa } else { Isa::Scalar };
        Cpu::new(isa, threads).unwrap().with(arithmetic)
    }

    /// The suite with all that it compares in CI, and not every row of long attention elsewhere; in brief where this machine
    /// lacks the instruction set, since the scalar kernels have a suite of their own.
    fn sampled(suite: Suite, isa: Isa) -> Suite {
        let has_bf16 = Kernels::new(isa).is_some_and(|kernels| kernels.bf16.is_some());
        let suite = match has_bf16 && suite.arithmetic == Arithmetic::Fast {
            true => suite.with_bf16_inputs(),
            false => suite,
        };
        match isa.is_available() {
            true => Suite { every_row: tallow_support::ci(), ..suite },
            false => suite.brief(),
        }
    }

    /// The conformance suite for every instruction set, with one thread and with several.
    macro_rules! suites {
        ($($name:ident: $isa:expr, $threads:literal;)*) => {
            $(mod $name {
                use super::*;

                mod exact {
                    use super::*;
                    tallow_core::conformance!(
                        sampled(Suite::exact(), $isa),
                        cpu($isa, $threads, Arithmetic::Exact)
                    );
                }

                mod fast {
                    use super::*;
                    tallow_core::conformance!(
                        sampled(Suite::fast(8e-3), $isa),
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
        avx512: Isa::Avx512, 2;
        avx512bf16: Isa::Avx512Bf16, 2;
        best: Isa::best(), 3;
        one_thread: Isa::best(), 1;
    }

    // What the best one has of its own hides its kernels.
    #[cfg(target_arch = "aarch64")]
    suites! { neon: Isa::Neon, 2; }

    mod observed {
        use tallow_core::Observed;

        use super::*;
        tallow_core::conformance!(
            sampled(Suite::exact(), Isa::best()),
            Observed::new(cpu(Isa::best(), 2, Arithmetic::Exact))
        );
    }

    #[test]
    fn what_the_cpu_lacks_is_refused() {
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            assert!(Cpu::new(isa, 1).is_err());
        }
    }
}
