//! Dequantization of rows of weights: embedding lookup, and `dequant` for composed ops.

use tallow_core::ops::{Dequant, Embed};
use tallow_core::{Result, Tensor, Weight};

use super::linear::Part;
use super::operand;
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch};

const MAIN: &str = "
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let row = ROW;
  for (var k8 = id; 8u * k8 < p.cols; k8 += 64u) {
    var w = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
    // Another block of the table has the row, and another launch writes it.
    if (row < p.table && (row < p.first || row >= p.first + p.held)) { return; }
    if (row < p.table) { w = eight_0(p.base, p.step, (row - p.first) / 32u, row % 32u, k8); }
    let at = p.out_at + wg.x * p.out_stride + 8u * k8;
    for (var i = 0u; i < 4u; i++) {
      if (8u * k8 + i < p.cols) { out[at + i] = w.a[i] * p.scale; }
      if (8u * k8 + 4u + i < p.cols) { out[at + 4u + i] = w.b[i] * p.scale; }
    }
  }
}
";

impl Wgpu {
    pub(crate) fn embed_into(&self, op: &Embed<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        self.unpack(op.table, Which::Ids(op.ids), op.scale, out)
    }

    pub(crate) fn dequant_into(&self, op: &Dequant<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        self.unpack(op.w, Which::From(op.rows.start), 1.0, out)
    }

    fn unpack(&self, w: &Weight<Wgpu>, which: Which<'_>, scale: f32, out: &Tensor<Wgpu>) -> Result<()> {
        let parts = Wgpu::parts(w, None, 0)?;
        parts.iter().try_for_each(|part| self.unpack_part(part, w.rows(), &which, scale, out))
    }

    fn unpack_part(
        &self,
        part: &Part<'_>,
        rows: usize,
        which: &Which<'_>,
        scale: f32,
        out: &Tensor<Wgpu>,
    ) -> Result<()> {
        let mut params = vec![
            U("cols", part.cols as u32),
            U("base", part.base as u32),
            U("step", part.step as u32),
            U("table", rows as u32),
            U("first", part.column as u32),
            U("held", part.rows as u32),
            F("scale", scale),
        ];
        let mut args = vec![operand("out", Access::Write, out, &mut params)?];
        args.push(Arg { name: "w0", of: "u32", access: Access::Read, block: part.block });
        let row = match which {
            Which::Ids(ids) => {
                args.push(operand("ids", Access::Read, ids, &mut params)?);
                "ids[p.ids_at + wg.x]"
            }
            Which::From(row) => {
                params.push(U("start", *row as u32));
                "p.start + wg.x"
            }
        };
        let source = || {
            let eight = include_str!("../shaders/eight.wgsl").to_owned();
            eight + &part.stored.source(0) + &MAIN.replace("ROW", row)
        };
        let variant = vec![part.stored.code(), u32::from(matches!(which, Which::Ids(_)))];
        let kernel = Kernel { name: "unpack", variant };
        self.gpu.launch(&Launch {
            kernel,
            source: &source,
            args,
            params,
            grid: [out.rows() as u32, 1, 1],
            work: 0,
        })
    }
}

/// Which rows to dequantize.
enum Which<'a> {
    /// Rows by index.
    Ids(&'a Tensor<Wgpu>),
    /// Consecutive rows from this one on, as many as the result has.
    From(usize),
}
