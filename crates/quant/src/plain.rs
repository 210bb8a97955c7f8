//! Plain floats: `f32`, `f16` and `bf16`. Each is a block of one weight.
//!
//! [`F16`] and [`F32`] also serve as the scales of other blocks.

use bytemuck::{Pod, Zeroable};

use crate::{Block, Coded, Coding, Format, ScaleSink, Scales};

/// An IEEE single.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct F32(pub [u8; 4]);

/// An IEEE half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct F16(pub [u8; 2]);

/// The upper half of an IEEE single.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BF16(pub [u8; 2]);

impl F32 {
    /// The value.
    #[inline(always)]
    pub fn get(self) -> f32 {
        f32::from_le_bytes(self.0)
    }
}

impl F16 {
    /// The value, exactly; NaN stays NaN.
    #[inline(always)]
    pub fn get(self) -> f32 {
        // An f16's exponent grows by 112 in an f32, and 31 (infinity and NaN) becomes 255. Exponent 0 has no implicit
        // leading one: then the value is `2 * normal - 2^-14`, which is less than `normal` there and only there. No
        // operand is a subnormal f32: they are slow, and small scales are common.
        let half = u32::from(u16::from_le_bytes(self.0));
        let body = (half & 0x7fff) << 13;
        let special = if body >= 31 << 23 { 112 << 23 } else { 0 };
        let normal = f32::from_bits(body + (112 << 23) + special);
        let subnormal = normal + normal - f32::from_bits(113 << 23);
        // Neither is negative, so their bits compare as they do.
        let magnitude = subnormal.to_bits().min(normal.to_bits());
        f32::from_bits(magnitude | (half & 0x8000) << 16)
    }

    /// The nearest `f16`, ties to even.
    pub fn nearest(x: f32) -> F16 {
        F16(half::f16::from_f32_const(x).to_le_bytes())
    }

    /// The two finite values that enclose `x`, first the one nearer to zero. They may be equal.
    pub(crate) fn around(x: f32) -> [F16; 2] {
        let nearest = F16::nearest(x.clamp(-65504.0, 65504.0));
        let bits = u16::from_le_bytes(nearest.0);
        let other = match nearest.get().abs() {
            near if near > x.abs() => bits - 1,
            near if near < x.abs() && near < 65504.0 => bits + 1,
            _ => bits,
        };
        // Among values of one sign, smaller bits mean a smaller magnitude.
        [F16(bits.min(other).to_le_bytes()), F16(bits.max(other).to_le_bytes())]
    }
}

impl BF16 {
    /// The value, exactly; NaN keeps its payload.
    #[inline(always)]
    pub fn get(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16)
    }
}

impl Block for F32 {
    type Weights = [f32; 1];
    const FORMAT: Format = Format::F32;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 1]) {
        weights[0] = self.get();
    }

    fn pack(&[x]: &[f32; 1], _: &[f32; 1]) -> F32 {
        F32(x.to_le_bytes())
    }
}

impl Block for F16 {
    type Weights = [f32; 1];
    const FORMAT: Format = Format::F16;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 1]) {
        weights[0] = self.get();
    }

    fn pack(&[x]: &[f32; 1], _: &[f32; 1]) -> F16 {
        F16::nearest(x)
    }
}

impl Block for BF16 {
    type Weights = [f32; 1];
    const FORMAT: Format = Format::BF16;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 1]) {
        weights[0] = self.get();
    }

    fn pack(&[x]: &[f32; 1], _: &[f32; 1]) -> BF16 {
        BF16(half::bf16::from_f32_const(x).to_le_bytes())
    }
}

impl Coded for F32 {
    const CODING: Coding = Coding { bits: 32, table: None, bias: 0, run: 32, scales: Scales::Plain };

    fn unsigned_codes(&self, _: &mut [u8]) {}

    fn write_scales(&self, _: &mut impl ScaleSink) {}
}

impl Coded for F16 {
    const CODING: Coding = Coding { bits: 16, table: None, bias: 0, run: 32, scales: Scales::Plain };

    fn unsigned_codes(&self, _: &mut [u8]) {}

    fn write_scales(&self, _: &mut impl ScaleSink) {}
}

impl Coded for BF16 {
    const CODING: Coding = Coding { bits: 16, table: None, bias: 0, run: 32, scales: Scales::Plain };

    fn unsigned_codes(&self, _: &mut [u8]) {}

    fn write_scales(&self, _: &mut impl ScaleSink) {}
}
