//! [`DType`]: element types of tensors. Integers are stored as integers, never as floats.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the types' own")]
pub enum DType {
    F32,
    F16,
    BF16,
    I32,
    U32,
    I8,
    U8,
    /// 8-bit float e4m3: sign, 4 exponent bits, 3 mantissa bits.
    F8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I8 | DType::U8 | DType::F8 => 1,
        }
    }

    /// True if this is a float type wider than 8 bits, whose values need no scale.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// The largest code, for types that a KV cache stores with a scale: see [`LayerKv`](crate::LayerKv).
    pub const fn max_abs(self) -> Option<f32> {
        match self {
            DType::I8 => Some(127.0),
            DType::F8 => Some(448.0),
            _ => None,
        }
    }

    /// The usual short name, such as `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::F8 => "f8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A host type with a corresponding [`DType`].
pub trait Elem: bytemuck::Pod {
    /// The corresponding element type.
    const DTYPE: DType;
}

macro_rules! elem {
    ($($t:ty => $d:ident),*) => { $(impl Elem for $t { const DTYPE: DType = DType::$d; })* };
}
elem!(f32 => F32, f16 => F16, bf16 => BF16, i32 => I32, u32 => U32, i8 => I8, u8 => U8);
