//! Q2_0: 64 weights of 2 bits, which are -1, 0, 1 or 2, and one scale. `w = d * (q - 1)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled;
use crate::fit::{Ints, Unit, finite, fit_block, fit_ternary};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q2_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q2_0 {
    /// The scale.
    pub d: F16,
    /// Codes: byte `j` holds weights `4 * j` to `4 * j + 3`, lowest bits first.
    pub qs: [u8; 16],
}

impl Q2_0 {
    /// Codes in the order of the weights: 0 to 3.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 64] {
        let mut codes = [0; 64];
        for (byte, codes) in self.qs.iter().zip(codes.as_chunks_mut::<4>().0) {
            codes.iter_mut().enumerate().for_each(|(i, code)| *code = byte >> (2 * i) & 3);
        }
        codes
    }
}

impl Block for Q2_0 {
    type Weights = [f32; 64];
    const FORMAT: Format = Format::Q2_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 64]) {
        let d = self.d.get();
        scaled::<64, 64>(&self.codes().map(|q| q as i8 - 1), weights, |_| d);
    }

    fn pack(weights: &[f32; 64], care: &[f32; 64]) -> Q2_0 {
        let weights = finite(weights);
        // Many such files have no twos: their models are trained with three values.
        let (two, three) = (fit_block(&weights, care, &Ints::<-1, 2>), fit_ternary(&weights, care));
        let unit = Unit::new(&weights, care);
        let error = |d: F16| unit.error(d.get(), &Ints::<-1, 2>);
        let (d, codes) = if error(two.0) < error(three.0) {
            two
        } else {
            (three.0, unit.codes(three.0.get(), &Ints::<-1, 2>))
        };
        let mut block = Q2_0 { d, ..Q2_0::zeroed() };
        for (i, code) in codes.into_iter().enumerate() {
            block.qs[i / 4] |= code << (2 * (i % 4));
        }
        block
    }
}

impl Coded for Q2_0 {
    const CODING: Coding = Coding { bits: 2, table: None, bias: 1, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q2_0::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        (0..2).for_each(|run| to.f16(run, self.d));
    }
}
