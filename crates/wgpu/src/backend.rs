//! The [`Backend`] of [`Wgpu`]: each op allocates its result and launches kernels.

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Epilogue, Ffn, GatedDelta, IndexMode,
    IndexRows, KvWrite, Linear, LinearMany, Matmul, Normalize, PermuteCols, QkvPrep, Rope, Route, TailSum,
    TopK, TopKOut,
};
use tallow_core::{Backend, DType, HostWeight, Memory, Result, Tensor, Trace, Weight, compose};

use crate::device::Wgpu;
use crate::kernels::linear::Product;
use crate::weights::{self, LANES};

impl Backend for Wgpu {
    fn label(&self) -> String {
        self.about().to_string()
    }

    fn trace(&self) -> &Trace {
        &self.trace
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

    fn begin(&self) -> Result<bool> {
        self.gpu.submit()?;
        Ok(true)
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

    fn tail_sum(&self, op: &TailSum<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let out = self.like(op.x.rows(), op.temperatures.cols())?;
        self.tail_sum_into(op, &out)?;
        Ok(out)
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
