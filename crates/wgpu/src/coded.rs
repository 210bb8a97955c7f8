//! Recoding of formats whose decoding would need lookup tables or division in the shader (IQ1 to IQ3, TQ1_0, TQ2_0).
//! When weights are loaded, their blocks become codes of two, three or four bits and their scales.

use bytemuck::from_bytes;
use tallow_quant::{Gridded, TQ1_0, TQ2_0};

/// Bit planes of 256 codes: for three bits the low two bits of all codes and then the third bits, else the codes as
/// they are.
fn planes(codes: &[u8; 256], bits: usize, words: &mut [u32]) {
    let mut put = |at: usize, code: u8, shift: usize| words[at] |= u32::from(code) << shift;
    for (i, code) in codes.iter().enumerate() {
        if bits == 4 {
            put(i / 8, code & 15, i % 8 * 4);
            continue;
        }
        put(i / 16, code & 3, i % 16 * 2);
        if bits == 3 {
            put(16 + i / 32, code >> 2 & 1, i % 32);
        }
    }
}

/// f32 step, 16 8-bit factors, and codes that index the codebook.
pub(crate) fn gridded<B: Gridded, const BITS: usize>(block: &[u8], words: &mut [u32]) {
    let block: &B = from_bytes(block);
    words[0] = block.step().to_bits();
    for (word, four) in words[1..5].iter_mut().zip(block.factors().as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*four);
    }
    planes(&block.codes(), BITS, &mut words[5..]);
}

/// f32 scale, and two-bit codes that are the weight plus one.
fn ternary(d: f32, codes: &[u8; 256], words: &mut [u32]) {
    words[0] = d.to_bits();
    planes(codes, 2, &mut words[1..]);
}

pub(crate) fn tq1_0(block: &[u8], words: &mut [u32]) {
    let block: &TQ1_0 = from_bytes(block);
    ternary(block.d.get(), &block.codes(), words);
}

pub(crate) fn tq2_0(block: &[u8], words: &mut [u32]) {
    let block: &TQ2_0 = from_bytes(block);
    ternary(block.d.get(), &block.codes(), words);
}
