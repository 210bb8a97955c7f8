//! [`Matching`]: how well texts and images go together, by models that were trained on pairs of them.

use crate::error::{LoadError, Result};
use crate::formats::{Checkpoint, Kind};

/// What such a model makes of the cosine of two vectors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipSimilarity {
    /// Multiplies it.
    pub scale: f32,
    /// Is added then, where each pair is judged by itself. Else texts compete for an image.
    pub bias: Option<f32>,
}

impl ClipSimilarity {
    /// Reads what a checkpoint says, if it says something.
    pub(super) fn read(checkpoint: &Checkpoint) -> Result<Option<ClipSimilarity>> {
        let Some(scale) = number(checkpoint, "logit_scale")? else { return Ok(None) };
        let matching = ClipSimilarity { scale: scale.exp(), bias: number(checkpoint, "logit_bias")? };
        match matching.scale.is_finite() {
            true => Ok(Some(matching)),
            false => {
                let why = format!("is {scale}, of which the exponential is not finite");
                Err(LoadError::bad(&checkpoint.path, "tensor \"logit_scale\"", why))
            }
        }
    }

    /// How well two vectors of length one go together.
    pub fn logit(&self, a: &[f32], b: &[f32]) -> f32 {
        let cosine: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        cosine as f32 * self.scale + self.bias.unwrap_or(0.0)
    }

    /// How likely it is that texts with these logits say what is on an image: each by itself, or together one.
    pub fn shares(&self, logits: &[f32]) -> Vec<f32> {
        if self.bias.is_some() {
            return logits.iter().map(|x| super::relevance(*x)).collect();
        }
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let parts: Vec<f32> = logits.iter().map(|x| (x - most).exp()).collect();
        let all: f32 = parts.iter().sum();
        parts.into_iter().map(|x| x / all).collect()
    }
}

/// The one number of a tensor, if the tensor is there.
fn number(checkpoint: &Checkpoint, name: &str) -> Result<Option<f32>> {
    let Some(stored) = checkpoint.get(name) else { return Ok(None) };
    let bad = |why: String| LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why);
    let Kind::Weights(format) = stored.kind else { return Err(bad("is no number".into())) };
    if stored.len() != 1 {
        return Err(bad(format!("has shape {:?}; one number is expected", stored.shape)));
    }
    let mut number = [0.0];
    tallow_quant::unpack(format, stored.bytes(), &mut number).map_err(|e| bad(e.to_string()))?;
    match number[0].is_finite() {
        true => Ok(Some(number[0])),
        false => Err(bad(format!("is {}: the file is damaged", number[0]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_compete_or_stand_alone() {
        let alone = ClipSimilarity { scale: 2.0, bias: Some(-1.0) };
        assert_eq!(alone.logit(&[0.5, 0.75], &[0.75, 0.5]), 0.75 * 2.0 - 1.0);
        assert_eq!(alone.shares(&[0.0, 0.0]), [0.5, 0.5]);
        let against = ClipSimilarity { scale: 2.0, bias: None };
        assert_eq!(against.shares(&[7.0, 7.0, 7.0, 7.0]), [0.25; 4]);
        let shares = against.shares(&[1000.0, 0.0]);
        assert_eq!(shares, [1.0, 0.0]);
    }
}
