//! [`ClipSimilarity`]: similarity of texts and images in dual encoders (CLIP, SigLIP).

use tallow_checkpoint::{Checkpoint, Kind};

use crate::error::{LoadError, Result};

/// From the cosine of two vectors to a logit: `cosine * scale + bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipSimilarity {
    /// Multiplies the cosine.
    pub scale: f32,
    /// Added then (SigLIP): each pair is judged by itself. Without it (CLIP), texts compete for an image.
    pub bias: Option<f32>,
}

impl ClipSimilarity {
    /// Reads `logit_scale` and `logit_bias` of a checkpoint; `None` if it has no scale.
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

    /// The logit of two vectors of length 1.
    pub fn logit(&self, a: &[f32], b: &[f32]) -> f32 {
        let cosine: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        cosine as f32 * self.scale + self.bias.unwrap_or(0.0)
    }

    /// Probabilities that texts with these logits describe an image: sigmoid of each with a bias, else softmax over
    /// all.
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

/// The value of a tensor with one element, if the tensor exists.
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
