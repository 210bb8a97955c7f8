//! Q1_0: 128 weights of one bit and one scale. `w = d` where the bit is set, else `-d`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled;
use crate::fit::{finite, fit_signs};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q1_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q1_0 {
    /// The scale.
    pub d: F16,
    /// Bit `i` of byte `j` is weight `8 * j + i`'s.
    pub qs: [u8; 16],
}

impl Q1_0 {
    /// Codes in the order of the weights: 0 or 2. The scale is multiplied by one less.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 128] {
        let mut codes = [0; 128];
        for (byte, codes) in self.qs.iter().zip(codes.as_chunks_mut::<8>().0) {
            codes.iter_mut().enumerate().for_each(|(i, code)| *code = (byte >> i & 1) << 1);
        }
        codes
    }
}

impl Block for Q1_0 {
    type Weights = [f32; 128];
    const FORMAT: Format = Format::Q1_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 128]) {
        let d = self.d.get();
        scaled::<128, 128>(&self.codes().map(|q| q as i8 - 1), weights, |_| d);
    }

    fn pack(weights: &[f32; 128], care: &[f32; 128]) -> Q1_0 {
        let weights = finite(weights);
        let mut block = Q1_0 { d: fit_signs(&weights, care), ..Q1_0::zeroed() };
        for (i, w) in weights.iter().enumerate() {
            block.qs[i / 8] |= u8::from(*w >= 0.0) << (i % 8);
        }
        block
    }
}

impl Coded for Q1_0 {
    const CODING: Coding = Coding { bits: 2, table: None, bias: 1, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q1_0::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        (0..4).for_each(|run| to.f16(run, self.d));
    }
}
