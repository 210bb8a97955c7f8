use super::ffn::check_block;
use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{Activation, Expert, Memory, Result, RoutingWeightOn, Tensor};

/// Mixture of experts, each a feed-forward block: a row of the result is the weighted sum of its experts' outputs.
#[derive(Debug)]
pub struct Moe<'a, B: Memory> {
    /// [rows, dim]
    pub x: &'a Tensor<B>,
    /// [rows, experts]: routing weights. An expert with weight 0 for a row need not be computed for it.
    pub routing_weights: &'a Tensor<B>,
    /// Most weights of a row that are not zero.
    pub top_k: usize,
    /// The routing weight multiplies an expert's input or its output. Experts weighted on their input have no biases.
    pub weight_on: RoutingWeightOn,
    /// The experts, all of the same shape.
    pub experts: &'a [Expert<B>],
    /// Activation function.
    pub act: Activation,
    /// Applied to the sum.
    pub epilogue: Epilogue<'a, B>,
}

impl<B: Memory> Op for Moe<'_, B> {
    /// [rows, dim]
    type Out = Tensor<B>;
    const NAME: &'static str = "moe";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        c.f32("routing_weights", self.routing_weights)?;
        c.shape("routing_weights", self.routing_weights, self.x.rows(), self.experts.len())?;
        let experts = self.experts.len();
        c.that(self.top_k <= experts, "top_k", format_args!("at most {experts}"), self.top_k)?;
        let dim = self.x.cols();
        let width = self.experts.first().map_or(0, |e| e.down.weight.cols());
        for Expert { up, down } in self.experts {
            check_block(&c, up, down, dim)?;
            let shape = (down.weight.rows(), down.weight.cols());
            let (want, got) = (format_args!("[{dim}, {width}]"), format_args!("[{}, {}]", shape.0, shape.1));
            c.that(shape == (dim, width), "down", want, got)?;
            let plain = up.iter().chain([down]).all(|l| l.bias.is_none());
            c.that(
                plain || self.weight_on == RoutingWeightOn::Output,
                "biases",
                "none, with weighted inputs",
                "some",
            )?;
        }
        self.epilogue.check(&c, self.x.rows(), dim)
    }
}
