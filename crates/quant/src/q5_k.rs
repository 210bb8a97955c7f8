//! Q5_K: 256 weights of 5 bits; every 32 have a scale and a minimum of 6 bits each. `w = d * s * q - dmin * m`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled_less;
use crate::fit::{finite, fit_affine_super};
use crate::q4_k::SixBits;
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q5K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5K {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// Super-block scale of the minimums.
    pub dmin: F16,
    /// Scales and minimums.
    pub scales: SixBits,
    /// The fifth bit of each code: bit `k` of byte `i` is weight `32 * k + i`'s.
    pub qh: [u8; 32],
    /// The low four bits: `qs[j][i]` holds weight `64 * j + i` in the low half and weight `64 * j + 32 + i` in the high
    /// half.
    pub qs: [[u8; 32]; 4],
}

impl Q5K {
    /// Codes in the order of the weights: 0 to 31.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for j in 0..4 {
            for i in 0..32 {
                let fifth = |k: usize| (self.qh[i] >> k & 1) << 4;
                codes[64 * j + i] = self.qs[j][i] & 15 | fifth(2 * j);
                codes[64 * j + 32 + i] = self.qs[j][i] >> 4 | fifth(2 * j + 1);
            }
        }
        codes
    }
}

impl Block for Q5K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q5K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        let (scales, mins) = self.scales.get();
        scaled_less::<256, 32>(&self.codes(), weights, |part| {
            (d * f32::from(scales[part]), dmin * f32::from(mins[part]))
        });
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q5K {
        let fit = fit_affine_super::<8, 32, 31, 63>(&finite(weights), care);
        let scales = SixBits::new(fit.scales, fit.mins);
        let mut block = Q5K { d: fit.d, dmin: fit.dmin, scales, ..Q5K::zeroed() };
        for (i, code) in fit.codes.into_iter().enumerate() {
            block.qh[i % 32] |= (code >> 4) << (i / 32);
            block.qs[i / 64][i % 32] |= (code & 15) << (4 * (i / 32 % 2));
        }
        block
    }
}

impl Coded for Q5K {
    const CODING: Coding = Coding { bits: 5, table: None, bias: 0, run: 32, scales: Scales::BytesMin };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5K::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
        to.f16(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| to.factor(i, *s));
    }
}
