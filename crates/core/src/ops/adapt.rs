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

/// What an adapter adds to one layer.
#[derive(Debug)]
pub struct Addition<'a, B: Backend> {
    /// For which rows.
    pub rows: Range<usize>,
    /// To which columns of the result.
    pub columns: Range<usize>,
    /// What.
    pub part: &'a LowRank<B>,
    /// Multiplies `up · down · x`, all told.
    pub scale: f32,
}

impl<'a, B: Backend> Adapt<'a, B> {
    /// Columns of the result.
    pub fn cols(&self) -> usize {
        joint_cols(self.by)
    }

    /// All that is added.
    pub fn additions(&self) -> impl Iterator<Item = Addition<'a, B>> {
        let (with, scale) = (self.with, self.then.scale);
        let columns = self.by.iter().scan(0, |column, layer| {
            *column += layer.weight.rows();
            Some((layer.site, *column - layer.weight.rows()..*column))
        });
        let of_layer = move |(site, columns): (Option<_>, Range<usize>)| {
            let some = with.iter().filter(|a| !a.rows.is_empty());
            some.filter_map(move |a| {
                let part = a.by.part(site?)?;
                let scale = scale * a.scale * part.scale;
                Some(Addition { rows: a.rows.clone(), columns: columns.clone(), part, scale })
            })
        };
        columns.flat_map(of_layer)
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
        let order = in_turn(self.with, self.x.rows());
        c.that(order, "the adapters' rows", format_args!("in order, under {}", self.x.rows()), "others")?;
        self.additions().try_for_each(|a| {
            let (rank, outputs) = (a.part.rank(), a.columns.len());
            let shape = |w: &crate::Weight<B>| format!("[{}, {}]", w.rows(), w.cols());
            let (down, up) = (shape(&a.part.down), shape(&a.part.up));
            let want = format!("[{rank}, {}]", self.x.cols());
            c.that(down == want, "an adapter's way down", want, down)?;
            let want = format!("[{outputs}, {rank}]");
            c.that(up == want, "an adapter's way up", want, up)
        })
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        match Linear::shuffled(self.by) {
            true => compose::adapt(b, self),
            false => b.adapt(self),
        }
    }
}
