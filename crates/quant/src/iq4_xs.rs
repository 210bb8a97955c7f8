//! IQ4_XS: 256 weights of 4 bits as in IQ4_NL; every 32 have a scale of 6 bits. `w = d * (s - 32) * VALUES[q]`.

use std::array;

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, split_nibbles};
use crate::fit::{finite, fit_super};
use crate::iq4_nl::{Uneven, VALUES, look_up};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::IQ4XS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4XS {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// The high two bits of each scale, lowest bits first.
    pub scales_h: [u8; 2],
    /// The low four bits of each scale, low half first.
    pub scales_l: [u8; 4],
    /// Codes: `qs[j][i]` holds weight `32 * j + i` in the low half and weight `32 * j + 16 + i` in the high half.
    pub qs: [[u8; 16]; 8],
}

impl IQ4XS {
    /// `VALUES[q]` in the order of the weights.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 256] {
        let mut codes = [0; 256];
        for j in 0..8 {
            for i in 0..16 {
                codes[32 * j + i] = look_up(&VALUES, self.qs[j][i] & 15);
                codes[32 * j + 16 + i] = look_up(&VALUES, self.qs[j][i] >> 4);
            }
        }
        codes
    }

    /// `s - 32` for every 32 weights: -32 to 31.
    #[inline(always)]
    pub fn scales(&self) -> [i8; 8] {
        let (high, low) = (u16::from_le_bytes(self.scales_h), u32::from_le_bytes(self.scales_l));
        let mut scales = [0; 8];
        for (i, scale) in scales.iter_mut().enumerate() {
            *scale = (low >> (4 * i) & 15) as i8 - 32 + ((high >> (2 * i) & 3) << 4) as i8;
        }
        scales
    }
}

impl Block for IQ4XS {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ4XS;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        let scales = self.scales();
        scaled::<256, 32>(&self.codes(), weights, |part| d * f32::from(scales[part]));
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ4XS {
        let fit = fit_super::<8, 32, _>(&finite(weights), care, &Uneven, -32..=31);
        let bits = |i: usize| (fit.scales[i] + 32) as u32;
        let high = (0..8).map(|i| (bits(i) >> 4) << (2 * i)).sum::<u32>() as u16;
        let low = (0..8).map(|i| (bits(i) & 15) << (4 * i)).sum::<u32>();
        let code = |j: usize, i: usize| fit.codes[32 * j + i];
        let qs = array::from_fn(|j| array::from_fn(|i| code(j, i) | code(j, i + 16) << 4));
        IQ4XS { d: fit.d, scales_h: high.to_le_bytes(), scales_l: low.to_le_bytes(), qs }
    }
}

impl Coded for IQ4XS {
    const CODING: Coding = Coding { bits: 4, table: Some(VALUES), bias: 0, run: 32, scales: Scales::Bytes };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        self.qs.iter().zip(out.chunks_exact_mut(32)).for_each(|(qs, out)| split_nibbles(qs, out));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| to.factor(i, *s as u8));
    }
}
