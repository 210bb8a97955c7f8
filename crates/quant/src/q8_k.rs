//! Q8_K: 256 weights of 8 bits and one scale, and the sums that a dot product with another k-quant needs. `w = d * q`.

use bytemuck::{Pod, Zeroable};

use crate::codes::{scaled, unsigned};
use crate::fit::{Ints, Unit, finite};
use crate::{Block, Coded, Coding, F32, Format, ScaleSink, Scales};

/// A block of [`Format::Q8K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8K {
    /// The scale.
    pub d: F32,
    /// Codes.
    pub qs: [i8; 256],
    /// The sum of every 16 codes, each an `i16`, low byte first.
    pub bsums: [[u8; 2]; 16],
}

impl Q8K {
    /// The block with these codes and scale `d`.
    pub fn of(d: F32, qs: &[i8; 256]) -> Q8K {
        let sum = |sub: usize| qs[16 * sub..16 * sub + 16].iter().map(|&q| i16::from(q)).sum::<i16>();
        Q8K { d, qs: *qs, bsums: std::array::from_fn(|sub| sum(sub).to_le_bytes()) }
    }
}

impl Block for Q8K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q8K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let d = self.d.get();
        scaled::<256, 256>(&self.qs, weights, |_| d);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q8K {
        let unit = Unit::new(&finite(weights), care);
        let grid = Ints::<-127, 127>;
        // Keeps the largest code's value finite.
        let d = unit.best_scale(&grid).clamp(f32::MIN / 128.0, f32::MAX / 128.0);
        let qs = unit.codes(d, &grid).map(|code| (i16::from(code) - 127) as i8);
        Q8K::of(F32(d.to_le_bytes()), &qs)
    }
}

impl Coded for Q8K {
    const CODING: Coding = Coding { bits: 8, table: None, bias: 0, run: 256, scales: Scales::F32 };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f32(self.d.get());
    }
}
