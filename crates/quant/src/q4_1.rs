//! Q4_1: 32 weights of 4 bits, a scale and a minimum. `w = d * q + m`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled_less;
use crate::fit::{finite, fit_affine_block};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q4_1`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1 {
    /// The scale.
    pub d: F16,
    /// The minimum: the value of code 0.
    pub m: F16,
    /// Codes: weight `i` in the low half of byte `i`, weight `i + 16` in the high half.
    pub qs: [u8; 16],
}

impl Q4_1 {
    /// Codes in the order of the weights: 0 to 15.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = self.qs[i] & 15;
            codes[i + 16] = self.qs[i] >> 4;
        }
        codes
    }
}

impl Block for Q4_1 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::Q4_1;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let (d, m) = (self.d.get(), self.m.get());
        scaled_less::<32, 32>(&self.codes(), weights, |_| (d, -m));
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> Q4_1 {
        let (d, m, codes) = fit_affine_block::<15>(&finite(weights), care);
        Q4_1 { d, m, qs: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4) }
    }
}

impl Coded for Q4_1 {
    const CODING: Coding = Coding { bits: 4, table: None, bias: 0, run: 32, scales: Scales::F16Add };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4_1::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
        to.f16(1, self.m);
    }
}
