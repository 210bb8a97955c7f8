//! TQ2_0: 256 ternary weights (-1, 0 or 1) of 2 bits, and one scale. `w = d * (q - 1)`.

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled;
use crate::fit::{finite, fit_ternary};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::TQ2_0`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ2_0 {
    /// Codes: `qs[h][i]` holds weights `128 * h + 32 * j + i` for `j` in 0..4, lowest bits first.
    pub qs: [[u8; 32]; 2],
    /// The scale.
    pub d: F16,
}

impl TQ2_0 {
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

impl Block for TQ2_0 {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::TQ2_0;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        scaled::<256, 256>(&self.codes().map(|q| q as i8 - 1), weights, |_| d);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> TQ2_0 {
        let (d, codes) = fit_ternary(&finite(weights), care);
        let mut block = TQ2_0 { d, ..TQ2_0::zeroed() };
        for (i, code) in codes.into_iter().enumerate() {
            block.qs[i / 128][i % 32] |= code << (2 * (i / 32 % 4));
        }
        block
    }
}

impl Coded for TQ2_0 {
    const CODING: Coding = Coding { bits: 2, table: None, bias: 1, run: 256, scales: Scales::F32 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&TQ2_0::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
    }
}
