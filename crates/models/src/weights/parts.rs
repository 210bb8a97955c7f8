//! Matrices whose rows the file stores in another order, or fused in one tensor.

use std::ops::Range;

use tallow_checkpoint::tensor_names::{Layout, Rate, Slot, named};
use tallow_checkpoint::{Kind, Stored};
use tallow_core::{Backend, Heads, HostWeight, LinearWeight, LinearWeights, Tensor, Weight};
use tallow_quant::Format;

use super::{StreamCheck, Weights, not_taken, room};
use crate::error::{LoadError, Result};
use crate::spec::Bias;

/// The row ranges of a tensor that make up a matrix, in the matrix's order.
pub type Runs = Vec<Range<usize>>;

impl<'a, B: Backend> Weights<'a, B> {
    /// Linear layers fused in one tensor. Each of its rows belongs to exactly one of `parts`.
    pub(crate) fn parts(
        &mut self,
        of: (Slot, usize),
        parts: &[Runs],
        cols: usize,
        bias: Bias,
    ) -> Result<Vec<LinearWeights<B>>> {
        let name = self.name(of.into())?;
        let rows = parts.iter().flatten().map(Range::len).sum();
        let mut layers = self.part_layers(&named(&name), parts, [rows, cols])?;
        for (layer, runs) in layers.iter_mut().zip(parts) {
            layer.lora_target = Some(self.target(&name, (rows, cols), Some(runs.clone())));
        }
        let Some(all) = self.bias_numbers(of.into(), rows, bias)? else { return Ok(layers) };
        let with_bias = |(layer, runs): (LinearWeights<B>, &Runs)| {
            let bias: Vec<f32> = runs.iter().flat_map(|run| &all[run.clone()]).copied().collect();
            Ok(LinearWeights { bias: Some(self.b.upload_row(&bias)?), ..layer })
        };
        layers.into_iter().zip(parts).map(with_bias).collect()
    }

    fn part_layers(
        &mut self,
        name: &str,
        parts: &[Runs],
        shape: [usize; 2],
    ) -> Result<Vec<LinearWeights<B>>> {
        if let Some(Kind::Grouped(matrix)) = self.find(name).map(|(_, stored)| &stored.kind) {
            let stored = self.shaped(name, &shape)?;
            if let Some(i) = matrix.fault() {
                let why = format!("element {i} is not a finite number: the file is damaged");
                return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
            }
            let (mut bytes, order) = (room(matrix.size())?, matrix.order());
            matrix.write(order.as_deref(), &mut bytes);
            let weights = self.part_weights((stored, name), (matrix.format(), &bytes), parts, shape)?;
            self.loaded(name, stored)?;
            let order = order.map(|order| self.order(order)).transpose()?;
            let layer = |weight| LinearWeights {
                weight: LinearWeight::new(weight, order.clone()),
                bias: None,
                lora_target: None,
            };
            return Ok(weights.into_iter().map(layer).collect());
        }
        let (stored, format) = self.stored(name, &shape)?;
        let weights = self.part_weights((stored, name), (format, stored.bytes()), parts, shape);
        // Report damage first: an error that damaged data causes on the device would mislead.
        StreamCheck::new(stored, format, shape[0]).finish(name)?;
        self.loaded(name, stored)?;
        Ok(weights?.into_iter().map(|w| LinearWeights::new(w, None)).collect())
    }

    /// The matrices of a tensor whose bytes in `format` are `from`.
    fn part_weights(
        &self,
        (stored, name): (&Stored, &str),
        (format, from): (Format, &[u8]),
        parts: &[Runs],
        [rows, cols]: [usize; 2],
    ) -> Result<Vec<Weight<B>>> {
        let (width, id) = (from.len() / rows.max(1), self.id(name, (0, 1), cols));
        let part = |runs: &Runs| {
            let rows = runs.iter().map(Range::len).sum();
            let mut bytes = room(rows * width)?;
            let mut at = 0;
            for run in runs {
                let run = &from[run.start * width..run.end * width];
                bytes[at..at + run.len()].copy_from_slice(run);
                at += run.len();
            }
            let weight = HostWeight { tensor: Some(&id), ..HostWeight::new(format, rows, cols, &bytes) };
            self.give(name, weight, None).map_err(|e| not_taken(stored, name, e))
        };
        parts.iter().map(part).collect()
    }

    /// Q, K and V of layer `i`, fused in one tensor.
    pub(crate) fn qkv(
        &mut self,
        i: usize,
        heads: Heads,
        cols: usize,
        bias: Bias,
    ) -> Result<LinearWeights<B>> {
        if self.names().layout != Layout::RowsByHead {
            return self.linear((Slot::AttnQkv, i), heads.qkv_cols(), cols, bias);
        }
        // Here Q, K and V have equally many heads, and each head's three parts are adjacent.
        let runs = (0..3).flat_map(|part| by_head(heads, part, 3)).collect();
        let mut one = self.parts((Slot::AttnQkv, i), &[runs], cols, bias)?;
        one.pop().ok_or_else(|| LoadError::bad(self.path(), "fused Q, K and V", "are empty"))
    }

    /// Causal convolution of layer `i`, transposed from the file's [cols, kernel]: [kernel, cols]
    pub(crate) fn convolution(&mut self, i: usize, kernel: usize, cols: usize) -> Result<Tensor<B>> {
        let name = self.weight_name((Slot::SsmConv1d, i))?;
        let flat = self.find(&name).is_some_and(|(_, stored)| stored.shape.len() == 2);
        let from = match flat {
            true => self.numbers(&name, &[cols, kernel], 0.0)?,
            false => self.numbers(&name, &[cols, 1, kernel], 0.0)?,
        };
        let to: Vec<f32> = (0..kernel).flat_map(|i| from.iter().skip(i).step_by(kernel)).copied().collect();
        Ok(self.b.upload(&to, kernel, cols)?)
    }

    /// Decay rate of each head of layer `i`'s gated delta rule.
    pub(crate) fn rates(&mut self, i: usize, heads: usize) -> Result<Tensor<B>> {
        let (name, how) = (self.weight_name((Slot::SsmA, i))?, self.names().rate);
        let mut rates = self.numbers(&name, &[heads], 0.0)?;
        rates.iter_mut().for_each(|x| match how {
            Rate::Logarithm => *x = x.exp(),
            Rate::Negative => *x = -*x,
        });
        self.upload(&rates)
    }

    /// A vector computed from the settings, on the device.
    pub(crate) fn upload(&self, row: &[f32]) -> Result<Tensor<B>> {
        Ok(self.b.upload_row(row)?)
    }
}

/// Row ranges of part `part` of every query head, in a tensor that stores `parts` parts per head.
pub fn by_head(heads: Heads, part: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    (0..heads.q).map(move |head| (parts * head + part) * heads.dim..(parts * head + part + 1) * heads.dim)
}
