use super::kv::check_kv;
use super::{Check, Op, Required};
use crate::{AttnSpec, DType, Heads, LayerKv, Memory, Result, StepPlan, Tensor};

/// Devices may read the cache in tiles of this many positions, which begin at multiples of it: positions that no window reaches
/// are read too, with weight 0, if a window reaches others of their tile. NaN there would show; others are not read.
pub const ATTEND_TILE: usize = 64;

/// Paged attention of the step's tokens over the KV cache of their sequences.
///
/// One op covers prefill, decode and any mix: spans of any length, read through page tables. A contiguous cache is
/// one page as long as the sequence. The step's own keys and values are already in the cache.
#[derive(Debug)]
pub struct Attend<'a, B: Memory> {
    /// [tokens, query columns]
    pub q: &'a Tensor<B>,
    /// Division of the columns into heads.
    pub heads: Heads,
    /// Scale, window, softcap, sinks, bias, causality.
    pub spec: &'a AttnSpec<B>,
    /// KV cache of the layer.
    pub kv: LayerKv<'a, B>,
    /// Spans, positions and page tables.
    pub plan: &'a StepPlan<B>,
}

impl<B: Memory> Op for Attend<'_, B> {
    /// [tokens, query columns]
    type Out = Tensor<B>;
    const NAME: &'static str = "attend";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("q", self.q)?;
        c.shape("q", self.q, self.plan.host().tokens.len(), self.heads.q_cols())?;
        if let Some(sinks) = &self.spec.sinks {
            c.row("sinks", sinks, self.heads.q)?;
        }
        if let Some(bias) = &self.spec.bias {
            c.f32("the bias", bias)?;
            c.that(
                bias.rows() == self.heads.q,
                "the bias",
                format_args!("{} rows", self.heads.q),
                bias.rows(),
            )?;
            c.that(bias.cols() % 2 == 1, "the bias", "an odd number of columns", bias.cols())?;
        }
        c.that(self.spec.window != Some(0), "the window", "at least 1", 0)?;
        c.that(self.spec.chunk != Some(0), "the chunk", "at least 1", 0)?;
        check_kv(&c, &self.kv, self.heads, self.plan)
    }
}

impl<B: Memory> Required<B> for Attend<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.q.rows(), self.q.cols())
    }
}
