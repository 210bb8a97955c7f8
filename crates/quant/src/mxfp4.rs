//! MXFP4: 32 weights in 4-bit floats (E2M1), and one power of two as the scale. `w = 2^(e - 128) * VALUES[q]`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, split_nibbles};
use crate::fit::{Grid, Unit, closest, finite};
use crate::iq4_nl::look_up;
use crate::{Block, Coded, Coding, Format, ScaleSink, Scales};

/// A block of [`Format::MXFP4`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MXFP4 {
    /// The exponent of the scale.
    pub e: u8,
    /// Codes: weight `i` in the low half of byte `i`, weight `i + 16` in the high half.
    pub qs: [u8; 16],
}

/// Values of the codes: a sign, two bits of exponent and one of fraction, doubled so that they are integers.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl MXFP4 {
    /// The block of an exponent and codes that are stored apart, the codes in pairs: weight `2 i` in the low half of
    /// byte `i`, weight `2 i + 1` in the high half.
    pub fn of_pairs(e: u8, pairs: &[u8; 16]) -> MXFP4 {
        let code = |i: usize| (pairs[i / 2] >> (4 * (i % 2))) & 15;
        MXFP4 { e, qs: std::array::from_fn(|i| code(i) | (code(i + 16) << 4)) }
    }

    /// Values of the codes, before the scale of [`MXFP4::scale`].
    pub const VALUES: [i8; 16] = VALUES;

    /// `VALUES[q]` in the order of the weights: twice the value of the 4-bit float.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = look_up(&VALUES, self.qs[i] & 15);
            codes[i + 16] = look_up(&VALUES, self.qs[i] >> 4);
        }
        codes
    }

    /// The scale of [`MXFP4::codes`]: `2^(e - 128)`.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        // The two smallest scales are subnormal.
        let e = u32::from(self.e);
        f32::from_bits(if e < 2 { 1 << (21 + e) } else { (e - 1) << 23 })
    }
}

/// [`VALUES`] as a grid to fit weights to.
pub(crate) struct Tiny;

impl Grid for Tiny {
    #[inline(always)]
    fn reach(&self) -> f32 {
        12.0
    }

    #[inline(always)]
    fn nearest(&self, x: f32) -> f32 {
        closest(&VALUES[..8], x.abs()).1.copysign(x)
    }

    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        let (magnitude, _) = closest(&VALUES[..8], x.abs());
        // Zero has no sign.
        if x < 0.0 && magnitude > 0 { magnitude + 8 } else { magnitude }
    }
}

impl Block for MXFP4 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::MXFP4;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.scale();
        scaled::<32, 32>(&self.codes(), weights, |_| d);
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> MXFP4 {
        let unit = Unit::new(&finite(weights), care);
        // With the exponent of the largest weight less one, that weight is in reach; one or two less may fit the
        // others better. Above 252 a code's value might not be finite.
        let top = (unit.size.to_bits() >> 23) as u8;
        let block = |e: u8| MXFP4 { e: e.min(252), qs: [0; 16] };
        let error = |b: &MXFP4| unit.error(b.scale(), &Tiny);
        let mut best = block(top.saturating_sub(1));
        for fewer in [2, 3] {
            let other = block(top.saturating_sub(fewer));
            if error(&other) < error(&best) {
                best = other;
            }
        }
        let codes: [u8; 32] = unit.codes(best.scale(), &Tiny);
        MXFP4 { qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4), ..best }
    }
}

impl Coded for MXFP4 {
    const CODING: Coding =
        Coding { bits: 4, table: Some(VALUES), bias: 0, run: 32, scales: Scales::Exponents };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        split_nibbles(&self.qs, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.exponent(self.e);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_in_pairs_keep_their_order() {
        let pairs: [u8; 16] = std::array::from_fn(|i| (2 * i % 16) as u8 | (((2 * i + 1) % 16) as u8) << 4);
        let block = MXFP4::of_pairs(130, &pairs);
        assert_eq!(block.scale(), 4.0);
        let codes = block.codes();
        assert!((0..32).all(|i| codes[i] == VALUES[i % 16]), "{codes:?}");
    }
}
