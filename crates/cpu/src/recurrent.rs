//! Kernels that process the tokens of a sequence one after another: causal convolution, gated delta rule.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instruction set of `S` or `L`, with exclusive
//! access to the output that is passed.

use std::ops::Range;

use tallow_core::DeltaHeads;

use crate::mat::{Mat, MatMut};
use crate::rowwise::activate;
use crate::simd::Simd;

/// One output row of a causal convolution.
pub(crate) struct CausalConvTask<'a> {
    /// Weights of the taps whose tokens exist, oldest first.
    pub by: Mat<'a, f32>,
    /// Columns of those tokens.
    pub rows: &'a [&'a [f32]],
}

#[inline(always)]
pub(crate) unsafe fn causal_conv<S: Simd>(task: &CausalConvTask<'_>, out: &mut [f32]) {
    let cols = out.len();
    // SAFETY: every row has as many columns as the result, and the loop stays within them; the caller guarantees the
    // instruction set.
    unsafe {
        for at in (0..cols).step_by(S::LANES) {
            let n = cols - at;
            let mut sum = S::splat(0.0);
            for (i, x) in task.rows.iter().enumerate() {
                let (x, by) = (x.as_ptr().add(at), task.by.row(i).as_ptr().add(at));
                sum = match n >= S::LANES {
                    true => S::fma(S::load(x), S::load(by), sum),
                    false => S::fma(S::load_some(x, n), S::load_some(by, n), sum),
                };
            }
            let y = activate::<S>(tallow_core::Activation::Silu, sum);
            match n >= S::LANES {
                true => S::store(out.as_mut_ptr().add(at), y),
                false => S::store_some(out.as_mut_ptr().add(at), n, y),
            }
        }
    }
}

/// Columns per block of a head's state: a row of a block is a cache line, and a block of the usual size stays in L1
/// while a thread goes through the tokens.
pub(crate) const BLOCK: usize = 16;

/// Gated delta rule (Gated DeltaNet, Qwen3-Next) of some tokens of a sequence, on one block of columns of a value
/// head's state: S ← α S + β k (v − α Sᵀk)ᵀ, out = Sᵀq / √key_dim.
pub(crate) struct GatedDeltaTask<'a> {
    pub heads: DeltaHeads,
    /// Value head.
    pub head: usize,
    /// Tokens of the step.
    pub rows: Range<usize>,
    pub qk: Mat<'a, f32>,
    pub v: Mat<'a, f32>,
    /// [tokens, 2 * value heads]: β (write strength), then α (decay factor).
    pub gates: Mat<'a, f32>,
    pub out: &'a MatMut<'a, f32>,
    /// Columns of the head's value.
    pub columns: Range<usize>,
}

impl GatedDeltaTask<'_> {
    /// Range of the block in a row of states: blocks one after another, each [key_dim, columns].
    pub(crate) fn place(&self) -> Range<usize> {
        let DeltaHeads { key_dim, value_dim, .. } = self.heads;
        let start = (self.head * value_dim + self.columns.start) * key_dim;
        start..start + self.columns.len() * key_dim
    }
}

/// Independent partial sums, to hide the latency of the addition.
const SUMS: usize = 4;

/// Advances `block`, [key_dim, columns], by the tokens of the task.
#[inline(always)]
pub(crate) unsafe fn gated_delta<S: Simd>(task: &GatedDeltaTask<'_>, block: &mut [f32]) {
    let (DeltaHeads { values, key_dim, value_dim, .. }, head) = (task.heads, task.head);
    let width = task.columns.len();
    let (key, first) = (task.heads.key_of(head) * key_dim, head * value_dim + task.columns.start);
    let scale = 1.0 / (key_dim as f32).sqrt();
    for row in task.rows.clone() {
        let (qk, gates) = (task.qk.row(row), task.gates.row(row));
        let token = Token {
            q: &qk[key..][..key_dim],
            k: &qk[task.heads.key_cols() + key..][..key_dim],
            v: &task.v.row(row)[first..first + width],
            written: gates[head],
            kept: gates[values + head],
            scale,
        };
        // SAFETY: no other task writes these columns of this row.
        let out = unsafe { task.out.part(row, first..first + width) };
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: the caller upholds this function's contract.
            unsafe {
                match width - at >= S::LANES {
                    true => some_columns::<S, true>(&token, block, at, out),
                    false => some_columns::<S, false>(&token, block, at, out),
                }
            }
        }
    }
}

/// One token's inputs for a block of a head's state.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    /// Values, as wide as the block.
    v: &'a [f32],
    written: f32,
    kept: f32,
    scale: f32,
}

/// Processes the columns of a block from `at` on: a `WHOLE` vector of them or the remainder.
#[inline(always)]
unsafe fn some_columns<S: Simd, const WHOLE: bool>(
    token: &Token<'_>,
    block: &mut [f32],
    at: usize,
    out: &mut [f32],
) {
    let Token { q, k, v, written, kept, scale } = *token;
    let (width, n) = (v.len(), v.len() - at);
    let whole = k.len() / SUMS * SUMS;
    // SAFETY: each row of the block has `width` columns, as have the value and the result, and there is a row for each
    // key element; the caller guarantees the instruction set.
    unsafe {
        let load = |p: *const f32| if WHOLE { S::load(p) } else { S::load_some(p, n) };
        let store = |p: *mut f32, x| if WHOLE { S::store(p, x) } else { S::store_some(p, n, x) };
        let start = block.as_mut_ptr().add(at);

        let mut found = [S::splat(0.0); SUMS];
        let find = |i: usize, sum: S::V| S::fma(S::splat(k[i]), load(start.add(i * width)), sum);
        for i in (0..whole).step_by(SUMS) {
            for (j, sum) in found.iter_mut().enumerate() {
                *sum = find(i + j, *sum);
            }
        }
        for i in whole..k.len() {
            found[0] = find(i, found[0]);
        }
        let kept = S::splat(kept);
        let wrong = S::sub(load(v.as_ptr().add(at)), S::mul(kept, total::<S>(found)));
        let more = S::mul(S::splat(written), wrong);

        let mut given = [S::splat(0.0); SUMS];
        let give = |i: usize, sum: S::V| {
            let p = start.add(i * width);
            let x = S::fma(S::splat(k[i]), more, S::mul(kept, load(p)));
            store(p, x);
            S::fma(S::splat(q[i]), x, sum)
        };
        for i in (0..whole).step_by(SUMS) {
            for (j, sum) in given.iter_mut().enumerate() {
                *sum = give(i + j, *sum);
            }
        }
        for i in whole..k.len() {
            given[0] = give(i, given[0]);
        }
        store(out.as_mut_ptr().add(at), S::mul(S::splat(scale), total::<S>(given)));
    }
}

/// Sum of the partial sums, in a fixed order.
#[inline(always)]
unsafe fn total<S: Simd>(x: [S::V; SUMS]) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { S::add(S::add(x[0], x[1]), S::add(x[2], x[3])) }
}
