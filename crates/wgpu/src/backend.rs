//! The [`Backend`] of [`Wgpu`]: each op allocates its result and launches kernels.

use std::rc::Rc;

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Epilogue, Ffn, GatedDelta, IndexMode,
    IndexRows, KvWrite, LatentWrite, Linear, LinearHeads, LinearMany, Matmul, Moe, Normalize, PermuteCols,
    QkvPrep, Rope, Route, TailSum, TopK, TopKOut,
};
use tallow_core::{
    Backend, DType, HostWeight, Memory, Replay, Result, Stack, Tensor, Trace, Weight, compose,
};

use crate::device::{Run, Wgpu, runs};
use crate::kernels::linear::Product;
use crate::kernels::moe::Experts;
use crate::weights::{self, LANES};

/// Groups of rows of a packed weight, and words of a group.
fn packed(weight: &HostWeight<'_>) -> (usize, usize) {
    (weight.rows.div_ceil(LANES), weights::layout(weight.format).group_words(weight.cols))
}

impl Wgpu {
    /// Packs a weight into its memory, [groups, words].
    fn pack(&self, weight: &HostWeight<'_>, data: &Tensor<Wgpu>) -> Result<()> {
        let HostWeight { format, rows, cols, bytes, release, .. } = *weight;
        let (layout, words) = (weights::layout(format), data.cols());
        let group_bytes = bytes.len() / rows.max(1) * LANES;
        // A few MiB at a time, so that loading needs little host memory.
        let at_once = ((4 << 20) / (4 * words).max(1)).clamp(1, data.rows().max(1));
        let mut packed = vec![0; at_once * words];
        for Run { block, at, rows: groups } in runs(data) {
            for first in groups.clone().step_by(at_once) {
                let count = at_once.min(groups.end - first);
                for (group, out) in (first..first + count).zip(packed.chunks_exact_mut(words.max(1))) {
                    let rows = &bytes[group * group_bytes..bytes.len().min((group + 1) * group_bytes)];
                    layout.pack(format, cols, rows, out);
                }
                let to = (at + first - groups.start) * words * 4;
                self.gpu.write(block, to as u64, bytemuck::cast_slice(&packed[..count * words]))?;
                release(first * LANES..rows.min((first + count) * LANES));
            }
        }
        Ok(())
    }
}

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

    fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Replay>> {
        let (gpu, captured) = (self.gpu.clone(), self.gpu.capture(work)?);
        Ok(captured.map(Rc::from).map(|captured| Replay::new(move || gpu.replay(&captured))))
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
        self.multiply(&Product { x: op.x, out: &out, epilogue: op.epilogue }, &parts)?;
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
        compose::check_weight(&weight)?;
        let (groups, words) = packed(&weight);
        let data = Tensor::whole(self.buf(groups, 4 * words, usize::MAX)?, DType::U32, groups, words);
        self.pack(&weight, &data)?;
        let HostWeight { format, rows, cols, .. } = weight;
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    fn prepare_stacked(&self, weight: HostWeight<'_>, stack: &mut Stack<Wgpu>) -> Result<Weight<Wgpu>> {
        compose::check_weight(&weight)?;
        let ((groups, words), HostWeight { format, rows, cols, .. }) = (packed(&weight), weight);
        if stack.room.is_none() {
            let buf = self.stack_buf(stack.count, groups, 4 * words)?;
            stack.room = buf.map(|buf| {
                let data = Tensor::whole(buf, DType::U32, stack.count * groups, words);
                Weight::Blocks { data, format, rows, cols }
            });
        }
        let data = match &stack.room {
            Some(Weight::Blocks { data, format: f, rows: r, cols: c })
                if (*f, *r, *c) == (format, rows, cols) && stack.used < stack.count =>
            {
                data.row_range(stack.used * groups..(stack.used + 1) * groups)
            }
            _ => return self.prepare(weight),
        };
        stack.used += 1;
        self.pack(&weight, &data)?;
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    fn linear(&self, op: &Linear<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(weight) = op.weights.weight.in_order() else { return compose::linear(self, op) };
        let out = self.like(op.x.rows(), weight.rows())?;
        let parts = Wgpu::parts(weight, op.weights.bias.as_ref(), 0)?;
        self.multiply(&Product { x: op.x, out: &out, epilogue: op.epilogue }, &parts)?;
        Ok(out)
    }

    fn linear_many(&self, op: &LinearMany<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(parts) = Wgpu::side_by_side(op.weights)? else { return compose::linear_many(self, op) };
        let normed =
            op.norm.map(|norm| self.normalize(&Normalize { x: op.x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
        let out = self.like(op.x.rows(), op.cols())?;
        self.multiply(&Product { x, out: &out, epilogue: Epilogue::NONE }, &parts)?;
        Ok(out)
    }

    fn linear_heads(&self, op: &LinearHeads<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        // Columns are copied by the workgroups of a head's first outputs.
        let pieces = match op.outputs() {
            0 => None,
            _ => Wgpu::pieces(op.weights.iter(), op.copied.len())?,
        };
        let Some(pieces) = pieces else { return compose::linear_heads(self, op) };
        let out = self.like(op.x.rows(), op.weights.len() * op.out_dim())?;
        self.linear_heads_into(op, &pieces, &out)?;
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

    fn latent_write(&self, op: &LatentWrite<'_, Wgpu>) -> Result<()> {
        match Wgpu::is_usual(op.norm) {
            true => self.latent_write_to(op),
            false => compose::latent_write(self, op),
        }
    }

    fn ffn(&self, op: &Ffn<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(parts) = Wgpu::gated(op)?.filter(|_| op.adapters.is_empty()) else {
            return compose::ffn(self, op);
        };
        let normed =
            op.norm.map(|norm| self.normalize(&Normalize { x: op.x, norm, residual: None })).transpose()?;
        let x = normed.as_ref().unwrap_or(op.x); // [rows, dim]
        let hidden = self.like(x.rows(), op.down.weight.cols())?;
        self.multiply_glu(&Product { x, out: &hidden, epilogue: Epilogue::NONE }, &parts, op.act)?;
        self.linear(&Linear { x: &hidden, weights: op.down, epilogue: op.epilogue })
    }

    fn moe(&self, op: &Moe<'_, Wgpu>) -> Result<Tensor<Wgpu>> {
        let Some(experts) = Experts::new(op.experts)? else { return compose::moe(self, op) };
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.moe_into(op, &experts, &out)?;
        Ok(out)
    }
}
