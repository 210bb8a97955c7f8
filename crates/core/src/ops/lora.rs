use std::ops::Range;

use super::linear::{check_linear, joint_cols};
use super::matmul::Epilogue;
use super::{Check, Op};
use crate::lora::in_order;
use crate::{LinearWeights, LoraPair, LoraRows, Memory, Norm, Result, Tensor};

/// Linear layers over one input plus the LoRA deltas of its rows. Rows without an adapter are bit-identical to the
/// result of [`Linear`](super::Linear) or [`LinearMany`](super::LinearMany).
#[derive(Debug)]
pub struct Lora<'a, B: Memory> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// Norm of `x`.
    pub norm: Option<&'a Norm<B>>,
    /// [outputs, inputs] each; outputs are side by side.
    pub weights: &'a [LinearWeights<B>],
    /// Applied to the sum of product and delta. Must be [`Epilogue::NONE`] unless there is a single layer and no norm,
    /// and never has a softcap.
    pub epilogue: Epilogue<'a, B>,
    /// LoRA adapters by row range, in order.
    pub adapters: &'a [LoraRows<B>],
}

/// LoRA delta of one adapter to one of several layers.
#[derive(Debug)]
pub struct LoraDelta<'a, B: Memory> {
    /// Index of the layer.
    pub layer: usize,
    /// Rows that get the delta.
    pub rows: Range<usize>,
    /// The layer's columns in the joint output.
    pub columns: Range<usize>,
    /// LoRA factors.
    pub pair: &'a LoraPair<B>,
    /// Multiplies `b · (a · x)`: the adapter's scale for these rows times the pair's.
    pub scale: f32,
}

/// All LoRA deltas to layers over one input, layer by layer.
pub fn lora_deltas<'a, B: Memory>(
    layers: &'a [LinearWeights<B>],
    adapters: &'a [LoraRows<B>],
) -> impl Iterator<Item = LoraDelta<'a, B>> {
    let columns = layers.iter().scan(0, |column, layer| {
        *column += layer.weight.rows();
        Some((layer.lora_target, *column - layer.weight.rows()..*column))
    });
    let of_layer = move |(layer, (target, columns)): (usize, (Option<_>, Range<usize>))| {
        let some = adapters.iter().filter(|a| !a.rows.is_empty());
        some.filter_map(move |a| {
            let (pair, rows, columns) = (a.adapter.pair(target?)?, a.rows.clone(), columns.clone());
            Some(LoraDelta { layer, rows, columns, pair, scale: a.scale * pair.scale })
        })
    };
    columns.enumerate().flat_map(of_layer)
}

/// The adapters' row ranges are in order, and their factors fit the layers.
pub(super) fn check_adapted<B: Memory>(
    c: &Check,
    layers: &[LinearWeights<B>],
    adapters: &[LoraRows<B>],
    rows: usize,
) -> Result<()> {
    let order = in_order(adapters, rows);
    c.that(order, "the adapters' rows", format_args!("in order, under {rows}"), "others")?;
    lora_deltas(layers, adapters).try_for_each(|a| {
        let (rank, inputs, outputs) = (a.pair.rank(), layers[a.layer].weight.cols(), a.columns.len());
        let halves = [("lora_a", &*a.pair.a, rank, inputs), ("lora_b", &a.pair.b, outputs, rank)];
        halves.into_iter().try_for_each(|(what, w, rows, cols)| {
            let (want, got) =
                (format_args!("[{rows}, {cols}]"), format_args!("[{}, {}]", w.rows(), w.cols()));
            c.that((w.rows(), w.cols()) == (rows, cols), what, want, got)
        })
    })
}

impl<'a, B: Memory> Lora<'a, B> {
    /// Columns of the result.
    pub fn cols(&self) -> usize {
        joint_cols(self.weights)
    }
}

impl<B: Memory> Op for Lora<'_, B> {
    /// [rows, sum of outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "lora";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        if let Some(norm) = self.norm {
            c.norm(norm, self.x.cols())?;
        }
        self.weights.iter().try_for_each(|l| check_linear(&c, l, self.x.cols()))?;
        self.epilogue.check(&c, self.x.rows(), self.cols())?;
        let plain = self.epilogue.residual.is_none() && self.epilogue.scale == 1.0;
        let fits =
            self.epilogue.softcap.is_none() && (plain || (self.weights.len() == 1 && self.norm.is_none()));
        c.that(fits, "epilogue", "none, or no softcap and one layer without a norm", "more")?;
        check_adapted(&c, self.weights, self.adapters, self.x.rows())
    }
}
