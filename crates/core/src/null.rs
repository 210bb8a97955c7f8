//! [`Null`]: a backend that checks and records ops but computes nothing.

use crate::ops::{
    Activate, Attend, Copy, Dequant, Eltwise, Embed, GatedDelta, IndexMode, IndexRows, KvWrite, Matmul,
    Normalize, PermuteCols, Rope, Route, TopK, TopKOut,
};
use crate::{Backend, DType, Memory, Reading, Result, Tensor, Trace};

/// A backend without memory or arithmetic: models run on it to show which ops they launch and that shapes fit.
/// Reads return zeros.
#[derive(Debug, Default)]
pub struct Null {
    trace: Trace,
}

impl Null {
    fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Null>> {
        self.alloc(DType::F32, rows, cols)
    }
}

impl Memory for Null {
    type Buf = ();

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        Ok(Tensor::whole((), dtype, rows, cols))
    }

    fn write(&self, _to: &Tensor<Self>, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()> {
        wanted.iter_mut().try_for_each(|r| {
            r.check()?;
            r.to.fill(0);
            Ok(())
        })
    }
}

impl Backend for Null {
    fn label(&self) -> String {
        "null".into()
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn copy(&self, _op: &Copy<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.ids.cols(), op.table.cols())
    }

    fn normalize(&self, op: &Normalize<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.weight.rows())
    }

    fn dequant(&self, op: &Dequant<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.rows.len(), op.w.cols())
    }

    fn rope(&self, op: &Rope<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn kv_write(&self, _op: &KvWrite<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn attend(&self, op: &Attend<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.q.rows(), op.q.cols())
    }

    fn activate(&self, op: &Activate<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.gate.rows(), op.gate.cols())
    }

    fn eltwise(&self, op: &Eltwise<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn index_rows(&self, op: &IndexRows<'_, Self>) -> Result<Tensor<Self>> {
        match op.mode {
            IndexMode::Gather => self.like(op.indices.cols(), op.x.cols()),
            IndexMode::ScatterAdd(into) => Ok(into.clone()),
        }
    }

    fn permute_cols(&self, op: &PermuteCols<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.indices.cols())
    }

    fn route(&self, op: &Route<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.logits.rows(), op.logits.cols())
    }

    fn gated_delta(&self, op: &GatedDelta<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.v.rows(), op.v.cols())
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let ids = self.alloc(DType::U32, op.x.rows(), op.k)?;
        Ok(TopKOut { values: self.like(op.x.rows(), op.k)?, ids })
    }
}
