use std::ops::Range;

use super::matmul::Epilogue;
use super::project::{check_linear, joint_cols};
use super::{Check, Op};
use crate::adapter::in_turn;
use crate::{Adapted, Backend, Linear, LowRank, Norm, Result, Tensor, compose};

/// Linear layers over one input, and what the adapters of its rows add to them. Rows without an adapter get what they
/// would get from [`Project`](super::Project) or [`ProjectMany`](super::ProjectMany), bit for bit.
#[derive(Debug)]
pub struct Adapt<'a, B: Backend> {
    /// [rows, inputs]
    pub x: &'a Tensor<B>,
    /// Of `x`.
    pub norm: Option<&'a Norm<B>>,
    /// [outputs, inputs] each; their outputs come side by side.
    pub by: &'a [Linear<B>],
    /// What happens to the sum of both. Only a single layer whose input is not normalised may have anything here, and
    /// never a cap.
    pub then: Epilogue<'a, B>,
    /// Which rows have which adapter, in order.
    pub with: &'a [Adapted<B>],
}

/// What an adapter adds to one of some layers.
#[derive(Debug)]
pub struct Addition<'a, B: Backend> {
    /// Which layer.
    pub layer: usize,
    /// For which rows.
    pub rows: Range<usize>,
    /// To which columns, the layers' outputs being side by side.
    pub columns: Range<usize>,
    /// What.
    pub part: &'a LowRank<B>,
    /// Multiplies `up · down · x`.
    pub scale: f32,
}

/// All that adapters of some rows add to layers over one input.
pub fn additions<'a, B: Backend>(
    by: &'a [Linear<B>],
    with: &'a [Adapted<B>],
) -> impl Iterator<Item = Addition<'a, B>> {
    let columns = by.iter().scan(0, |column, layer| {
        *column += layer.weight.rows();
        Some((layer.site, *column - layer.weight.rows()..*column))
    });
    let of_layer = move |(layer, (site, columns)): (usize, (Option<_>, Range<usize>))| {
        let some = with.iter().filter(|a| !a.rows.is_empty());
        some.filter_map(move |a| {
            let (part, rows, columns) = (a.by.part(site?)?, a.rows.clone(), columns.clone());
            Some(Addition { layer, rows, columns, part, scale: a.scale * part.scale })
        })
    };
    columns.enumerate().flat_map(of_layer)
}

/// Do the adapters come in the order of their rows, and do they fit the layers?
pub(super) fn check_adapted<B: Backend>(
    c: &Check,
    by: &[Linear<B>],
    with: &[Adapted<B>],
    rows: usize,
) -> Result<()> {
    let order = in_turn(with, rows);
    c.that(order, "the adapters' rows", format_args!("in order, under {rows}"), "others")?;
    additions(by, with).try_for_each(|a| {
        let (rank, inputs, outputs) = (a.part.rank(), by[a.layer].weight.cols(), a.columns.len());
        let halves = [
            ("an adapter's way down", &*a.part.down, rank, inputs),
            ("an adapter's way up", &a.part.up, outputs, rank),
        ];
        halves.into_iter().try_for_each(|(what, w, rows, cols)| {
            let (want, got) =
                (format_args!("[{rows}, {cols}]"), format_args!("[{}, {}]", w.rows(), w.cols()));
            c.that((w.rows(), w.cols()) == (rows, cols), what, want, got)
        })
    })
}

impl<'a, B: Backend> Adapt<'a, B> {
    /// Columns of the result.
    pub fn cols(&self) -> usize {
        joint_cols(self.by)
    }
}

impl<B: Backend> Op<B> for Adapt<'_, B> {
    /// [rows, sum of outputs]
    type Out = Tensor<B>;
    const NAME: &'static str = "adapt";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        if let Some(norm) = self.norm {
            c.norm(norm, self.x.cols())?;
        }
        self.by.iter().try_for_each(|l| check_linear(&c, l, self.x.cols()))?;
        self.then.check(&c, self.x.rows(), self.cols())?;
        let plain = self.then.residual.is_none() && self.then.scale == 1.0;
        let fits = self.then.softcap.is_none() && (plain || (self.by.len() == 1 && self.norm.is_none()));
        c.that(fits, "what happens next", "nothing, or no cap and one layer without a norm", "more")?;
        check_adapted(&c, self.by, self.with, self.x.rows())
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        match Linear::shuffled(self.by) {
            true => compose::adapt(b, self),
            false => b.adapt(self),
        }
    }
}
