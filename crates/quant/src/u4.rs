//! U4_G32, U4_G64, U4_G128: 32, 64 or 128 weights of 4 bits, a scale and a zero point. `w = d * (q - zero)`.
//!
//! Not in GGUF files: groups of folders quantized with zero points (AWQ, GPTQ, compressed-tensors) are loaded as this
//! format.

use bytemuck::{Pod, Zeroable};

use crate::codes::from_zero_point;
use crate::fit::{finite, fit_zero_point};
use crate::{Block, Coded, Coding, F16, Format, ScaleSink, Scales};

macro_rules! groups {
    ($($block:ident[$weights:literal, $bytes:literal])*) => {$(
        #[doc = concat!("A block of [`Format::", stringify!($block), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $block {
            /// The scale.
            pub d: F16,
            /// The zero point: the code of zero, at most 16. (GPTQ's may be one more than the largest code.)
            pub zero: u8,
            /// Without meaning. The codes begin with a word, which GPUs read.
            pub unused: u8,
            /// Codes: byte `4 * i + j` holds weight `8 * i + j` in the low half and weight `8 * i + 4 + j` in the high half.
            pub qs: [u8; $bytes],
        }

        impl $block {
            /// The block with these codes, from 0 to 15, scale `d` and zero point `zero`.
            pub fn of(d: F16, zero: u8, codes: &[u8; $weights]) -> $block {
                let mut qs = [0; $bytes];
                for (qs, codes) in qs.as_chunks_mut::<4>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
                    *qs = std::array::from_fn(|j| codes[j] & 15 | codes[j + 4] << 4);
                }
                $block { d, zero, unused: 0, qs }
            }

            /// Codes in the order of the weights: 0 to 15.
            #[inline(always)]
            pub fn codes(&self) -> [u8; $weights] {
                let mut codes = [0; $weights];
                for (qs, codes) in self.qs.as_chunks::<4>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
                    for j in 0..4 {
                        codes[j] = qs[j] & 15;
                        codes[j + 4] = qs[j] >> 4;
                    }
                }
                codes
            }
        }

        impl Block for $block {
            type Weights = [f32; $weights];
            const FORMAT: Format = Format::$block;

            #[inline(always)]
            fn unpack(&self, weights: &mut [f32; $weights]) {
                from_zero_point(&self.codes(), weights, self.d.get(), f32::from(self.zero));
            }

            fn pack(weights: &[f32; $weights], care: &[f32; $weights]) -> $block {
                let (d, zero, codes) = fit_zero_point(&finite(weights), care);
                $block::of(d, zero, &codes)
            }
        }

        impl Coded for $block {
            const CODING: Coding =
                Coding { bits: 4, table: None, bias: 0, run: $weights, scales: Scales::F16Zero };

            #[inline(always)]
            fn unsigned_codes(&self, out: &mut [u8]) {
                out.copy_from_slice(&$block::codes(self));
            }

            fn write_scales(&self, to: &mut impl ScaleSink) {
                to.f16(0, self.d);
                to.zero_point(self.zero);
            }
        }
    )*};
}

groups! { U4G32[32, 16] U4G64[64, 32] U4G128[128, 64] }
