use super::{Check, Op};
use crate::{Memory, Result, StepPlan, Tensor};

/// Maximum kernel size.
pub const MAX_KERNEL: usize = 16;

/// Causal depthwise convolution, then SiLU: `y[t] = silu(sum_j weight[j] * x[t + j + 1 - kernel])`, per column.
///
/// Inputs from before the step are read from the state, and the last `kernel - 1` inputs are written back to it.
#[derive(Debug)]
pub struct CausalConv<'a, B: Memory> {
    /// [tokens, columns]
    pub x: &'a Tensor<B>,
    /// [kernel, columns]: the oldest token's weights first, the current token's last.
    pub weight: &'a Tensor<B>,
    /// [rows, (kernel - 1) * columns]: convolution state, updated in place.
    pub window: &'a Tensor<B>,
    /// The step's spans and state rows.
    pub plan: &'a StepPlan<B>,
}

/// `state` is contiguous `f32`, and every span of the plan has state rows within it.
pub(super) fn check_states<B: Memory>(
    c: &Check,
    what: &'static str,
    state: &Tensor<B>,
    plan: &StepPlan<B>,
) -> Result<()> {
    let (spans, states) = (plan.host().spans.len(), &plan.host().states);
    c.f32(what, state)?;
    c.that(state.is_contiguous(), what, "rows without gaps", format_args!("{state:?}"))?;
    c.that(states.len() == spans, "the plan's states", spans, states.len())?;
    let fits = plan.max_state().is_none_or(|row| (row as usize) < state.rows());
    let got = plan.max_state().unwrap_or(0);
    c.that(fits, "the plan's states", format_args!("under {}", state.rows()), got)
}

impl<B: Memory> Op for CausalConv<'_, B> {
    /// Like `x`.
    type Out = Tensor<B>;
    const NAME: &'static str = "causal_conv";

    fn check(&self) -> Result<()> {
        let (c, cols, kernel) = (Check(Self::NAME), self.x.cols(), self.weight.rows());
        c.f32("x", self.x)?;
        c.f32("weight", self.weight)?;
        c.shape("x", self.x, self.plan.host().tokens.len(), cols)?;
        c.shape("weight", self.weight, kernel, cols)?;
        c.that((2..=MAX_KERNEL).contains(&kernel), "weight", format_args!("2 to {MAX_KERNEL} rows"), kernel)?;
        c.cols("window", self.window, (kernel - 1) * cols)?;
        check_states(&c, "window", self.window, self.plan)
    }
}
