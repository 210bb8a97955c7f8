//! Attention: one kernel for prefill and decode (flash attention).
//!
//! A workgroup computes some query rows of one KV head: tokens times the query heads that share it (GQA). Positions are
//! processed in tiles of 64 and segments of 128, cut at the same absolute positions for every token. Each segment has
//! an online softmax of its own, and segments are merged in order. With few rows, segments are spread over workgroups
//! (flash decoding) and merged by a second kernel in the same order, so a token's result does not depend on the rest of
//! the batch.

use tallow_core::ops::ATTEND_TILE;
use tallow_core::ops::Attend;
use tallow_core::{DType, Memory, Result, Span, Tensor};

use super::cache::Pages;
use super::operand;
use crate::device::{Wgpu, block};
use crate::gpu::Param::{F, U, View};
use crate::gpu::{Access, Arg, Kernel, Launch};

/// Positions per tile.
const TILE: usize = 64;
const _: () = assert!(ATTEND_TILE.is_multiple_of(TILE));
/// Positions per segment, each with a softmax of its own: few, as a tile takes a workgroup longer than all segments take to be
/// merged.
const SEGMENT: usize = 128;
/// Most query rows per workgroup.
const ROWS: usize = 16;
/// Most elements of the query rows that a workgroup keeps in workgroup memory.
const QUERIES: usize = 2048;
/// Words of workgroup memory that every device has.
const WORKGROUP_WORDS: usize = (16 << 10) / 4;
/// Invocations per workgroup.
const THREADS: usize = 128;
/// Workgroups that keep a device busy; with fewer, segments are spread over workgroups.
const BUSY: usize = 256;
/// Most bytes of scratch for the partial results of spread segments.
const SPREAD: usize = 64 << 20;

/// Most query rows per workgroup: a power of two, to limit the number of kernel variants, and few enough that the
/// queries fit into workgroup memory.
fn most_rows(dim: usize) -> usize {
    1 << (QUERIES / dim.max(1)).clamp(1, ROWS).ilog2()
}

/// Words of workgroup memory that a workgroup uses beside a chunk of keys: queries, weights, five numbers, a pair and eight partial
/// results for each row, and the page indices of the tile.
fn words(rows: usize, dim: usize) -> usize {
    rows * dim + rows * TILE + 15 * rows + TILE
}

/// Words of each key of a tile that are brought into workgroup memory at a time, where values are keys: a power of two, of
/// which each row has one word more.
fn chunk(rows: usize, dim: usize) -> usize {
    let fit = (WORKGROUP_WORDS.saturating_sub(words(rows, dim)) / TILE).saturating_sub(1);
    1 << fit.clamp(1, 32).ilog2()
}

impl Wgpu {
    pub(crate) fn attend_into(&self, op: &Attend<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (heads, plan) = (op.heads, op.plan);
        let group = heads.q / heads.kv;
        let most = plan.host().spans.iter().map(|s| s.rows * group).max().unwrap_or(0).max(1);
        let rows = most.next_power_of_two().min(most_rows(heads.dim));
        let blocks: usize = plan.host().spans.iter().map(|s| (s.rows * group).div_ceil(rows)).sum();
        // Of the longest sequence that the plan has room for, since a replay may be of a longer one than this. Workgroups
        // past a sequence's end return at once.
        let segments = (plan.pages.cols() * plan.host().page_len).div_ceil(SEGMENT);
        let room = 4 * op.q.rows() * heads.q * segments * (heads.dim + 2);
        let fits = room <= SPREAD && room as u64 <= self.gpu.most();
        let spread = segments > 1 && blocks * heads.kv < BUSY && fits;
        let pages = Pages::new(&op.kv, heads, plan)?;
        let sinks = op.spec.sinks.is_some();
        let mut params = vec![
            F("scale", op.spec.scale),
            F("cap", op.spec.softcap.unwrap_or(0.0)),
            U("window", op.spec.window.map_or(u32::MAX, |w| u32::try_from(w).unwrap_or(u32::MAX))),
            U("chunk", op.spec.chunk.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX))),
            U("causal", u32::from(op.spec.causal)),
            U("spans", plan.host().spans.len() as u32),
            U("segments", segments as u32),
            U("starts_at", plan.starts.offset() as u32),
            U("lens_at", plan.lens.offset() as u32),
            View("pages", plan.pages.offset() as u32, plan.pages.stride() as u32),
        ];
        let mut args =
            vec![Arg { name: "plan", of: "u32", access: Access::Read, block: block(&plan.starts)? }];
        let parts = match spread {
            true => Some(self.alloc(DType::F32, op.q.rows() * heads.q, segments * (heads.dim + 2))?),
            false => None,
        };
        // The kernel that writes the result applies the sinks.
        let (mut out_args, mut out_params) = (args.clone(), params.clone());
        out_args.push(operand("out", Access::Write, out, &mut out_params)?);
        if let Some(sinks) = &op.spec.sinks {
            out_args.push(operand("sinks", Access::Read, sinks, &mut out_params)?);
        }
        if parts.is_none() {
            std::mem::swap(&mut args, &mut out_args);
            std::mem::swap(&mut params, &mut out_params);
        }
        args.push(operand("q", Access::Read, op.q, &mut params)?);
        if let Some(bias) = &op.spec.bias {
            params.push(U("reach", (bias.cols() / 2) as u32));
            args.push(operand("bias", Access::Read, bias, &mut params)?);
        }
        pages.args(&op.kv, Access::Read, &mut args);
        if let Some(parts) = &parts {
            args.push(operand("parts", Access::Write, parts, &mut params)?);
        }
        let grid = [blocks as u32, heads.kv as u32, if spread { segments as u32 } else { 1 }];
        let rows_at_once = (THREADS / heads.dim).max(1);
        let mut kernel = pages.define(Kernel::new("attend"));
        if pages.keys_as_values {
            kernel = kernel
                .with("CHUNK", chunk(rows, heads.dim))
                .with("SCORES_EACH", (rows * TILE).div_ceil(THREADS));
        }
        let kernel = kernel
            .with("QUERY_HEADS", heads.q)
            .with("GROUP", group)
            .with("SINKS", sinks && !spread)
            .with("BIAS", op.spec.bias.is_some())
            .with("SPREAD", spread)
            .with("ROWS", rows)
            .with("ROWS_AT_ONCE", rows_at_once)
            .with("ROWS_EACH", rows.div_ceil(rows_at_once))
            .with("COLUMNS_EACH", heads.dim.div_ceil(THREADS))
            .with("TILE", TILE)
            .with("SEGMENT", SEGMENT);
        let seen = |s: &Span| s.rows * s.end().min(op.spec.window.map_or(usize::MAX, |w| w + s.rows));
        let seen: usize = plan.host().spans.iter().map(seen).sum();
        let work = 2 * seen as u64 * heads.q_cols() as u64;
        self.gpu.launch(&Launch { kernel, args, params, grid, work })?;
        let Some(parts) = &parts else { return Ok(()) };
        out_args.push(operand("parts", Access::Read, parts, &mut out_params)?);
        let kernel = Kernel::new("attend_merge")
            .with("QUERY_HEADS", heads.q)
            .with("DIM", heads.dim)
            .with("SINKS", sinks)
            .with("SEGMENT", SEGMENT);
        let grid = [op.q.rows() as u32, heads.q as u32, 1];
        self.gpu.launch(&Launch { kernel, args: out_args, params: out_params, grid, work: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_enough_for_heads_of_any_usual_width() {
        for dim in 1..=2048 {
            let rows = most_rows(dim);
            assert!(rows.is_power_of_two(), "{rows} rows of {dim}");
            let (chunk, words) = (chunk(rows, dim), words(rows, dim));
            let words = words + TILE * (chunk + 1);
            assert!(chunk >= 8 && words <= WORKGROUP_WORDS, "{rows} rows of {dim}: {words} words of memory");
        }
    }
}
