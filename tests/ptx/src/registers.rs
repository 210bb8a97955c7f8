//! The registers of a warp: 32 lanes side by side, so that one instruction is a few of the host's vector instructions.

use bytemuck::cast;

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
    pub(crate) fn word(&self, at: u16, lane: usize) -> u32 {
        self.slots[usize::from(at)][lane / PART][lane % PART]
    }

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
    /// All ones for each of them.
    parts: Slot,
}

impl Mask {
    pub(crate) fn new(bits: u32) -> Mask {
        let part = |p: usize| std::array::from_fn(|i| 0u32.wrapping_sub(bits >> (p * PART + i) & 1));
        Mask { bits, parts: std::array::from_fn(part) }
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = usize> + use<> {
        let bits = self.bits;
        (0..LANES).filter(move |lane| bits >> lane & 1 == 1)
    }
}

/// How a lane's value lies in registers.
pub(crate) trait Lane {
    type Value: Copy;
    const KIND: Kind;
    fn get(registers: &Registers, at: u16, part: usize) -> [Self::Value; PART];
    fn put(registers: &mut Registers, at: u16, part: usize, mask: &Mask, values: [Self::Value; PART]);
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
    fn put(registers: &mut Registers, at: u16, part: usize, mask: &Mask, values: [bool; PART]) {
        let bits = (0..PART).fold(0, |bits, i| bits | u32::from(values[i]) << (part * PART + i));
        let mask = mask.bits & 0xff << (part * PART);
        let to = &mut registers.predicates[usize::from(at)];
        *to = *to & !mask | bits & mask;
    }
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
    fn put(registers: &mut Registers, at: u16, part: usize, mask: &Mask, values: [u32; PART]) {
        let to = &mut registers.slots[usize::from(at)][part];
        let keep = &mask.parts[part];
        for i in 0..PART {
            to[i] = to[i] & !keep[i] | values[i] & keep[i];
        }
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
    fn put(registers: &mut Registers, at: u16, part: usize, mask: &Mask, values: [u64; PART]) {
        let keep: [u64; PART] = mask.parts[part].map(|m| u64::from(m) << 32 | u64::from(m));
        let old = Wide::get(registers, at, part);
        let new: [u64; PART] = std::array::from_fn(|i| old[i] & !keep[i] | values[i] & keep[i]);
        let [low, high]: [[u32; PART]; 2] = cast(new);
        let (slot, first) = (&mut registers.slots[usize::from(at) + part / 2], part % 2 * 2);
        (slot[first], slot[first + 1]) = (low, high);
    }
}

/// Values that are words or 64 bits read otherwise.
macro_rules! over {
    ($($(#[$doc:meta])* $name:ident: $of:ty, in $base:ident, $get:expr, $put:expr;)*) => {
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
                fn put(registers: &mut Registers, at: u16, part: usize, mask: &Mask, values: [$of; PART]) {
                    $base::put(registers, at, part, mask, values.map($put));
                }
            }
        )*
    };
}

over! {
    Int: i32, in Word, |w| w as i32, |v| v as u32;
    Float: f32, in Word, f32::from_bits, f32::to_bits;
    /// 16 bits, with zeros above.
    Half: u16, in Word, |w| w as u16, u32::from;
    HalfInt: i16, in Word, |w| w as i16, |v| u32::from(v as u16);
    WideInt: i64, in Wide, |w| w as i64, |v| v as u64;
    Double: f64, in Wide, f64::from_bits, f64::to_bits;
}
