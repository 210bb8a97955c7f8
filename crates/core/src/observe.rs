//! Observation of linear layers' inputs (imatrix): [`Trace::set_observer`](crate::Trace::set_observer).
//!
//! While an observer is set, fused ops run as their single linear layers, so that each layer's input is observed.

use std::fmt;
use std::sync::Arc;

use crate::ops::{Eltwise, EltwiseOp, Epilogue, Ffn, IndexMode, IndexRows, Moe};
use crate::{Backend, Expert, LinearWeights, Memory, Result, ShareOf, Tensor};

/// The checkpoint tensor, and the matrix in it, that a linear layer's weight comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorId {
    /// Tensor name.
    pub tensor: Arc<str>,
    /// Index of the matrix in the tensor (expert, MLA head).
    pub matrix: usize,
    /// Number of matrices in the tensor.
    pub of: usize,
    /// Inputs of the matrix.
    pub cols: usize,
}

/// Callback with a matrix and the elements of its input [rows, cols].
pub type Observer = Box<dyn FnMut(&TensorId, &[f32])>;

/// The observer, if one is set.
#[derive(Default)]
pub(crate) struct ObserverSlot(pub(crate) Option<Observer>);

impl fmt::Debug for ObserverSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Listener" } else { "Nobody" })
    }
}

/// Passes a linear layer's input to the observer, if there is one and the layer has a [`TensorId`].
pub(crate) fn observe<B: Backend>(b: &B, x: &Tensor<B>, by: &LinearWeights<B>) -> Result<()> {
    match &by.tensor_id {
        Some(origin) if b.trace().is_observed() && !x.is_empty() => {
            let rows: Vec<f32> = b.download(x)?;
            b.trace().observe(origin, &rows);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Mixture of experts in which each expert's layers run, and are observed, on its routed rows only.
pub(crate) fn moe<B: Backend>(b: &B, op: &Moe<'_, B>) -> Result<Tensor<B>> {
    let count = op.experts.len();
    let shares: Vec<f32> = b.download(op.shares)?; // [rows, experts]
    let sum = b.alloc(op.x.dtype(), op.x.rows(), op.x.cols())?; // [rows, dim]
    b.zero(&sum)?;
    for (i, Expert { up, down }) in op.experts.iter().enumerate() {
        let taken = shares.iter().skip(i).step_by(count).zip(0u32..).filter(|(share, _)| **share != 0.0);
        let rows: Vec<u32> = taken.map(|(_, row)| row).collect();
        if rows.is_empty() {
            continue;
        }
        let indices = &b.upload_row(&rows)?;
        let x = b.run(IndexRows { x: op.x, indices, mode: IndexMode::Gather })?; // [some rows, dim]
        let share =
            b.run(IndexRows { x: &op.shares.col_range(i..i + 1), indices, mode: IndexMode::Gather })?; // [some rows, 1]
        let taken = |x: &Tensor<B>| b.run(Eltwise { x, op: EltwiseOp::Mul(&share) });
        let work = |x: &Tensor<B>| {
            b.run(Ffn { x, norm: None, up, act: op.act, down, epilogue: Epilogue::NONE, adapters: &[] })
        };
        let y = match op.share_of {
            ShareOf::Result => taken(&work(&x)?)?,
            ShareOf::Input => work(&taken(&x)?)?,
        };
        b.run(IndexRows { x: &y, indices, mode: IndexMode::ScatterAdd(&sum) })?;
    }
    op.epilogue.apply(b, sum)
}
