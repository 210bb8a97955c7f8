//! Q3_K: 256 weights of 3 bits; every 16 have a scale of 6 bits. `w = d * (s - 32) * (q - 4)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, finite, fit_super};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q3K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q3K {
    /// The third bit of each code: bit `k` of byte `i` is weight `32 * k + i`'s.
    pub hmask: [u8; 32],
    /// The low two bits: `qs[h][i]` holds weights `128 * h + 32 * j + i` for `j` in 0..4, lowest bits first.
    pub qs: [[u8; 32]; 2],
    /// Scales: the low four bits of scale `i` in byte `i % 8`, the high two in byte `8 + i % 4`; see [`Q3K::scales`].
    pub packed_scales: [u8; 12],
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
}

impl Q3K {
    /// `q - 4` in the order of the weights: -4 to 3.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 256] {
        let mut codes = [0; 256];
        for half in 0..2 {
            for j in 0..4 {
                for i in 0..32 {
                    let low = self.qs[half][i] >> (2 * j) & 3;
                    let high = (self.hmask[i] >> (4 * half + j) & 1) << 2;
                    codes[128 * half + 32 * j + i] = (low | high) as i8 - 4;
                }
            }
        }
        codes
    }

    /// `s - 32` for every 16 weights: -32 to 31.
    #[inline(always)]
    pub fn scales(&self) -> [i8; 16] {
        let mut scales = [0; 16];
        for (i, scale) in scales.iter_mut().enumerate() {
            let low = self.packed_scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = self.packed_scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4) as i8 - 32;
        }
        scales
    }
}

impl Block for Q3K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q3K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        let scales = self.scales();
        scaled::<256, 16>(&self.codes(), weights, |part| d * f32::from(scales[part]));
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q3K {
        let fit = fit_super::<16, 16, _>(&finite(weights), care, &Ints::<-4, 3>, -32..=31);
        let mut block = Q3K { d: fit.d, ..Q3K::zeroed() };
        for (i, code) in fit.codes.into_iter().enumerate() {
            block.hmask[i % 32] |= (code >> 2) << (i / 32);
            block.qs[i / 128][i % 32] |= (code & 3) << (2 * (i / 32 % 4));
        }
        for (i, scale) in fit.scales.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            block.packed_scales[i % 8] |= (scale & 15) << (4 * (i / 8));
            block.packed_scales[8 + i % 4] |= (scale >> 4) << (2 * (i / 4));
        }
        block
    }
}

impl Coded for Q3K {
    const CODING: Coding = Coding { bits: 3, table: None, bias: 4, run: 16, scales: Scales::Bytes };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&Q3K::codes(self), 4, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
        self.scales().iter().enumerate().for_each(|(i, s)| to.factor(i, *s as u8));
    }
}
