//! IQ4_NL: 32 weights of 4 bits, which choose among 16 unevenly spaced values, and one scale. `w = d * VALUES[q]`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, split_nibbles};
use crate::fit::{Grid, closest, finite, fit_block};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::IQ4NL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4NL {
    /// The scale.
    pub d: F16,
    /// Codes: weight `i` in the low half of byte `i`, weight `i + 16` in the high half.
    pub qs: [u8; 16],
}

/// Values of the codes of IQ4_NL and IQ4_XS.
pub(crate) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Looks up one of 16 values by a code below 16.
///
/// The values are packed into four integers and shifted out, since an indexed look-up would not vectorize.
#[inline(always)]
pub(crate) fn look_up(values: &[i8; 16], code: u8) -> i8 {
    let four = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| values[at + i] as u8));
    let (low, high) = if code & 4 == 0 { (four(0), four(8)) } else { (four(4), four(12)) };
    let picked = if code & 8 == 0 { low } else { high };
    (picked >> (8 * u32::from(code & 3))) as i8
}

impl IQ4NL {
    /// Values of the codes, before the scale.
    pub const VALUES: [i8; 16] = VALUES;

    /// `VALUES[q]` in the order of the weights.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = look_up(&VALUES, self.qs[i] & 15);
            codes[i + 16] = look_up(&VALUES, self.qs[i] >> 4);
        }
        codes
    }
}

/// [`VALUES`] as a grid to fit weights to.
pub(crate) struct Uneven;

impl Grid for Uneven {
    #[inline(always)]
    fn reach(&self) -> f32 {
        127.0
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        closest(&VALUES, x).1
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        closest(&VALUES, x).0
    }
}

impl Block for IQ4NL {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::IQ4NL;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.d.get();
        scaled::<32, 32>(&self.codes(), weights, |_| d);
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> IQ4NL {
        let (d, codes) = fit_block(&finite(weights), care, &Uneven);
        IQ4NL { d, qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4) }
    }
}

impl Coded for IQ4NL {
    const CODING: Coding = Coding { bits: 4, table: Some(VALUES), bias: 0, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        split_nibbles(&self.qs, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
    }
}
