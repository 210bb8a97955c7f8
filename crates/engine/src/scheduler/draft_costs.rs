//! [`DraftCosts`]: what steps cost by their number of tokens, and how likely a guess must be to pay.

use std::time::Duration;

/// Guesses that would only just pay are not made: measured and learned figures are a little off.
pub(super) const MARGIN: f32 = 1.25;
/// Weight of the newest step in what is learned of the machine's speed, which changes all costs. The first steps weigh more.
const SPEED: f32 = 0.1;
/// Weight of the newest step in the cost of its size. The first steps weigh more.
const SIZE: f32 = 0.02;
/// Steps with other numbers of sequences after which the machine's speed is no longer known.
const STALE: u32 = 64;
/// Steps with drafts in a row after which one without shows again what that costs: drafts are compared with it.
const DRAFTS: u32 = 16;
/// How much of what was learned of a size is forgotten in each step that has another. Where drafts are believed to be too
/// dear there are none, and with a draft model no trials of prompt lookup's: nothing else would ever correct that.
const FORGET: f32 = 0.001;

/// Costs of speculative decoding. Drafts are made only where they are worth it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftCosts {
    /// A step of the model.
    pub(super) step: StepCosts,
    /// The draft model or MTP layer, if there is one.
    pub model: Option<DraftModelCost>,
}

/// Cost of a draft model or an MTP layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftModelCost {
    /// Cost of one of its steps.
    pub step: StepCost,
    /// Maximum tokens of a sequence that it drafts for.
    pub context: usize,
    /// True if it is the model's MTP layer.
    pub mtp: bool,
}

/// Cost of a step by its numbers of sequences and of tokens: four tokens of one sequence cost less than one of each of four,
/// whose caches and samplers differ. Each step corrects what is believed of steps with about as many sequences: a power
/// of two and more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepCosts {
    by_sequences: [StepCost; 7],
    /// Steps since the last one of each.
    since: [u32; 7],
    /// Steps of each since the last one without drafts.
    drafts: [u32; 7],
}

/// Cost of a step by its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepCost {
    /// Known beforehand.
    Known {
        /// Cost of the first token.
        first: f32,
        /// Cost of each further token.
        more: f32,
    },
    /// Seconds of the sizes [`StepCost::SIZES`]; others lie on the lines between.
    Measured {
        /// Corrected by each step.
        now: [f32; StepCost::SIZES.len()],
        /// When the model was loaded.
        at_load: [f32; StepCost::SIZES.len()],
        /// Steps that have corrected each.
        seen: [f32; StepCost::SIZES.len()],
    },
}

impl StepCosts {
    /// Cost of a step with `tokens` tokens of `sequences` sequences.
    pub(super) fn of(&self, sequences: usize, tokens: usize) -> f32 {
        self.by_sequences[self.place(sequences)].of(tokens)
    }

    /// Learns from the time of a step. After a while without such steps, the machine may have another speed: the first one
    /// says that, and nothing of its size.
    pub(super) fn learn(&mut self, sequences: usize, tokens: usize, time: Duration) {
        let place = self.place(sequences);
        let cost = &mut self.by_sequences[place];
        if self.since[place] >= STALE {
            cost.scale((time.as_secs_f32() / cost.of(tokens)).clamp(0.25, 4.0));
        } else {
            cost.learn(tokens, time);
        }
        self.since = self.since.map(|steps| steps.saturating_add(1));
        self.since[place] = 0;
        self.drafts[place] = if tokens > sequences { self.drafts[place].saturating_add(1) } else { 0 };
    }

    /// True if so many steps of so many sequences had drafts that one should have none.
    pub(super) fn is_plain_due(&self, sequences: usize) -> bool {
        self.is_learned() && self.drafts[self.place(sequences)] >= DRAFTS
    }

    /// True if steps correct it.
    pub(super) fn is_learned(&self) -> bool {
        self.by_sequences.iter().all(|cost| matches!(cost, StepCost::Measured { .. }))
    }

    fn place(&self, sequences: usize) -> usize {
        (sequences.max(1).ilog2() as usize).min(self.since.len() - 1)
    }
}

impl StepCost {
    /// Tokens of the steps that are measured. CPUs take another kernel from 5, 13 or 32 rows on, and costs jump there.
    pub const SIZES: [usize; 8] = [1, 2, 4, 8, 12, 16, 32, 64];

    /// By the times of the first sizes, at least two; the others go on as the last two do.
    pub fn measured(times: &[Duration]) -> Option<StepCost> {
        let &[first, _, ..] = times else { return None };
        // A clock may be too coarse for a small model; costs are divided by.
        let mut costs = [first.as_secs_f32().max(1e-9); StepCost::SIZES.len()];
        for (i, size) in StepCost::SIZES.into_iter().enumerate().skip(1) {
            let cost = times.get(i).map_or_else(|| line(i - 2, &costs, size), Duration::as_secs_f32);
            costs[i] = cost;
            rise(&mut costs, i);
        }
        Some(StepCost::Measured { now: costs, at_load: costs, seen: [0.0; StepCost::SIZES.len()] })
    }

    /// Cost of a step with `tokens` tokens.
    pub fn of(&self, tokens: usize) -> f32 {
        match self {
            StepCost::Known { first, more } => first + more * (tokens.saturating_sub(1)) as f32,
            StepCost::Measured { now, .. } => line(segment(tokens), now, tokens),
        }
    }

    /// Learns from the time of a step. What differs from the expectation is taken for a change of the machine's speed first, and
    /// for a wrong cost of such sizes then. Single steps that were disturbed count for little.
    pub(super) fn learn(&mut self, tokens: usize, time: Duration) {
        let ratio = (time.as_secs_f32() / self.of(tokens)).clamp(0.5, 1.5);
        // What is known is a mean until enough steps have been seen.
        let weight = |seen: f32, least: f32| (1.0 / (2.0 + seen)).max(least);
        let steps = match self {
            StepCost::Known { .. } => f32::INFINITY,
            StepCost::Measured { seen, .. } => seen.iter().sum(),
        };
        let speed = 1.0 + weight(steps, SPEED) * (ratio - 1.0);
        self.scale(speed);
        let StepCost::Measured { now, at_load, seen } = self else { return };
        let i = segment(tokens);
        let error = line(i, now, tokens) * (ratio / speed - 1.0);
        let (from, to) = (StepCost::SIZES[i] as f32, StepCost::SIZES[i + 1] as f32);
        let share = ((tokens as f32 - from) / (to - from)).clamp(0.0, 1.0);
        let mut shares = [0.0; StepCost::SIZES.len()];
        (shares[i], shares[i + 1]) = (1.0 - share, share);
        for (place, share) in shares.into_iter().enumerate() {
            now[place] += weight(seen[place], SIZE) * share * error;
            seen[place] += share;
            let forgotten = now[0] * at_load[place] / at_load[0];
            now[place] += FORGET * (1.0 - share) * (forgotten - now[place]);
        }
        (1..now.len()).for_each(|i| rise(now, i));
    }

    /// Changes the costs of all sizes alike.
    fn scale(&mut self, factor: f32) {
        if let StepCost::Measured { now, .. } = self {
            now.iter_mut().for_each(|cost| *cost *= factor);
        }
    }
}

/// Number of the line that a size is on.
fn segment(tokens: usize) -> usize {
    StepCost::SIZES[1..StepCost::SIZES.len() - 1].partition_point(|size| *size < tokens)
}

/// Has size number `i` cost more than the one before: at least a hundredth of the first for each token.
fn rise(costs: &mut [f32; StepCost::SIZES.len()], i: usize) {
    let more = (StepCost::SIZES[i] - StepCost::SIZES[i - 1]) as f32;
    costs[i] = costs[i].max(costs[i - 1] + 0.01 * costs[0] * more);
}

/// The cost of `tokens` on the line through size number `i` and the next one.
fn line(i: usize, costs: &[f32], tokens: usize) -> f32 {
    let (from, to) = (StepCost::SIZES[i] as f32, StepCost::SIZES[i + 1] as f32);
    costs[i] + (costs[i + 1] - costs[i]) * (tokens as f32 - from) / (to - from)
}

impl DraftCosts {
    /// By the costs of a step of the model, and of its draft model.
    pub fn new(step: StepCost, model: Option<DraftModelCost>) -> DraftCosts {
        // The same for any number of sequences, until steps show otherwise.
        DraftCosts { step: StepCosts { by_sequences: [step; 7], since: [STALE; 7], drafts: [0; 7] }, model }
    }

    /// Probability with which the draft model's guess number `at` for each of `some` of the `count` sequences must be right to
    /// pay: its place in the step that checks it, and the share of the draft model's step. `again`: the token before a wrong
    /// guess is computed again (recurrent states).
    pub(super) fn of_model_guess(
        &self,
        model: &DraftModelCost,
        count: usize,
        some: usize,
        at: usize,
        again: bool,
    ) -> f32 {
        let step = |guesses: usize| self.step.of(count, count + some * guesses);
        let each = |cost: f32| cost / some as f32 / (step(0) / count as f32);
        let token = each(step(at) - step(at - 1));
        MARGIN * pays(token + each(model.step.of(some)), if again { token } else { 0.0 })
    }
}

/// Probability with which a guess must be right if it costs so much, and `wrong` in addition where it is wrong, in tokens.
fn pays(cost: f32, wrong: f32) -> f32 {
    (cost + wrong) / (1.0 + wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the milliseconds of the first sizes.
    fn measured(ms: &[u64]) -> StepCost {
        let times: Vec<Duration> = ms.iter().copied().map(Duration::from_millis).collect();
        StepCost::measured(&times).unwrap()
    }

    /// By the milliseconds of 1, 4, 16 and 64 tokens, with the other sizes on the lines between.
    fn by_lines(ms: [u64; 4]) -> StepCost {
        let places = [1, 4, 16, 64];
        let of = |tokens: usize| {
            let i = places[1..3].partition_point(|place| *place < tokens);
            let (from, to) = (places[i] as u64, places[i + 1] as u64);
            ms[i] + (ms[i + 1] - ms[i]) * (tokens as u64 - from) / (to - from)
        };
        measured(&StepCost::SIZES.map(of))
    }

    fn close(got: f32, expected: f32) {
        assert!((got - expected).abs() < 1e-4 * expected.max(1.0), "{got}, not {expected}");
    }

    #[test]
    fn costs_lie_on_the_lines_between_what_is_measured() {
        let cost = by_lines([1000, 1300, 3700, 13300]);
        for (tokens, expected) in
            [(1, 1.0), (4, 1.3), (10, 2.5), (16, 3.7), (40, 8.5), (64, 13.3), (84, 17.3)]
        {
            close(cost.of(tokens), expected);
        }
        // Sizes that were not measured go on as those before; time that a larger step seems to save does not count.
        close(measured(&[1000, 1300]).of(101), 31.0);
        let cost = measured(&[1000, 500, 500, 9000]);
        close(cost.of(2), 1.01);
        close(cost.of(4), 1.03);
        // A jump is where it is, and not on a long line.
        let cost = measured(&[100, 100, 100, 100, 100, 500, 500]);
        assert!(cost.of(12) < 0.12 && cost.of(16) > 0.49, "{cost:?}");
        assert_eq!(StepCost::measured(&[Duration::from_secs(1)]), None);
    }

    #[test]
    fn a_guess_must_be_as_likely_as_it_is_dear() {
        let costs = DraftCosts::new(StepCost::Known { first: 1.0, more: 0.1 }, None);
        let model =
            DraftModelCost { step: StepCost::Known { first: 0.2, more: 0.05 }, context: 64, mtp: false };
        close(costs.of_model_guess(&model, 1, 1, 1, false), MARGIN * (0.1 + 0.2));
        // Where it is wrong a token is computed again: right with p, it brings p and costs 0.3 + 0.1 (1 - p).
        close(costs.of_model_guess(&model, 1, 1, 1, true), MARGIN * (0.1 + 0.2 + 0.1) / 1.1);
        // Eight tokens for 1.7, and 0.8 for eight more.
        close(costs.of_model_guess(&model, 8, 8, 2, false), MARGIN * (0.8 + 0.55) / 1.7);
        // One of eight has the draft model's step to itself.
        close(costs.of_model_guess(&model, 8, 1, 1, false), MARGIN * 8.0 * (0.1 + 0.2) / 1.7);
    }

    /// Eight sequences of a token each cost more than eight tokens of one: that says nothing of drafts for one.
    #[test]
    fn costs_are_learned_by_the_number_of_sequences() {
        let mut costs = DraftCosts::new(by_lines([100, 130, 250, 730]), None);
        let fresh = costs.step.of(1, 3) / costs.step.of(1, 1);
        for _ in 0..300 {
            costs.step.learn(8, 8, Duration::from_millis(400));
            costs.step.learn(8, 16, Duration::from_millis(900));
        }
        let near =
            |got: f32, expected: f32| assert!((got / expected - 1.0).abs() < 0.1, "{got}, not {expected}");
        near(costs.step.of(8, 16), 0.9);
        near(costs.step.of(11, 8), 0.4);
        for _ in 0..30 {
            costs.step.learn(1, 1, Duration::from_millis(100));
        }
        close(costs.step.of(1, 3) / costs.step.of(1, 1), fresh);
        // More sequences than slots are measured for.
        costs.step.learn(4096, 4096, Duration::from_secs(60));
        assert!(costs.step.of(100_000, 100_000).is_finite() && costs.step.of(0, 0).is_finite());
    }

    /// A crowd's steps cost twice what was thought: that shows within some dozen of them.
    #[test]
    fn the_first_steps_weigh_more() {
        let mut cost = measured(&[1000, 1050, 1200, 1300, 1400, 1500, 2000, 3000]);
        for _ in 0..20 {
            cost.learn(8, Duration::from_millis(1600));
            cost.learn(24, Duration::from_millis(3200));
        }
        assert!((1.7..2.1).contains(&(cost.of(24) / cost.of(8))), "{cost:?}");
    }

    /// Where drafts are believed to be too dear there are none, so that only a step's first size is seen.
    #[test]
    fn what_is_not_seen_is_forgotten() {
        let mut cost = by_lines([100, 130, 250, 730]);
        for _ in 0..300 {
            cost.learn(4, Duration::from_millis(400));
        }
        // Part of it is taken for a slower machine.
        assert!(cost.of(4) > 1.8 * cost.of(1), "{cost:?}");
        for _ in 0..3000 {
            cost.learn(1, Duration::from_millis(100));
        }
        assert!((1.25..1.45).contains(&(cost.of(4) / cost.of(1))), "{cost:?}");
    }

    /// Steps correct the costs: all of them where the machine is slower, those of a size where only that is dearer.
    #[test]
    fn costs_are_learned() {
        let mut cost = by_lines([100, 130, 250, 730]);
        for _ in 0..300 {
            for tokens in [1, 16] {
                let time = Duration::from_secs_f32(2.0 * by_lines([100, 130, 250, 730]).of(tokens));
                cost.learn(tokens, time);
            }
        }
        let near =
            |got: f32, expected: f32| assert!((got / expected - 1.0).abs() < 0.03, "{got}, not {expected}");
        near(cost.of(1), 0.2);
        near(cost.of(16), 0.5);
        // Sizes that were not seen are dearer, too, nearly as much.
        assert!((0.23..0.26).contains(&cost.of(4)) && (1.3..1.5).contains(&cost.of(64)), "{cost:?}");
        for _ in 0..300 {
            cost.learn(1, Duration::from_millis(200));
            cost.learn(16, Duration::from_millis(800));
        }
        near(cost.of(1), 0.2);
        near(cost.of(16), 0.8);
        // One step that was interrupted changes little.
        let before = cost.of(16);
        cost.learn(16, Duration::from_secs(60));
        assert!(cost.of(16) < 1.06 * before, "{cost:?}");
        let known = StepCost::Known { first: 1.0, more: 0.1 };
        let mut same = known;
        same.learn(1, Duration::from_secs(9));
        assert_eq!(same, known);
    }
}
