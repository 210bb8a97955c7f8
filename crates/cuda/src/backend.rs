//! The [`Backend`] of [`Cuda`]: each op allocates its result and launches kernels.

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Ffn, GatedDelta, Head, IndexMode, IndexRows,
    KvWrite, LatentWrite, Linear, LinearHeads, LinearMany, Lora, Matmul, Moe, Normalize, PermuteCols,
    QkvPrep, Rope, Route, TailSum, TopK, TopKOut,
};
use tallow_core::{
    Backend, DType, HostWeight, Memory, Norm, Replay, Result, Stack, Tensor, Trace, Weight, compose,
};

use crate::device::Cuda;
use crate::ops::experts::Experts;
use crate::weights::Stacked;

impl Backend for Cuda {
    fn label(&self) -> String {
        self.about().to_string()
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn copy(&self, op: &Copy<'_, Cuda>) -> Result<()> {
        if op.from.is_empty() {
            return Ok(());
        }
        if !Cuda::overlap(op.from, op.to) {
            return self.copy_apart(op);
        }
        let between = self.alloc(op.from.dtype(), op.from.rows(), op.from.cols())?;
        self.copy_apart(&Copy { from: op.from, to: &between })?;
        self.copy_apart(&Copy { from: &between, to: op.to })
    }

    fn sync(&self) -> Result<()> {
        self.gpu.wait()
    }

    fn begin(&self) -> Result<bool> {
        // Launches are handed over one by one, and the device computes them meanwhile.
        self.gpu.check()?;
        Ok(true)
    }

    fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Replay>> {
        let captured = self.gpu.capture(work)?;
        Ok(captured.map(|captured| Replay::new(move || captured.launch())))
    }

    fn clock(&self) -> Result<f64> {
        self.gpu.clock()
    }

    fn embed(&self, op: &Embed<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.ids.cols(), op.table.cols())?;
        self.embed_into(op, &out)?;
        Ok(out)
    }

    fn normalize(&self, op: &Normalize<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.normalize_into(op, &out)?;
        Ok(out)
    }

    fn matmul(&self, op: &Matmul<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.weight.rows())?;
        self.matmul_into(op, &out)?;
        Ok(out)
    }

    fn dequant(&self, op: &Dequant<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.rows.len(), op.w.cols())?;
        self.dequant_into(op, &out)?;
        Ok(out)
    }

    fn rope(&self, op: &Rope<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.rope_into(op, &out)?;
        Ok(out)
    }

    fn kv_write(&self, op: &KvWrite<'_, Cuda>) -> Result<()> {
        self.kv_write_to(op)
    }

    fn attend(&self, op: &Attend<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.q.rows(), op.q.cols())?;
        self.attend_into(op, &out)?;
        Ok(out)
    }

    fn qkv_prep(&self, op: &QkvPrep<'_, Cuda>) -> Result<Tensor<Cuda>> {
        // Norms of parts of heads are no model's.
        let is_whole = |norm: &Norm<Cuda>| norm.weight.cols().is_multiple_of(op.heads.dim);
        if !op.qk_norm.is_none_or(|norms| is_whole(&norms.q) && is_whole(&norms.k)) {
            return compose::qkv_prep(self, op);
        }
        let out = self.like(op.qkv.rows(), op.heads.q_cols())?;
        self.qkv_prep_into(op, &out)?;
        Ok(out)
    }

    fn latent_write(&self, op: &LatentWrite<'_, Cuda>) -> Result<()> {
        self.latent_write_to(op)
    }

    fn causal_conv(&self, op: &CausalConv<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.causal_conv_into(op, &out)?;
        Ok(out)
    }

    fn activate(&self, op: &Activate<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.gate.rows(), op.gate.cols())?;
        self.activate_into(op, &out)?;
        Ok(out)
    }

    fn eltwise(&self, op: &Eltwise<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.eltwise_into(op, &out)?;
        Ok(out)
    }

    fn index_rows(&self, op: &IndexRows<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = match op.mode {
            IndexMode::Gather => self.like(op.indices.cols(), op.x.cols())?,
            IndexMode::ScatterAdd(into) => into.clone(),
        };
        self.index_rows_into(op, &out)?;
        Ok(out)
    }

    fn permute_cols(&self, op: &PermuteCols<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.indices.cols())?;
        self.permute_cols_into(op, &out)?;
        Ok(out)
    }

    fn route(&self, op: &Route<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.logits.rows(), op.logits.cols())?;
        self.route_into(op, &out)?;
        Ok(out)
    }

    fn gated_delta(&self, op: &GatedDelta<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.v.rows(), op.v.cols())?;
        self.gated_delta_into(op, &out)?;
        Ok(out)
    }

    fn topk(&self, op: &TopK<'_, Cuda>) -> Result<TopKOut<Cuda>> {
        let (rows, k) = (op.x.rows(), op.k);
        let out = TopKOut { values: self.like(rows, k)?, ids: self.alloc(DType::U32, rows, k)? };
        self.topk_into(op, &out)?;
        Ok(out)
    }

    fn tail_sum(&self, op: &TailSum<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let out = self.like(op.x.rows(), op.temperatures.cols())?;
        self.tail_sum_into(op, &out)?;
        Ok(out)
    }

    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Cuda>> {
        self.prepare_weight(weight)
    }

    fn prepare_stacked(&self, weight: HostWeight<'_>, stack: &mut Stack<Cuda>) -> Result<Weight<Cuda>> {
        self.prepare_in_stack(weight, stack)
    }

    fn linear(&self, op: &Linear<'_, Cuda>) -> Result<Tensor<Cuda>> {
        self.linear_fused(op)
    }

    fn linear_many(&self, op: &LinearMany<'_, Cuda>) -> Result<Tensor<Cuda>> {
        self.linear_many_fused(op)
    }

    fn lora(&self, op: &Lora<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Lora { x, norm, weights, epilogue, .. } = *op;
        let out = compose::lora(self, &Lora { x, norm, weights, epilogue, adapters: &[] })?;
        self.add_deltas(op, &out)?;
        Ok(out)
    }

    fn ffn(&self, op: &Ffn<'_, Cuda>) -> Result<Tensor<Cuda>> {
        match self.ffn_fused(op)? {
            Some(out) => Ok(out),
            None => compose::ffn(self, op),
        }
    }

    fn head(&self, op: &Head<'_, Cuda>) -> Result<Tensor<Cuda>> {
        self.head_fused(op)
    }

    fn linear_heads(&self, op: &LinearHeads<'_, Cuda>) -> Result<Tensor<Cuda>> {
        // Columns are copied by the CTAs of a head's first outputs.
        let some = op.outputs() > 0 && !op.inputs.is_empty();
        let weights = some.then(|| Stacked::of(op.weights.iter())).flatten();
        let Some(weights) = weights.filter(|weights| weights.orders().is_none()) else {
            return compose::linear_heads(self, op);
        };
        let out = self.like(op.x.rows(), op.weights.len() * op.out_dim())?;
        self.linear_heads_into(op, &weights, &out)?;
        Ok(out)
    }

    fn moe(&self, op: &Moe<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Some(experts) = Experts::new(op.experts) else { return compose::moe(self, op) };
        let out = self.like(op.x.rows(), op.x.cols())?;
        self.moe_into(op, &experts, &out)?;
        Ok(out)
    }
}
