use super::linear::{check_linear, joint_cols};
use super::lora::check_adapted;
use super::matmul::Epilogue;
use super::{Check, Op};
use crate::{Activation, LinearWeights, LoraRows, Memory, Norm, Result, Tensor};

/// Feed-forward block: norm, up (and gate), activation, down.
#[derive(Debug)]
pub struct Ffn<'a, B: Memory> {
    /// [rows, dim]
    pub x: &'a Tensor<B>,
    /// Norm of `x`.
    pub norm: Option<&'a Norm<B>>,
    /// Gate and up side by side (in one or more weights), or up alone.
    pub up: &'a [LinearWeights<B>],
    /// Activation function.
    pub act: Activation,
    /// [dim, width]. The block is gated if `up` has `2 * width` outputs.
    pub down: &'a LinearWeights<B>,
    /// Applied to the result.
    pub epilogue: Epilogue<'a, B>,
    /// LoRA adapters by row range, in order, for up and down. With any, the epilogue has no softcap.
    pub adapters: &'a [LoraRows<B>],
}

impl<B: Memory> Ffn<'_, B> {
    /// True if `up` holds a gate as well.
    pub fn is_gated(&self) -> bool {
        joint_cols(self.up) == 2 * self.down.weight.cols()
    }
}

/// `up` fits the input, and `down` the output of `up` (half of it if gated).
pub(super) fn check_block<B: Memory>(
    c: &Check,
    up: &[LinearWeights<B>],
    down: &LinearWeights<B>,
    inputs: usize,
) -> Result<()> {
    up.iter().try_for_each(|l| check_linear(c, l, inputs))?;
    let (joint, width) = (joint_cols(up), down.weight.cols());
    let fits = joint == width || joint == 2 * width;
    c.that(fits, "up", format_args!("{width} or {} outputs", 2 * width), joint)?;
    check_linear(c, down, width)
}

impl<B: Memory> Op for Ffn<'_, B> {
    /// [rows, dim]
    type Out = Tensor<B>;
    const NAME: &'static str = "ffn";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("x", self.x)?;
        if let Some(norm) = self.norm {
            c.norm(norm, self.x.cols())?;
        }
        check_block(&c, self.up, self.down, self.x.cols())?;
        for by in [self.up, std::slice::from_ref(self.down)] {
            check_adapted(&c, by, self.adapters, self.x.rows())?;
        }
        let fits = self.adapters.is_empty() || self.epilogue.softcap.is_none();
        c.that(fits, "epilogue", "no softcap with adapters", "one")?;
        self.epilogue.check(&c, self.x.rows(), self.down.weight.rows())
    }
}
