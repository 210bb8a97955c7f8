//! All formats: the reference's blocks, independent definitions, and properties for arbitrary bytes and weights.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use tallow_quant::{Format, pack, unpack};

mod goldens;
mod oracles;
mod properties;

fn unpacked(format: Format, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / format.block_bytes() * format.block_weights()];
    unpack(format, bytes, &mut out).unwrap();
    out
}

fn packed(format: Format, weights: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; format.row_bytes(weights.len()).unwrap()];
    pack(format, weights, &mut out).unwrap();
    out
}
