//! Common to IQ1, IQ2 and IQ3: eight weights (or four) share an index into a table, whose entry packs an index of the
//! magnitude of each.
//!
//! The tables, in `assets/grids`, are facts of the formats. `tools/grids` says where they come from.

use crate::codes::scaled;
use crate::iq4_nl::look_up;
use crate::{Block, Coded, Coding, ScaleSink, Scales};

/// A block of 256 weights whose magnitudes come from a table. `w = step * factor * VALUES[code]`.
pub trait Gridded: Block<Weights = [f32; 256]> {
    /// Bits of a code: 3 or 4. With 4, every two factors are the same.
    const BITS: usize;

    /// Values of the codes. The highest bit of a code is its sign, or the direction of the shift of all (IQ1).
    const VALUES: [i8; 16];

    /// The scale that the factors multiply.
    fn step(&self) -> f32;

    /// Factor of the step for every 16 weights: an odd number below 32.
    fn factors(&self) -> [u8; 16];

    /// The codes, in the order of the weights.
    fn codes(&self) -> [u8; 256];
}

impl<B: Gridded> Coded for B {
    const CODING: Coding = Coding {
        bits: B::BITS,
        table: Some(B::VALUES),
        bias: 0,
        run: if B::BITS == 3 { 16 } else { 32 },
        scales: Scales::Bytes,
    };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Gridded::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.step());
        let runs = self.factors().into_iter().step_by(B::CODING.run / 16);
        runs.enumerate().for_each(|(i, factor)| to.factor(i, factor));
    }
}

/// Implements [`Block::unpack`].
#[inline(always)]
pub(crate) fn unpack<B: Gridded>(block: &B, weights: &mut [f32; 256]) {
    let (step, factors, codes) = (block.step(), block.factors(), block.codes());
    let mut values = [0; 256];
    for i in 0..256 {
        values[i] = look_up(&B::VALUES, codes[i]);
    }
    scaled::<256, 16>(&values, weights, |part| step * f32::from(factors[part]));
}

/// The entries of a table.
pub(crate) const fn entries<const N: usize>(bytes: &[u8]) -> [u16; N] {
    assert!(bytes.len() == 2 * N);
    let mut entries = [0; N];
    let mut i = 0;
    while i < N {
        entries[i] = u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        i += 1;
    }
    entries
}

/// Values of the codes of IQ2.
pub(crate) const IQ2: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Values of the codes of IQ1: eight times -1, 0 or 1, shifted up or down by one.
pub(crate) const IQ1: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The table of IQ1.
pub(crate) static IQ1_GRID: [u16; 2048] = entries(include_bytes!("../../../assets/grids/iq1_s.bin"));

/// Codes of two-bit magnitudes from one entry, with sign bits above them.
#[inline(always)]
pub(crate) fn eight(entry: u16, signs: u8) -> [u8; 8] {
    let mut codes = [0; 8];
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (entry >> (2 * i) & 3) as u8 | (signs >> i & 1) << 2;
    }
    codes
}

/// Codes of three-bit magnitudes from two entries, with sign bits above them.
#[inline(always)]
pub(crate) fn four_and_four(entries: [u16; 2], signs: u8) -> [u8; 8] {
    let mut codes = [0; 8];
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (entries[i / 4] >> (3 * (i % 4)) & 7) as u8 | (signs >> i & 1) << 3;
    }
    codes
}

/// Eight sign bits of which seven are stored: an even number of them is set.
#[inline(always)]
pub(crate) fn even(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Odd factors (`2 s + 1`) of 4-bit scales `s`, low half first, `each` times each.
#[inline(always)]
pub(crate) fn odd<const N: usize>(nibbles: &[u8], each: usize) -> [u8; N] {
    std::array::from_fn(|i| {
        let i = i / each;
        2 * (nibbles[i / 2] >> (4 * (i % 2)) & 15) + 1
    })
}
