//! The phases that a layer is made of on the CPU: pieces of outputs, shared among threads.

use std::ops::Range;

use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Backend, DType, Linear, Result, Tensor, Weight};

use crate::Arithmetic;
use crate::activations::{Activations, Rounded};
use crate::backend::Cpu;
use crate::kernels::{LinearTask, Packed, Source, linear};
use crate::mat::{Mat, MatMut};
use crate::packed::PAIR;
use crate::pool::Scratch;

/// A weight as kernels read it.
pub(crate) fn source(w: &Weight<Cpu>) -> Source<'_> {
    match w {
        Weight::Dense(t) => dense(t),
        Weight::Blocks { data, format, cols, .. } => {
            Source::Packed(Packed::new(Mat::new(data), *format, *cols))
        }
    }
}

/// A dense matrix as kernels read it.
pub(crate) fn dense(t: &Tensor<Cpu>) -> Source<'_> {
    match t.dtype() {
        DType::F16 => Source::F16(Mat::new(t)),
        DType::BF16 => Source::BF16(Mat::new(t)),
        _ => Source::F32(Mat::new(t)),
    }
}

/// One linear layer of a phase, and which columns of the phase's result are its outputs.
pub(crate) struct Part<'a> {
    pub w: Source<'a>,
    pub bias: Option<Mat<'a, f32>>,
    pub outputs: usize,
    /// Its first column.
    pub column: usize,
}

impl<'a> Part<'a> {
    /// Linear layers with their outputs side by side.
    pub(crate) fn side_by_side(by: &'a [Linear<Cpu>]) -> Vec<Part<'a>> {
        let mut column = 0;
        let part = |l: &'a Linear<Cpu>| {
            let outputs = l.weight.rows();
            column += outputs;
            Part {
                w: source(&l.weight),
                bias: l.bias.as_ref().map(Mat::new),
                outputs,
                column: column - outputs,
            }
        };
        by.iter().map(part).collect()
    }
}

impl Cpu {
    /// Outputs that make a piece: whole pairs of panels, enough to be worth taking, few enough to share out evenly.
    fn piece(&self, outputs: usize) -> usize {
        (outputs / (16 * self.pool.threads())).next_multiple_of(PAIR).clamp(PAIR, 8 * PAIR)
    }

    /// The input of a phase, rounded once for all its weights if they take it so.
    fn rounded(&self, x: Mat<'_, f32>, parts: &[Part<'_>]) -> Result<Option<Activations>> {
        let wanted =
            self.arithmetic == Arithmetic::Fast && parts.iter().any(|p| p.w.side(self.kernels).is_some());
        if wanted { Activations::new(self, x, parts.iter().map(|p| p.w)).map(Some) } else { Ok(None) }
    }

    /// The same as each of the weights takes it.
    fn rounded_for<'a>(
        &self,
        input: &'a Option<Activations>,
        parts: &[Part<'_>],
    ) -> Vec<Option<Rounded<'a>>> {
        parts.iter().map(|p| input.as_ref()?.of(p.w.side(self.kernels)?)).collect()
    }

    /// One phase: every output of every part, for all rows.
    pub(crate) fn linear(
        &self,
        x: Mat<'_, f32>,
        parts: &[Part<'_>],
        out: &Tensor<Cpu>,
        then: Epilogue<'_, Cpu>,
    ) -> Result<()> {
        let residual = then.residual.map(Mat::new);
        let total: usize = parts.iter().map(|p| p.outputs).sum();
        let piece = self.piece(total);
        let pieces: Vec<(usize, Range<usize>)> = parts
            .iter()
            .enumerate()
            .flat_map(|(i, p)| {
                (0..p.outputs).step_by(piece).map(move |at| (i, at..p.outputs.min(at + piece)))
            })
            .collect();
        // Each part writes through a view that begins at its first column.
        let views: Vec<Tensor<Cpu>> =
            parts.iter().map(|p| out.col_range(p.column..p.column + p.outputs)).collect();
        let outs: Vec<MatMut<'_, f32>> = views.iter().map(MatMut::new).collect();
        let input = self.rounded(x, parts)?;
        let rounded = self.rounded_for(&input, parts);
        let (scale, softcap) = (then.scale, then.softcap);
        self.share(pieces.len(), x.rows * x.cols * total, |scratch, i| {
            let (part, outputs) = &pieces[i];
            let p = &parts[*part];
            let task = LinearTask {
                w: p.w,
                outputs: outputs.clone(),
                x,
                rounded: rounded[*part],
                out: &outs[*part],
                bias: p.bias,
                scale,
                softcap,
                residual,
            };
            linear(self.kernels, &task, &mut scratch.room);
        });
        Ok(())
    }

    /// The first phase of a feed-forward block: gate, up and activation together, so that what they exchange stays in
    /// the nearest cache.
    pub(crate) fn bend(&self, op: &Ffn<'_, Cpu>, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
        let (width, rows) = (op.down.weight.cols(), x.rows());
        let parts = Part::side_by_side(op.up);
        let joint: usize = parts.iter().map(|p| p.outputs).sum();
        let (y, bent) = (self.alloc(DType::F32, rows, joint)?, self.alloc(DType::F32, rows, width)?);
        let (m, out) = (MatMut::<f32>::new(&y), MatMut::<f32>::new(&bent));
        let views: Vec<Tensor<Cpu>> =
            parts.iter().map(|p| y.col_range(p.column..p.column + p.outputs)).collect();
        let outs: Vec<MatMut<'_, f32>> = views.iter().map(MatMut::new).collect();
        let (piece, x, kernels) = (self.piece(joint), Mat::new(x), self.kernels);
        let (act, gated) = (op.act, op.is_gated());
        let input = self.rounded(x, &parts)?;
        let rounded = self.rounded_for(&input, &parts);
        // Some columns of the joint result, from whichever layers give them.
        let project = |columns: Range<usize>, scratch: &mut Scratch| {
            for ((p, out), rounded) in parts.iter().zip(&outs).zip(&rounded) {
                let (start, end) = (columns.start.max(p.column), columns.end.min(p.column + p.outputs));
                if start < end {
                    let (scale, softcap, residual) = (1.0, None, None);
                    let task = LinearTask {
                        w: p.w,
                        outputs: start - p.column..end - p.column,
                        x,
                        rounded: *rounded,
                        out,
                        bias: p.bias,
                        scale,
                        softcap,
                        residual,
                    };
                    linear(kernels, &task, &mut scratch.room);
                }
            }
        };
        self.share(width.div_ceil(piece), rows * x.cols * joint, |scratch, i| {
            let columns = i * piece..width.min((i + 1) * piece);
            project(columns.clone(), scratch);
            let up = gated.then(|| columns.start + width..columns.end + width);
            if let Some(up) = up.clone() {
                project(up, scratch);
            }
            for r in 0..rows {
                // SAFETY: these columns of both matrices belong to this piece; `m` is only read here.
                unsafe {
                    let up = up.clone().map(|up| &*m.part(r, up));
                    (kernels.glu)(act, m.part(r, columns.clone()), up, out.part(r, columns.clone()));
                }
            }
        });
        Ok(bent)
    }
}
