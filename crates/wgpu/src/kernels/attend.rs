//! Attention: one kernel for prefill and decode (flash attention).
//!
//! A workgroup computes some query rows of one KV head: tokens times the query heads that share it (GQA). Positions are
//! processed in tiles of 64 and segments of 512, cut at the same absolute positions for every token. Each segment has
//! an online softmax of its own, and segments are merged in order. With few rows, segments are spread over workgroups
//! (flash decoding) and merged by a second kernel in the same order, so a token's result does not depend on the rest of
//! the batch.

use std::fmt::Write;

use tallow_core::ops::Attend;
use tallow_core::{Backend, DType, Heads, Result, Span, Tensor};

use super::cache::Pages;
use super::operand;
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U, View};
use crate::gpu::{Access, Arg, Kernel, Launch};

/// Positions per tile.
const TILE: usize = 64;
/// Positions per segment, each with a softmax of its own.
const SEGMENT: usize = 512;
/// Most query rows per workgroup.
const ROWS: usize = 16;
/// Most elements of the query rows that a workgroup keeps in workgroup memory.
const QUERIES: usize = 2048;
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

/// What is fixed in an attention kernel's source.
struct Attention {
    pages: Pages,
    sinks: bool,
    bias: bool,
    /// Query rows per workgroup.
    rows: usize,
    /// Whether segments are spread over workgroups.
    spread: bool,
}

impl Wgpu {
    pub(crate) fn attend_into(&self, op: &Attend<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (heads, plan) = (op.heads, op.plan);
        let group = heads.q / heads.kv;
        let most = plan.host.spans.iter().map(|s| s.rows * group).max().unwrap_or(0).max(1);
        let rows = most.next_power_of_two().min(most_rows(heads.dim));
        let blocks: usize = plan.host.spans.iter().map(|s| (s.rows * group).div_ceil(rows)).sum();
        let segments = plan.host.spans.iter().map(|s| s.end().div_ceil(SEGMENT)).max().unwrap_or(0);
        let room = 4 * op.q.rows() * heads.q * segments * (heads.dim + 2);
        let spread = segments > 1 && blocks * heads.kv < BUSY && room <= SPREAD;
        let pages = Pages::new(&op.kv, heads, plan)?;
        let attention =
            Attention { pages, sinks: op.spec.sinks.is_some(), bias: op.spec.bias.is_some(), rows, spread };
        let mut params = vec![
            F("scale", op.spec.scale),
            F("cap", op.spec.softcap.unwrap_or(0.0)),
            U("window", op.spec.window.map_or(u32::MAX, |w| u32::try_from(w).unwrap_or(u32::MAX))),
            U("chunk", op.spec.chunk.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX))),
            U("causal", u32::from(op.spec.causal)),
            U("spans", plan.host.spans.len() as u32),
            U("segments", segments as u32),
            U("starts_at", plan.starts.offset() as u32),
            U("lens_at", plan.lens.offset() as u32),
            View("pages", plan.pages.offset() as u32, plan.pages.stride() as u32),
        ];
        let mut args = vec![
            Arg { name: "plan", of: "u32", access: Access::Read, block: super::block(&plan.starts)? },
            operand("out", Access::Write, out, &mut params)?,
        ];
        if let Some(sinks) = &op.spec.sinks {
            args.push(operand("sinks", Access::Read, sinks, &mut params)?);
        }
        let parts = match spread {
            true => Some(self.alloc(DType::F32, op.q.rows() * heads.q, segments * (heads.dim + 2))?),
            false => None,
        };
        let merge = (args.clone(), params.clone());
        args.push(operand("q", Access::Read, op.q, &mut params)?);
        if let Some(bias) = &op.spec.bias {
            params.push(U("reach", (bias.cols() / 2) as u32));
            args.push(operand("bias", Access::Read, bias, &mut params)?);
        }
        attention.pages.args(&op.kv, Access::Read, &mut args);
        if let Some(parts) = &parts {
            // The merge kernel writes the result and applies the sinks.
            args.remove(1);
            if attention.sinks {
                args.remove(1);
            }
            args.push(operand("parts", Access::Write, parts, &mut params)?);
        }
        let grid = [blocks as u32, heads.kv as u32, if spread { segments as u32 } else { 1 }];
        let source = || attention.source();
        let kernel = Kernel { name: "attend", variant: attention.variant() };
        let seen = |s: &Span| s.rows * s.end().min(op.spec.window.map_or(usize::MAX, |w| w + s.rows));
        let seen: usize = plan.host.spans.iter().map(seen).sum();
        let work = 2 * seen as u64 * heads.q_cols() as u64;
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid, work })?;
        let Some(parts) = &parts else { return Ok(()) };
        let (mut args, mut params) = merge;
        args.push(operand("parts", Access::Read, parts, &mut params)?);
        let source = || attention.merging();
        let kernel = Kernel { name: "attend_merge", variant: attention.variant() };
        let grid = [op.q.rows() as u32, heads.q as u32, 1];
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid, work: 0 })
    }
}

impl Attention {
    fn variant(&self) -> Vec<u32> {
        let mut v = self.pages.variant();
        v.extend([u32::from(self.sinks), u32::from(self.bias), self.rows as u32, u32::from(self.spread)]);
        v
    }

    /// Columns per invocation, rows computed at once by a workgroup, and rows per invocation.
    fn cells(&self) -> (usize, usize, usize) {
        let dim = self.pages.heads.dim;
        let at_once = (THREADS / dim).max(1);
        (dim.div_ceil(THREADS), at_once, self.rows.div_ceil(at_once))
    }

    /// WGSL: a head's attention sink, if there are sinks.
    fn sink(&self) -> &'static str {
        match self.sinks {
            true => "const SINKS = true;\nfn sink(head: u32) -> f32 { return sinks[p.sinks_at + head]; }\n",
            false => "const SINKS = false;\nfn sink(head: u32) -> f32 { return 0.0; }\n",
        }
    }

    /// WGSL: relative position bias added to a head's score of `position`, for a query at position `at`.
    fn lean(&self) -> &'static str {
        match self.bias {
            true => {
                "fn lean(head: u32, at: u32, position: u32) -> f32 {
  let column = min(max(position + p.reach, at) - at, 2u * p.reach);
  return bias[p.bias_at + head * p.bias_stride + column];
}
"
            }
            false => "fn lean(head: u32, at: u32, position: u32) -> f32 { return 0.0; }\n",
        }
    }

    fn source(&self) -> String {
        let (columns, at_once, each) = self.cells();
        let mut s = self.pages.source(false);
        s += if self.spread {
            "const SINKS = false;\nfn sink(head: u32) -> f32 { return 0.0; }\n"
        } else {
            self.sink()
        };
        s += self.lean();
        s += include_str!("../shaders/merge.wgsl");
        let _ =
            writeln!(s, "const ROWS = {}u;\nconst AT_ONCE = {at_once}u;\nconst TILE = {TILE}u;", self.rows);
        let _ = writeln!(s, "const SEGMENT = {SEGMENT}u;\nconst SPREAD = {};", self.spread);
        // Each accumulator is a variable of its own, so that it can be kept in a register.
        let cells = |line: &str| -> String {
            let cell = |i: usize, c: usize| {
                let line = line.replace("$row", &format!("first + {i}u * AT_ONCE"));
                let line = line.replace("$column", &format!("{c}u * 128u + column"));
                line.replace("$x", &format!("x_{c}")).replace('#', &format!("_{i}_{c}"))
            };
            (0..each).flat_map(|i| (0..columns).map(move |c| (i, c))).map(|(i, c)| cell(i, c)).collect()
        };
        let mut load = String::new();
        for c in 0..columns {
            let _ = writeln!(
                load,
                "        let e_{c} = min({c}u * 128u + column, DIM - 1u);\n        \
                 let x_{c} = times * unpacked(v_get(page, at + e_{c} / PACK))[e_{c} % PACK];"
            );
        }
        let (functions, last, finish) = match self.spread {
            true => (
                include_str!("../shaders/attend_put.wgsl"),
                "    put($row, row, rows, first_token, wg.y, $column, segment, o#);\n",
                "",
            ),
            false => (
                include_str!("../shaders/attend_end.wgsl"),
                "    whole# = merged(whole#, o#, by[min($row, ROWS - 1u)]);\n",
                "  end_of($row, row, rows, first_token, wg.y, $column, whole#);\n",
            ),
        };
        let add = "        o# = fma(weights[min($row, ROWS - 1u) * TILE + j], $x, o#);\n";
        let text = include_str!("../shaders/attend.wgsl").replace("//FUNCTIONS//", functions);
        let text = text.replace("//BEGIN//", &cells("  var o# = 0.0;\n  var whole# = 0.0;\n"));
        let text = text.replace("//RESET//", &cells("    o# = 0.0;\n"));
        let text = text.replace("//FADE//", &cells("      o# = o# * fade[min($row, ROWS - 1u)];\n"));
        let text = text.replace("//LOAD//", &load).replace("//ADD//", &cells(add));
        s + &text.replace("//LAST//", &cells(last)).replace("//FINISH//", &cells(finish))
    }

    fn merging(&self) -> String {
        // The merge kernel does not read the KV cache.
        let Heads { q, dim, .. } = self.pages.heads;
        let mut s = format!("const QUERIES = {q}u;\nconst DIM = {dim}u;\nconst SEGMENT = {SEGMENT}u;\n");
        s += self.sink();
        s + include_str!("../shaders/merge.wgsl") + include_str!("../shaders/attend_merge.wgsl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_enough_for_heads_of_any_usual_width() {
        for dim in 1..=2048 {
            let rows = most_rows(dim);
            // Queries, weights, five scalars and one pair per row, and the page indices of the tile.
            let words = rows * dim + rows * TILE + 7 * rows + TILE;
            assert!(rows.is_power_of_two() && 4 * words <= 16 << 10, "{rows} rows of {dim}");
        }
    }
}
