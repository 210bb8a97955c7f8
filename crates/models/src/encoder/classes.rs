//! [`Classes`]: labels and activation of a sequence classifier.

use serde_json::Value;
use tallow_checkpoint::Result;
use tallow_checkpoint::Settings;
use tallow_checkpoint::config::{Config, Key, key};

/// The labels of a sequence classifier, and how its scores become probabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    labels: Vec<String>,
    activation: Activation,
}

/// Function from scores to probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activation {
    /// Single label: probabilities sum to 1.
    Softmax,
    /// Multi-label: each label on its own.
    Sigmoid,
    /// Regression: scores stay as they are.
    Identity,
}

const PROBLEM: Key = key("problem_type", "");

impl Classes {
    /// Reads the labels and problem type of `scores` scores from a config, as transformers does.
    pub(super) fn read(c: &Config<'_>, scores: usize) -> Result<Classes> {
        let activation = match c.find_text(PROBLEM)? {
            Some("single_label_classification") => Activation::Softmax,
            Some("multi_label_classification") => Activation::Sigmoid,
            Some("regression") => Activation::Identity,
            None if scores == 1 => Activation::Sigmoid,
            None => Activation::Softmax,
            Some(other) => {
                let known = "regression, single_label_classification and multi_label_classification are";
                return Err(c.unsupported(PROBLEM, other, known));
            }
        };
        // Softmax over a single score would always be 1.
        let activation = match activation {
            Activation::Softmax if scores == 1 => Activation::Sigmoid,
            other => other,
        };
        let named = match &c.checkpoint().settings {
            Settings::Hf(config) => &config["id2label"],
            Settings::Gguf(_) => &Value::Null,
        };
        let label = |i: usize| match &named[i.to_string()] {
            Value::String(label) => label.clone(),
            _ => format!("LABEL_{i}"),
        };
        Ok(Classes { labels: (0..scores).map(label).collect(), activation })
    }

    /// The label of each score.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Scores as probabilities; unchanged for a regression model.
    pub fn probabilities(&self, scores: &[f32]) -> Vec<f32> {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let share = |x: f32| f64::from(x - most).exp();
        let sum: f64 = scores.iter().map(|x| share(*x)).sum();
        let one = |x: &f32| match self.activation {
            Activation::Softmax => (share(*x) / sum) as f32,
            Activation::Sigmoid => (1.0 / (1.0 + (-f64::from(*x)).exp())) as f32,
            Activation::Identity => *x,
        };
        scores.iter().map(one).collect()
    }

    /// Index and label of the largest probability, the first of equals.
    pub fn best<'a>(&'a self, probabilities: &[f32]) -> (usize, &'a str) {
        let larger = |best: usize, (i, x): (usize, &f32)| if *x > probabilities[best] { i } else { best };
        let best = probabilities.iter().enumerate().fold(0, larger);
        (best, self.labels.get(best).map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_probabilities() {
        let of = |activation, scores: &[f32]| {
            let labels = (0..scores.len()).map(|i| i.to_string()).collect();
            Classes { labels, activation }.probabilities(scores)
        };
        let shares = of(Activation::Softmax, &[1000.0, 1000.0, 0.0]);
        assert_eq!(shares, [0.5, 0.5, 0.0]);
        assert_eq!(of(Activation::Sigmoid, &[0.0, f32::MAX, f32::MIN]), [0.5, 1.0, 0.0]);
        assert_eq!(of(Activation::Identity, &[-3.5]), [-3.5]);
        let classes = Classes { labels: vec!["a".into(), "b".into()], activation: Activation::Softmax };
        assert_eq!(classes.best(&[0.5, 0.5]), (0, "a"));
        assert_eq!(classes.best(&[0.25, 0.75]), (1, "b"));
    }
}
