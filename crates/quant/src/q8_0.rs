//! Q8_0: 32 weights of 8 bits and one scale. `w = d * q`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, finite, fit_block};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q8_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0 {
    /// The scale.
    pub d: F16,
    /// Codes.
    pub qs: [i8; 32],
}

impl Block for Q8_0 {
    type Weights = [f32; 32];
    const FORMAT: Format = Format::Q8_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 32]) {
        let d = self.d.get();
        scaled::<32, 32>(&self.qs, weights, |_| d);
    }

    fn pack(weights: &[f32; 32], care: &[f32; 32]) -> Q8_0 {
        // -128 is not used: its magnitude does not fit an `i8`, which kernels that multiply magnitudes rely on.
        let (d, codes) = fit_block(&finite(weights), care, &Ints::<-127, 127>);
        Q8_0 { d, qs: codes.map(|code| (i16::from(code) - 127) as i8) }
    }
}

impl Coded for Q8_0 {
    const CODING: Coding = Coding { bits: 8, table: None, bias: 0, run: 32, scales: Scales::F16 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
    }
}
