use super::kv::{check_kv, check_values};
use super::{Check, Op};
use crate::{Heads, LayerKv, Memory, QkNorm, Result, RopeTable, StepPlan, Tensor};

/// Splits a joint QKV projection, applies QK norm and RoPE, and writes K and V into the KV cache; returns the queries.
#[derive(Debug)]
pub struct QkvPrep<'a, B: Memory> {
    /// [tokens, query + key + value columns]
    pub qkv: &'a Tensor<B>,
    /// Division of the columns into heads.
    pub heads: Heads,
    /// QK norm before RoPE, if the model has one.
    pub qk_norm: Option<&'a QkNorm<B>>,
    /// RoPE, if the layer has one.
    pub rope: Option<&'a RopeTable<B>>,
    /// KV cache of the layer.
    pub kv: LayerKv<'a, B>,
    /// Positions and slots of the tokens.
    pub plan: &'a StepPlan<B>,
}

impl<B: Memory> Op for QkvPrep<'_, B> {
    /// [tokens, query columns]
    type Out = Tensor<B>;
    const NAME: &'static str = "qkv_prep";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("qkv", self.qkv)?;
        c.shape("qkv", self.qkv, self.plan.host().tokens.len(), self.heads.qkv_cols())?;
        if let Some(norm) = self.qk_norm {
            c.norm(&norm.q, self.heads.q_cols())?;
            c.norm(&norm.k, self.heads.kv_cols())?;
        }
        if let Some(rope) = self.rope {
            let (width, dim) = (rope.table.cols(), self.heads.dim);
            c.that(width <= dim, "the rotation's width", format_args!("at most {dim}"), width)?;
        }
        check_values(&c, &self.kv, true)?;
        check_kv(&c, &self.kv, self.heads, self.plan)
    }
}
