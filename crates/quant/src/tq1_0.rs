//! TQ1_0: 256 ternary weights (-1, 0 or 1), five to a byte, and one scale. `w = d * (q - 1)`.

use std::array;

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled;
use crate::fit::{finite, fit_ternary};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::TQ1_0`].
///
/// A byte, divided by 256, is a fraction in base 3 whose digits are codes: the first is `3 * byte / 256`, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ1_0 {
    /// Digit `j` of byte `i` is weight `32 * j + i`.
    pub first: [u8; 32],
    /// Digit `j` of byte `i` is weight `160 + 16 * j + i`.
    pub second: [u8; 16],
    /// Digit `j` of byte `i`, of four digits, is weight `240 + 4 * j + i`.
    pub third: [u8; 4],
    /// The scale.
    pub d: F16,
}

/// Digit `j` of a byte.
#[inline(always)]
fn digit(byte: u8, j: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    (3 * u16::from(byte.wrapping_mul(POWERS[j])) / 256) as u8
}

/// The byte whose digits are every `stride`-th code.
fn byte(codes: &[u8], stride: usize) -> u8 {
    let number = |digits: u16, code: u8| 3 * digits + u16::from(code);
    let mut whole = codes.iter().step_by(stride).take(5).fold(0, |digits, code| number(digits, *code));
    if codes.len().div_ceil(stride) < 5 {
        whole *= 3;
    }
    (whole * 256).div_ceil(243) as u8
}

impl TQ1_0 {
    /// Codes in the order of the weights: 0 to 2.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for j in 0..5 {
            for i in 0..32 {
                codes[32 * j + i] = digit(self.first[i], j);
            }
            for i in 0..16 {
                codes[160 + 16 * j + i] = digit(self.second[i], j);
            }
        }
        for j in 0..4 {
            for i in 0..4 {
                codes[240 + 4 * j + i] = digit(self.third[i], j);
            }
        }
        codes
    }
}

impl Block for TQ1_0 {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::TQ1_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        scaled::<256, 256>(&self.codes().map(|q| q as i8 - 1), weights, |_| d);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> TQ1_0 {
        let (d, codes) = fit_ternary(&finite(weights), care);
        TQ1_0 {
            first: array::from_fn(|i| byte(&codes[i..160], 32)),
            second: array::from_fn(|i| byte(&codes[160 + i..240], 16)),
            third: array::from_fn(|i| byte(&codes[240 + i..], 4)),
            d,
        }
    }
}

impl Coded for TQ1_0 {
    const CODING: Coding = Coding { bits: 2, table: None, bias: 1, run: 256, scales: Scales::F32 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&TQ1_0::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
    }
}
