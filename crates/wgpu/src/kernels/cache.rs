//! The way of keys and values into the cache, and attention over it.
//!
//! Of a page, keys lie `[head][element][token]`, so that invocations which look at neighbouring tokens read neighbouring
//! words; values lie `[head][token][element]`, because those which look at neighbouring elements do. Elements of 16 bits
//! go in pairs.
//!
//! Attention is one kernel for any batch. A workgroup has some query rows of one key head: tokens times the heads that
//! share it. Positions are taken in tiles of 64 and segments of 512, cut at the same absolute positions for every token,
//! and each segment has a softmax of its own; segments are merged in order. If there are few rows, segments are spread
//! over workgroups, and merged by a second kernel in the same order. So a token's result does not depend on its company.

use std::fmt::Write;

use tallow_core::ops::{Attend, KvWrite, QkvPrep, Rotate};
use tallow_core::{Backend, DType, Heads, LayerKv, Norm, NormKind, Result, RopePairs, StepPlan, Tensor};

use super::operand;
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U, View};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Names of the blocks that a cache may lie in.
const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
const VALUES: [&str; 4] = ["v0", "v1", "v2", "v3"];
/// Blocks that a cache may lie in.
pub(crate) const CACHE_BLOCKS: usize = KEYS.len();

/// Positions that are looked at together.
const TILE: usize = 64;
/// Positions that have a softmax of their own.
const SEGMENT: usize = 512;
/// Query rows of a workgroup at most.
const ROWS: usize = 16;
/// Numbers of query rows that a workgroup keeps at most.
const QUERIES: usize = 2048;
/// Invocations of a workgroup.
const THREADS: usize = 128;
/// Workgroups that keep a device busy; below that segments are spread.
const BUSY: usize = 256;
/// Bytes that spread segments may take.
const SPREAD: usize = 64 << 20;

/// How a cache is laid out, as far as kernels have it fixed.
#[derive(Clone, Copy)]
struct Pages {
    dtype: DType,
    heads: Heads,
    page_len: usize,
    /// Blocks of memory, and pages in each.
    blocks: usize,
    each: usize,
}

impl Pages {
    fn new(kv: &LayerKv<'_, Wgpu>, heads: Heads, plan: &StepPlan<Wgpu>) -> Pages {
        let (dtype, page_len) = (kv.k.dtype(), plan.host.page_len);
        Pages { dtype, heads, page_len, blocks: kv.k.buf().blocks().len(), each: kv.k.buf().rows_each() }
    }

    fn variant(&self) -> Vec<u32> {
        let Heads { q, kv, dim } = self.heads;
        let numbers = [self.dtype as usize, q, kv, dim, self.page_len, self.blocks, self.each];
        numbers.map(|n| n as u32).to_vec()
    }

    /// Elements in a word.
    fn pack(&self) -> usize {
        4 / self.dtype.size()
    }

    fn args<'a>(&self, kv: &LayerKv<'a, Wgpu>, access: Access, args: &mut Vec<Arg<'a>>) {
        for (names, t) in [(KEYS, kv.k), (VALUES, kv.v)] {
            let blocks = t.buf().blocks().iter().zip(names);
            args.extend(blocks.map(|(block, name)| Arg { name, of: "u32", access, block }));
        }
    }

    /// WGSL: what is fixed, and how a word of a page is found.
    fn source(&self, stores: bool) -> String {
        let Heads { q, kv, dim } = self.heads;
        let (len, pack, each) = (self.page_len, self.pack(), self.each);
        let page = len * self.heads.kv_cols() / pack;
        let mut s = format!(
            "const GROUP = {}u;\nconst QUERIES = {q}u;\nconst KV_HEADS = {kv}u;\nconst DIM = {dim}u;\nconst LEN = {len}u;\n\
             const PACK = {pack}u;\nconst PAGE = {page}u;\nconst EACH = {each}u;\n",
            q / kv
        );
        for name in ["k", "v"] {
            let (mut get, mut put) = (String::new(), String::new());
            for i in (1..self.blocks).rev() {
                let _ = writeln!(
                    get,
                    "  if (page / EACH == {i}u) {{ return {name}{i}[(page % EACH) * PAGE + i]; }}"
                );
                let _ = writeln!(
                    put,
                    "  if (page / EACH == {i}u) {{ {name}{i}[(page % EACH) * PAGE + i] = x; return; }}"
                );
            }
            let _ = writeln!(
                s,
                "fn {name}_get(page: u32, i: u32) -> u32 {{\n{get}  return {name}0[page * PAGE + i];\n}}"
            );
            if stores {
                let _ = writeln!(
                    s,
                    "fn {name}_put(page: u32, i: u32, x: u32) {{\n{put}  {name}0[page * PAGE + i] = x;\n}}"
                );
            }
        }
        if stores {
            s += include_str!("../shaders/halves.wgsl");
            s += match self.dtype {
                DType::F16 => "fn packed(a: f32, b: f32) -> u32 { return as_f16(a) | (as_f16(b) << 16u); }\n",
                DType::BF16 => {
                    "fn packed(a: f32, b: f32) -> u32 { return as_bf16(a) | (as_bf16(b) << 16u); }\n"
                }
                _ => "fn packed(a: f32, b: f32) -> u32 { return bitcast<u32>(a); }\n",
            };
            return s;
        }
        s + match self.dtype {
            DType::F16 => "fn unpacked(w: u32) -> vec2<f32> { return unpack2x16float(w); }\n",
            DType::BF16 => {
                "fn unpacked(w: u32) -> vec2<f32> {\n  \
                            return bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u));\n}\n"
            }
            _ => "fn unpacked(w: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(w), 0.0); }\n",
        }
    }
}

/// What happens to queries or keys on their way.
struct Section<'a> {
    x: Tensor<Wgpu>,
    norm: Option<&'a Norm<Wgpu>>,
}

impl Section<'_> {
    /// Columns that a workgroup takes.
    fn width(&self, dim: usize) -> usize {
        self.norm.map_or(dim, |n| n.weight.cols())
    }

    fn groups(&self, dim: usize) -> usize {
        self.x.cols() / self.width(dim)
    }
}

/// The way of a step's queries, keys and values, or of some of them.
struct Prep<'a> {
    dim: usize,
    q: Option<(Section<'a>, &'a Tensor<Wgpu>)>,
    k: Option<Section<'a>>,
    v: Option<Tensor<Wgpu>>,
    rope: Option<&'a tallow_core::Rope<Wgpu>>,
    cache: Option<(LayerKv<'a, Wgpu>, Pages, &'a StepPlan<Wgpu>)>,
    positions: Option<&'a Tensor<Wgpu>>,
    rows: usize,
}

impl Wgpu {
    pub(crate) fn rotate_into(&self, op: &Rotate<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let prep = Prep {
            dim: op.head_dim,
            q: Some((Section { x: op.x.clone(), norm: None }, out)),
            k: None,
            v: None,
            rope: Some(op.by).filter(|r| r.table.cols() > 0),
            cache: None,
            positions: Some(op.positions).filter(|_| op.by.table.cols() > 0),
            rows: op.x.rows(),
        };
        self.prep(&prep)
    }

    pub(crate) fn kv_write_to(&self, op: &KvWrite<'_, Wgpu>) -> Result<()> {
        let prep = Prep {
            dim: op.heads.dim,
            q: None,
            k: Some(Section { x: op.k.clone(), norm: None }),
            v: Some(op.v.clone()),
            rope: None,
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan), op.plan)),
            positions: None,
            rows: op.k.rows(),
        };
        self.prep(&prep)
    }

    /// All of it at once, if the norms are of the usual kind.
    pub(crate) fn qkv_prep_into(&self, op: &QkvPrep<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (q_cols, kv_cols) = (op.heads.q_cols(), op.heads.kv_cols());
        let part = |at: usize, cols: usize| op.qkv.col_range(at..at + cols);
        let prep = Prep {
            dim: op.heads.dim,
            q: Some((Section { x: part(0, q_cols), norm: op.qk_norm.map(|n| &n.q) }, out)),
            k: Some(Section { x: part(q_cols, kv_cols), norm: op.qk_norm.map(|n| &n.k) }),
            v: Some(part(q_cols + kv_cols, kv_cols)),
            rope: op.rope.filter(|r| r.table.cols() > 0),
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan), op.plan)),
            positions: op.rope.map(|_| &op.plan.positions),
            rows: op.qkv.rows(),
        };
        self.prep(&prep)
    }

    /// Can these norms be part of the kernel?
    pub(crate) fn is_usual(norm: &Norm<Wgpu>) -> bool {
        norm.kind == NormKind::Rms && norm.bias.is_none()
    }

    fn prep(&self, prep: &Prep<'_>) -> Result<()> {
        let (mut params, mut args) = (Vec::new(), Vec::new());
        prep.operands(&mut params, &mut args)?;
        let source = || prep.source();
        let kernel = Kernel { name: "prep", variant: prep.variant() };
        self.gpu.launch(&Launch {
            kernel,
            source: &source,
            args,
            params,
            grid: [prep.rows as u32, prep.groups(), 1],
        })
    }
}

impl<'a> Prep<'a> {
    fn q_groups(&self) -> usize {
        self.q.as_ref().map_or(0, |(q, _)| q.groups(self.dim))
    }

    fn k_groups(&self) -> usize {
        self.k.as_ref().map_or(0, |k| k.groups(self.dim))
    }

    fn groups(&self) -> u32 {
        (self.q_groups() + self.k_groups() + self.v.as_ref().map_or(0, |v| v.cols() / self.dim)) as u32
    }

    /// Do all come from one tensor?
    fn is_joint(&self) -> bool {
        self.q.is_some() && self.k.is_some()
    }

    fn variant(&self) -> Vec<u32> {
        let mut v = vec![self.dim as u32, self.q_groups() as u32, self.k_groups() as u32];
        v.push(u32::from(self.q.as_ref().is_some_and(|(q, _)| q.norm.is_some())));
        v.push(u32::from(self.k.as_ref().is_some_and(|k| k.norm.is_some())));
        v.push(
            self.rope.map_or(0, |r| (r.table.cols() as u32) << 1 | u32::from(r.pairs == RopePairs::Halves)),
        );
        v.push(u32::from(self.rope.is_some()));
        v.extend(self.cache.iter().flat_map(|(_, pages, _)| pages.variant()));
        v
    }

    fn operands(&'a self, params: &mut Vec<Param>, args: &mut Vec<Arg<'a>>) -> Result<()> {
        let view = |name, t: &Tensor<Wgpu>| View(name, t.offset() as u32, t.stride() as u32);
        let mut plan = None;
        if let Some((q, out)) = &self.q {
            args.push(operand("xq", Access::Read, &q.x, params)?);
            args.push(operand("out", Access::Write, out, params)?);
            if let Some(norm) = q.norm {
                args.push(operand("wq", Access::Read, &norm.weight, params)?);
                params.push(F("eps_q", norm.eps));
            }
        }
        if let Some(k) = &self.k {
            match self.is_joint() {
                true => params.push(view("xk", &k.x)),
                false => args.push(operand("xk", Access::Read, &k.x, params)?),
            }
            if let Some(norm) = k.norm {
                args.push(operand("wk", Access::Read, &norm.weight, params)?);
                params.push(F("eps_k", norm.eps));
            }
        }
        if let Some(v) = &self.v {
            match self.is_joint() {
                true => params.push(view("xv", v)),
                false => args.push(operand("xv", Access::Read, v, params)?),
            }
        }
        if let Some((kv, pages, step)) = &self.cache {
            pages.args(kv, Access::Write, args);
            params.push(U("slots_at", step.slots.offset() as u32));
            plan = Some(&step.slots);
        }
        if let Some(rope) = self.rope {
            args.push(operand("table", Access::Read, &rope.table, params)?);
        }
        if let Some(positions) = self.positions {
            params.push(U("positions_at", positions.offset() as u32));
            plan = Some(positions);
        }
        if let Some(plan) = plan {
            args.push(Arg { name: "plan", of: "u32", access: Access::Read, block: super::block(plan)? });
        }
        Ok(())
    }

    /// WGSL that gives an element of queries or keys: normalised, turned.
    fn section(&self, s: &mut String, name: &str, x: &str, section: &Section<'_>) {
        let (dim, width) = (self.dim, section.width(self.dim));
        let value = match section.norm {
            Some(_) => format!("{x}[at] * by * w{name}[p.w{name}_at + c % {width}u]"),
            None => format!("{x}[at]"),
        };
        let _ = write!(
            s,
            "fn {name}_plain(row: u32, c: u32, by: f32) -> f32 {{\n  let at = p.x{name}_at + row * p.x{name}_stride + c;\n  \
             return {value};\n}}\n"
        );
        let sum = match section.norm {
            Some(_) => format!(
                "  var squares = 0.0;\n  for (var i = id; i < {width}u; i += 64u) {{\n    \
                 let y = {x}[p.x{name}_at + row * p.x{name}_stride + first + i];\n    squares = fma(y, y, squares);\n  }}\n  \
                 return 1.0 / sqrt(together(squares, id) / {width}.0 + p.eps_{name});\n"
            ),
            None => "  return 1.0;\n".to_owned(),
        };
        let _ = writeln!(s, "fn {name}_by(row: u32, first: u32, id: u32) -> f32 {{\n{sum}}}");
        let Some(rope) = self.rope else {
            let _ = writeln!(
                s,
                "fn {name}_value(row: u32, c: u32, by: f32) -> f32 {{ return {name}_plain(row, c, by); }}"
            );
            return;
        };
        let (turned, half) = (rope.table.cols(), rope.table.cols() / 2);
        let (angle, other, is_first) = match rope.pairs {
            RopePairs::Halves => (
                format!("e % {half}u"),
                format!("select(c - {half}u, c + {half}u, e < {half}u)"),
                format!("e < {half}u"),
            ),
            RopePairs::Neighbours => (
                "e / 2u".to_owned(),
                "select(c - 1u, c + 1u, e % 2u == 0u)".to_owned(),
                "e % 2u == 0u".to_owned(),
            ),
        };
        let _ = write!(
            s,
            "fn {name}_value(row: u32, c: u32, by: f32) -> f32 {{\n  let y = {name}_plain(row, c, by);\n  \
             let e = c % {dim}u;\n  if (e >= {turned}u) {{ return y; }}\n  \
             let angles = p.table_at + plan[p.positions_at + row] * p.table_stride + {angle};\n  \
             let across = {name}_plain(row, {other}, by) * table[angles + {half}u];\n  \
             return fma(y, table[angles], select(across, -across, {is_first}));\n}}\n"
        );
    }

    fn source(&self) -> String {
        let dim = self.dim;
        let mut s = include_str!("../shaders/prep.wgsl").to_owned();
        let mut main = String::from(
            "@compute @workgroup_size(64)\n\
             fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {\n  \
             let row = wg.x;\n  var group = wg.y;\n",
        );
        if let Some((_, pages, _)) = &self.cache {
            s += &pages.source(true);
            main +=
                "  let slot = plan[p.slots_at + row];\n  let page = slot / LEN;\n  let token = slot % LEN;\n";
        }
        if let Some((q, _)) = &self.q {
            self.section(&mut s, "q", "xq", q);
            let (width, groups) = (q.width(dim), q.groups(dim));
            let _ = write!(
                main,
                "  if (group < {groups}u) {{\n    let first = group * {width}u;\n    let by = q_by(row, first, id);\n    \
                 for (var c = first + id; c < first + {width}u; c += 64u) {{\n      \
                 out[p.out_at + row * p.out_stride + c] = q_value(row, c, by);\n    }}\n    return;\n  }}\n  \
                 group -= {groups}u;\n"
            );
        }
        let x = |own: &'static str| if self.is_joint() { "xq" } else { own };
        if let Some(k) = &self.k {
            self.section(&mut s, "k", x("xk"), k);
            let (width, groups) = (k.width(dim), k.groups(dim));
            let _ = write!(
                main,
                "  if (group < {groups}u) {{\n    let first = group * {width}u;\n    let by = k_by(row, first, id);\n    \
                 for (var c = first + PACK * id; c < first + {width}u; c += PACK * 64u) {{\n      \
                 let a = k_value(row, c, by);\n      let b = k_value(row, c + PACK - 1u, by);\n      \
                 k_put(page, (c / PACK) * LEN + token, packed(a, b));\n    }}\n    return;\n  }}\n  group -= {groups}u;\n"
            );
        }
        if self.v.is_some() {
            let _ = write!(
                main,
                "  for (var e = PACK * id; e < DIM; e += PACK * 64u) {{\n    \
                 let at = p.xv_at + row * p.xv_stride + group * DIM + e;\n    \
                 v_put(page, (group * LEN + token) * (DIM / PACK) + e / PACK, packed({0}[at], {0}[at + PACK - 1u]));\n  }}\n",
                x("xv")
            );
        }
        s + &main + "}\n"
    }
}

/// Attention with all that is fixed in its kernels.
struct Attention {
    pages: Pages,
    sinks: bool,
    /// Query rows of a workgroup.
    rows: usize,
    /// Are segments spread over workgroups?
    spread: bool,
}

impl Wgpu {
    pub(crate) fn attend_into(&self, op: &Attend<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (heads, plan) = (op.heads, op.plan);
        let group = heads.q / heads.kv;
        let most = plan.host.spans.iter().map(|s| s.rows * group).max().unwrap_or(0).max(1);
        // A power of two, so that there are few kernels.
        let rows = most.next_power_of_two().min(ROWS).min((QUERIES / heads.dim).max(1).next_power_of_two());
        let blocks: usize = plan.host.spans.iter().map(|s| (s.rows * group).div_ceil(rows)).sum();
        let segments = plan.host.spans.iter().map(|s| s.end().div_ceil(SEGMENT)).max().unwrap_or(0);
        let room = 4 * op.q.rows() * heads.q * segments * (heads.dim + 2);
        let spread = segments > 1 && blocks * heads.kv < BUSY && room <= SPREAD;
        let pages = Pages::new(&op.kv, heads, plan);
        let attention = Attention { pages, sinks: op.spec.sinks.is_some(), rows, spread };
        let mut params = vec![
            F("scale", op.spec.scale),
            F("cap", op.spec.softcap.unwrap_or(0.0)),
            U("window", op.spec.window.map_or(u32::MAX, |w| u32::try_from(w).unwrap_or(u32::MAX))),
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
        attention.pages.args(&op.kv, Access::Read, &mut args);
        if let Some(parts) = &parts {
            // The result is the second kernel's affair.
            args.remove(1);
            if attention.sinks {
                args.remove(1);
            }
            args.push(operand("parts", Access::Write, parts, &mut params)?);
        }
        let grid = [blocks as u32, heads.kv as u32, if spread { segments as u32 } else { 1 }];
        let source = || attention.source();
        let kernel = Kernel { name: "attend", variant: attention.variant() };
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid })?;
        let Some(parts) = &parts else { return Ok(()) };
        let (mut args, mut params) = merge;
        args.push(operand("parts", Access::Read, parts, &mut params)?);
        let source = || attention.merging();
        let kernel = Kernel { name: "attend_merge", variant: attention.variant() };
        let grid = [op.q.rows() as u32, heads.q as u32, 1];
        self.gpu.launch(&Launch { kernel, source: &source, args, params, grid })
    }
}

impl Attention {
    fn variant(&self) -> Vec<u32> {
        let mut v = self.pages.variant();
        v.extend([u32::from(self.sinks), self.rows as u32, u32::from(self.spread)]);
        v
    }

    /// Columns that an invocation has, rows that are done at a time, and rows that an invocation has.
    fn cells(&self) -> (usize, usize, usize) {
        let dim = self.pages.heads.dim;
        let at_once = (THREADS / dim).max(1);
        (dim.div_ceil(THREADS), at_once, self.rows.div_ceil(at_once))
    }

    /// A head's sink, if there are any.
    fn sink(&self) -> &'static str {
        match self.sinks {
            true => "const SINKS = true;\nfn sink(head: u32) -> f32 { return sinks[p.sinks_at + head]; }\n",
            false => "const SINKS = false;\nfn sink(head: u32) -> f32 { return 0.0; }\n",
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
        s += include_str!("../shaders/merge.wgsl");
        let _ =
            writeln!(s, "const ROWS = {}u;\nconst AT_ONCE = {at_once}u;\nconst TILE = {TILE}u;", self.rows);
        let _ = writeln!(s, "const SEGMENT = {SEGMENT}u;\nconst SPREAD = {};", self.spread);
        // The invocation's numbers are variables of their own, so that they can be registers.
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
                 let x_{c} = unpacked(v_get(page, at + e_{c} / PACK))[e_{c} % PACK];"
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
        // This kernel sees no pages.
        let Heads { q, dim, .. } = self.pages.heads;
        let mut s = format!("const QUERIES = {q}u;\nconst DIM = {dim}u;\nconst SEGMENT = {SEGMENT}u;\n");
        s += self.sink();
        s + include_str!("../shaders/merge.wgsl") + include_str!("../shaders/attend_merge.wgsl")
    }
}
