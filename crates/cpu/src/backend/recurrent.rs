//! Ops with recurrent state per sequence (causal convolution, gated delta rule), as pieces for the pool.

use tallow_core::ops::{CausalConv, GatedDelta, MAX_KERNEL};
use tallow_core::{DType, Memory, Result, StateRows, Tensor};

use super::device::Cpu;
use crate::mat::{Mat, MatMut};
use crate::recurrent::{BLOCK, CausalConvTask, GatedDeltaTask};

impl Cpu {
    pub(crate) fn convolution(&self, op: &CausalConv<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (x, by, k) = (Mat::<f32>::new(op.x), Mat::<f32>::new(op.weight), self.kernels);
        let (window, to) = (Mat::<f32>::new(op.window), MatMut::<f32>::new(op.window));
        let (before, cols, host) = (by.rows - 1, x.cols, op.plan.host());
        // For each token of the step, the first span of its sequence, and that span's first row.
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(x.rows);
        // For each span the same, and the tokens of its sequence up to its end.
        let mut ends = Vec::with_capacity(host.spans.len());
        for spans in host.sequences() {
            let (i, first) = (spans.start, places.len());
            for span in &host.spans[spans] {
                places.extend(std::iter::repeat_n((i, first), span.rows));
                ends.push((i, first, places.len() - first));
            }
        }
        // Input of a token, where `at` counts from the start of the first span's window; `None` before the sequence's
        // first token.
        let token = |i: usize, first: usize, at: usize| -> Option<&[f32]> {
            match at.checked_sub(before) {
                Some(row) => Some(x.row(first + row)),
                None if host.spans[i].start == 0 => None,
                None => Some(&window.row(host.states[i].from as usize)[at * cols..(at + 1) * cols]),
            }
        };
        let out = self.by_rows(x.rows, cols, |_, row, out| {
            let (i, first) = places[row];
            let (mut rows, mut count) = ([&[][..]; MAX_KERNEL], 0);
            for seen in (row - first..=row - first + before).filter_map(|at| token(i, first, at)) {
                rows[count] = seen;
                count += 1;
            }
            let task = CausalConvTask { by: by.rows(by.rows - count..by.rows), rows: &rows[..count] };
            (k.causal_conv)(&task, out);
        })?;
        for (StateRows { to: row, .. }, (i, first, rows)) in host.states.iter().zip(ends) {
            // SAFETY: no other span of a plan writes a row that one writes, and none reads it here: one that continues it
            // takes the inputs from `x`. What the first span of a sequence reads is another row, or nothing at its start.
            let row = unsafe { to.row(*row as usize) };
            for (at, to) in row.chunks_exact_mut(cols.max(1)).enumerate() {
                match token(i, first, rows + at) {
                    Some(from) => to.copy_from_slice(from),
                    None => to.fill(0.0),
                }
            }
        }
        Ok(out)
    }

    pub(crate) fn run_gated_delta(&self, op: &GatedDelta<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (heads, host, k) = (op.heads, op.plan.host(), self.kernels);
        let gates = self.delta_gates(op)?;
        let (qk, v, gates) = (Mat::new(op.qk), Mat::new(op.v), Mat::new(&gates));
        let (from, to) = (Mat::<f32>::new(op.states), MatMut::<f32>::new(op.states));
        let out = self.alloc(DType::F32, op.v.rows(), op.v.cols())?;
        let m = MatMut::<f32>::new(&out);
        // The spans of a sequence and their first row; a head and some columns of its state.
        let (mut tasks, mut first) = (Vec::new(), 0);
        for spans in host.sequences() {
            for head in 0..heads.values {
                for start in (0..heads.value_dim).step_by(BLOCK) {
                    tasks.push((spans.clone(), first, head, start..heads.value_dim.min(start + BLOCK)));
                }
            }
            first += host.spans[spans].iter().map(|span| span.rows).sum::<usize>();
        }
        let cost = 4 * (op.v.rows() + host.spans.len()) * heads.state_len();
        self.share(tasks.len(), cost, |_, i| {
            let (spans, mut first, head, columns) = tasks[i].clone();
            let mut before: Option<&[f32]> = None;
            for (span, state) in host.spans[spans.clone()].iter().zip(&host.states[spans]) {
                let (columns, rows) = (columns.clone(), first..first + span.rows);
                let task = GatedDeltaTask { heads, head, rows, qk, v, gates, out: &m, columns };
                // SAFETY: no other span of a plan writes a row that one writes, or reads it, but for one that continues it,
                // which comes next here; and each block of a row belongs to one task. What the first span of a sequence
                // reads is another row, or nothing at its start.
                let block = unsafe { to.part(state.to as usize, task.place()) };
                match before {
                    Some(before) => block.copy_from_slice(before),
                    None if span.start == 0 => block.fill(0.0),
                    None => block.copy_from_slice(&from.row(state.from as usize)[task.place()]),
                }
                (k.gated_delta)(&task, block);
                before = Some(block);
                first += span.rows;
            }
        });
        Ok(out)
    }

    /// Gates of the gated delta rule, per value head: beta = sigmoid(b), then alpha = exp(-rate * softplus(a +
    /// bias)). [tokens, 2 * value heads]
    fn delta_gates(&self, op: &GatedDelta<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let (gates, values) = (Mat::<f32>::new(op.gates), op.heads.values);
        let (rate, bias) = (Mat::<f32>::new(&op.decay.rate).row(0), Mat::<f32>::new(&op.decay.bias).row(0));
        self.by_rows(gates.rows, gates.cols, |_, r, out| {
            let (written, kept) = out.split_at_mut(values);
            let (a, b) = gates.row(r).split_at(values);
            for (y, x) in written.iter_mut().zip(a) {
                *y = 1.0 / (1.0 + (-x).exp());
            }
            for (i, (y, x)) in kept.iter_mut().zip(b).enumerate() {
                let x = x + bias[i];
                // softplus(x) = ln(1 + eˣ), without overflow for large x.
                let soft = x.max(0.0) + (-x.abs()).exp().ln_1p();
                *y = (-rate[i] * soft).exp();
            }
        })
    }
}
