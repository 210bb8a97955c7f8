use super::{Check, Op, Required};
use crate::{Heads, LayerKv, Memory, Result, StepPlan, Tensor};

/// Writes the step's keys and values into the KV cache, each token to its slot.
#[derive(Debug)]
pub struct KvWrite<'a, B: Memory> {
    /// [tokens, key columns]
    pub k: &'a Tensor<B>,
    /// [tokens, value columns]; none if the cache's values are its keys.
    pub v: Option<&'a Tensor<B>>,
    /// Division of the columns into heads.
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
    for (what, t) in [("the cache's keys", Some(kv.k)), ("the cache's values", kv.v)] {
        let Some(t) = t else { continue };
        c.dtype(what, t, "f32, f16, bf16, i8 or f8", |d| d.is_float() || d.max_abs().is_some())?;
        c.cols(what, t, plan.host().page_len * heads.cache_cols(t.dtype()))?;
        let fits = plan.max_page().is_none_or(|page| (page as usize) < t.rows());
        let got = plan.max_page().unwrap_or(0);
        c.that(fits, "the plan's pages", format_args!("under {}", t.rows()), got)?;
    }
    let (want, got) = (kv.k.dtype(), kv.v.unwrap_or(kv.k).dtype());
    c.that(got == want, "the type of the cache's values", want, got)
}

/// Values are given where the cache has room for them.
pub(super) fn check_values<B: Memory>(c: &Check, kv: &LayerKv<'_, B>, given: bool) -> Result<()> {
    let said = |given| if given { "beside the keys" } else { "the keys" };
    c.that(given == kv.v.is_some(), "the values", said(kv.v.is_some()), said(given))
}

impl<B: Memory> Op for KvWrite<'_, B> {
    type Out = ();
    const NAME: &'static str = "kv_write";

    fn check(&self) -> Result<()> {
        let (c, tokens) = (Check(Self::NAME), self.plan.host().tokens.len());
        for (what, t) in [("k", Some(self.k)), ("v", self.v)] {
            let Some(t) = t else { continue };
            c.f32(what, t)?;
            c.shape(what, t, tokens, self.heads.kv_cols())?;
        }
        check_values(&c, &self.kv, self.v.is_some())?;
        check_kv(&c, &self.kv, self.heads, self.plan)
    }
}

impl<B: Memory> Required<B> for KvWrite<'_, B> {
    fn out(&self, _b: &B) -> Result<Self::Out> {
        Ok(())
    }
}
