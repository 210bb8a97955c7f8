//! [`Null`]: a backend that checks and records ops but computes nothing.

use crate::ops::{Copy, Embed, Required, TailSum, TopK, TopKOut};
use crate::{Backend, DType, Memory, Reading, Result, Tensor, Trace};

/// Required methods of a backend that computes nothing. `copy`, `embed`, `topk` and `tail_sum`, where a step begins and
/// ends, are the backend's own.
#[doc(hidden)]
#[macro_export]
macro_rules! null_ops {
    () => {
        $crate::required_ops!($crate::null_ops);

        fn sync(&self) -> $crate::Result<()> {
            Ok(())
        }
    };
    ($($op:ident => $method:ident,)*) => {
        $(fn $method(
            &self,
            op: &$crate::ops::$op<'_, Self>,
        ) -> $crate::Result<<$crate::ops::$op<'_, Self> as $crate::ops::Op>::Out> {
            $crate::ops::Required::out(op, self)
        })*
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
    type Pending = Vec<Tensor<Null>>;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        Ok(Tensor::whole((), dtype, rows, cols))
    }

    fn write(&self, _to: &Tensor<Self>, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn fetch(&self, from: &[&Tensor<Self>]) -> Result<Self::Pending> {
        Ok(from.iter().copied().cloned().collect())
    }

    fn wait(&self, pending: Self::Pending, to: &mut [&mut [u8]]) -> Result<()> {
        Reading::pairs(&pending, to)?.into_iter().for_each(|reading| reading.to.fill(0));
        Ok(())
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

    fn copy(&self, op: &Copy<'_, Self>) -> Result<()> {
        op.out(self)
    }

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        op.out(self)
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        op.out(self)
    }

    fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>> {
        op.out(self)
    }
}
