//! [`Null`]: a backend that checks and records ops but computes nothing.

use crate::ops::{Embed, TopK, TopKOut};
use crate::{Backend, DType, Memory, Reading, Result, Tensor, Trace};

/// Required methods of a backend that computes nothing: each op returns what `alloc` does. `embed` and `topk`, where a
/// step begins and ends, are the backend's own.
#[doc(hidden)]
#[macro_export]
macro_rules! null_ops {
    () => {
        fn copy(&self, _op: &$crate::ops::Copy<'_, Self>) -> $crate::Result<()> {
            Ok(())
        }

        fn sync(&self) -> $crate::Result<()> {
            Ok(())
        }

        fn normalize(&self, op: &$crate::ops::Normalize<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.x.rows(), op.x.cols())
        }

        fn matmul(&self, op: &$crate::ops::Matmul<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.x.rows(), op.weight.rows())
        }

        fn dequant(&self, op: &$crate::ops::Dequant<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.rows.len(), op.w.cols())
        }

        fn rope(&self, op: &$crate::ops::Rope<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.x.rows(), op.x.cols())
        }

        fn kv_write(&self, _op: &$crate::ops::KvWrite<'_, Self>) -> $crate::Result<()> {
            Ok(())
        }

        fn attend(&self, op: &$crate::ops::Attend<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.q.rows(), op.q.cols())
        }

        fn activate(&self, op: &$crate::ops::Activate<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.gate.rows(), op.gate.cols())
        }

        fn eltwise(&self, op: &$crate::ops::Eltwise<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.x.rows(), op.x.cols())
        }

        fn index_rows(&self, op: &$crate::ops::IndexRows<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            match op.mode {
                $crate::ops::IndexMode::Gather => {
                    self.alloc($crate::DType::F32, op.indices.cols(), op.x.cols())
                }
                $crate::ops::IndexMode::ScatterAdd(into) => Ok(into.clone()),
            }
        }

        fn permute_cols(
            &self,
            op: &$crate::ops::PermuteCols<'_, Self>,
        ) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.x.rows(), op.indices.cols())
        }

        fn route(&self, op: &$crate::ops::Route<'_, Self>) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.logits.rows(), op.logits.cols())
        }

        fn gated_delta(
            &self,
            op: &$crate::ops::GatedDelta<'_, Self>,
        ) -> $crate::Result<$crate::Tensor<Self>> {
            self.alloc($crate::DType::F32, op.v.rows(), op.v.cols())
        }
    };
}

/// A backend without memory or arithmetic: models run on it to show which ops they launch and that shapes fit.
/// Reads return zeros.
#[derive(Debug, Default)]
pub struct Null {
    trace: Trace,
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

    null_ops!();

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        self.alloc(DType::F32, op.ids.cols(), op.table.cols())
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let ids = self.alloc(DType::U32, op.x.rows(), op.k)?;
        let values = self.alloc(DType::F32, op.x.rows(), op.k)?;
        Ok(TopKOut { values, ids })
    }
}
