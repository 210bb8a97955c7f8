//! Gated DeltaNet (Qwen3-Next), in place of attention: a causal convolution, then the gated delta rule.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Activate, CausalConv, Epilogue, GatedDelta, Normalize};
use tallow_core::{Activation, Backend, Decay, DeltaHeads, LinearWeights, Norm, NormKind, Result, Tensor};

use super::Context;
use crate::Result as LoadResult;
use crate::spec::{Bias, GatedDeltaSpec};
use crate::weights::Weights;

/// Epsilon of the L2 norm of queries and keys: added to the squared length.
const EPS: f32 = 1e-6;

/// A Gated DeltaNet block.
#[derive(Debug)]
pub struct GatedDeltaNet<B: Backend> {
    /// Projections, side by side: Q, K and V; output gate (z); write strength (b) and decay (a) of each value head.
    parts: Vec<LinearWeights<B>>,
    /// Causal convolution: [kernel, columns of Q, K and V]
    kernel: Tensor<B>,
    /// L2 norm of queries and keys, as an RMSNorm.
    l2_norm: Norm<B>,
    decay: Decay<B>,
    norm: Norm<B>,
    o: LinearWeights<B>,
    heads: DeltaHeads,
}

impl<B: Backend> GatedDeltaNet<B> {
    /// Loads layer `i`'s block.
    pub fn load(w: &mut Weights<'_, B>, i: usize, spec: &GatedDeltaSpec) -> LoadResult<GatedDeltaNet<B>> {
        let (dim, heads) = (w.spec().dim, spec.heads);
        let DeltaHeads { values, key_dim, value_dim, .. } = heads;
        let mut parts = match w.has((Slot::SsmIn, i)) {
            true => w.parts(
                (Slot::SsmIn, i),
                &[by_key_head(heads, [key_dim, key_dim], value_dim)],
                dim,
                Bias::No,
            )?,
            false => vec![
                w.linear((Slot::SsmQkv, i), heads.cols(), dim, Bias::No)?,
                w.linear((Slot::SsmGate, i), heads.value_cols(), dim, Bias::No)?,
            ],
        };
        match w.has((Slot::SsmBetaAlpha, i)) {
            true => {
                parts.extend(w.parts((Slot::SsmBetaAlpha, i), &[by_key_head(heads, [], 1)], dim, Bias::No)?)
            }
            false => {
                parts.push(w.linear((Slot::SsmBeta, i), values, dim, Bias::No)?);
                parts.push(w.linear((Slot::SsmAlpha, i), values, dim, Bias::No)?);
            }
        }
        let (eps, length) = (w.spec().norm.eps, (key_dim as f32).sqrt());
        let row = w.upload(&vec![1.0 / length; key_dim])?;
        // RMSNorm divides by the mean of squares, L2 norm by their sum: weights and epsilon make up for the difference.
        let l2_norm = Norm { kind: NormKind::Rms, weight: row, bias: None, eps: EPS / key_dim as f32 };
        let weight = w.slot_row((Slot::SsmNorm, i), value_dim)?;
        Ok(GatedDeltaNet {
            parts,
            kernel: w.convolution(i, spec.kernel, heads.cols())?,
            l2_norm,
            decay: Decay { rate: w.rates(i, values)?, bias: w.slot_row((Slot::SsmDt, i), values)? },
            norm: Norm { kind: NormKind::Rms, weight, bias: None, eps },
            o: w.linear((Slot::SsmOut, i), dim, heads.value_cols(), Bias::No)?,
            heads,
        })
    }

    /// `epilogue(block(norm(x)))`
    pub fn forward(
        &self,
        cx: &Context<'_, B>,
        x: &Tensor<B>,
        norm: Option<&Norm<B>>,
        epilogue: Epilogue<'_, B>,
    ) -> Result<Tensor<B>> {
        let (b, plan, heads, state) = (cx.b, cx.plan, self.heads, cx.cache.state()?);
        let (cols, keys, values) = (heads.cols(), 2 * heads.key_cols(), heads.value_cols());
        let all = cx.linear_many(x, norm, &self.parts)?; // [tokens, columns + values + 2 * heads]
        let x = all.col_range(0..cols);
        let mixed = b.run(CausalConv { x: &x, weight: &self.kernel, window: state.window, plan })?; // [tokens, columns]
        let qk = b.run(Normalize { x: &mixed.col_range(0..keys), norm: &self.l2_norm, residual: None })?;
        let v = mixed.col_range(keys..cols);
        let gates = all.col_range(cols + values..all.cols());
        let (decay, states) = (&self.decay, state.states);
        let y = b.run(GatedDelta { qk: &qk, v: &v, gates: &gates, heads, decay, states, plan })?; // [tokens, values]
        let y = b.run(Normalize { x: &y, norm: &self.norm, residual: None })?;
        let gate = all.col_range(cols..cols + values);
        let y = b.run(Activate { gate: &gate, up: Some(&y), act: Activation::Silu })?;
        cx.linear(&y, &self.o, epilogue)
    }
}

/// Row ranges that undo an interleaving by key head. The tensor has, per key head, `own` rows and then twice `each`
/// rows for each of its value heads; the result has all heads of a kind side by side, as the block reads them.
pub fn by_key_head<const N: usize>(
    heads: DeltaHeads,
    own: [usize; N],
    each: usize,
) -> Vec<std::ops::Range<usize>> {
    let shared = heads.values / heads.keys * each;
    let whole = own.iter().sum::<usize>() + 2 * shared;
    let (mut runs, mut at) = (Vec::new(), 0);
    for rows in own.into_iter().chain([shared; 2]) {
        runs.extend((0..heads.keys).map(|head| head * whole + at..head * whole + at + rows));
        at += rows;
    }
    runs
}
