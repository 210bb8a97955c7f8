//! Q4_0: 32 weights of 4 bits and one scale. `w = d * (q - 8)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, finite, fit_block};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q4_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0 {
    /// The scale.
    pub d: F16,
    /// Codes: weight `i` in the low half of byte `i`, weight `i + 16` in the high half.
    pub qs: [u8; 16],
}

impl Q4_0 {
    /// The block with these codes, from -8 to 7, and scale `d`.
    pub fn of(d: F16, codes: &[i8; 32]) -> Q4_0 {
        let code = |i: usize| (codes[i] + 8) as u8 & 15;
        Q4_0 { d, qs: std::array::from_fn(|i| code(i) | code(i + 16) << 4) }
    }

    /// `q - 8` in the order of the weights: -8 to 7.
    #[inline(always)]
    pub fn codes(&self) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = (self.qs[i] & 15) as i8 - 8;
            codes[i + 16] = (self.qs[i] >> 4) as i8 - 8;
        }
        codes
    }
}

impl Block for Q4_0 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::Q4_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.d.get();
        scaled::<32, 32>(&self.codes(), weights, |_| d);
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> Q4_0 {
        let (d, codes) = fit_block(&finite(weights), care, &Ints::<-8, 7>);
        Q4_0 { d, qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4) }
    }
}

impl Coded for Q4_0 {
    const CODING: Coding = Coding { bits: 4, table: None, bias: 8, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&Q4_0::codes(self), 8, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
    }
}
