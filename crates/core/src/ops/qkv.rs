use super::kv::check_kv;
use super::{Check, Op};
use crate::{Backend, Heads, LayerKv, QkNorm, Result, RopeTable, StepPlan, Tensor};

/// Splits joint queries, keys and values; normalises and rotates queries and keys; stores keys and values.
#[derive(Debug)]
pub struct QkvPrep<'a, B: Backend> {
    /// [tokens, query + key + value columns]
    pub qkv: &'a Tensor<B>,
    /// How the columns divide.
    pub heads: Heads,
    /// Before rotating, if the model does.
    pub qk_norm: Option<&'a QkNorm<B>>,
    /// The rotation, if the layer has one.
    pub rope: Option<&'a RopeTable<B>>,
    /// Where keys and values go.
    pub kv: LayerKv<'a, B>,
    /// At which positions, in which slots.
    pub plan: &'a StepPlan<B>,
}

impl<B: Backend> Op<B> for QkvPrep<'_, B> {
    /// [tokens, query columns]
    type Out = Tensor<B>;
    const NAME: &'static str = "qkv_prep";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("qkv", self.qkv)?;
        c.shape("qkv", self.qkv, self.plan.host.tokens.len(), self.heads.qkv_cols())?;
        if let Some(norm) = self.qk_norm {
            c.norm(&norm.q, self.heads.q_cols())?;
            c.norm(&norm.k, self.heads.kv_cols())?;
        }
        if let Some(rope) = self.rope {
            let (width, dim) = (rope.table.cols(), self.heads.dim);
            c.that(width <= dim, "the rotation's width", format_args!("at most {dim}"), width)?;
        }
        check_kv(&c, &self.kv, self.heads, self.plan)
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        b.qkv_prep(self)
    }
}
