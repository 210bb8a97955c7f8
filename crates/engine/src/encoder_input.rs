//! [`EncoderInput`]: what the encoder of an encoder-decoder model (T5, Whisper) reads of a request.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Encoder input.
#[derive(Debug, Clone, PartialEq)]
pub enum EncoderInput {
    /// Text tokens; at least one.
    Tokens(Vec<u32>),
    /// Log-mel frames of one full window, row-major: [2 * encoder positions, mel bands].
    Mel(Vec<f32>),
}

/// Digest of an encoder input, of 128 bits: inputs with the same digest share the K and V of the encoder's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InputDigest(pub [u32; 4]);

/// Random keys per process, so that nobody can construct two inputs with the same digest.
#[derive(Debug, Default)]
pub struct InputKeys([RandomState; 2]);

impl InputKeys {
    /// Digest of an input. Those of different salts differ, so that their requests share nothing.
    pub fn digest(&self, salt: Option<&str>, input: &EncoderInput) -> InputDigest {
        let (kind, bytes): (u8, &[u8]) = match input {
            EncoderInput::Tokens(tokens) => (0, bytemuck::cast_slice(tokens)),
            EncoderInput::Mel(frames) => (1, bytemuck::cast_slice(frames)),
        };
        let [low, high] = self.0.each_ref().map(|key| {
            let mut hasher = key.build_hasher();
            salt.hash(&mut hasher);
            hasher.write_u8(kind);
            hasher.write(bytes);
            hasher.finish()
        });
        InputDigest([low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32])
    }
}

/// Output of the encoder for one input, as the scheduler counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderOutput {
    /// Digest of the input.
    pub input: InputDigest,
    /// Tokens of the output; at least one.
    pub tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_all_of_the_input() {
        let keys = InputKeys::default();
        let inputs = [
            EncoderInput::Tokens(vec![1, 2]),
            EncoderInput::Tokens(vec![1, 2, 0]),
            EncoderInput::Mel(vec![f32::from_bits(1), f32::from_bits(2)]),
            EncoderInput::Mel(vec![0.5; 100]),
            EncoderInput::Mel([vec![0.5; 99], vec![0.25]].concat()),
        ];
        let digests = inputs.each_ref().map(|input| keys.digest(None, input));
        for (i, digest) in digests.iter().enumerate() {
            assert_eq!(*digest, keys.digest(None, &inputs[i].clone()));
            assert!(digests[..i].iter().all(|other| other != digest), "{i}");
        }
        assert_ne!(keys.digest(Some("key 1"), &inputs[0]), digests[0]);
        assert_ne!(InputKeys::default().digest(None, &inputs[0]), digests[0]);
    }
}
