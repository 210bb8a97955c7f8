//! Q5_0: 32 weights of 5 bits and one scale. `w = d * (q - 16)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, finite, fit_block};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q5_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0 {
    /// The scale.
    pub d: F16,
    /// The fifth bit of each code: bit `i` is weight `i`'s.
    pub qh: [u8; 4],
    /// The low four bits: weight `i` in the low half of byte `i`, weight `i + 16` in the high half.
    pub qs: [u8; 16],
}

impl Q5_0 {
    /// The block with these codes, from -16 to 15, and scale `d`.
    pub fn of(d: F16, codes: &[i8; 32]) -> Q5_0 {
        let codes = codes.map(|code| (code + 16) as u8 & 31);
        let qs = std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4);
        Q5_0 { d, qh: fifth_bits(&codes), qs }
    }

    /// `q - 16` in the order of the weights: -16 to 15.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 32] {
        let fifth = |i: usize| if self.qh[i / 8] & (1 << (i % 8)) == 0 { 0 } else { 16 };
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = (self.qs[i] & 15 | fifth(i)) as i8 - 16;
            codes[i + 16] = (self.qs[i] >> 4 | fifth(i + 16)) as i8 - 16;
        }
        codes
    }
}

/// The fifth bits of 32 codes, as they are stored.
pub(crate) fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bit = |(i, &code): (usize, &u8)| u32::from(code >> 4 & 1) << i;
    codes.iter().enumerate().map(bit).sum::<u32>().to_le_bytes()
}

impl Block for Q5_0 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::Q5_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.d.get();
        scaled::<32, 32>(&self.codes(), weights, |_| d);
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> Q5_0 {
        let (d, codes) = fit_block(&finite(weights), care, &Ints::<-16, 15>);
        let qs = std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4);
        Q5_0 { d, qh: fifth_bits(&codes), qs }
    }
}

impl Coded for Q5_0 {
    const CODING: Coding = Coding { bits: 5, table: None, bias: 16, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&Q5_0::codes(self), 16, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
    }
}
