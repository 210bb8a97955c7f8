//! F8_E4M3: 32 weights in 8-bit floats, and one scale. `w = d * value(q)`.
//!
//! Not in GGUF files: model folders quantized to FP8 are loaded as this format.

use bytemuck::{Pod, Zeroable};

use crate::fit::{Grid, Unit, finite};
use crate::{Block, Coded, Coding, F32, Format, ScaleSink, Scales};

/// A block of [`Format::F8`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct F8 {
    /// The scale.
    pub d: F32,
    /// Codes: a sign, four bits of exponent, three of fraction. All exponents are those of finite values; the two codes
    /// that are NaN elsewhere continue the sequence of the others (±480).
    pub qs: [u8; 32],
}

impl F8 {
    /// Value of a code over that of an `f16` with its bits: the sign on top, the others behind a zero. Kernels widen codes so.
    pub const OF_HALF: f32 = 256.0;

    /// Factor by which [`F8::magnified`] is too large.
    const MAGNIFIED: f32 = 256.0;

    /// 256 times the magnitude of a code. Written so that it vectorizes, and so that no operand is subnormal: those are
    /// slow.
    #[inline(always)]
    fn magnified(q: u8) -> f32 {
        // With the code's exponent and fraction in those of a float, `x` is the result if the exponent is not zero.
        // With exponent zero there is no implicit leading one, and the result is `2 x - 4`, which is less than `x`
        // there and only there.
        let x = f32::from_bits(0x4000_0000 | u32::from(q & 0x7f) << 20);
        let y = x + x - 4.0;
        // Neither is negative, so their bits compare as they do.
        f32::from_bits(x.to_bits().min(y.to_bits()))
    }

    /// The block with these codes and scale `d`.
    pub fn of(d: f32, codes: &[i8; 32]) -> F8 {
        F8 { d: F32(d.to_le_bytes()), qs: codes.map(|q| q as u8) }
    }

    /// Value of a code.
    #[inline(always)]
    pub fn value(q: u8) -> f32 {
        let magnitude = Self::magnified(q) / Self::MAGNIFIED;
        f32::from_bits(magnitude.to_bits() | u32::from(q & 0x80) << 24)
    }
}

/// The values of the codes, as a grid to fit weights to.
struct Floats;

impl Floats {
    /// Smallest normal value. Below it, values are multiples of the smallest one.
    const NORMAL: f32 = 1.0 / 64.0;
    /// Largest value of other programs.
    const REACH: f32 = 448.0;
    const SMALLEST: f32 = 1.0 / 512.0;

    /// Code of the magnitude of `x`.
    #[inline(always)]
    fn magnitude(x: f32) -> u8 {
        let x = x.abs().min(Self::REACH);
        if x < Self::NORMAL {
            return (x / Self::SMALLEST).round_ties_even() as u8;
        }
        let bits = x.to_bits();
        let nearest = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
        (nearest - (120 << 3)) as u8
    }
}

impl Grid for Floats {
    #[inline(always)]
    fn reach(&self) -> f32 {
        Self::REACH
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        F8::value(self.code(x))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        let magnitude = Self::magnitude(x);
        // Zero has no sign.
        if x < 0.0 && magnitude > 0 { magnitude | 0x80 } else { magnitude }
    }
}

impl Block for F8 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::F8;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.d.get();
        for (w, q) in weights.iter_mut().zip(&self.qs) {
            *w = d * F8::value(*q);
        }
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> F8 {
        let unit = Unit::new(&finite(weights), care);
        // Keeps the largest code's value finite.
        let d = unit.best_scale(&Floats).clamp(f32::MIN / 480.0, f32::MAX / 480.0);
        F8 { d: F32(d.to_le_bytes()), qs: unit.codes(d, &Floats) }
    }
}

impl Coded for F8 {
    const CODING: Coding = Coding { bits: 8, table: None, bias: 0, run: 32, scales: Scales::PlainF32 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.qs);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get() * F8::OF_HALF);
    }
}
