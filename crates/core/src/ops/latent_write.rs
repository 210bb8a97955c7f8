use super::kv::{check_kv, check_values};
use super::{Check, Op};
use crate::{Heads, LayerKv, Memory, Norm, Result, RopeTable, StepPlan, Tensor};

/// Writes the latent rows of MLA into the KV cache, whose values are its keys: the latent elements normalized, the others
/// rotated (RoPE) and in front of them.
#[derive(Debug)]
pub struct LatentWrite<'a, B: Memory> {
    /// [tokens, latent elements + those to be rotated]: the down-projection of K and V
    pub x: &'a Tensor<B>,
    /// Norm of the latent elements, which are as many as it has weights.
    pub norm: &'a Norm<B>,
    /// RoPE of the others, if the layer has one.
    pub rope: Option<&'a RopeTable<B>>,
    /// Heads of the attention over latent rows: one KV head, as wide as `x`.
    pub heads: Heads,
    /// KV cache of the layer.
    pub kv: LayerKv<'a, B>,
    /// Positions and slots of the tokens.
    pub plan: &'a StepPlan<B>,
}

impl<B: Memory> LatentWrite<'_, B> {
    /// Elements in front of the latent ones in the cache.
    pub fn rotated(&self) -> usize {
        self.heads.dim - self.norm.weight.cols()
    }
}

impl<B: Memory> Op for LatentWrite<'_, B> {
    type Out = ();
    const NAME: &'static str = "latent_write";

    fn check(&self) -> Result<()> {
        let (c, latent) = (Check(Self::NAME), self.norm.weight.cols());
        c.that(self.heads.kv == 1, "KV heads", 1, self.heads.kv)?;
        c.f32("x", self.x)?;
        c.shape("x", self.x, self.plan.host().tokens.len(), self.heads.dim)?;
        c.that(latent <= self.heads.dim, "the norm", format_args!("at most {}", self.heads.dim), latent)?;
        c.norm(self.norm, latent)?;
        if let Some(rope) = self.rope {
            let (width, others) = (rope.table.cols(), self.rotated());
            c.that(width <= others, "the rotation's width", format_args!("at most {others}"), width)?;
        }
        check_values(&c, &self.kv, false)?;
        check_kv(&c, &self.kv, self.heads, self.plan)
    }
}
