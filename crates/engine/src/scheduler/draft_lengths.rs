//! [`DraftLengths`]: how many of prompt lookup's guesses the next step computes for each sequence.
//!
//! A step costs what it costs for all of its tokens together: one more may be cheap for the sequence alone and dear for eight,
//! or dear as the first one (GEMM in place of GEMV) and nearly free from then on. So guesses are not weighed one by one: of all
//! numbers of guesses, the most likely ones first, the one is chosen with which the step brings the most tokens for its time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::accuracy::Accuracy;
use super::draft_costs::{DraftCosts, MARGIN};

/// Prompt lookup's guess for a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guesses {
    /// Tokens that it guesses, one after the other.
    pub count: usize,
    /// How often it was right.
    pub accuracy: Accuracy,
}

/// How many guesses the next step computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DraftLengths {
    /// For each sequence; empty if there are none for any.
    pub each: Vec<usize>,
    /// Time that they are expected to lose, in the unit of costs. They are a trial then, which shows what they do cost.
    pub loss: f32,
}

impl DraftLengths {
    /// Length of the draft of sequence number `at`.
    pub(super) fn of(&self, at: usize) -> usize {
        self.each.get(at).copied().unwrap_or(0)
    }
}

impl DraftCosts {
    /// The drafts with which a step of `rows` tokens brings the most for its time, at most `room` tokens; a trial if none
    /// is expected to pay. `again`: the tokens before a wrong guess are computed again (recurrent states).
    pub(super) fn lengths(&self, rows: usize, guesses: &[Guesses], room: usize, again: bool) -> DraftLengths {
        let count = guesses.len();
        // Bits of positive numbers are in the order of the numbers.
        let likely = |at: usize, n: usize| (guesses[at].accuracy.all_right(n).to_bits(), Reverse(at));
        let mut next: BinaryHeap<_> =
            (0..count).filter(|at| guesses[*at].count > 0).map(|at| likely(at, 1)).collect();
        // A draft model would guess where prompt lookup does not.
        let plain_is_due = self.model.is_none() && self.step.is_plain_due(count);
        if next.is_empty() || room == 0 || plain_is_due {
            return DraftLengths::default();
        }
        let plain = self.step.of(count, rows);
        let (mut each, mut order) = (vec![0; count], Vec::new());
        let (mut brings, mut repeated) = (count as f32, 0.0);
        // Tokens for the time of a step without drafts, number of guesses, and what they lose.
        let mut best = (0.0, 0, 0.0);
        while order.len() < room
            && let Some((bits, Reverse(at))) = next.pop()
        {
            let right = f32::from_bits(bits);
            order.push(at);
            each[at] += 1;
            if each[at] < guesses[at].count {
                next.push(likely(at, each[at] + 1));
            }
            brings += right;
            repeated += if again { 1.0 - right } else { 0.0 };
            let tokens = rows + order.len() + f32::round(repeated) as usize;
            let cost = plain + MARGIN * (self.step.of(count, tokens) - plain);
            let for_plain = brings * plain / cost;
            if for_plain > best.0 {
                best = (for_plain, order.len(), cost - plain * brings / count as f32);
            }
        }
        let (for_plain, chosen, loss) = best;
        each.fill(0);
        order[..chosen].iter().for_each(|at| each[*at] += 1);
        DraftLengths { each, loss: if for_plain > count as f32 { 0.0 } else { loss } }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::draft_costs::{DraftModelCost, StepCost};
    use super::*;

    /// Guesses that were right `right` times after having been wrong.
    fn guesses(count: usize, right: usize) -> Guesses {
        let mut accuracy = Accuracy::default();
        (0..20).for_each(|_| accuracy.learn(&[1], &[2]));
        (0..right).for_each(|_| accuracy.learn(&[1], &[1]));
        Guesses { count, accuracy }
    }

    fn known(more: f32) -> DraftCosts {
        DraftCosts::new(StepCost::Known { first: 1.0, more }, None)
    }

    /// By the milliseconds of the sizes that are measured.
    fn measured(ms: [u64; 8]) -> DraftCosts {
        DraftCosts::new(StepCost::measured(&ms.map(Duration::from_millis)).unwrap(), None)
    }

    /// The number of guesses of one sequence with the best rate, by trying all of them.
    fn best_of(more: f32, guesses: Guesses, again: bool) -> usize {
        let rate = |n: usize| {
            let right: f32 = (1..=n).map(|n| guesses.accuracy.all_right(n)).sum();
            let repeated = if again { (n as f32 - right).round() } else { 0.0 };
            (1.0 + right) / (1.0 + MARGIN * more * (n as f32 + repeated))
        };
        (0..=guesses.count).max_by(|a, b| rate(*a).total_cmp(&rate(*b)).then(b.cmp(a))).unwrap()
    }

    #[test]
    fn drafts_are_as_long_as_they_pay() {
        let mut seen = std::collections::BTreeSet::new();
        for right in [0, 2, 5, 10, 20, 40] {
            for more in [0.01, 0.05, 0.2, 0.5, 0.9] {
                for again in [false, true] {
                    let guesses = guesses(8, right);
                    let lengths = known(more).lengths(1, &[guesses], 64, again);
                    let best = best_of(more, guesses, again);
                    let got = if lengths.loss > 0.0 { 0 } else { lengths.of(0) };
                    assert_eq!(got, best, "right {right}, more {more}, again {again}");
                    seen.insert(best);
                }
            }
        }
        assert!(seen.len() > 4 && seen.contains(&0) && seen.contains(&8), "{seen:?}");
    }

    /// Room goes to the guesses that are most likely right, and never beyond what is guessed.
    #[test]
    fn the_most_likely_guesses_are_computed() {
        let all = [guesses(8, 3), guesses(0, 0), guesses(2, 40), guesses(8, 40)];
        let lengths = |room| known(0.0).lengths(4, &all, room, false).each;
        assert_eq!(lengths(64), [8, 0, 2, 8]);
        assert_eq!(lengths(6), [0, 0, 2, 4]);
        assert!(lengths(0).is_empty());
        assert_eq!(known(0.001).lengths(4, &[guesses(0, 0); 4], 64, false), DraftLengths::default());
        assert_eq!(DraftLengths::default().of(3), 0);
    }

    /// Many drafts or none, if the first rows are dear and further ones nearly free.
    #[test]
    fn costs_are_those_of_the_whole_step() {
        let costs = measured([20, 25, 40, 60, 85, 110, 115, 140]);
        let lengths = |likely: usize, guesses: Guesses| {
            let all: Vec<Guesses> =
                (0..8).map(|at| if at < likely { guesses } else { Guesses::default() }).collect();
            costs.lengths(8, &all, 256, false)
        };
        // One guess each: at most 16 tokens for 60 + 1.25 * 50 ms, where 8 take 60. Three each: 29 for 60 + 1.25 * 55.
        let right = guesses(3, 12);
        let few = guesses(1, 12);
        assert!(lengths(8, few).loss > 0.0, "{:?}", lengths(8, few));
        assert_eq!(lengths(8, right), DraftLengths { each: vec![3; 8], loss: 0.0 });
        assert!(lengths(2, right).loss > 0.0, "{:?}", lengths(2, right));
        // The nearer to what pays, the cheaper a trial.
        assert!(lengths(4, right).loss < lengths(1, guesses(1, 2)).loss);
    }

    /// After 16 steps with drafts one has none: its time is the baseline that drafts are compared with.
    #[test]
    fn steps_without_drafts_are_seen_too() {
        let plain = |mut costs: DraftCosts| -> Vec<usize> {
            let mut is_plain = |_: &usize| {
                let tokens = 1 + costs.lengths(1, &[guesses(8, 40)], 64, false).of(0);
                costs.step.learn(1, tokens, Duration::from_millis(30));
                tokens == 1
            };
            (0..40).filter(|at| is_plain(at)).collect()
        };
        let costs = measured([20, 21, 22, 23, 24, 25, 30, 40]);
        assert_eq!(plain(costs), [16, 33]);
        let step = StepCost::Known { first: 0.001, more: 0.0 };
        let model = Some(DraftModelCost { step, context: 64, mtp: false });
        assert!(plain(DraftCosts { model, ..costs }).is_empty());
    }
}
