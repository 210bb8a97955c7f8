//! F8_E4M3: 32 weights of 8 bits, which are floats, and one scale. `w = d * value(q)`.
//!
//! No GGUF file has it: folders quantized to floats of eight bits are read so.

use bytemuck::{Pod, Zeroable};

use crate::fit::{Grid, Unit, finite};
use crate::{Block, F32, Format};

/// A block of [`Format::F8`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct F8 {
    /// The scale.
    pub d: F32,
    /// Codes: a sign, four bits of exponent, three of fraction. All exponents are those of numbers; the two codes that
    /// are no number elsewhere stand for what the others go on to.
    pub qs: [u8; 32],
}

impl F8 {
    /// What kernels read codes as is too large by this: so no number on the way is subnormal.
    pub const TOO_LARGE: f32 = 256.0;

    /// 256 times what a code stands for, without its sign. Written so that it becomes vector code, and so that no
    /// operand is a subnormal number: those are slow.
    #[inline(always)]
    fn magnified(q: u8) -> f32 {
        // As exponent and fraction of a float, twice the number times a power of two; but without a leading one where
        // the exponent is zero. There, and only there, is doubling and taking that one away less than what was.
        let x = f32::from_bits(0x4000_0000 | u32::from(q & 0x7f) << 20);
        let y = x + x - 4.0;
        // Neither is negative, so their bits compare as they do.
        f32::from_bits(x.to_bits().min(y.to_bits()))
    }

    /// The block that stands for these codes times `d`.
    pub fn of(d: f32, codes: &[i8; 32]) -> F8 {
        F8 { d: F32(d.to_le_bytes()), qs: codes.map(|q| q as u8) }
    }

    /// What a code stands for.
    #[inline(always)]
    pub fn value(q: u8) -> f32 {
        let magnitude = Self::magnified(q) / Self::TOO_LARGE;
        f32::from_bits(magnitude.to_bits() | u32::from(q & 0x80) << 24)
    }
}

/// What codes stand for as something to fit weights to.
struct Floats;

impl Floats {
    /// Below this, numbers are whole multiples of the smallest.
    const NORMAL: f32 = 1.0 / 64.0;
    const SMALLEST: f32 = 1.0 / 512.0;

    /// The magnitude's code.
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
    const REACH: f32 = 448.0;

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        F8::value(self.code(x))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        let magnitude = Self::magnitude(x);
        // A zero has no sign.
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
        // The largest code must stay finite.
        let d = unit.best_scale(&Floats).clamp(f32::MIN / 480.0, f32::MAX / 480.0);
        F8 { d: F32(d.to_le_bytes()), qs: unit.codes(d, &Floats) }
    }
}
