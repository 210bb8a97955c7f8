//! The [`Backend`] of [`Cuda`]: each op allocates its result and launches kernels.

use tallow_core::ops::{
    Activate, Attend, Copy, Dequant, Eltwise, Embed, Ffn, GatedDelta, Head, IndexMode, IndexRows, KvWrite,
    Linear, LinearMany, Matmul, Normalize, PermuteCols, Rope, Route, TailSum, TopK, TopKOut,
};
use tallow_core::{Backend, DType, HostWeight, Memory, Result, Tensor, Trace, Weight, compose};

use crate::device::Cuda;

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

    fn linear(&self, op: &Linear<'_, Cuda>) -> Result<Tensor<Cuda>> {
        match self.linear_fused(op)? {
            Some(out) => Ok(out),
            None => compose::linear(self, op),
        }
    }

    fn linear_many(&self, op: &LinearMany<'_, Cuda>) -> Result<Tensor<Cuda>> {
        match self.linear_many_fused(op)? {
            Some(out) => Ok(out),
            None => compose::linear_many(self, op),
        }
    }

    fn ffn(&self, op: &Ffn<'_, Cuda>) -> Result<Tensor<Cuda>> {
        match self.ffn_fused(op)? {
            Some(out) => Ok(out),
            None => compose::ffn(self, op),
        }
    }

    fn head(&self, op: &Head<'_, Cuda>) -> Result<Tensor<Cuda>> {
        match self.head_fused(op)? {
            Some(out) => Ok(out),
            None => compose::head(self, op),
        }
    }
}
