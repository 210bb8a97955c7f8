//! The interpreter's instructions: PTX after lowering and register allocation.

use crate::lanes::{Op, Places};
use crate::parse::Kind;

/// A kernel, ready to be executed.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub code: Vec<Instruction>,
    /// Registers of a warp, in slots of 32 bits.
    pub slots: usize,
    pub predicates: usize,
    /// Registers whose first write could not be told from the text.
    pub shadows: usize,
    /// Registers that hold a number from the start.
    pub constants: Vec<(u16, Kind, u64)>,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate that it is executed under, and whether that must be false.
    pub guard: Option<(u16, bool)>,
    /// Its line in the text.
    pub line: u32,
    pub code: Code,
}

/// The operation of an instruction.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    /// A lane-wise operation.
    Lanes(Op, Places),
    /// `lop3`: the table says what three bits become.
    Logic {
        places: Places,
        table: u8,
    },
    Special {
        to: u16,
        what: Special,
    },
    Branch {
        target: u32,
    },
    Exit,
    Trap,
    /// Waits for all threads of the CTA.
    Barrier,
    /// Waits for these lanes of the warp.
    WarpBarrier {
        members: u16,
    },
    /// Orders the writes before it with those after it, for other CTAs.
    Fence,
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    Shuffle(Shuffle),
    Vote {
        mode: VoteMode,
        to: u16,
        from: u16,
        is_negated: bool,
        members: u16,
    },
    /// The lanes that are active.
    ActiveMask {
        to: u16,
    },
    /// `redux`: one number of all members' numbers.
    Reduce {
        op: AtomicOp,
        to: u16,
        from: u16,
        members: u16,
    },
    /// A product of two small matrices, added to a third.
    Mma(Mma),
    /// Matrices of 8 x 8 halves from shared memory, each row by the address that a lane has.
    LoadMatrix {
        address: Address,
        count: u8,
        is_transposed: bool,
        registers: [u16; 4],
    },
    /// From global to shared memory, some time before it is waited for. Past `used` bytes, zeros.
    CopyAsync {
        to: Address,
        from: Address,
        size: u8,
        used: Option<u16>,
    },
    /// The copies since the last one are a group.
    CommitCopies,
    /// Waits until no more than so many groups are under way.
    WaitCopies {
        left: u32,
    },
    /// A register that may not have been written here: looks, in the shadow of this number.
    CheckWritten {
        shadow: u16,
    },
    /// It has been.
    Written {
        shadow: u16,
    },
}

/// Registers that the launch sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Cta(usize),
    Ctas(usize),
    Lane,
    /// Lanes below, or from, the lane.
    LanesBelow,
    LanesUpTo,
}

/// Memory that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Parameters,
}

/// `[register + offset]`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub space: Space,
    pub base: Option<(u16, Kind)>,
    pub offset: i64,
}

/// Elements of a load or store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub address: Address,
    /// Bytes of each.
    pub size: u8,
    /// How many a lane reads or writes.
    pub count: u8,
    /// Whether smaller ones than a register are extended by their sign, and to how many bits.
    pub extend: Option<u8>,
    pub registers: [u16; 4],
    pub kind: Kind,
}

/// An atomic read and write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub address: Address,
    pub op: AtomicOp,
    pub kind: Kind,
    /// Destination of the old value.
    pub to: Option<u16>,
    pub by: u16,
    /// Compare-and-swap: the new value, if the old one is `by`.
    pub then: Option<u16>,
}

/// The operation of an atomic or a warp reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    AddLong,
    AddFloat,
    Min,
    MinInt,
    Max,
    MaxInt,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    /// One more, or zero from the operand on.
    Increment,
}

impl AtomicOp {
    /// The new value in place of `old`; `then` is that of a compare-and-swap.
    pub(crate) fn apply(self, old: u64, by: u64, then: u64) -> u64 {
        let (a, b) = (old as u32, by as u32);
        let word = match self {
            AtomicOp::AddLong => return old.wrapping_add(by),
            AtomicOp::Exchange => return by,
            AtomicOp::CompareExchange => return if old == by { then } else { old },
            AtomicOp::Add => a.wrapping_add(b),
            AtomicOp::AddFloat => (f32::from_bits(a) + f32::from_bits(b)).to_bits(),
            AtomicOp::Min => a.min(b),
            AtomicOp::MinInt => (a as i32).min(b as i32) as u32,
            AtomicOp::Max => a.max(b),
            AtomicOp::MaxInt => (a as i32).max(b as i32) as u32,
            AtomicOp::And => a & b,
            AtomicOp::Or => a | b,
            AtomicOp::Xor => a ^ b,
            AtomicOp::Increment => {
                if a >= b {
                    0
                } else {
                    a + 1
                }
            }
        };
        u64::from(word)
    }
}

/// `shfl.sync`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shuffle {
    pub mode: ShuffleMode,
    pub to: u16,
    /// Whether the lane was within bounds.
    pub within: Option<u16>,
    pub from: u16,
    pub by: u16,
    pub bounds: u16,
    pub members: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Ballot,
}

/// `mma`: fragments of a matrix are spread over the lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mma {
    pub kind: MmaKind,
    pub to: [u16; 4],
    pub a: [u16; 4],
    pub b: [u16; 2],
    pub c: [u16; 4],
}

/// Types of the factors; sums are `i32` or `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaKind {
    /// `m16n8k32`; whether the first and the second factor are signed.
    Bytes(bool, bool),
    /// `m16n8k16`
    F16,
    Bf16,
}

impl Code {
    /// Calls `each` with every register: its number, what it holds, and whether it is written.
    pub(crate) fn registers(&mut self, mut each: impl FnMut(&mut u16, Kind, bool)) {
        use Kind::{Predicate, Word};
        match self {
            Code::Lanes(op, places) => {
                let (from, to) = op.kinds();
                for (at, kind) in places.from.iter_mut().zip(from) {
                    each(at, *kind, false);
                }
                each(&mut places.to, to, true);
            }
            Code::Logic { places, .. } => {
                places.from.iter_mut().for_each(|at| each(at, Word, false));
                each(&mut places.to, Word, true);
            }
            Code::Special { to, .. } | Code::ActiveMask { to } => each(to, Word, true),
            Code::WarpBarrier { members } => each(members, Word, false),
            Code::Load(access) => {
                access.address.register(&mut each);
                for at in &mut access.registers[..usize::from(access.count)] {
                    each(at, access.kind, true);
                }
            }
            Code::Store(access) => {
                access.address.register(&mut each);
                for at in &mut access.registers[..usize::from(access.count)] {
                    each(at, access.kind, false);
                }
            }
            Code::Atomic(atomic) => {
                atomic.address.register(&mut each);
                each(&mut atomic.by, atomic.kind, false);
                atomic.then.iter_mut().for_each(|at| each(at, atomic.kind, false));
                atomic.to.iter_mut().for_each(|at| each(at, atomic.kind, true));
            }
            Code::Shuffle(s) => {
                for at in [&mut s.from, &mut s.by, &mut s.bounds, &mut s.members] {
                    each(at, Word, false);
                }
                each(&mut s.to, Word, true);
                s.within.iter_mut().for_each(|at| each(at, Predicate, true));
            }
            Code::Vote { mode, to, from, members, .. } => {
                each(from, Predicate, false);
                each(members, Word, false);
                each(to, if *mode == VoteMode::Ballot { Word } else { Predicate }, true);
            }
            Code::Reduce { to, from, members, .. } => {
                each(from, Word, false);
                each(members, Word, false);
                each(to, Word, true);
            }
            Code::Mma(mma) => {
                let from = mma.a.iter_mut().chain(&mut mma.b).chain(&mut mma.c);
                from.for_each(|at| each(at, Word, false));
                mma.to.iter_mut().for_each(|at| each(at, Word, true));
            }
            Code::LoadMatrix { address, count, registers, .. } => {
                address.register(&mut each);
                registers[..usize::from(*count)].iter_mut().for_each(|at| each(at, Word, true));
            }
            Code::CopyAsync { to, from, used, .. } => {
                to.register(&mut each);
                from.register(&mut each);
                used.iter_mut().for_each(|at| each(at, Word, false));
            }
            Code::Branch { .. }
            | Code::Exit
            | Code::Trap
            | Code::Barrier
            | Code::Fence
            | Code::CommitCopies
            | Code::WaitCopies { .. }
            | Code::CheckWritten { .. }
            | Code::Written { .. } => {}
        }
    }
}

impl Address {
    fn register(&mut self, each: &mut impl FnMut(&mut u16, Kind, bool)) {
        if let Some((at, kind)) = &mut self.base {
            each(at, *kind, false);
        }
    }
}
