//! RoPE, QK norm and writes to the KV cache, in one kernel.
//!
//! One workgroup per token and per head of Q, K or V, or per group of heads that are normalized together.

use std::fmt::Write;

use tallow_core::ops::{KvWrite, QkvPrep, Rope};
use tallow_core::{LayerKv, Norm, NormKind, Result, RopePairs, StepPlan, Tensor};

use super::cache::Pages;
use super::operand;
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U, View};
use crate::gpu::{Access, Arg, Kernel, Launch, Param};

/// Queries or keys with their QK norm.
struct Section<'a> {
    x: Tensor<Wgpu>,
    norm: Option<&'a Norm<Wgpu>>,
}

impl Section<'_> {
    /// Columns per workgroup.
    fn width(&self, dim: usize) -> usize {
        self.norm.map_or(dim, |n| n.weight.cols())
    }

    fn groups(&self, dim: usize) -> usize {
        self.x.cols() / self.width(dim)
    }
}

/// Arguments of the kernel: all of Q, K and V, or only some of them.
struct Prep<'a> {
    dim: usize,
    q: Option<(Section<'a>, &'a Tensor<Wgpu>)>,
    k: Option<Section<'a>>,
    v: Option<Tensor<Wgpu>>,
    rope: Option<&'a tallow_core::RopeTable<Wgpu>>,
    cache: Option<(LayerKv<'a, Wgpu>, Pages, &'a StepPlan<Wgpu>)>,
    positions: Option<&'a Tensor<Wgpu>>,
    rows: usize,
}

impl Wgpu {
    pub(crate) fn rotate_into(&self, op: &Rope<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let prep = Prep {
            dim: op.head_dim,
            q: Some((Section { x: op.x.clone(), norm: None }, out)),
            k: None,
            v: None,
            rope: Some(op.rope).filter(|r| r.table.cols() > 0),
            cache: None,
            positions: Some(op.positions).filter(|_| op.rope.table.cols() > 0),
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
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan)?, op.plan)),
            positions: None,
            rows: op.k.rows(),
        };
        self.prep(&prep)
    }

    /// Fused QK norm, RoPE and KV write. The norms must be supported by the kernel: see [`is_usual`](Wgpu::is_usual).
    pub(crate) fn qkv_prep_into(&self, op: &QkvPrep<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (q_cols, kv_cols) = (op.heads.q_cols(), op.heads.kv_cols());
        let part = |at: usize, cols: usize| op.qkv.col_range(at..at + cols);
        let prep = Prep {
            dim: op.heads.dim,
            q: Some((Section { x: part(0, q_cols), norm: op.qk_norm.map(|n| &n.q) }, out)),
            k: Some(Section { x: part(q_cols, kv_cols), norm: op.qk_norm.map(|n| &n.k) }),
            v: Some(part(q_cols + kv_cols, kv_cols)),
            rope: op.rope.filter(|r| r.table.cols() > 0),
            cache: Some((op.kv, Pages::new(&op.kv, op.heads, op.plan)?, op.plan)),
            positions: op.rope.filter(|r| r.table.cols() > 0).map(|_| &op.plan.positions),
            rows: op.qkv.rows(),
        };
        self.prep(&prep)
    }

    /// Whether the kernel supports this QK norm: RMSNorm without bias.
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
            work: 0,
        })
    }
}

/// WGSL that stores a head's K or V as 8-bit codes with a scale, four codes per word, at word `to`. `value` is the
/// expression for an element.
fn coded(name: &str, head: &str, to: &str, value: impl Fn(&str) -> String) -> String {
    let four = ["e", "e + 1u", "e + 2u", "e + 3u"].map(&value).join(", ");
    format!(
        "    var size = 0u;\n    for (var e = id; e < DIM; e += 64u) {{ size = max(size, size_of({})); }}\n    \
         size = largest(size, id);\n    \
         if (id == 0u) {{ {name}_put(page, SCALES + {head} * LEN + token, scale_of(size)); }}\n    \
         for (var e = PACK * id; e < DIM; e += PACK * 64u) {{\n      \
         {name}_put(page, {to}, coded(vec4<f32>({four}), to_codes(size)));\n    }}\n",
        value("e")
    )
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

    /// Whether Q, K and V are columns of one tensor.
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

    /// WGSL that returns an element of Q or K after norm and RoPE.
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
            RopePairs::Interleaved => (
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

    /// Whether the KV cache stores 8-bit codes with scales.
    fn is_coded(&self) -> bool {
        self.cache.as_ref().is_some_and(|(_, pages, _)| pages.is_scaled())
    }

    fn source(&self) -> String {
        let dim = self.dim;
        let mut s = "const WIDTH = 64u;\n".to_owned() + include_str!("../shaders/together.wgsl");
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
                "  if (group < {groups}u) {{\n    let first = group * {width}u;\n    let by = k_by(row, first, id);\n"
            );
            if self.is_coded() {
                let value = |e: &str| format!("k_value(row, head * DIM + {e}, by)");
                let _ = write!(
                    main,
                    "    for (var head = first / DIM; head < (first + {width}u) / DIM; head++) {{\n{}    }}\n",
                    coded("k", "head", "(head * (DIM / PACK) + e / PACK) * LEN + token", value)
                );
                main += "    return;\n  }\n";
            } else {
                let _ = write!(
                    main,
                    "    for (var c = first + PACK * id; c < first + {width}u; c += PACK * 64u) {{\n      \
                 let a = k_value(row, c, by);\n      let b = k_value(row, c + PACK - 1u, by);\n      \
                 k_put(page, (c / PACK) * LEN + token, packed(a, b));\n    }}\n    return;\n  }}\n"
                );
            }
            let _ = writeln!(main, "  group -= {groups}u;");
        }
        if self.v.is_some() && self.is_coded() {
            let value = |e: &str| format!("{}[p.xv_at + row * p.xv_stride + group * DIM + {e}]", x("xv"));
            main += &coded("v", "group", "(group * LEN + token) * (DIM / PACK) + e / PACK", value);
        } else if self.v.is_some() {
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
