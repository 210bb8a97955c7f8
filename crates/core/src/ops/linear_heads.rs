use std::ops::Range;

use super::linear::check_linear;
use super::{Check, Op};
use crate::{LinearWeights, Memory, Result, Tensor};

/// A linear layer for each head: some columns of head `i` through `weights[i]`, behind other columns of it, which are
/// copied.
#[derive(Debug)]
pub struct LinearHeads<'a, B: Memory> {
    /// [rows, heads * head_dim]
    pub x: &'a Tensor<B>,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns of each head that its layer multiplies.
    pub inputs: Range<usize>,
    /// Columns of each head that are copied, in front of its outputs. May be none.
    pub copied: Range<usize>,
    /// One for each head: [outputs, inputs], of the same shape.
    pub weights: &'a [LinearWeights<B>],
}

impl<B: Memory> LinearHeads<'_, B> {
    /// Outputs of a head's layer.
    pub fn outputs(&self) -> usize {
        self.weights.first().map_or(0, |w| w.weight.rows())
    }

    /// Columns of a head in the result.
    pub fn out_dim(&self) -> usize {
        self.copied.len() + self.outputs()
    }
}

impl<B: Memory> Op for LinearHeads<'_, B> {
    /// [rows, heads * (copied + outputs)]
    type Out = Tensor<B>;
    const NAME: &'static str = "linear_heads";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.cols("x", self.x, self.weights.len().saturating_mul(self.head_dim))?;
        for (what, columns) in [("inputs", &self.inputs), ("copied", &self.copied)] {
            let fits = columns.start <= columns.end && columns.end <= self.head_dim;
            c.that(
                fits,
                what,
                format_args!("columns of a head of {}", self.head_dim),
                format_args!("{columns:?}"),
            )?;
        }
        let outputs = self.outputs();
        self.weights.iter().try_for_each(|w| {
            check_linear(&c, w, self.inputs.len())?;
            c.that(
                w.weight.rows() == outputs,
                "weights",
                format_args!("{outputs} rows each"),
                w.weight.rows(),
            )
        })
    }
}
