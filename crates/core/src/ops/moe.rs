use super::ffn::check_block;
use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{Activation, Backend, Expert, LinearWeights, Result, ShareOf, Tensor, compose, observe};

/// A mixture of experts. Each is a feed-forward block; a row of the result is the sum of what those experts make of it
/// that it takes a share of.
#[derive(Debug)]
pub struct Moe<'a, B: Backend> {
    /// [rows, dim]
    pub x: &'a Tensor<B>,
    /// [rows, experts]: how much of each expert a row takes. Of experts that a row takes nothing of, nothing need be
    /// computed for it.
    pub shares: &'a Tensor<B>,
    /// What a share multiplies. Experts whose input it multiplies have no biases.
    pub share_of: ShareOf,
    /// All alike in shape.
    pub experts: &'a [Expert<B>],
    /// The bend.
    pub act: Activation,
    /// What happens to the sum.
    pub epilogue: Epilogue<'a, B>,
}

impl<B: Backend> Op<B> for Moe<'_, B> {
    /// [rows, dim]
    type Out = Tensor<B>;
    const NAME: &'static str = "moe";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.f32("shares", self.shares)?;
        c.shape("shares", self.shares, self.x.rows(), self.experts.len())?;
        let dim = self.x.cols();
        let width = self.experts.first().map_or(0, |e| e.down.weight.cols());
        for Expert { up, down } in self.experts {
            check_block(&c, up, down, dim)?;
            let shape = (down.weight.rows(), down.weight.cols());
            let (want, got) = (format_args!("[{dim}, {width}]"), format_args!("[{}, {}]", shape.0, shape.1));
            c.that(shape == (dim, width), "down", want, got)?;
            let plain = up.iter().chain([down]).all(|l| l.bias.is_none());
            c.that(plain || self.share_of == ShareOf::Result, "biases", "none, of shared inputs", "some")?;
        }
        self.epilogue.check(&c, self.x.rows(), dim)
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        if b.trace().is_observed() {
            return observe::moe(b, self);
        }
        match LinearWeights::any_permuted(self.experts.iter().flat_map(|e| e.up.iter().chain([&e.down]))) {
            true => compose::moe(b, self),
            false => b.moe(self),
        }
    }
}
