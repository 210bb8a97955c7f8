//! [`Accuracy`]: how often guesses are right, learned from each.

/// Weight of the newest guess.
const NEWEST: f32 = 0.15;

/// Estimate of the share of guesses that are right, of those after a right one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accuracy(f32);

impl Default for Accuracy {
    fn default() -> Accuracy {
        Accuracy(0.5)
    }
}

impl Accuracy {
    /// Guesses that are always right.
    pub(super) const CERTAIN: Accuracy = Accuracy(1.0);

    /// Number of tokens to guess, at most `most`: each with those before it is right with more than the probability
    /// that it needs.
    pub(super) fn likely(self, needed: &dyn Fn(usize) -> f32, most: usize) -> usize {
        (1..=most).take_while(|n| self.all_right(*n) > needed(*n)).count()
    }

    /// Probability that `count` guesses are all right.
    pub(super) fn all_right(self, count: usize) -> f32 {
        self.0.powi(count as i32)
    }

    /// Compares a guess with the tokens that followed.
    pub(super) fn learn(&mut self, guess: &[u32], sampled: &[u32]) {
        for (guess, token) in guess.iter().zip(sampled) {
            let right = guess == token;
            self.0 += NEWEST * (f32::from(u8::from(right)) - self.0);
            if !right {
                break;
            }
        }
    }
}
