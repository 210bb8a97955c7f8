//! Lane-wise instructions (ALU, conversions, comparisons): names in PTX, operand types and semantics, one line each.

use half::{bf16, f16};

use crate::isa::Isa;
use crate::parse::Kind;
use crate::registers::{
    Double, Float, Half, HalfInt, Int, Lane, Mask, PART, PARTS, Predicate, Registers, Wide, WideInt, Word,
};

/// The registers of an instruction: its result and up to three operands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    pub to: u16,
    pub from: [u16; 3],
}

/// Executes an instruction in the lanes of a mask.
pub(crate) type Function = fn(Isa, &mut Registers, Mask, &Places);

/// `Name [its names in PTX] (operand: kind, ...) -> kind { the result };`
macro_rules! table {
    ($($name:ident [$($ptx:literal),+] ($($arg:ident: $kind:ident),*) -> $out:ident $body:block)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op { $($name),* }

        impl Op {
            /// The instruction of this name.
            pub(crate) fn named(name: &str) -> Option<Op> {
                match name {
                    $($($ptx)|+ => Some(Op::$name),)*
                    _ => None,
                }
            }

            /// Types of its operands and of its result.
            pub(crate) fn kinds(self) -> (&'static [Kind], Kind) {
                match self {
                    $(Op::$name => (&[$($kind::KIND),*], $out::KIND),)*
                }
            }

        }

        /// Each instruction's function, by its number.
        pub(crate) static FUNCTIONS: &[Function] = &[$({
            #[inline(always)]
            fn run(registers: &mut Registers, mask: Mask, places: &Places) {
                let mut results = [[<$out as Lane>::Value::default(); PART]; PARTS];
                for (part, results) in results.iter_mut().enumerate() {
                    let [$($arg,)* ..] = table!(@first places.from, $($arg)*);
                    $(let $arg = $kind::operand(registers, $arg, part, mask);)*
                    for (i, result) in results.iter_mut().enumerate() {
                        $(let $arg = $arg[i];)*
                        *result = $body;
                    }
                }
                $out::put_all(registers, places.to, mask, results);
            }
            |isa, registers, mask, places| match mask.is_all() {
                true => isa.run(#[inline(always)] || run(registers, Mask::ALL, places)),
                false => isa.run(#[inline(always)] || run(registers, mask, places)),
            }
        }),*];
    };
    (@first $from:expr, $($arg:ident)*) => { $from };
}

fn shift(by: u32) -> Option<u32> {
    (by < 32).then_some(by)
}

/// Byte `by & 7` of eight bytes, or its sign alone.
#[inline(always)]
fn permuted(bytes: u64, by: u32) -> u32 {
    let byte = (bytes >> ((by & 7) * 8)) as u8;
    u32::from(if by & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 })
}

#[inline(always)]
fn halves(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// Four products of bytes, which `extend` widens, and their sum.
#[inline(always)]
fn dot4(a: u32, b: u32, of_a: fn(u8) -> i32, of_b: fn(u8) -> i32) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    (0..4).fold(0i32, |sum, i| sum.wrapping_add(of_a(a[i]) * of_b(b[i]))) as u32
}

#[inline(always)]
fn signed(byte: u8) -> i32 {
    i32::from(byte as i8)
}

/// As PTX has it: of a number and NaN the number, of two zeros the smaller. All cases are computed, so that they are chosen from
/// in all lanes at once.
#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    let same = f32::from_bits(a.to_bits() | b.to_bits() & 0x8000_0000);
    let less = if a < b { a } else { b };
    let of_numbers = if a == b { same } else { less };
    if b.is_nan() & !a.is_nan() { a } else { of_numbers }
}

/// A whole number, saturated, and 0 in place of NaN. As `f64`, with 1.5 * 2^52 added, it has its integer in its lower bits: unlike a
/// cast, that is computed in all lanes at once.
#[inline(always)]
fn integer(whole: f32) -> i32 {
    let whole = if whole.is_nan() { 0.0 } else { f64::from(whole) };
    let from_below = if whole < -2_147_483_648.0 { -2_147_483_648.0 } else { whole };
    let within = if from_below > 2_147_483_647.0 { 2_147_483_647.0 } else { from_below };
    (within + 6_755_399_441_055_744.0).to_bits() as i32
}

/// The whole quotient of words, through `f64`, which is exact: a quotient that is no whole number is at least 2^-32 of itself away
/// from the next. By 0 it is all ones.
#[inline(always)]
fn quotient(a: u32, b: u32) -> u32 {
    let quotient = (f64::from(a) / f64::from(b)).floor() + 4_503_599_627_370_496.0;
    if b == 0 { !0 } else { quotient.to_bits() as u32 }
}

/// One of the two is NaN.
#[inline(always)]
fn unordered(a: f32, b: f32) -> bool {
    a.is_nan() || b.is_nan()
}

/// Both are numbers, and not the same.
#[inline(always)]
fn differs(a: f32, b: f32) -> bool {
    a != b && !unordered(a, b)
}

#[inline(always)]
fn most(a: f32, b: f32) -> f32 {
    -least(-a, -b)
}

table! {
    // ---- moves and choices
    Move ["mov.b32", "mov.u32", "mov.s32", "mov.f32", "mov.b16", "mov.u16", "cvt.u32.u32", "cvt.s32.s32", "cvt.s32.u32",
        "cvt.u32.s32", "cvt.u32.u16", "cvt.s32.u16", "cvt.u16.u16"]
        (a: Word) -> Word { a }
    MoveWide ["mov.b64", "mov.u64", "mov.s64", "mov.f64", "cvta.to.global.u64", "cvta.global.u64", "cvt.u64.u64",
        "cvt.s64.s64", "cvt.u64.s64", "cvt.s64.u64"]
        (a: Wide) -> Wide { a }
    MovePredicate ["mov.pred"] (a: Predicate) -> Predicate { a }
    Select ["selp.b32", "selp.u32", "selp.s32", "selp.f32", "selp.b16", "selp.u16", "selp.s16", "selp.f16"]
        (a: Word, b: Word, c: Predicate) -> Word { if c { a } else { b } }
    SelectWide ["selp.b64", "selp.u64", "selp.s64", "selp.f64"]
        (a: Wide, b: Wide, c: Predicate) -> Wide { if c { a } else { b } }
    Pack ["pack.b32"] (a: Half, b: Half) -> Word { halves(a, b) }
    PackWide ["pack.b64"] (a: Word, b: Word) -> Wide { u64::from(b) << 32 | u64::from(a) }
    Low ["low.b32"] (a: Word) -> Half { a as u16 }
    High ["high.b32"] (a: Word) -> Half { (a >> 16) as u16 }
    LowWide ["low.b64", "cvt.u32.u64", "cvt.s32.u64", "cvt.u32.s64", "cvt.s32.s64"] (a: Wide) -> Word { a as u32 }
    HighWide ["high.b64"] (a: Wide) -> Word { (a >> 32) as u32 }

    // ---- whole numbers
    Add ["add.s32", "add.u32"] (a: Word, b: Word) -> Word { a.wrapping_add(b) }
    Sub ["sub.s32", "sub.u32"] (a: Word, b: Word) -> Word { a.wrapping_sub(b) }
    Mul ["mul.lo.s32", "mul.lo.u32"] (a: Word, b: Word) -> Word { a.wrapping_mul(b) }
    Mad ["mad.lo.s32", "mad.lo.u32"] (a: Word, b: Word, c: Word) -> Word { a.wrapping_mul(b).wrapping_add(c) }
    MulHigh ["mul.hi.u32"] (a: Word, b: Word) -> Word { ((u64::from(a) * u64::from(b)) >> 32) as u32 }
    MulHighInt ["mul.hi.s32"] (a: Int, b: Int) -> Int { ((i64::from(a) * i64::from(b)) >> 32) as i32 }
    Div ["div.u32"] (a: Word, b: Word) -> Word { quotient(a, b) }
    DivInt ["div.s32"] (a: Int, b: Int) -> Int { if b == 0 { !0 } else { a.wrapping_div(b) } }
    Rem ["rem.u32"] (a: Word, b: Word) -> Word {
        if b == 0 { a } else { a.wrapping_sub(quotient(a, b).wrapping_mul(b)) }
    }
    RemInt ["rem.s32"] (a: Int, b: Int) -> Int { if b == 0 { a } else { a.wrapping_rem(b) } }
    Min ["min.u32"] (a: Word, b: Word) -> Word { a.min(b) }
    MinInt ["min.s32"] (a: Int, b: Int) -> Int { a.min(b) }
    Max ["max.u32"] (a: Word, b: Word) -> Word { a.max(b) }
    MaxInt ["max.s32"] (a: Int, b: Int) -> Int { a.max(b) }
    Abs ["abs.s32"] (a: Int) -> Int { a.wrapping_abs() }
    Neg ["neg.s32"] (a: Int) -> Int { a.wrapping_neg() }
    AddHalf ["add.s16", "add.u16"] (a: Half, b: Half) -> Half { a.wrapping_add(b) }
    SubHalf ["sub.s16", "sub.u16"] (a: Half, b: Half) -> Half { a.wrapping_sub(b) }
    MulHalf ["mul.lo.s16", "mul.lo.u16"] (a: Half, b: Half) -> Half { a.wrapping_mul(b) }
    MadHalf ["mad.lo.s16", "mad.lo.u16"] (a: Half, b: Half, c: Half) -> Half { a.wrapping_mul(b).wrapping_add(c) }
    AddWide ["add.s64", "add.u64"] (a: Wide, b: Wide) -> Wide { a.wrapping_add(b) }
    SubWide ["sub.s64", "sub.u64"] (a: Wide, b: Wide) -> Wide { a.wrapping_sub(b) }
    MulLong ["mul.lo.s64", "mul.lo.u64"] (a: Wide, b: Wide) -> Wide { a.wrapping_mul(b) }
    MadLong ["mad.lo.s64", "mad.lo.u64"] (a: Wide, b: Wide, c: Wide) -> Wide { a.wrapping_mul(b).wrapping_add(c) }
    MulHighLong ["mul.hi.u64"] (a: Wide, b: Wide) -> Wide { ((u128::from(a) * u128::from(b)) >> 64) as u64 }
    DivLong ["div.u64"] (a: Wide, b: Wide) -> Wide { a.checked_div(b).unwrap_or(!0) }
    DivLongInt ["div.s64"] (a: WideInt, b: WideInt) -> WideInt { if b == 0 { !0 } else { a.wrapping_div(b) } }
    RemLong ["rem.u64"] (a: Wide, b: Wide) -> Wide { a.checked_rem(b).unwrap_or(a) }
    RemLongInt ["rem.s64"] (a: WideInt, b: WideInt) -> WideInt { if b == 0 { a } else { a.wrapping_rem(b) } }
    MinLong ["min.u64"] (a: Wide, b: Wide) -> Wide { a.min(b) }
    MinLongInt ["min.s64"] (a: WideInt, b: WideInt) -> WideInt { a.min(b) }
    MaxLong ["max.u64"] (a: Wide, b: Wide) -> Wide { a.max(b) }
    MaxLongInt ["max.s64"] (a: WideInt, b: WideInt) -> WideInt { a.max(b) }
    NegLong ["neg.s64"] (a: WideInt) -> WideInt { a.wrapping_neg() }
    MulWide ["mul.wide.u32"] (a: Word, b: Word) -> Wide { u64::from(a) * u64::from(b) }
    MulWideInt ["mul.wide.s32"] (a: Int, b: Int) -> WideInt { i64::from(a) * i64::from(b) }
    MulWideHalf ["mul.wide.u16"] (a: Half, b: Half) -> Word { u32::from(a) * u32::from(b) }
    MulWideHalfInt ["mul.wide.s16"] (a: HalfInt, b: HalfInt) -> Int { i32::from(a) * i32::from(b) }
    MadWide ["mad.wide.u32"] (a: Word, b: Word, c: Wide) -> Wide { (u64::from(a) * u64::from(b)).wrapping_add(c) }
    MadWideInt ["mad.wide.s32"] (a: Int, b: Int, c: WideInt) -> WideInt {
        (i64::from(a) * i64::from(b)).wrapping_add(c)
    }
    Dot4 ["dp4a.s32.s32"] (a: Word, b: Word, c: Word) -> Word { c.wrapping_add(dot4(a, b, signed, signed)) }
    Dot4Unsigned ["dp4a.u32.u32"] (a: Word, b: Word, c: Word) -> Word {
        c.wrapping_add(dot4(a, b, i32::from, i32::from))
    }
    Dot4Mixed ["dp4a.u32.s32"] (a: Word, b: Word, c: Word) -> Word { c.wrapping_add(dot4(a, b, i32::from, signed)) }

    // ---- bits
    And ["and.b32", "and.b16"] (a: Word, b: Word) -> Word { a & b }
    Or ["or.b32", "or.b16"] (a: Word, b: Word) -> Word { a | b }
    Xor ["xor.b32", "xor.b16"] (a: Word, b: Word) -> Word { a ^ b }
    Not ["not.b32"] (a: Word) -> Word { !a }
    NotHalf ["not.b16"] (a: Half) -> Half { !a }
    AndWide ["and.b64"] (a: Wide, b: Wide) -> Wide { a & b }
    OrWide ["or.b64"] (a: Wide, b: Wide) -> Wide { a | b }
    XorWide ["xor.b64"] (a: Wide, b: Wide) -> Wide { a ^ b }
    NotWide ["not.b64"] (a: Wide) -> Wide { !a }
    AndPredicate ["and.pred"] (a: Predicate, b: Predicate) -> Predicate { a & b }
    OrPredicate ["or.pred"] (a: Predicate, b: Predicate) -> Predicate { a | b }
    XorPredicate ["xor.pred"] (a: Predicate, b: Predicate) -> Predicate { a ^ b }
    NotPredicate ["not.pred"] (a: Predicate) -> Predicate { !a }
    Shl ["shl.b32"] (a: Word, b: Word) -> Word { shift(b).map_or(0, |by| a << by) }
    ShlHalf ["shl.b16"] (a: Half, b: Word) -> Half { if b < 16 { a << b } else { 0 } }
    ShlWide ["shl.b64"] (a: Wide, b: Word) -> Wide { if b < 64 { a << b } else { 0 } }
    Shr ["shr.u32", "shr.b32"] (a: Word, b: Word) -> Word { shift(b).map_or(0, |by| a >> by) }
    ShrInt ["shr.s32"] (a: Int, b: Word) -> Int { a >> b.min(31) }
    ShrHalf ["shr.u16", "shr.b16"] (a: Half, b: Word) -> Half { if b < 16 { a >> b } else { 0 } }
    ShrHalfInt ["shr.s16"] (a: HalfInt, b: Word) -> HalfInt { a >> b.min(15) }
    ShrWide ["shr.u64", "shr.b64"] (a: Wide, b: Word) -> Wide { if b < 64 { a >> b } else { 0 } }
    ShrWideInt ["shr.s64"] (a: WideInt, b: Word) -> WideInt { a >> b.min(63) }
    FunnelLeft ["shf.l.wrap.b32"] (a: Word, b: Word, c: Word) -> Word {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    }
    FunnelRight ["shf.r.wrap.b32"] (a: Word, b: Word, c: Word) -> Word {
        ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32
    }
    Permute ["prmt.b32"] (a: Word, b: Word, c: Word) -> Word {
        let bytes = u64::from(b) << 32 | u64::from(a);
        (0..4).fold(0, |word, i| word | permuted(bytes, c >> (4 * i)) << (8 * i))
    }
    Extract ["bfe.u32"] (a: Word, b: Word, c: Word) -> Word {
        let (start, length) = (b & 255, c & 255);
        let field = shift(start).map_or(0, |by| a >> by);
        shift(length).map_or(field, |bits| field & ((1 << bits) - 1))
    }
    ExtractInt ["bfe.s32"] (a: Int, b: Word, c: Word) -> Int {
        let (start, length) = (b & 255, c & 255);
        let end = (start + length).min(32);
        if length == 0 || start > 31 { if length == 0 { 0 } else { a >> 31 } } else { a << (32 - end) >> (32 - end + start) }
    }
    // The field's first bit, and 256 times its length.
    Insert ["bfi.b32"] (a: Word, b: Word, c: Word) -> Word {
        let (start, length) = (c & 255, c >> 8);
        let bits = shift(length).map_or(!0, |by| (1 << by) - 1);
        let mask = shift(start).map_or(0, |by| bits << by);
        b & !mask | shift(start).map_or(0, |by| a << by) & mask
    }
    Count ["popc.b32"] (a: Word) -> Word { a.count_ones() }
    LeadingZeros ["clz.b32"] (a: Word) -> Word { a.leading_zeros() }
    Reverse ["brev.b32"] (a: Word) -> Word { a.reverse_bits() }
    HighestBit ["bfind.u32"] (a: Word) -> Word { a.checked_ilog2().unwrap_or(!0) }

    // ---- f32
    AddFloat ["add.rn.f32", "add.f32"] (a: Float, b: Float) -> Float { a + b }
    SubFloat ["sub.rn.f32", "sub.f32"] (a: Float, b: Float) -> Float { a - b }
    MulFloat ["mul.rn.f32", "mul.f32"] (a: Float, b: Float) -> Float { a * b }
    Fma ["fma.rn.f32"] (a: Float, b: Float, c: Float) -> Float { a.mul_add(b, c) }
    DivFloat ["div.rn.f32"] (a: Float, b: Float) -> Float { a / b }
    Sqrt ["sqrt.rn.f32"] (a: Float) -> Float { a.sqrt() }
    Reciprocal ["rcp.rn.f32"] (a: Float) -> Float { 1.0 / a }
    MinFloat ["min.f32"] (a: Float, b: Float) -> Float { least(a, b) }
    MaxFloat ["max.f32"] (a: Float, b: Float) -> Float { most(a, b) }
    AbsFloat ["abs.f32"] (a: Float) -> Float { a.abs() }
    CopySign ["copysign.f32"] (a: Float, b: Float) -> Float { b.copysign(a) }
    NegFloat ["neg.f32"] (a: Float) -> Float { -a }
    Floor ["cvt.rmi.f32.f32"] (a: Float) -> Float { a.floor() }
    Ceil ["cvt.rpi.f32.f32"] (a: Float) -> Float { a.ceil() }
    Truncate ["cvt.rzi.f32.f32"] (a: Float) -> Float { a.trunc() }
    RoundEven ["cvt.rni.f32.f32"] (a: Float) -> Float { a.round_ties_even() }

    // ---- f64
    AddDouble ["add.rn.f64", "add.f64"] (a: Double, b: Double) -> Double { a + b }
    SubDouble ["sub.rn.f64", "sub.f64"] (a: Double, b: Double) -> Double { a - b }
    MulDouble ["mul.rn.f64", "mul.f64"] (a: Double, b: Double) -> Double { a * b }
    FmaDouble ["fma.rn.f64"] (a: Double, b: Double, c: Double) -> Double { a.mul_add(b, c) }
    DivDouble ["div.rn.f64"] (a: Double, b: Double) -> Double { a / b }

    // ---- conversions
    ExtendByte ["cvt.s32.s8", "cvt.u32.s8"] (a: Word) -> Int { i32::from(a as i8) }
    ExtendByteHalf ["cvt.s16.s8", "cvt.u16.s8"] (a: Word) -> HalfInt { i16::from(a as i8) }
    KeepByte ["cvt.u32.u8", "cvt.u16.u8", "cvt.s16.u8", "cvt.s32.u8"] (a: Word) -> Word { a & 255 }
    ExtendHalf ["cvt.s32.s16", "cvt.u32.s16"] (a: HalfInt) -> Int { i32::from(a) }
    KeepHalf ["cvt.u16.u32", "cvt.s16.u32", "cvt.u16.s32", "cvt.s16.s32"] (a: Word) -> Half { a as u16 }
    KeepHalfOfWide ["cvt.u16.u64", "cvt.u16.s64"] (a: Wide) -> Half { a as u16 }
    ExtendWord ["cvt.u64.u32", "cvt.s64.u32", "cvt.u64.u16"] (a: Word) -> Wide { u64::from(a) }
    ExtendInt ["cvt.s64.s32", "cvt.u64.s32"] (a: Int) -> WideInt { i64::from(a) }
    ExtendHalfWide ["cvt.s64.s16"] (a: HalfInt) -> WideInt { i64::from(a) }
    FloatOfInt ["cvt.rn.f32.s32"] (a: Int) -> Float { a as f32 }
    FloatOfWord ["cvt.rn.f32.u32"] (a: Word) -> Float { a as f32 }
    FloatOfHalfInt ["cvt.rn.f32.s16"] (a: HalfInt) -> Float { f32::from(a) }
    FloatOfHalfWord ["cvt.rn.f32.u16"] (a: Half) -> Float { f32::from(a) }
    FloatOfByte ["cvt.rn.f32.s8"] (a: Word) -> Float { f32::from(a as i8) }
    FloatOfByteWord ["cvt.rn.f32.u8"] (a: Word) -> Float { f32::from(a as u8) }
    IntOfFloat ["cvt.rzi.s32.f32"] (a: Float) -> Int { integer(a.trunc()) }
    WordOfFloat ["cvt.rzi.u32.f32"] (a: Float) -> Word { a as u32 }
    NearestInt ["cvt.rni.s32.f32"] (a: Float) -> Int { integer(a.round_ties_even()) }
    FloorInt ["cvt.rmi.s32.f32"] (a: Float) -> Int { integer(a.floor()) }
    DoubleOfFloat ["cvt.f64.f32"] (a: Float) -> Double { f64::from(a) }
    FloatOfDouble ["cvt.rn.f32.f64"] (a: Double) -> Float { a as f32 }
    DoubleOfWord ["cvt.rn.f64.u32"] (a: Word) -> Double { f64::from(a) }
    DoubleOfInt ["cvt.rn.f64.s32"] (a: Int) -> Double { f64::from(a) }
    DoubleOfLong ["cvt.rn.f64.s64"] (a: WideInt) -> Double { a as f64 }
    FloatOfF16 ["cvt.f32.f16"] (a: Half) -> Float { f16::from_bits(a).to_f32() }
    FloatOfBf16 ["cvt.f32.bf16"] (a: Half) -> Float { bf16::from_bits(a).to_f32() }
    F16OfFloat ["cvt.rn.f16.f32"] (a: Float) -> Half { f16::from_f32(a).to_bits() }
    Bf16OfFloat ["cvt.rn.bf16.f32"] (a: Float) -> Half { bf16::from_f32(a).to_bits() }
    // The first operand becomes the upper half.
    F16sOfFloats ["cvt.rn.f16x2.f32"] (a: Float, b: Float) -> Word {
        halves(f16::from_f32(b).to_bits(), f16::from_f32(a).to_bits())
    }
    Bf16sOfFloats ["cvt.rn.bf16x2.f32"] (a: Float, b: Float) -> Word {
        halves(bf16::from_f32(b).to_bits(), bf16::from_f32(a).to_bits())
    }

    // ---- comparisons
    Equal ["setp.eq.s32", "setp.eq.u32", "setp.eq.b32", "setp.eq.s16", "setp.eq.u16", "setp.eq.b16"]
        (a: Word, b: Word) -> Predicate { a == b }
    NotEqual ["setp.ne.s32", "setp.ne.u32", "setp.ne.b32", "setp.ne.s16", "setp.ne.u16", "setp.ne.b16"]
        (a: Word, b: Word) -> Predicate { a != b }
    Less ["setp.lt.u32", "setp.lo.u32", "setp.lt.u16"] (a: Word, b: Word) -> Predicate { a < b }
    AtMost ["setp.le.u32", "setp.ls.u32", "setp.le.u16"] (a: Word, b: Word) -> Predicate { a <= b }
    Greater ["setp.gt.u32", "setp.hi.u32", "setp.gt.u16"] (a: Word, b: Word) -> Predicate { a > b }
    AtLeast ["setp.ge.u32", "setp.hs.u32", "setp.ge.u16"] (a: Word, b: Word) -> Predicate { a >= b }
    LessInt ["setp.lt.s32"] (a: Int, b: Int) -> Predicate { a < b }
    AtMostInt ["setp.le.s32"] (a: Int, b: Int) -> Predicate { a <= b }
    GreaterInt ["setp.gt.s32"] (a: Int, b: Int) -> Predicate { a > b }
    AtLeastInt ["setp.ge.s32"] (a: Int, b: Int) -> Predicate { a >= b }
    LessHalfInt ["setp.lt.s16"] (a: HalfInt, b: HalfInt) -> Predicate { a < b }
    AtMostHalfInt ["setp.le.s16"] (a: HalfInt, b: HalfInt) -> Predicate { a <= b }
    GreaterHalfInt ["setp.gt.s16"] (a: HalfInt, b: HalfInt) -> Predicate { a > b }
    AtLeastHalfInt ["setp.ge.s16"] (a: HalfInt, b: HalfInt) -> Predicate { a >= b }
    EqualWide ["setp.eq.s64", "setp.eq.u64", "setp.eq.b64"] (a: Wide, b: Wide) -> Predicate { a == b }
    NotEqualWide ["setp.ne.s64", "setp.ne.u64", "setp.ne.b64"] (a: Wide, b: Wide) -> Predicate { a != b }
    LessWide ["setp.lt.u64"] (a: Wide, b: Wide) -> Predicate { a < b }
    AtMostWide ["setp.le.u64"] (a: Wide, b: Wide) -> Predicate { a <= b }
    GreaterWide ["setp.gt.u64"] (a: Wide, b: Wide) -> Predicate { a > b }
    AtLeastWide ["setp.ge.u64"] (a: Wide, b: Wide) -> Predicate { a >= b }
    LessWideInt ["setp.lt.s64"] (a: WideInt, b: WideInt) -> Predicate { a < b }
    AtMostWideInt ["setp.le.s64"] (a: WideInt, b: WideInt) -> Predicate { a <= b }
    GreaterWideInt ["setp.gt.s64"] (a: WideInt, b: WideInt) -> Predicate { a > b }
    AtLeastWideInt ["setp.ge.s64"] (a: WideInt, b: WideInt) -> Predicate { a >= b }
    EqualFloat ["setp.eq.f32"] (a: Float, b: Float) -> Predicate { a == b }
    NotEqualFloat ["setp.ne.f32"] (a: Float, b: Float) -> Predicate { differs(a, b) }
    LessFloat ["setp.lt.f32"] (a: Float, b: Float) -> Predicate { a < b }
    AtMostFloat ["setp.le.f32"] (a: Float, b: Float) -> Predicate { a <= b }
    GreaterFloat ["setp.gt.f32"] (a: Float, b: Float) -> Predicate { a > b }
    AtLeastFloat ["setp.ge.f32"] (a: Float, b: Float) -> Predicate { a >= b }
    EqualOrNan ["setp.equ.f32"] (a: Float, b: Float) -> Predicate { !differs(a, b) }
    NotEqualOrNan ["setp.neu.f32"] (a: Float, b: Float) -> Predicate { a != b }
    LessOrNan ["setp.ltu.f32"] (a: Float, b: Float) -> Predicate { a < b || unordered(a, b) }
    AtMostOrNan ["setp.leu.f32"] (a: Float, b: Float) -> Predicate { a <= b || unordered(a, b) }
    GreaterOrNan ["setp.gtu.f32"] (a: Float, b: Float) -> Predicate { a > b || unordered(a, b) }
    AtLeastOrNan ["setp.geu.f32"] (a: Float, b: Float) -> Predicate { a >= b || unordered(a, b) }
    IsNan ["setp.nan.f32"] (a: Float, b: Float) -> Predicate { unordered(a, b) }
    AreNumbers ["setp.num.f32"] (a: Float, b: Float) -> Predicate { !unordered(a, b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_a_cast() {
        let edges = [
            0.0,
            0.5,
            1.0,
            2_147_483_500.0,
            2_147_483_648.0,
            4e9,
            f32::MAX,
            f32::INFINITY,
            f32::MIN_POSITIVE,
        ];
        for x in edges.into_iter().flat_map(|x| [x, -x]).chain([f32::NAN]) {
            assert_eq!(integer(x.trunc()), x as i32, "{x}");
        }
        for bits in (0..=u32::MAX).step_by(65_537) {
            let x = f32::from_bits(bits);
            assert_eq!(integer(x.trunc()), x as i32, "{x}");
        }
    }

    #[test]
    fn quotients_are_exact() {
        let mut numbers =
            vec![0, 1, 2, 3, 7, 255, 256, 65_535, 65_536, 65_537, u32::MAX / 2, u32::MAX / 2 + 1];
        numbers.extend([u32::MAX - 2, u32::MAX - 1, u32::MAX, 0xaaaa_aaaa, 0x5555_5555, 1_000_000_007]);
        for (a, b) in numbers.iter().flat_map(|a| numbers.iter().map(move |b| (*a, *b))) {
            assert_eq!(quotient(a, b), a.checked_div(b).unwrap_or(!0), "{a} / {b}");
            // Just below a multiple, and just at it.
            let multiple = a / b.max(1) * b;
            for a in [multiple.wrapping_sub(1), multiple] {
                assert_eq!(quotient(a, b), a.checked_div(b).unwrap_or(!0), "{a} / {b}");
            }
        }
    }

    #[test]
    fn the_least_of_numbers_nan_and_zeros() {
        let nan = f32::NAN;
        for (a, b, want) in
            [(1.0, 2.0, 1.0), (nan, 2.0, 2.0), (1.0, nan, 1.0), (0.0, -0.0, -0.0f32), (-0.0, 0.0, -0.0)]
        {
            assert_eq!(least(a, b).to_bits(), want.to_bits(), "{a} {b}");
            assert_eq!(most(-a, -b).to_bits(), (-want).to_bits(), "{a} {b}");
        }
        assert!(least(nan, nan).is_nan());
    }
}
