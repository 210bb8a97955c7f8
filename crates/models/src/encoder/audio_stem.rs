//! [`AudioStem`]: from log-mel frames to the encoder's input (Whisper). A convolution is a gather of neighbours and a
//! GEMM.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Activate, Copy, Epilogue, IndexMode, IndexRows, Linear};
use tallow_core::{Activation, Backend, DType, LinearWeights, Result, Tensor};

use crate::Result as LoadResult;
use crate::spec::encoder::AudioSpec;
use crate::weights::Weights;

/// Two 1D convolutions with kernel size 3; the second has stride 2.
#[derive(Debug)]
pub(super) struct AudioStem<B: Backend> {
    /// [dim, 3 * bands]
    first: LinearWeights<B>,
    /// [dim, 3 * dim]
    second: LinearWeights<B>,
    act: Activation,
}

/// Kernel size.
const TAPS: usize = 3;

impl<B: Backend> AudioStem<B> {
    pub(super) fn load(w: &mut Weights<'_, B>, spec: AudioSpec, dim: usize) -> LoadResult<AudioStem<B>> {
        let first = w.conv1d(Slot::EncConv1, dim, spec.bands)?;
        Ok(AudioStem { first, second: w.conv1d(Slot::EncConv2, dim, dim)?, act: spec.act })
    }

    /// [sounds * frames, bands] to [sounds * frames / 2, dim]
    pub(super) fn forward(&self, b: &B, x: &Tensor<B>, sounds: usize) -> Result<Tensor<B>> {
        let x = self.over_neighbours(b, x, &self.first, sounds, 1)?;
        self.over_neighbours(b, &x, &self.second, sounds, 2)
    }

    fn over_neighbours(
        &self,
        b: &B,
        x: &Tensor<B>,
        weights: &LinearWeights<B>,
        sounds: usize,
        step: usize,
    ) -> Result<Tensor<B>> {
        let len = x.rows() / sounds.max(1);
        let side_by_side = b.alloc(DType::F32, x.rows() / step, TAPS * x.cols())?; // [places, 3 * inputs]
        for tap in 0..TAPS {
            let at = b.upload_row(&neighbours(sounds, len, step, tap))?;
            let from = b.run(IndexRows { x, indices: &at, mode: IndexMode::Gather })?; // [places, inputs]
            b.run(Copy { from: &from, to: &side_by_side.col_range(tap * x.cols()..(tap + 1) * x.cols()) })?;
        }
        let gate = b.run(Linear { x: &side_by_side, weights, epilogue: Epilogue::NONE })?; // [places, dim]
        b.run(Activate { gate: &gate, up: None, act: self.act })
    }
}

/// The input row of kernel tap `tap` at each output position; `u32::MAX` (a row of zeros) in the padding at both ends.
fn neighbours(sounds: usize, len: usize, step: usize, tap: usize) -> Vec<u32> {
    let row = |sound: usize, place: usize| match (place + tap).checked_sub(1) {
        Some(at) if at < len => (sound * len + at) as u32,
        _ => u32::MAX,
    };
    (0..sounds).flat_map(|sound| (0..len).step_by(step).map(move |place| row(sound, place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sounds_are_no_neighbours_of_each_other() {
        const NONE: u32 = u32::MAX;
        assert_eq!(neighbours(2, 4, 1, 0), [NONE, 0, 1, 2, NONE, 4, 5, 6]);
        assert_eq!(neighbours(2, 4, 2, 1), [0, 2, 4, 6]);
        assert_eq!(neighbours(2, 4, 1, 2), [1, 2, 3, NONE, 5, 6, 7, NONE]);
    }
}
