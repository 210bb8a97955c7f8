use super::causal_conv::check_states;
use super::{Check, Op, Required};
use crate::{DType, Decay, DeltaHeads, Memory, Result, StepPlan, Tensor};

/// Maximum key dimension.
pub const MAX_KEY_DIM: usize = 256;

/// Gated delta rule (Gated DeltaNet, Qwen3-Next), over the tokens of each sequence in order.
///
/// Per token, a value head decays its state `S`, corrects it at the token's key towards the token's value, and reads
/// it at the query:
/// `S *= exp(-rate * softplus(b + bias))`, `S += k (sigmoid(a) * (v - Sᵀk))ᵀ`, `y = Sᵀq / √key_dim`.
#[derive(Debug)]
pub struct GatedDelta<'a, B: Memory> {
    /// [tokens, 2 * key columns]: queries, then keys.
    pub qk: &'a Tensor<B>,
    /// [tokens, value columns]
    pub v: &'a Tensor<B>,
    /// [tokens, 2 * value heads]: the `a` of all heads, then the `b`.
    pub gates: &'a Tensor<B>,
    /// Division of the columns into heads.
    pub heads: DeltaHeads,
    /// `rate` and `bias` of the decay.
    pub decay: &'a Decay<B>,
    /// [rows, elements of all state matrices]: the recurrent states, updated in place.
    pub states: &'a Tensor<B>,
    /// The step's spans and state rows.
    pub plan: &'a StepPlan<B>,
}

impl<B: Memory> Op for GatedDelta<'_, B> {
    /// [tokens, value columns]
    type Out = Tensor<B>;
    const NAME: &'static str = "gated_delta";

    fn check(&self) -> Result<()> {
        let (c, heads, tokens) = (Check(Self::NAME), self.heads, self.plan.host().tokens.len());
        let DeltaHeads { keys, values, key_dim, value_dim, .. } = heads;
        let whole = keys > 0 && values > 0 && values.is_multiple_of(keys);
        c.that(whole, "value heads", format_args!("a multiple of {keys}"), values)?;
        c.that(
            (1..=MAX_KEY_DIM).contains(&key_dim),
            "a key",
            format_args!("1 to {MAX_KEY_DIM} elements"),
            key_dim,
        )?;
        c.that(value_dim > 0, "a value", "some elements", value_dim)?;
        for (what, t, cols) in [
            ("qk", self.qk, 2 * heads.key_cols()),
            ("v", self.v, heads.value_cols()),
            ("gates", self.gates, 2 * values),
        ] {
            c.f32(what, t)?;
            c.shape(what, t, tokens, cols)?;
        }
        c.row("rate", &self.decay.rate, values)?;
        c.row("bias", &self.decay.bias, values)?;
        c.cols("states", self.states, heads.state_len())?;
        check_states(&c, "states", self.states, self.plan)
    }
}

impl<B: Memory> Required<B> for GatedDelta<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.v.rows(), self.v.cols())
    }
}
