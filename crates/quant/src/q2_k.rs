//! Q2_K: 256 weights of 2 bits; every 16 have a scale and a minimum of 4 bits each. `w = d * s * q - dmin * m`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled_less;
use crate::fit::{finite, fit_affine_super};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q2K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q2K {
    /// For every 16 weights, the scale in the low half and the minimum in the high half.
    pub scales: [u8; 16],
    /// Codes: `qs[h][i]` holds weights `128 * h + 32 * j + i` for `j` in 0..4, lowest bits first.
    pub qs: [[u8; 32]; 2],
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// Super-block scale of the minimums.
    pub dmin: F16,
}

impl Q2K {
    /// Codes in the order of the weights: 0 to 3.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for half in 0..2 {
            for j in 0..4 {
                for i in 0..32 {
                    codes[128 * half + 32 * j + i] = self.qs[half][i] >> (2 * j) & 3;
                }
            }
        }
        codes
    }
}

impl Block for Q2K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q2K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        scaled_less::<256, 16>(&self.codes(), weights, |part| {
            let both = self.scales[part];
            (d * f32::from(both & 15), dmin * f32::from(both >> 4))
        });
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q2K {
        let fit = fit_affine_super::<16, 16, 3, 15>(&finite(weights), care);
        let scales = std::array::from_fn(|sub| fit.scales[sub] | fit.mins[sub] << 4);
        let mut block = Q2K { scales, d: fit.d, dmin: fit.dmin, ..Q2K::zeroed() };
        for (i, code) in fit.codes.into_iter().enumerate() {
            block.qs[i / 128][i % 32] |= code << (2 * (i / 32 % 4));
        }
        block
    }
}

impl Coded for Q2K {
    const CODING: Coding = Coding { bits: 2, table: None, bias: 0, run: 16, scales: Scales::NibblesMin };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q2K::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
        to.f16(1, self.dmin);
        self.scales.iter().enumerate().for_each(|(i, s)| to.factor(i, *s));
    }
}
