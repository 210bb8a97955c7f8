//! [`DraftCosts`]: what steps cost by their number of tokens, and how likely a guess must be to pay.

/// Guesses that would only just pay are not made: measured and learned figures are a little off.
const MARGIN: f32 = 1.25;

/// Costs of speculative decoding, in any unit. Drafts are made only where they are worth it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftCosts {
    /// A step of the model.
    pub step: StepCost,
    /// The draft model, if there is one.
    pub model: Option<DraftModelCost>,
}

/// Cost of a draft model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftModelCost {
    /// One of its steps.
    pub step: StepCost,
    /// Maximum tokens of a sequence that it drafts for.
    pub context: usize,
}

/// Cost of a step by its number of tokens: straight lines between the sizes that are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost([f32; StepCost::SIZES.len()]);

impl StepCost {
    /// Tokens of the steps that are measured.
    pub const SIZES: [usize; 4] = [1, 4, 16, 64];

    /// By the costs of the first sizes, at least two; the others go on as the last two do. A token costs at least a
    /// hundredth of the first.
    pub fn new(measured: &[f32]) -> Option<StepCost> {
        let &[first, _, ..] = measured else { return None };
        let mut costs = [first; StepCost::SIZES.len()];
        for (i, size) in StepCost::SIZES.into_iter().enumerate().skip(1) {
            let least = costs[i - 1] + 0.01 * first * (size - StepCost::SIZES[i - 1]) as f32;
            let cost = match measured.get(i) {
                Some(cost) => *cost,
                None => line(i - 2, &costs, size),
            };
            costs[i] = cost.max(least);
        }
        Some(StepCost(costs))
    }

    /// With one cost for the first token, and another one for each more.
    pub fn linear(first: f32, more: f32) -> StepCost {
        StepCost(StepCost::SIZES.map(|size| first + more * (size - 1) as f32))
    }

    /// Cost of a step with so many tokens.
    pub fn of(&self, tokens: usize) -> f32 {
        let inner = &StepCost::SIZES[1..StepCost::SIZES.len() - 1];
        line(inner.partition_point(|size| *size < tokens), &self.0, tokens)
    }
}

/// The cost of `tokens` on the line through size number `i` and the next one.
fn line(i: usize, costs: &[f32], tokens: usize) -> f32 {
    let (from, to) = (StepCost::SIZES[i] as f32, StepCost::SIZES[i + 1] as f32);
    costs[i] + (costs[i + 1] - costs[i]) * (tokens as f32 - from) / (to - from)
}

impl DraftCosts {
    /// Probability with which the guess number `at` of each of `count` sequences must be right to pay: the cost of `count`
    /// tokens more in a step, beside that of a step which brings as many.
    pub(super) fn of_guess(&self, count: usize, at: usize) -> f32 {
        let step = |each: usize| self.step.of(count * each);
        MARGIN * (step(at + 1) - step(at)) / step(1)
    }

    /// The same for a guess that the draft model makes in a step of its own.
    pub(super) fn of_model_guess(&self, model: &DraftModelCost, count: usize, at: usize) -> f32 {
        self.of_guess(count, at) + MARGIN * model.step.of(count) / self.step.of(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_lie_on_the_lines_between_what_is_measured() {
        let cost = StepCost::new(&[1.0, 1.3, 3.7, 13.3]).unwrap();
        for (tokens, expected) in
            [(1, 1.0), (4, 1.3), (10, 2.5), (16, 3.7), (40, 8.5), (64, 13.3), (84, 17.3)]
        {
            assert!((cost.of(tokens) - expected).abs() < 1e-4, "{tokens} tokens: {}", cost.of(tokens));
        }
        // Sizes that were not measured go on as those before; time that a larger step seems to save does not count.
        let cost = StepCost::new(&[1.0, 1.3]).unwrap();
        assert!((cost.of(101) - 11.0).abs() < 1e-4, "{cost:?}");
        let cost = StepCost::new(&[1.0, 0.5, 0.5, 9.0]).unwrap();
        assert!((cost.of(4) - 1.03).abs() < 1e-4 && (cost.of(16) - 1.15).abs() < 1e-4, "{cost:?}");
        assert_eq!(StepCost::new(&[1.0]), None);
    }

    #[test]
    fn a_guess_must_be_as_likely_as_it_is_dear() {
        let costs = DraftCosts { step: StepCost::linear(1.0, 0.1), model: None };
        let close = |got: f32, expected: f32| (got - MARGIN * expected).abs() < 1e-4;
        assert!(close(costs.of_guess(1, 1), 0.1) && close(costs.of_guess(1, 5), 0.1));
        // Eight tokens for 1.7, and 0.8 for eight more.
        assert!(close(costs.of_guess(8, 1), 0.8 / 1.7));
        let model = DraftModelCost { step: StepCost::linear(0.2, 0.05), context: 64 };
        assert!(close(costs.of_model_guess(&model, 1, 1), 0.1 + 0.2));
        assert!(close(costs.of_model_guess(&model, 8, 2), (0.8 + 0.55) / 1.7));
    }
}
