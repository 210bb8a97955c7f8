//! Q6_K: 256 weights of 6 bits; every 16 have a scale of 8 bits. `w = d * s * (q - 32)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, finite, fit_super};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q6K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q6K {
    /// The low four bits of each code: `ql[h][k][i]` holds weight `128 * h + 32 * k + i` in the low half and
    /// weight `128 * h + 32 * k + 64 + i` in the high half.
    pub ql: [[[u8; 32]; 2]; 2],
    /// The high two bits: `qh[h][i]` holds weights `128 * h + 32 * j + i` for `j` in 0..4, lowest bits first.
    pub qh: [[u8; 32]; 2],
    /// Scale of every 16 weights.
    pub scales: [i8; 16],
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
}

impl Q6K {
    /// `q - 32` in the order of the weights: -32 to 31.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 256] {
        let mut codes = [0; 256];
        for half in 0..2 {
            for j in 0..4 {
                for i in 0..32 {
                    let low = self.ql[half][j % 2][i] >> (4 * (j / 2)) & 15;
                    let high = self.qh[half][i] >> (2 * j) & 3;
                    codes[128 * half + 32 * j + i] = (low | high << 4) as i8 - 32;
                }
            }
        }
        codes
    }
}

impl Block for Q6K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q6K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        scaled::<256, 16>(&self.codes(), weights, |part| d * f32::from(self.scales[part]));
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q6K {
        let fit = fit_super::<16, 16, _>(&finite(weights), care, &Ints::<-32, 31>, -128..=127);
        let mut block = Q6K { d: fit.d, scales: fit.scales.map(|s| s as i8), ..Q6K::zeroed() };
        for (i, code) in fit.codes.into_iter().enumerate() {
            let (half, j) = (i / 128, i / 32 % 4);
            block.ql[half][j % 2][i % 32] |= (code & 15) << (4 * (j / 2));
            block.qh[half][i % 32] |= (code >> 4) << (2 * j);
        }
        block
    }
}

impl Coded for Q6K {
    const CODING: Coding = Coding { bits: 6, table: None, bias: 32, run: 16, scales: Scales::Bytes };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&Q6K::codes(self), 32, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
        self.scales.iter().enumerate().for_each(|(i, s)| to.factor(i, *s as u8));
    }
}
