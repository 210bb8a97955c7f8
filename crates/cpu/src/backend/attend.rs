//! Attention on the device: the step's tokens in tasks for the threads, or split-KV where the tasks are few.

use tallow_core::ops::Attend;
use tallow_core::{DType, Memory, Result, Tensor};

use super::device::{Cpu, SMALL};
use crate::attention::{AttendTask, Pages, Partials, Stage};
use crate::mat::{Mat, MatMut};

impl Cpu {
    /// [`Backend::attend`]
    pub(super) fn attend_paged(&self, op: &Attend<'_, Cpu>) -> Result<Tensor<Cpu>> {
        // Journey, stop 7: attention. Each token attends to those before it, in the pages of the KV cache.
        let out = self.alloc(DType::F32, op.q.rows(), op.q.cols())?;
        let (m, q, kernels) = (MatMut::new(&out), Mat::new(op.q), self.kernels);
        let (k, v) = (Pages::new(op.kv.k), op.kv.v.map(Pages::new));
        let group = op.heads.q / op.heads.kv;
        // Tokens per task: enough query rows to use a segment of keys well, few enough to balance the threads.
        let enough = 4 * self.threads();
        let each = op.q.rows() * op.heads.kv / enough;
        let tokens = each.clamp(16usize.div_ceil(group), 128usize.div_ceil(group));
        let (mut tasks, mut first, mut cost) = (Vec::new(), 0, 0);
        for span in &op.plan.host().spans {
            for at in (0..span.rows).step_by(tokens) {
                let rows = first + at..first + span.rows.min(at + tokens);
                for head in 0..op.heads.kv {
                    tasks.push(AttendTask {
                        q,
                        out: &m,
                        rows: rows.clone(),
                        position: span.start + at,
                        len: span.end(),
                        pages: &span.pages,
                        page_len: op.plan.host().page_len,
                        k,
                        v,
                        heads: op.heads,
                        head,
                        scale: op.spec.scale,
                        window: op.spec.window,
                        chunk: op.spec.chunk,
                        softcap: op.spec.softcap,
                        sinks: op.spec.sinks.as_ref().map(Mat::new),
                        bias: op.spec.bias.as_ref().map(Mat::new),
                        causal: op.spec.causal,
                        next: None,
                    });
                }
            }
            first += span.rows;
            cost += span.rows * span.end() * op.heads.q_cols();
        }
        let whole = tasks.len() >= enough || self.threads() == 1 || cost < SMALL;
        if whole {
            // The last tasks of a prompt are the largest: they start first, so that no thread ends up waiting for them.
            tasks.reverse();
        }
        for i in 1..tasks.len() {
            tasks[i - 1].next = tasks[i].as_next();
        }
        if whole {
            self.share(tasks.len(), cost, |scratch, i| {
                kernels.attend_stage(&tasks[i], &Stage::Whole, &mut scratch.floats);
            });
            return Ok(out);
        }
        self.attend_in_parts(&tasks, enough)?;
        Ok(out)
    }

    /// Split-KV attention for few tasks: about `pieces` pieces, each some key segments of one task, then a merge of
    /// their partial results (Flash-Decoding).
    fn attend_in_parts(&self, tasks: &[AttendTask<'_>], pieces: usize) -> Result<()> {
        let Some(cols) = tasks.first().map(AttendTask::partial_cols) else { return Ok(()) };
        let segments: usize = tasks.iter().map(|t| t.segments().len()).sum();
        let piece = segments.div_ceil(pieces).max(1);
        let (mut parts, mut starts, mut rows) = (Vec::new(), Vec::new(), 0);
        for (i, task) in tasks.iter().enumerate() {
            let all = task.segments();
            parts.extend(all.clone().step_by(piece).map(|at| (i, at..all.end.min(at + piece))));
            starts.push(rows);
            rows += all.len() * task.count();
        }
        let partials = self.alloc(DType::F32, rows, cols)?;
        let (m, kernels) = (MatMut::new(&partials), self.kernels);
        let partials = |i: usize| Partials { rows: &m, first: starts[i] };
        self.share(parts.len(), SMALL, |scratch, p| {
            let (i, segments) = parts[p].clone();
            kernels.attend_stage(&tasks[i], &Stage::Segments(segments, partials(i)), &mut scratch.floats);
        });
        self.share(tasks.len(), rows * cols, |scratch, i| {
            kernels.attend_stage(&tasks[i], &Stage::Merge(partials(i)), &mut scratch.floats);
        });
        Ok(())
    }
}
