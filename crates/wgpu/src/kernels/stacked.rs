//! Linear layers whose weights are chosen by the workgroup among those of a stack: a layer for each head.

use tallow_core::ops::{Epilogue, LinearHeads};
use tallow_core::{LinearWeights, Result, Tensor};

use super::linear::{Matrices, Part, Product, Tiling, tiles};
use crate::device::{Wgpu, block};
use crate::gpu::Param::U;

/// Weights that lie one after another in one block, with their biases. All of a stack, unless it is larger than a block.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    /// The first of them.
    pub part: Part<'a>,
    /// Its index among all weights, and how many there are.
    pub first: usize,
    pub count: usize,
}

impl<'a> Piece<'a> {
    /// Appends the next weight, if it follows. Returns whether it does.
    fn extend(&mut self, next: &Part<'a>) -> Result<bool> {
        let (part, count) = (&self.part, self.count);
        let alike = part.stored == next.stored && part.step == next.step && part.block.is(next.block);
        // The first two say how far apart all are.
        let each = |so_far: usize, first: usize, next: usize| match count {
            1 => next.checked_sub(first),
            _ => (first + count * so_far == next).then_some(so_far),
        };
        let bias_each = match (part.bias, next.bias) {
            (None, None) => Some(0),
            (Some(a), Some(b)) if block(a)?.is(block(b)?) => each(part.bias_each, a.offset(), b.offset()),
            _ => None,
        };
        let (Some(each), Some(bias_each), true) = (each(part.each, part.base, next.base), bias_each, alike)
        else {
            return Ok(false);
        };
        self.part = Part { each, bias_each, ..self.part };
        self.count += 1;
        Ok(true)
    }
}

impl Wgpu {
    /// The pieces of a stack, whose outputs go to column `column` of the result; `None` if the weights are not of one
    /// shape, or one of them is in several blocks or has act-order.
    pub(crate) fn pieces<'a>(
        weights: impl Iterator<Item = &'a LinearWeights<Wgpu>>,
        column: usize,
    ) -> Result<Option<Vec<Piece<'a>>>> {
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        for (first, linear) in weights.enumerate() {
            let Some(weight) = linear.weight.in_order() else { return Ok(None) };
            let parts = Wgpu::parts(weight, linear.bias.as_ref(), column)?;
            let [part] = parts[..] else { return Ok(None) };
            let shape = |part: &Part<'_>| (part.rows, part.cols);
            if pieces.first().is_some_and(|piece| shape(&piece.part) != shape(&part)) {
                return Ok(None);
            }
            let follows = pieces.last_mut().map_or(Ok(false), |last| last.extend(&part))?;
            if !follows {
                pieces.push(Piece { part, first, count: 1 });
            }
        }
        Ok(Some(pieces))
    }

    /// A linear layer for each head, whose outputs begin at the pieces' column of its part of the result; in front of them
    /// come the copied columns.
    pub(crate) fn linear_heads_into(
        &self,
        op: &LinearHeads<'_, Wgpu>,
        pieces: &[Piece<'_>],
        out: &Tensor<Wgpu>,
    ) -> Result<()> {
        let (rows, head_dim, out_dim) = (op.x.rows(), op.head_dim, op.out_dim());
        for Piece { part, first, count } in pieces {
            let at = first * head_dim;
            let x = &op.x.col_range(at + op.inputs.start..at + op.inputs.end); // [rows, inputs] of the first head
            let out = &out.col_range(first * out_dim..(first + count) * out_dim);
            let product = Product { x, out, epilogue: Epilogue::NONE };
            let parts = std::slice::from_ref(part);
            let Tiling { kernel, rows: width, outputs } =
                Tiling::new(Wgpu::is_few(rows), rows, (count * part.rows, x.cols()));
            let kernel = kernel.with("RESIDUAL", false);
            let grid = [tiles(parts, outputs), rows.div_ceil(width) as u32, *count as u32];
            let matrices = Matrices::Heads(head_dim);
            let mut launch = self.product(&product, parts, (kernel, outputs, grid), matrices)?;
            launch.params.extend([
                U("head_dim", head_dim as u32),
                U("out_dim", out_dim as u32),
                U("copied", op.copied.len() as u32),
                U("copied_at", (op.x.offset() + at + op.copied.start) as u32),
            ]);
            launch.work *= *count as u64;
            self.gpu.launch(&launch)?;
        }
        Ok(())
    }
}
