use super::{Check, Op, Required};
use crate::{DType, Memory, Result, Routing, Scores, Tensor};

/// Maximum experts of a layer: devices keep a bitmask with one bit per expert.
pub const MAX_EXPERTS: usize = 1024;

/// MoE router: from logits to routing weights, 0 for all but the selected experts.
#[derive(Debug)]
pub struct Route<'a, B: Memory> {
    /// [tokens, experts]
    pub logits: &'a Tensor<B>,
    /// Selection and weighting of experts.
    pub routing: &'a Routing<B>,
}

impl<B: Memory> Op for Route<'_, B> {
    /// [tokens, experts]
    type Out = Tensor<B>;
    const NAME: &'static str = "route";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("logits", self.logits)?;
        let experts = self.logits.cols();
        c.that(experts <= MAX_EXPERTS, "logits", format_args!("at most {MAX_EXPERTS} columns"), experts)?;
        if let Some(bias) = &self.routing.bias {
            c.row("bias", bias, experts)?;
        }
        let alone = self.routing.bias.is_none() && self.routing.groups.is_none();
        let fits = alone || !matches!(self.routing.scores, Scores::SparseMixer { .. });
        c.that(fits, "scores", "experts chosen all at once where there are biases or groups", "one by one")?;
        let mut open = experts;
        if let Some(groups) = self.routing.groups {
            let whole = groups.n_group > 0 && experts.is_multiple_of(groups.n_group);
            c.that(whole, "groups", format_args!("a divisor of {experts}"), groups.n_group)?;
            let (count, each) = (groups.n_group, experts / groups.n_group);
            c.that(
                (1..=count).contains(&groups.topk_group),
                "groups used",
                format_args!("1 to {count}"),
                groups.topk_group,
            )?;
            c.that((1..=each).contains(&groups.best), "best", format_args!("1 to {each}"), groups.best)?;
            open = groups.topk_group * each;
        }
        c.that(
            (1..=open).contains(&self.routing.top_k),
            "experts used",
            format_args!("1 to {open}"),
            self.routing.top_k,
        )
    }
}

impl<B: Memory> Required<B> for Route<'_, B> {
    fn out(&self, b: &B) -> Result<Self::Out> {
        b.alloc(DType::F32, self.logits.rows(), self.logits.cols())
    }
}
