//! Lowers parsed PTX to the interpreter's instructions over virtual registers. An unknown instruction is an error: all of the PTX
//! we ship is understood.

use std::collections::HashMap;
use std::ops::Range;

use crate::code::{
    Access, Address, Atomic, AtomicOp, Code, Instruction, Lowered, Mma, MmaKind, Shuffle, ShuffleMode, Space,
    Special, VoteMode,
};
use crate::fault::Error;
use crate::lanes::{Op, Places};
use crate::parse::{Entry, Kind, Operand, Statement};
use crate::regalloc;

struct Lowering<'a> {
    entry: &'a Entry<'a>,
    shared: HashMap<&'a str, Range<usize>>,
    /// Types of the virtual registers: the PTX's own, then constants and temporaries.
    kinds: Vec<Kind>,
    constants: Vec<(u16, Kind, u64)>,
    code: Vec<Instruction>,
    line: u32,
    guard: Option<(u16, bool)>,
}

/// Lowers a kernel.
pub(crate) fn lower(entry: &Entry<'_>) -> Result<Lowered, Error> {
    let mut lowering = Lowering {
        entry,
        shared: entry.shared.iter().cloned().collect(),
        kinds: entry.registers.clone(),
        constants: Vec::new(),
        code: Vec::new(),
        line: 0,
        guard: None,
    };
    // Statements may become several instructions; branches name statements until all are there.
    let mut starts = Vec::with_capacity(entry.code.len() + 1);
    for statement in &entry.code {
        starts.push(lowering.code.len() as u32);
        lowering.line = statement.line;
        lowering.guard = match statement.guard {
            Some((at, negated)) => Some((number(at, statement.line)?, negated)),
            None => None,
        };
        lowering.statement(statement)?;
    }
    starts.push(lowering.code.len() as u32);
    lowering.guard = None;
    lowering.push(Code::Exit);
    for instruction in &mut lowering.code {
        if let Code::Branch { target } = &mut instruction.code {
            *target = starts[*target as usize];
        }
    }
    regalloc::allocate(lowering.code, &lowering.kinds, lowering.constants)
}

fn number(at: usize, line: u32) -> Result<u16, Error> {
    u16::try_from(at).map_err(|_| Error::parse(line, "more registers than 65535"))
}

/// Bytes of a type's elements, what register holds one, and whether its sign is extended.
fn element(of: &str) -> Option<(u8, Kind, bool)> {
    Some(match of {
        "b8" | "u8" => (1, Kind::Word, false),
        "s8" => (1, Kind::Word, true),
        "b16" | "u16" | "f16" | "bf16" => (2, Kind::Word, false),
        "s16" => (2, Kind::Word, true),
        "b32" | "u32" | "f32" => (4, Kind::Word, false),
        "s32" => (4, Kind::Word, true),
        "b64" | "u64" | "s64" | "f64" => (8, Kind::Wide, false),
        _ => return None,
    })
}

impl<'a> Lowering<'a> {
    fn error(&self, what: impl Into<String>) -> Error {
        Error::parse(self.line, what)
    }

    fn push(&mut self, code: Code) {
        self.code.push(Instruction { guard: self.guard, line: self.line, code });
    }

    fn fresh(&mut self, kind: Kind) -> Result<u16, Error> {
        self.kinds.push(kind);
        number(self.kinds.len() - 1, self.line)
    }

    /// A register that always holds this.
    fn constant(&mut self, value: u64, kind: Kind) -> Result<u16, Error> {
        let value = if kind == Kind::Wide { value } else { value & 0xffff_ffff };
        let known = self.constants.iter().find(|(_, k, v)| *k == kind && *v == value);
        if let Some((at, ..)) = known {
            return Ok(*at);
        }
        let at = self.fresh(kind)?;
        self.constants.push((at, kind, value));
        Ok(at)
    }

    /// The register of an operand that is read, of this kind. `narrow` are the bits that a constant has of a word.
    fn read(&mut self, operand: &Operand<'a>, kind: Kind, narrow: bool) -> Result<u16, Error> {
        match operand {
            Operand::Register(at) => self.register(*at, kind),
            Operand::Number(n) if kind != Kind::Predicate => {
                self.constant(if narrow { n & 0xffff } else { *n }, kind)
            }
            Operand::Not(at) if kind == Kind::Predicate => {
                let (to, from) = (self.fresh(kind)?, self.register(*at, kind)?);
                self.push(Code::Lanes(Op::NotPredicate, Places { to, from: [from, 0, 0] }));
                Ok(to)
            }
            Operand::Symbol(name) if kind != Kind::Predicate => {
                // Of a parameter it is the place among all of them.
                let parameter = self.entry.params.iter().find(|(n, _)| n == name).map(|(_, place)| place);
                let place = self.shared.get(name).or(parameter);
                let place = place.ok_or_else(|| self.error(format!("nothing is called {name}")))?;
                self.constant(place.start as u64, kind)
            }
            Operand::Special(name) if kind == Kind::Word => self.special(name),
            other => Err(self.error(format!("{other:?} where {kind:?} is read"))),
        }
    }

    fn register(&self, at: usize, kind: Kind) -> Result<u16, Error> {
        match self.kinds[at] == kind {
            true => number(at, self.line),
            false => Err(self.error(format!("a register of {:?} in place of {kind:?}", self.kinds[at]))),
        }
    }

    fn special(&mut self, name: &str) -> Result<u16, Error> {
        let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| *axis == name);
        let what = match name.trim_start_matches('%').split_once('.') {
            Some(("tid", of)) => axis(of).map(Special::Thread),
            Some(("ntid", of)) => axis(of).map(Special::Threads),
            Some(("ctaid", of)) => axis(of).map(Special::Cta),
            Some(("nctaid", of)) => axis(of).map(Special::Ctas),
            _ => match name {
                "%laneid" => Some(Special::Lane),
                "%lanemask_lt" => Some(Special::LanesBelow),
                "%lanemask_le" => Some(Special::LanesUpTo),
                _ => None,
            },
        };
        let what = what.ok_or_else(|| self.error(format!("the register {name}")))?;
        let to = self.fresh(Kind::Word)?;
        self.push(Code::Special { to, what });
        Ok(to)
    }

    /// The register that an operand writes to. What is not wanted goes to one that nobody reads.
    fn write(&mut self, operand: &Operand<'a>, kind: Kind) -> Result<u16, Error> {
        match operand {
            Operand::Register(at) => self.register(*at, kind),
            Operand::Ignored => self.fresh(kind),
            other => Err(self.error(format!("{other:?} where {kind:?} is written"))),
        }
    }

    fn address(&mut self, operand: &Operand<'a>, space: Space) -> Result<Address, Error> {
        let Operand::Memory(base, offset) = operand else {
            return Err(self.error(format!("{operand:?} in place of an address")));
        };
        let (base, start) = match (&**base, space) {
            (Operand::Register(at), _) if self.kinds[*at] != Kind::Predicate => {
                (Some((number(*at, self.line)?, self.kinds[*at])), 0)
            }
            (Operand::Symbol(name), Space::Parameters) => {
                let place = self.entry.params.iter().find(|(n, _)| n == name);
                (None, place.ok_or_else(|| self.error(format!("no parameter is called {name}")))?.1.start)
            }
            (Operand::Symbol(name), Space::Shared) => {
                let place = self.shared.get(name);
                (None, place.ok_or_else(|| self.error(format!("nothing shared is called {name}")))?.start)
            }
            (other, _) => return Err(self.error(format!("{other:?} as an address"))),
        };
        Ok(Address { space, base, offset: offset + start as i64 })
    }

    fn statement(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let parts: Vec<&str> = s.opcode.split('.').collect();
        match parts[0] {
            "bra" => {
                let [Operand::Symbol(label)] = s.operands.as_slice() else { return Err(self.unknown(s)) };
                let target = self.entry.labels.get(label);
                let target = *target.ok_or_else(|| self.error(format!("no label is called {label}")))? as u32;
                self.push(Code::Branch { target });
            }
            "ret" | "exit" => self.push(Code::Exit),
            "trap" => self.push(Code::Trap),
            "bar" | "barrier" => match (s.opcode, s.operands.as_slice()) {
                ("bar.sync" | "barrier.sync", [Operand::Number(0)]) => self.push(Code::Barrier),
                ("bar.warp.sync", [members]) => {
                    let members = self.read(members, Kind::Word, false)?;
                    self.push(Code::WarpBarrier { members });
                }
                _ => return Err(self.unknown(s)),
            },
            "membar" | "fence" => match s.opcode {
                "membar.gl" | "fence.acq_rel.gpu" | "fence.sc.gpu" => self.push(Code::Fence),
                _ => return Err(self.unknown(s)),
            },
            "ld" | "ldu" | "st" => self.memory(s, &parts)?,
            "prefetch" => self.prefetch(s)?,
            "atom" | "red" => self.atomic(s, &parts)?,
            "shfl" => self.shuffle(s, &parts)?,
            "vote" => self.vote(s)?,
            "activemask" => match s.operands.as_slice() {
                [to] => {
                    let to = self.write(to, Kind::Word)?;
                    self.push(Code::ActiveMask { to });
                }
                _ => return Err(self.unknown(s)),
            },
            "redux" => self.reduce(s)?,
            "mma" => self.mma(s)?,
            "ldmatrix" => self.load_matrix(s)?,
            "cp" => self.copy_async(s)?,
            "lop3" => {
                let ("lop3.b32", [to, a, b, c, Operand::Number(table)]) = (s.opcode, s.operands.as_slice())
                else {
                    return Err(self.unknown(s));
                };
                let mut from = [0; 3];
                for (at, operand) in from.iter_mut().zip([a, b, c]) {
                    *at = self.read(operand, Kind::Word, false)?;
                }
                let places = Places { to: self.write(to, Kind::Word)?, from };
                self.push(Code::Logic { places, table: *table as u8 });
            }
            "bfi" => {
                let [to, a, b, Operand::Number(start), Operand::Number(length)] = s.operands.as_slice()
                else {
                    return Err(self.unknown(s));
                };
                let field = Operand::Number(start & 255 | (length & 255) << 8);
                let op = Op::named(s.opcode).ok_or_else(|| self.unknown(s))?;
                let mut from = [0; 3];
                for (at, operand) in from.iter_mut().zip([a, b, &field]) {
                    *at = self.read(operand, Kind::Word, false)?;
                }
                let to = self.write(to, Kind::Word)?;
                self.push(Code::Lanes(op, Places { to, from }));
            }
            "mov" if matches!(s.operands.as_slice(), [Operand::Vector(_), _] | [_, Operand::Vector(_)]) => {
                self.pack(s)?;
            }
            "setp" => self.compare(s, &parts)?,
            "mov" if matches!((parts[1], s.operands.as_slice()), ("pred", [_, Operand::Number(_)])) => {
                // A constant is a word.
                let op = Op::named("setp.ne.u32").ok_or_else(|| self.unknown(s))?;
                let from = [self.read(&s.operands[1], Kind::Word, false)?, self.constant(0, Kind::Word)?, 0];
                let to = self.write(&s.operands[0], Kind::Predicate)?;
                self.push(Code::Lanes(op, Places { to, from }));
            }
            _ => self.lanes(s, s.opcode)?,
        }
        Ok(())
    }

    fn unknown(&self, s: &Statement<'_>) -> Error {
        self.error(format!("{} is not known, or not with these operands", s.opcode))
    }

    /// An instruction of the table.
    fn lanes(&mut self, s: &Statement<'a>, opcode: &str) -> Result<(), Error> {
        let op = Op::named(opcode).ok_or_else(|| self.unknown(s))?;
        let (kinds, out) = op.kinds();
        let [to, operands @ ..] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        if operands.len() != kinds.len() {
            return Err(self.unknown(s));
        }
        let narrow = opcode.ends_with("16") && !opcode.starts_with("sh");
        let mut from = [0; 3];
        for ((at, operand), kind) in from.iter_mut().zip(operands).zip(kinds) {
            *at = self.read(operand, *kind, narrow)?;
        }
        let to = self.write(to, out)?;
        self.push(Code::Lanes(op, Places { to, from }));
        Ok(())
    }

    /// `mov.b32 d, {a, b}` and `mov.b32 {a, b}, d`.
    fn pack(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let (whole, half, op, low, high) = match s.opcode {
            "mov.b32" => (Kind::Word, Kind::Word, Op::Pack, Op::Low, Op::High),
            "mov.b64" => (Kind::Wide, Kind::Word, Op::PackWide, Op::LowWide, Op::HighWide),
            _ => return Err(self.unknown(s)),
        };
        match s.operands.as_slice() {
            [to, Operand::Vector(parts)] if parts.len() == 2 => {
                let narrow = s.opcode == "mov.b32";
                let from = [self.read(&parts[0], half, narrow)?, self.read(&parts[1], half, narrow)?, 0];
                let to = self.write(to, whole)?;
                self.push(Code::Lanes(op, Places { to, from }));
            }
            [Operand::Vector(parts), from] if parts.len() == 2 => {
                let from = self.read(from, whole, false)?;
                // The source may be one of the results.
                let first = self.fresh(half)?;
                self.push(Code::Lanes(low, Places { to: first, from: [from, 0, 0] }));
                let second = self.write(&parts[1], half)?;
                self.push(Code::Lanes(high, Places { to: second, from: [from, 0, 0] }));
                let to = self.write(&parts[0], half)?;
                self.push(Code::Lanes(Op::Move, Places { to, from: [first, 0, 0] }));
            }
            _ => return Err(self.unknown(s)),
        }
        Ok(())
    }

    /// `setp.lt.s32 p, a, b` and `setp.lt.and.s32 p, a, b, q`.
    fn compare(&mut self, s: &Statement<'a>, parts: &[&str]) -> Result<(), Error> {
        let &["setp", how, with, of] = parts else { return self.lanes(s, s.opcode) };
        let with = match with {
            "and" => Op::AndPredicate,
            "or" => Op::OrPredicate,
            "xor" => Op::XorPredicate,
            _ => return Err(self.unknown(s)),
        };
        let [to, a, b, other] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        let op = Op::named(&format!("setp.{how}.{of}")).ok_or_else(|| self.unknown(s))?;
        let kind = op.kinds().0[0];
        let narrow = of.ends_with("16");
        let between = self.fresh(Kind::Predicate)?;
        let from = [self.read(a, kind, narrow)?, self.read(b, kind, narrow)?, 0];
        let other = self.read(other, Kind::Predicate, false)?;
        self.push(Code::Lanes(op, Places { to: between, from }));
        let to = self.write(to, Kind::Predicate)?;
        self.push(Code::Lanes(with, Places { to, from: [between, other, 0] }));
        Ok(())
    }

    fn memory(&mut self, s: &Statement<'a>, parts: &[&str]) -> Result<(), Error> {
        let (mut space, mut count, mut of) = (None, 1, None);
        for part in &parts[1..] {
            match *part {
                "global" => space = Some(Space::Global),
                "shared" => space = Some(Space::Shared),
                "param" => space = Some(Space::Parameters),
                "v2" => count = 2,
                "v4" => count = 4,
                // How memory is cached changes no result.
                "nc" | "ca" | "cg" | "cs" | "lu" | "wb" | "wt" => {}
                hint if hint.starts_with("L1::") || hint.starts_with("L2::") => {}
                other => of = Some(element(other).ok_or_else(|| self.unknown(s))?),
            }
        }
        let (Some(space), Some((size, mut kind, is_signed))) = (space, of) else {
            return Err(self.unknown(s));
        };
        let (address, data) = match (parts[0], s.operands.as_slice()) {
            ("st", [address, data]) => (address, data),
            ("ld", [data, address]) => (address, data),
            _ => return Err(self.unknown(s)),
        };
        let address = self.address(address, space)?;
        let single = [data.clone()];
        let list = match data {
            Operand::Vector(list) => list.as_slice(),
            _ => &single,
        };
        if list.len() != usize::from(count) {
            return Err(self.unknown(s));
        }
        // A byte or half extended by its sign fills the register that it is loaded to, of 16 bits or of 32.
        let mut extend = None;
        let mut registers = [0; 4];
        for (at, operand) in registers.iter_mut().zip(list) {
            // A load may fill a register that is wider than what it loads.
            if parts[0] == "ld" && matches!(operand, Operand::Register(at) if self.kinds[*at] == Kind::Wide) {
                kind = Kind::Wide;
            }
            *at = match parts[0] {
                "st" => self.read(operand, kind, size == 2)?,
                _ => self.write(operand, kind)?,
            };
            if is_signed {
                extend = Some(match kind {
                    Kind::Wide => 64,
                    _ if self.is_narrow(operand) => 16,
                    _ => 32,
                });
            }
        }
        let access = Access { address, size, count, extend, registers, kind };
        self.push(if parts[0] == "st" { Code::Store(access) } else { Code::Load(access) });
        Ok(())
    }

    /// A load of one byte, which nobody reads: what is prefetched should be there.
    fn prefetch(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let ("prefetch.global.L2", [address]) = (s.opcode, s.operands.as_slice()) else {
            return Err(self.unknown(s));
        };
        let (address, kind) = (self.address(address, Space::Global)?, Kind::Word);
        let registers = [self.fresh(kind)?, 0, 0, 0];
        self.push(Code::Load(Access { address, size: 1, count: 1, extend: None, registers, kind }));
        Ok(())
    }

    /// Whether a register was declared with 16 bits.
    fn is_narrow(&self, operand: &Operand<'a>) -> bool {
        matches!(operand, Operand::Register(at) if self.entry.narrow.contains(at))
    }

    fn atomic(&mut self, s: &Statement<'a>, parts: &[&str]) -> Result<(), Error> {
        let (mut space, mut how, mut of) = (None, None, None);
        for part in &parts[1..] {
            match *part {
                "global" => space = Some(Space::Global),
                "shared" => space = Some(Space::Shared),
                "relaxed" | "gpu" | "cta" => {}
                "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" => how = Some(*part),
                other => of = Some(other),
            }
        }
        let (Some(space), Some(how), Some(of)) = (space, how, of) else { return Err(self.unknown(s)) };
        let op = atomic_op(how, of).ok_or_else(|| self.unknown(s))?;
        let kind = if of.ends_with("64") { Kind::Wide } else { Kind::Word };
        let (to, rest) = match (parts[0], s.operands.as_slice()) {
            ("atom", [to, rest @ ..]) => (Some(self.write(to, kind)?), rest),
            (_, rest) => (None, rest),
        };
        let (address, by, then) = match rest {
            [address, by] if op != AtomicOp::CompareExchange => (address, by, None),
            [address, by, then] if op == AtomicOp::CompareExchange => (address, by, Some(then)),
            _ => return Err(self.unknown(s)),
        };
        let address = self.address(address, space)?;
        let by = self.read(by, kind, false)?;
        let then = then.map(|then| self.read(then, kind, false)).transpose()?;
        self.push(Code::Atomic(Atomic { address, op, kind, to, by, then }));
        Ok(())
    }

    fn shuffle(&mut self, s: &Statement<'a>, parts: &[&str]) -> Result<(), Error> {
        let mode = match parts {
            ["shfl", "sync", "up", "b32"] => ShuffleMode::Up,
            ["shfl", "sync", "down", "b32"] => ShuffleMode::Down,
            ["shfl", "sync", "bfly", "b32"] => ShuffleMode::Butterfly,
            ["shfl", "sync", "idx", "b32"] => ShuffleMode::Index,
            _ => return Err(self.unknown(s)),
        };
        let [to, from, by, bounds, members] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        let (to, within) = match to {
            Operand::Pair(to, within) => {
                (self.register(*to, Kind::Word)?, Some(self.register(*within, Kind::Predicate)?))
            }
            to => (self.write(to, Kind::Word)?, None),
        };
        let mut read = |operand| self.read(operand, Kind::Word, false);
        let (from, by, bounds, members) = (read(from)?, read(by)?, read(bounds)?, read(members)?);
        self.push(Code::Shuffle(Shuffle { mode, to, within, from, by, bounds, members }));
        Ok(())
    }

    fn vote(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let (mode, kind) = match s.opcode {
            "vote.sync.all.pred" => (VoteMode::All, Kind::Predicate),
            "vote.sync.any.pred" => (VoteMode::Any, Kind::Predicate),
            "vote.sync.ballot.b32" => (VoteMode::Ballot, Kind::Word),
            _ => return Err(self.unknown(s)),
        };
        let [to, from, members] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        let (from, is_negated) = match from {
            Operand::Not(at) => (self.register(*at, Kind::Predicate)?, true),
            from => (self.read(from, Kind::Predicate, false)?, false),
        };
        let members = self.read(members, Kind::Word, false)?;
        let to = self.write(to, kind)?;
        self.push(Code::Vote { mode, to, from, is_negated, members });
        Ok(())
    }

    /// The registers of a vector, all of which hold words.
    fn words<const N: usize>(
        &mut self,
        s: &Statement<'a>,
        operand: &Operand<'a>,
        is_written: bool,
    ) -> Result<[u16; N], Error> {
        let Operand::Vector(list) = operand else { return Err(self.unknown(s)) };
        if list.len() != N {
            return Err(self.unknown(s));
        }
        let mut registers = [0; N];
        for (at, operand) in registers.iter_mut().zip(list) {
            *at = match is_written {
                true => self.write(operand, Kind::Word)?,
                false => self.read(operand, Kind::Word, false)?,
            };
        }
        Ok(registers)
    }

    fn mma(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let kind = match s.opcode {
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => MmaKind::Bytes(true, true),
            "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" => MmaKind::Bytes(false, true),
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => MmaKind::F16,
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => MmaKind::Bf16,
            _ => return Err(self.unknown(s)),
        };
        let [to, a, b, c] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        let (a, b, c) = (self.words(s, a, false)?, self.words(s, b, false)?, self.words(s, c, false)?);
        let to = self.words(s, to, true)?;
        self.push(Code::Mma(Mma { kind, to, a, b, c }));
        Ok(())
    }

    fn load_matrix(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let (count, is_transposed) = match s.opcode {
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16" => (1, false),
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16" => (2, false),
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16" => (4, false),
            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16" => (2, true),
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" => (4, true),
            _ => return Err(self.unknown(s)),
        };
        let [Operand::Vector(list), address] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        if list.len() != usize::from(count) {
            return Err(self.unknown(s));
        }
        let address = self.address(address, Space::Shared)?;
        let mut registers = [0; 4];
        for (at, operand) in registers.iter_mut().zip(list) {
            *at = self.write(operand, Kind::Word)?;
        }
        self.push(Code::LoadMatrix { address, count, is_transposed, registers });
        Ok(())
    }

    fn copy_async(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let parts: Vec<&str> = s.opcode.split('.').filter(|part| !part.starts_with("L2::")).collect();
        let code = match (parts.as_slice(), s.operands.as_slice()) {
            (["cp", "async", "commit_group"], []) => Code::CommitCopies,
            (["cp", "async", "wait_all"], []) => Code::WaitCopies { left: 0 },
            (["cp", "async", "wait_group"], [Operand::Number(left)]) => {
                Code::WaitCopies { left: *left as u32 }
            }
            (
                ["cp", "async", "ca" | "cg", "shared", "global"],
                [to, from, Operand::Number(size @ (4 | 8 | 16)), rest @ ..],
            ) => {
                let (to, from) = (self.address(to, Space::Shared)?, self.address(from, Space::Global)?);
                let used = match rest {
                    [] => None,
                    [used] => Some(self.read(used, Kind::Word, false)?),
                    _ => return Err(self.unknown(s)),
                };
                Code::CopyAsync { to, from, size: *size as u8, used }
            }
            _ => return Err(self.unknown(s)),
        };
        self.push(code);
        Ok(())
    }

    fn reduce(&mut self, s: &Statement<'a>) -> Result<(), Error> {
        let &["redux", "sync", how, of] = s.opcode.split('.').collect::<Vec<_>>().as_slice() else {
            return Err(self.unknown(s));
        };
        let op = atomic_op(how, of).ok_or_else(|| self.unknown(s))?;
        let [to, from, members] = s.operands.as_slice() else { return Err(self.unknown(s)) };
        let from = self.read(from, Kind::Word, false)?;
        let members = self.read(members, Kind::Word, false)?;
        let to = self.write(to, Kind::Word)?;
        self.push(Code::Reduce { op, to, from, members });
        Ok(())
    }
}

fn atomic_op(how: &str, of: &str) -> Option<AtomicOp> {
    Some(match (how, of) {
        ("add", "u32" | "s32") => AtomicOp::Add,
        ("add", "u64") => AtomicOp::AddLong,
        ("add", "f32") => AtomicOp::AddFloat,
        ("min", "u32") => AtomicOp::Min,
        ("min", "s32") => AtomicOp::MinInt,
        ("max", "u32") => AtomicOp::Max,
        ("max", "s32") => AtomicOp::MaxInt,
        ("and", "b32") => AtomicOp::And,
        ("or", "b32") => AtomicOp::Or,
        ("xor", "b32") => AtomicOp::Xor,
        ("exch", "b32" | "b64") => AtomicOp::Exchange,
        ("cas", "b32" | "b64") => AtomicOp::CompareExchange,
        ("inc", "u32") => AtomicOp::Increment,
        _ => return None,
    })
}
