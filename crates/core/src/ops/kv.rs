use super::{Check, Op, Required};
use crate::{Heads, LayerKv, Memory, Result, StepPlan, Tensor};

/// Writes the step's keys and values into the KV cache, each token to its slot.
#[derive(Debug)]
pub struct KvWrite<'a, B: Memory> {
    /// [tokens, key columns]
    pub k: &'a Tensor<B>,
    /// [tokens, value columns]
    pub v: &'a Tensor<B>,
    /// How the columns divide into heads.
    pub heads: Heads,
    /// KV cache of the layer.
    pub kv: LayerKv<'a, B>,
    /// Slots of the tokens.
    pub plan: &'a StepPlan<B>,
}

/// The KV cache has pages of the plan's length for these heads, and enough of them for the plan.
pub(super) fn check_kv<B: Memory>(
    c: &Check,
    kv: &LayerKv<'_, B>,
    heads: Heads,
    plan: &StepPlan<B>,
) -> Result<()> {
    c.that(
        heads.kv > 0 && heads.q.is_multiple_of(heads.kv),
        "query heads",
        format_args!("a multiple of {}", heads.kv),
        heads.q,
    )?;
    for (what, t) in [("the cache's keys", kv.k), ("the cache's values", kv.v)] {
        c.dtype(what, t, "f32, f16, bf16, i8 or f8", |d| d.is_float() || d.max_abs().is_some())?;
        c.cols(what, t, plan.host().page_len * heads.cache_cols(t.dtype()))?;
        let fits = plan.max_page().is_none_or(|page| (page as usize) < t.rows());
        let got = plan.max_page().unwrap_or(0);
        c.that(fits, "the plan's pages", format_args!("under {}", t.rows()), got)?;
    }
    c.that(kv.v.dtype() == kv.k.dtype(), "the type of the cache's values", kv.k.dtype(), kv.v.dtype())
}

impl<B: Memory> Op for KvWrite<'_, B> {
    type Out = ();
    const NAME: &'static str = "kv_write";

    fn check(&self) -> Result<()> {
        let (c, tokens) = (Check(Self::NAME), self.plan.host().tokens.len());
        for (what, t) in [("k", self.k), ("v", self.v)] {
            c.f32(what, t)?;
            c.shape(what, t, tokens, self.heads.kv_cols())?;
        }
        check_kv(&c, &self.kv, self.heads, self.plan)
    }
}

impl<B: Memory> Required<B> for KvWrite<'_, B> {
    fn out(&self, _b: &B) -> Result<Self::Out> {
        Ok(())
    }
}
