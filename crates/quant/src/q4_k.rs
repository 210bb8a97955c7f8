//! Q4_K: 256 weights of 4 bits; every 32 have a scale and a minimum of 6 bits each. `w = d * s * q - dmin * m`.

use std::array;

use bytemuck::{Pod, Zeroable};

use crate::codes::scaled_less;
use crate::fit::{finite, fit_affine_super};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

/// A block of [`Format::Q4K`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4K {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// Super-block scale of the minimums.
    pub dmin: F16,
    /// Scales and minimums.
    pub scales: SixBits,
    /// Codes: `qs[j][i]` holds weight `64 * j + i` in the low half and weight `64 * j + 32 + i` in the high half.
    pub qs: [[u8; 32]; 4],
}

/// Eight scales and eight minimums of 6 bits in 12 bytes, as Q4_K and Q5_K have them.
///
/// Scale `i` and minimum `i` are the low six bits of bytes `i` and `i + 4` for `i` in 0..4. The others have their low
/// four bits in byte `i + 4`, scale first, and their high two in the free bits of bytes `i - 4` and `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SixBits(pub [u8; 12]);

impl SixBits {
    /// The scales, then the minimums: 0 to 63.
    #[inline(always)]
    pub fn get(&self) -> ([u8; 8], [u8; 8]) {
        let four =
            |at: usize| u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]]);
        let (first, second, third) = (four(0), four(4), four(8));
        let both = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
        let high_bits = |from: u32| (from & 0xc0c0_c0c0) >> 2;
        let scales = both(first & 0x3f3f_3f3f, third & 0x0f0f_0f0f | high_bits(first));
        let mins = both(second & 0x3f3f_3f3f, third >> 4 & 0x0f0f_0f0f | high_bits(second));
        (scales, mins)
    }

    pub(crate) fn new(scales: [u8; 8], mins: [u8; 8]) -> SixBits {
        let mut bytes = [0; 12];
        for i in 0..4 {
            bytes[i] = scales[i] | (scales[i + 4] >> 4) << 6;
            bytes[i + 4] = mins[i] | (mins[i + 4] >> 4) << 6;
            bytes[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
        }
        SixBits(bytes)
    }
}

impl Q4K {
    /// Codes in the order of the weights: 0 to 15.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for j in 0..4 {
            for i in 0..32 {
                codes[64 * j + i] = self.qs[j][i] & 15;
                codes[64 * j + 32 + i] = self.qs[j][i] >> 4;
            }
        }
        codes
    }
}

impl Block for Q4K {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::Q4K;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        let (scales, mins) = self.scales.get();
        scaled_less::<256, 32>(&self.codes(), weights, |part| {
            (d * f32::from(scales[part]), dmin * f32::from(mins[part]))
        });
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> Q4K {
        let fit = fit_affine_super::<8, 32, 15, 63>(&finite(weights), care);
        let code = |j: usize, i: usize| fit.codes[64 * j + i];
        let qs = array::from_fn(|j| array::from_fn(|i| code(j, i) | code(j, i + 32) << 4));
        Q4K { d: fit.d, dmin: fit.dmin, scales: SixBits::new(fit.scales, fit.mins), qs }
    }
}

impl Coded for Q4K {
    const CODING: Coding = Coding { bits: 4, table: None, bias: 0, run: 32, scales: Scales::BytesMin };

    #[inline(always)]
    fn unsigned_codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4K::codes(self));
    }

    fn write_scales(&self, to: &mut impl ScaleSink) {
        to.f16(0, self.d);
        to.f16(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| to.factor(i, *s));
    }
}
