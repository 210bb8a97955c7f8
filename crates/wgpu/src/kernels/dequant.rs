//! Dequantization of rows of weights: embedding lookup, and `dequant` for composed ops.

use tallow_core::ops::{Dequant, Embed};
use tallow_core::{Result, Tensor, Weight};

use super::linear::Part;
use super::operand;
use crate::device::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Kernel, Launch};

impl Wgpu {
    pub(crate) fn embed_into(&self, op: &Embed<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        self.dequant_rows(op.table, Which::Ids(op.ids), op.scale, out)
    }

    pub(crate) fn dequant_into(&self, op: &Dequant<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        self.dequant_rows(op.w, Which::From(op.rows.start), 1.0, out)
    }

    fn dequant_rows(&self, w: &Weight<Wgpu>, which: Which<'_>, scale: f32, out: &Tensor<Wgpu>) -> Result<()> {
        let parts = Wgpu::parts(w, None, 0)?;
        parts.iter().try_for_each(|part| self.dequant_part(part, w.rows(), &which, scale, out))
    }

    fn dequant_part(
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
            U("table_rows", rows as u32),
            U("first_row", part.column as u32),
            U("block_rows", part.rows as u32),
            F("scale", scale),
        ];
        let mut args = vec![operand("out", Access::Write, out, &mut params)?];
        args.push(Arg { name: "w0", of: "u32", access: Access::Read, block: part.block });
        match which {
            Which::Ids(ids) => args.push(operand("ids", Access::Read, ids, &mut params)?),
            Which::From(row) => params.push(U("start", *row as u32)),
        }
        let kernel =
            Kernel::new("dequant").with("PARTS", 1usize).with("LOOKUP", matches!(which, Which::Ids(_)));
        let kernel = part.stored.define(0, kernel);
        let grid = [out.rows() as u32, 1, 1];
        self.gpu.launch(&Launch { kernel, args, params, grid, work: 0 })
    }
}

/// Rows to dequantize.
enum Which<'a> {
    /// Rows by index.
    Ids(&'a Tensor<Wgpu>),
    /// Consecutive rows from this one on, as many as the result has.
    From(usize),
}
