//! The registers of a warp: 32 lanes side by side, so that one instruction is a few of the host's vector instructions.

use std::ops::Range;

use bytemuck::{cast, cast_ref};

use crate::parse::Kind;

/// A register of 32 bits of all lanes, in the parts that are computed at once. One of 64 bits takes two.
pub(crate) type Slot = [[u32; PART]; PARTS];

/// Lanes computed at once.
pub(crate) const PART: usize = 8;
/// Parts of a warp.
pub(crate) const PARTS: usize = 4;
/// Lanes of a warp.
pub(crate) const LANES: usize = PART * PARTS;

/// A warp's registers.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    pub slots: Vec<Slot>,
    /// A bit for each lane.
    pub predicates: Vec<u32>,
}

impl Registers {
    /// A lane's word.
    #[inline(always)]
    pub(crate) fn word(&self, at: u16, lane: usize) -> u32 {
        self.slots[usize::from(at)][lane / PART][lane % PART]
    }

    /// All lanes' words.
    #[inline(always)]
    pub(crate) fn words(&self, at: u16) -> &[u32; LANES] {
        cast_ref(&self.slots[usize::from(at)])
    }

    #[inline(always)]
    pub(crate) fn set_words(&mut self, at: u16, words: &[u32; LANES]) {
        self.slots[usize::from(at)] = cast(*words);
    }

    #[inline(always)]
    pub(crate) fn set_word(&mut self, at: u16, lane: usize, value: u32) {
        self.slots[usize::from(at)][lane / PART][lane % PART] = value;
    }

    /// A lane's 64 bits.
    pub(crate) fn wide(&self, at: u16, lane: usize) -> u64 {
        let (slot, first) = (&self.slots[usize::from(at) + lane / 16], lane % 16 * 2);
        let word = |i: usize| u64::from(slot[i / PART][i % PART]);
        word(first) | word(first + 1) << 32
    }

    pub(crate) fn set_wide(&mut self, at: u16, lane: usize, value: u64) {
        let (slot, first) = (usize::from(at) + lane / 16, lane % 16 * 2);
        for (i, word) in [value as u32, (value >> 32) as u32].into_iter().enumerate() {
            self.slots[slot][(first + i) / PART][(first + i) % PART] = word;
        }
    }
}

/// The lanes that execute an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    pub bits: u32,
}

impl Mask {
    pub(crate) const ALL: Mask = Mask { bits: u32::MAX };

    #[inline(always)]
    pub(crate) fn is_all(self) -> bool {
        self.bits == u32::MAX
    }

    /// All ones for each of a part's lanes.
    #[inline(always)]
    fn part(self, part: usize) -> [u32; PART] {
        let bits = self.bits >> (part * PART);
        std::array::from_fn(|i| 0u32.wrapping_sub(bits >> i & 1))
    }

    /// From the first of the lanes to the last.
    #[inline(always)]
    pub(crate) fn range(self) -> Range<usize> {
        self.bits.trailing_zeros() as usize..LANES - self.bits.leading_zeros() as usize
    }

    #[inline(always)]
    pub(crate) fn lanes(self) -> impl Iterator<Item = usize> {
        let mut bits = self.bits;
        std::iter::from_fn(move || {
            let lane = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            (lane < LANES).then_some(lane)
        })
    }
}

/// How a lane's value lies in registers.
pub(crate) trait Lane {
    type Value: Copy + Default;
    const KIND: Kind;
    fn get(registers: &Registers, at: u16, part: usize) -> [Self::Value; PART];
    fn put(registers: &mut Registers, at: u16, part: usize, mask: Mask, values: [Self::Value; PART]);

    /// The values that lanes of a mask compute with; others must not be slow at it.
    #[inline(always)]
    fn operand(registers: &Registers, at: u16, part: usize, _: Mask) -> [Self::Value; PART] {
        Self::get(registers, at, part)
    }

    /// Puts the values of all parts.
    #[inline(always)]
    fn put_all(registers: &mut Registers, at: u16, mask: Mask, values: [[Self::Value; PART]; PARTS]) {
        for (part, values) in values.iter().enumerate() {
            Self::put(registers, at, part, mask, *values);
        }
    }
}

/// A predicate.
pub(crate) struct Predicate;

impl Lane for Predicate {
    type Value = bool;
    const KIND: Kind = Kind::Predicate;

    #[inline(always)]
    fn get(registers: &Registers, at: u16, part: usize) -> [bool; PART] {
        let bits = registers.predicates[usize::from(at)] >> (part * PART);
        std::array::from_fn(|i| bits >> i & 1 == 1)
    }

    #[inline(always)]
    fn put(registers: &mut Registers, at: u16, part: usize, mask: Mask, values: [bool; PART]) {
        let mask = mask.bits & 0xff << (part * PART);
        let to = &mut registers.predicates[usize::from(at)];
        *to = *to & !mask | packed(values) << (part * PART) & mask;
    }

    #[inline(always)]
    fn put_all(registers: &mut Registers, at: u16, mask: Mask, values: [[bool; PART]; PARTS]) {
        let mut bits = 0;
        for (part, values) in values.into_iter().enumerate() {
            bits |= packed(values) << (part * PART);
        }
        let to = &mut registers.predicates[usize::from(at)];
        *to = *to & !mask.bits | bits & mask.bits;
    }
}

/// A bit for each value: the product brings that of byte `i` to bit 56 + `i`, and no two to one place.
#[inline(always)]
fn packed(values: [bool; PART]) -> u32 {
    let bytes = u64::from_le_bytes(values.map(u8::from));
    (bytes.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

/// A word as it is. Others are made of it.
pub(crate) struct Word;

impl Lane for Word {
    type Value = u32;
    const KIND: Kind = Kind::Word;

    #[inline(always)]
    fn get(registers: &Registers, at: u16, part: usize) -> [u32; PART] {
        registers.slots[usize::from(at)][part]
    }

    #[inline(always)]
    fn put(registers: &mut Registers, at: u16, part: usize, mask: Mask, values: [u32; PART]) {
        let to = &mut registers.slots[usize::from(at)][part];
        if mask.is_all() {
            *to = values;
            return;
        }
        let put = mask.part(part);
        *to = std::array::from_fn(|i| to[i] & !put[i] | values[i] & put[i]);
    }
}

/// 64 bits as they are.
pub(crate) struct Wide;

impl Lane for Wide {
    type Value = u64;
    const KIND: Kind = Kind::Wide;

    #[inline(always)]
    fn get(registers: &Registers, at: u16, part: usize) -> [u64; PART] {
        let (slot, first) = (&registers.slots[usize::from(at) + part / 2], part % 2 * 2);
        cast([slot[first], slot[first + 1]])
    }

    #[inline(always)]
    fn put(registers: &mut Registers, at: u16, part: usize, mask: Mask, values: [u64; PART]) {
        let mut new = values;
        if !mask.is_all() {
            let put = mask.part(part).map(|put| i64::from(put as i32) as u64);
            let old = Wide::get(registers, at, part);
            new = std::array::from_fn(|i| old[i] & !put[i] | values[i] & put[i]);
        }
        let [low, high]: [[u32; PART]; 2] = cast(new);
        let (slot, first) = (&mut registers.slots[usize::from(at) + part / 2], part % 2 * 2);
        (slot[first], slot[first + 1]) = (low, high);
    }
}

/// Values that are words or 64 bits read otherwise.
macro_rules! over {
    ($($(#[$doc:meta])* $name:ident: $of:ty, in $base:ident, $get:expr, $put:expr $(, $operand:item)?;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;

            impl Lane for $name {
                type Value = $of;
                const KIND: Kind = $base::KIND;

                #[inline(always)]
                fn get(registers: &Registers, at: u16, part: usize) -> [$of; PART] {
                    $base::get(registers, at, part).map($get)
                }

                #[inline(always)]
                fn put(registers: &mut Registers, at: u16, part: usize, mask: Mask, values: [$of; PART]) {
                    $base::put(registers, at, part, mask, values.map($put));
                }

                $($operand)?
            }
        )*
    };
}

over! {
    Int: i32, in Word, |w| w as i32, |v| v as u32;
    /// Lanes that take no part are zero: subnormal numbers, which anything else may be, cost a hundred cycles.
    Float: f32, in Word, f32::from_bits, f32::to_bits,
        #[inline(always)]
        fn operand(registers: &Registers, at: u16, part: usize, mask: Mask) -> [f32; PART] {
            let (values, is_active) = (Word::get(registers, at, part), mask.part(part));
            std::array::from_fn(|i| f32::from_bits(values[i] & is_active[i]))
        };
    /// 16 bits, with zeros above.
    Half: u16, in Word, |w| w as u16, u32::from;
    HalfInt: i16, in Word, |w| w as i16, |v| u32::from(v as u16);
    WideInt: i64, in Wide, |w| w as i64, |v| v as u64;
    Double: f64, in Wide, f64::from_bits, f64::to_bits;
}
