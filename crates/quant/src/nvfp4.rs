//! NVFP4: 64 weights in 4-bit floats (E2M1); every 16 have an 8-bit float (E4M3) as their scale.
//! `w = s / 2 * VALUES[q]`.

use std::array;

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, split_nibbles};
use crate::fit::{Unit, finite};
use crate::iq4_nl::look_up;
use crate::mxfp4::{Tiny, VALUES};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::NVFP4`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct NVFP4 {
    /// The scales: four bits of exponent and three of fraction, without a sign.
    pub scales: [u8; 4],
    /// Codes: `qs[j][i]` holds weight `16 * j + i` in the low half and weight `16 * j + 8 + i` in the high half.
    pub qs: [[u8; 8]; 4],
}

/// Half of the value of a scale.
#[inline(always)]
fn half_of(scale: u8) -> f32 {
    // As the upper part of an f32 the byte lacks 120 in the exponent, 119 after halving. Exponent zero has no implicit
    // leading one. The highest bit is ignored, except that NaN reads as zero only without it.
    let bits = u32::from(scale & 127) << 20;
    let number =
        if bits < 1 << 23 { f32::from(scale & 7) / 1024.0 } else { f32::from_bits(bits + (119 << 23)) };
    if scale == 127 { 0.0 } else { number }
}

impl NVFP4 {
    /// Values of the codes, before the scale of [`NVFP4::scale`].
    pub const VALUES: [i8; 16] = VALUES;

    /// `VALUES[q]` in the order of the weights: twice the value of the 4-bit float.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 64] {
        let mut codes = [0; 64];
        for j in 0..4 {
            for i in 0..8 {
                codes[16 * j + i] = look_up(&VALUES, self.qs[j][i] & 15);
                codes[16 * j + 8 + i] = look_up(&VALUES, self.qs[j][i] >> 4);
            }
        }
        codes
    }

    /// The scale of [`NVFP4::codes`], for every 16 weights.
    #[inline(always)]
    pub fn scale(&self, part: usize) -> f32 {
        half_of(self.scales[part])
    }
}

/// The scale byte with the least error for 16 weights.
fn best(unit: &Unit<16>) -> u8 {
    let ideal = unit.best_scale(&Tiny).abs();
    let above = (0..126).find(|scale| half_of(*scale) >= ideal).unwrap_or(126);
    let mut best = (f32::INFINITY, 0);
    for scale in above.saturating_sub(2)..=(above + 1).min(126) {
        let error = unit.error(half_of(scale), &Tiny);
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

impl Block for NVFP4 {
    type Weights = [f32; 64];
    const FORMAT: Format = Format::NVFP4;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 64]) {
        scaled::<64, 16>(&self.codes(), weights, |part| self.scale(part));
    }

    fn pack(weights: &[f32; 64], care: &[f32; 64]) -> NVFP4 {
        let weights = finite(weights);
        let parts: [Unit<16>; 4] = array::from_fn(|part| Unit::part(&weights, care, part));
        let scales = array::from_fn(|part| best(&parts[part]));
        let qs = array::from_fn(|part| {
            let codes: [u8; 16] = parts[part].codes(half_of(scales[part]), &Tiny);
            array::from_fn(|i| codes[i] | codes[i + 8] << 4)
        });
        NVFP4 { scales, qs }
    }
}

impl Coded for NVFP4 {
    const CODING: Coding = Coding { bits: 4, table: Some(VALUES), bias: 0, run: 16, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        self.qs.iter().zip(out.chunks_exact_mut(16)).for_each(|(qs, out)| split_nibbles(qs, out));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        (0..4).for_each(|part| to.f16(part, F16::nearest(self.scale(part))));
    }
}
