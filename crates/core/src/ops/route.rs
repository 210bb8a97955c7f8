use super::{Check, Op};
use crate::{Backend, Result, Routing, Scores, Tensor};

/// The most experts that a layer may have: devices keep a bit for each at hand.
pub const MOST_EXPERTS: usize = 1024;

/// How much of each expert a token takes: nothing of all but a few.
#[derive(Debug)]
pub struct Route<'a, B: Backend> {
    /// [tokens, experts]
    pub logits: &'a Tensor<B>,
    /// How they are chosen.
    pub by: &'a Routing<B>,
}

impl<B: Backend> Op<B> for Route<'_, B> {
    /// [tokens, experts]
    type Out = Tensor<B>;
    const NAME: &'static str = "route";

    fn check(&self) -> Result<()> {
        let c = Check(Self::NAME);
        c.f32("logits", self.logits)?;
        let experts = self.logits.cols();
        c.that(experts <= MOST_EXPERTS, "logits", format_args!("at most {MOST_EXPERTS} columns"), experts)?;
        if let Some(bias) = &self.by.bias {
            c.row("bias", bias, experts)?;
        }
        let alone = self.by.bias.is_none() && self.by.groups.is_none();
        let fits = alone || !matches!(self.by.scores, Scores::OneByOne { .. });
        c.that(fits, "scores", "experts chosen all at once where there are biases or groups", "one by one")?;
        let mut open = experts;
        if let Some(groups) = self.by.groups {
            let whole = groups.count > 0 && experts.is_multiple_of(groups.count);
            c.that(whole, "groups", format_args!("a divisor of {experts}"), groups.count)?;
            let (count, each) = (groups.count, experts / groups.count);
            c.that(
                (1..=count).contains(&groups.used),
                "groups used",
                format_args!("1 to {count}"),
                groups.used,
            )?;
            c.that((1..=each).contains(&groups.best), "best", format_args!("1 to {each}"), groups.best)?;
            open = groups.used * each;
        }
        c.that((1..=open).contains(&self.by.used), "experts used", format_args!("1 to {open}"), self.by.used)
    }

    fn launch(&self, b: &B) -> Result<Self::Out> {
        b.route(self)
    }
}
