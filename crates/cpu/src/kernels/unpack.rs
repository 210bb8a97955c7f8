//! From packed weights to what is multiplied: a chunk of a panel at a time, in the nearest cache.

use tallow_quant::MXFP4;

use crate::form::{HasPackedKind, PackedKind, PackedLayout, Scales, with_form};
use crate::packed::{CHUNK, LINE, ROWS, SUBBLOCK};
use crate::simd::Lines;

/// A chunk of a panel, unpacked: one byte a code, and what scales them. What a form has none of is unspecified.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    /// Line `i` has inputs `4 i` to `4 i + 3` of all rows.
    pub codes: [[u8; LINE]; CHUNK / 4],
    /// For each run.
    pub scales: [[f32; ROWS]; CHUNK / 16],
    /// What is taken away, for each run.
    pub mins: [[f32; ROWS]; CHUNK / 16],
    pub whole: Whole,
}

/// What scales a chunk whose products add up without rounding.
#[repr(C, align(64))]
pub(crate) struct Whole {
    /// What sums are multiplied by, for each step.
    pub by: [[i32; ROWS]; CHUNK / 16],
    /// What is taken away: of two runs, in halves of a word.
    pub less: [[i32; ROWS]; CHUNK / 32],
    /// The scale of what was multiplied, and that of what is taken away, less than zero.
    pub scales: [[f32; ROWS]; 2],
}

/// A chunk of a panel as plain numbers, input by input.
#[repr(C, align(64))]
pub(crate) struct Plain(pub [[f32; ROWS]; CHUNK]);

impl Chunk {
    pub(crate) const EMPTY: Chunk = Chunk {
        codes: [[0; LINE]; CHUNK / 4],
        scales: [[0.0; ROWS]; CHUNK / 16],
        mins: [[0.0; ROWS]; CHUNK / 16],
        whole: Whole { by: [[0; ROWS]; CHUNK / 16], less: [[0; ROWS]; CHUNK / 32], scales: [[0.0; ROWS]; 2] },
    };
}

impl Plain {
    pub(crate) const EMPTY: Plain = Plain([[0.0; ROWS]; CHUNK]);
}

/// Asks the memory for what comes about 16 KiB after the lines from `from` to `to`.
///
/// Weights are read from front to back. Asked for in that order, lines come from one page after another, and processors
/// that look ahead within a page have one page to look ahead in. Here four pages take turns: for every four lines that
/// are read, one line of each of four pages of the next 16 KiB. On some processors a core reads half as much again; on
/// none less.
#[inline(always)]
pub(super) unsafe fn prefetch_strided<L: Lines>(from: *const u8, to: *const u8) {
    const BLOCK: usize = 1 << 14;
    const FOUR: usize = 4 * LINE;
    let mut at = from.addr().next_multiple_of(FOUR);
    while at < to.addr() {
        let line = (at & !(BLOCK - 1)) + BLOCK + at % BLOCK / 4;
        for page in 0..4 {
            // SAFETY: asking for a line that does not exist does nothing; the caller has the instruction set.
            unsafe { L::prefetch(from.with_addr(line + page * BLOCK / 4)) };
        }
        at += FOUR;
    }
}

/// Unpacks a chunk of `inputs` inputs, to be multiplied with rounded rows.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lines>(layout: &PackedLayout, from: &[u8], inputs: usize, to: &mut Chunk) {
    assert!(inputs <= CHUNK);
    with_form!(layout.form, F => {
        let from = from[..F::SHAPE.chunk(inputs)].as_ptr();
        // SAFETY: the chunk is of that form and size; the caller has the instruction set.
        unsafe {
            if const { F::SHAPE.has_int_scales() } {
                assert!(inputs == CHUNK);
                whole_numbers::<L, F>(from, &mut to.whole);
            } else {
                numbers::<L, F>(from, inputs, to);
            }
            codes::<L, F>(from.add(F::SHAPE.head(inputs)), inputs, &layout.table, to);
        }
    });
}

/// The numbers at the head of a chunk: what its codes are scaled by.
pub(super) struct Head<L: Lines> {
    from: *const u8,
    runs: usize,
    /// Where they are the chunk's: what scales are multiples of, and minimums.
    d: L::F,
    dmin: L::F,
}

impl<L: Lines> Head<L> {
    /// The head of a chunk of `inputs` inputs.
    ///
    /// # Safety
    ///
    /// The chunk at `from` is of that form and size, and the CPU has the instruction set.
    #[inline(always)]
    pub(super) unsafe fn new<F: HasPackedKind>(from: *const u8, inputs: usize) -> Head<L> {
        let shape = const { F::SHAPE };
        // SAFETY: passed on to the caller; asking for lines that do not exist does nothing.
        unsafe {
            prefetch_strided::<L>(from, from.add(shape.head(inputs)));
            let none = L::splat(0.0);
            let (d, dmin) = match shape.scales {
                Scales::Bytes | Scales::Single => (L::load_f32(from.cast()), none),
                Scales::BytesLess | Scales::NibblesLess => (L::halves(from), L::halves(from.add(32))),
                _ => (none, none),
            };
            Head { from, runs: inputs / shape.run, d, dmin }
        }
    }

    /// The scales of a run, and what is taken away (nothing in particular where nothing is).
    ///
    /// # Safety
    ///
    /// The chunk has the run.
    #[inline(always)]
    pub(super) unsafe fn run<F: HasPackedKind>(&self, run: usize) -> (L::F, L::F) {
        let (d, dmin) = (self.d, self.dmin);
        // SAFETY: the head has what its layout says; the caller has the instruction set.
        unsafe {
            let byte = |i: usize| self.from.add(LINE + ROWS * i);
            match const { F::SHAPE }.scales {
                Scales::Plain | Scales::PlainSingles | Scales::Single => (d, dmin),
                Scales::Halves => (L::halves(self.from.add(32 * run)), dmin),
                Scales::HalvesAdd => {
                    let add = L::halves(self.from.add(64 * run + 32));
                    (L::halves(self.from.add(64 * run)), L::mul(add, L::splat(-1.0)))
                }
                Scales::Bytes => (L::mul(d, L::to_f32(L::widen_i8(byte(run)))), dmin),
                Scales::BytesLess => {
                    let (by, less) = (L::widen_u8(byte(run)), L::widen_u8(byte(self.runs + run)));
                    (L::mul(d, L::to_f32(by)), L::mul(dmin, L::to_f32(less)))
                }
                Scales::NibblesLess => {
                    let both = L::widen_u8(byte(run));
                    let (by, less) = (L::and(both, L::words(15)), L::right::<4>(both));
                    (L::mul(d, L::to_f32(by)), L::mul(dmin, L::to_f32(less)))
                }
                Scales::Exponents => {
                    let scale = |r: usize| MXFP4 { e: *self.from.add(ROWS * run + r), qs: [0; 16] }.scale();
                    let scales: [f32; ROWS] = std::array::from_fn(scale);
                    (L::load_f32(scales.as_ptr()), dmin)
                }
            }
        }
    }

    /// The scale of what is [multiplied](Head::by), and that of what is [taken away](Head::less), less than zero.
    #[inline(always)]
    pub(super) unsafe fn scales(&self) -> [L::F; 2] {
        // SAFETY: who made this has the instruction set.
        unsafe { [self.d, L::mul(self.dmin, L::splat(-1.0))] }
    }

    /// What sums of step `step` of a whole chunk are multiplied by.
    ///
    /// # Safety
    ///
    /// The chunk has the step.
    #[inline(always)]
    pub(super) unsafe fn by<F: HasPackedKind>(&self, step: usize) -> L::I {
        let shape = const { F::SHAPE };
        // SAFETY: the head has what its layout says; the caller has the instruction set.
        unsafe {
            let byte = self.from.add(LINE + ROWS * (step * shape.step() / shape.run));
            match shape.scales {
                // The upper half of a word is another factor.
                Scales::Bytes if shape.is_narrow() => L::and(L::widen_i8(byte), L::words(0xffff)),
                Scales::Bytes => L::widen_i8(byte),
                Scales::BytesLess => L::widen_u8(byte),
                Scales::NibblesLess => L::and(L::widen_u8(byte), L::words(15)),
                _ => L::words(1),
            }
        }
    }

    /// What is taken away from two runs of a whole chunk, in halves of a word.
    ///
    /// # Safety
    ///
    /// The chunk has the pair.
    #[inline(always)]
    pub(super) unsafe fn less<F: HasPackedKind>(&self, pair: usize) -> L::I {
        let shape = const { F::SHAPE };
        let runs = CHUNK / shape.run;
        // SAFETY: as above.
        unsafe {
            let byte = |run: usize| L::widen_u8(self.from.add(LINE + ROWS * run));
            let one = |run: usize| match shape.scales {
                Scales::NibblesLess => L::right::<4>(byte(run)),
                _ => byte(runs + run),
            };
            L::or(one(2 * pair), L::left::<16>(one(2 * pair + 1)))
        }
    }
}

/// What scales a whole chunk.
#[inline(always)]
unsafe fn whole_numbers<L: Lines, F: HasPackedKind>(from: *const u8, to: &mut Whole) {
    let shape = const { F::SHAPE };
    // SAFETY: the chunk is of that form, and whole; the caller has the instruction set.
    unsafe {
        let head = Head::<L>::new::<F>(from, CHUNK);
        for (step, by) in to.by.iter_mut().take(CHUNK / shape.step()).enumerate() {
            L::store(by.as_mut_ptr().cast(), head.by::<F>(step));
        }
        if shape.has_mins() {
            for (pair, less) in to.less.iter_mut().take(CHUNK / shape.run / 2).enumerate() {
                L::store(less.as_mut_ptr().cast(), head.less::<F>(pair));
            }
        }
        let [d, dmin] = head.scales();
        L::store_f32(to.scales[0].as_mut_ptr(), d);
        L::store_f32(to.scales[1].as_mut_ptr(), dmin);
    }
}

/// The numbers of all runs.
#[inline(always)]
unsafe fn numbers<L: Lines, F: HasPackedKind>(from: *const u8, inputs: usize, to: &mut Chunk) {
    // SAFETY: the chunk is of that form and size; the caller has the instruction set.
    unsafe {
        let head = Head::<L>::new::<F>(from, inputs);
        let runs = to.scales.iter_mut().zip(&mut to.mins).take(head.runs);
        for (run, (scale, min)) in runs.enumerate() {
            let (by, less) = head.run::<F>(run);
            L::store_f32(scale.as_mut_ptr(), by);
            if const { F::SHAPE.has_mins() } {
                L::store_f32(min.as_mut_ptr(), less);
            }
        }
    }
}

/// Of the part whose planes are at `p`, the codes of group `G`, as [`Lines::dot4`] takes them.
///
/// # Safety
///
/// A part has as many lines as codes have bits; the CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn group<L: Lines, F: HasPackedKind, const G: usize>(
    p: *const u8,
    table: &[i8; 16],
) -> L::I {
    let shape = const { F::SHAPE };
    let (j, half) = (G % 4, G / 4);
    // SAFETY: passed on to the caller.
    unsafe {
        let line = |i: usize| L::load(p.add(i * LINE));
        let mut group = match shape.bits {
            8 => line(G),
            2 | 3 => bits::<L>(line(half), 2 * j, 0, 3),
            _ => bits::<L>(line(j), 4 * half, 0, 15),
        };
        group = match shape.bits {
            3 => L::or(group, bits::<L>(line(2), G, 2, 1)),
            5 => L::or(group, bits::<L>(line(4), G, 4, 1)),
            6 => L::or(group, bits::<L>(line(4 + half), 2 * j, 4, 3)),
            _ => group,
        };
        if shape.looked_up {
            group = L::look_up(table, group);
        }
        if shape.is_wide() && L::BIASED {
            group = L::xor(group, L::bytes(0x80));
        }
        group
    }
}

/// The bits of each byte from bit `from` on that `mask` has room for, moved to bit `to`.
#[inline(always)]
unsafe fn bits<L: Lines>(line: L::I, from: usize, to: usize, mask: u8) -> L::I {
    // SAFETY: the caller has the instruction set.
    unsafe {
        // Both are known when this is compiled, and one arm is left.
        let moved = match to as i32 - from as i32 {
            4 => L::left::<4>(line),
            3 => L::left::<3>(line),
            2 => L::left::<2>(line),
            1 => L::left::<1>(line),
            0 => line,
            -1 => L::right::<1>(line),
            -2 => L::right::<2>(line),
            -3 => L::right::<3>(line),
            -4 => L::right::<4>(line),
            -5 => L::right::<5>(line),
            _ => L::right::<6>(line),
        };
        L::and(moved, L::bytes(mask << to))
    }
}

/// The codes of a chunk.
#[inline(always)]
unsafe fn codes<L: Lines, F: HasPackedKind>(
    from: *const u8,
    inputs: usize,
    table: &[i8; 16],
    to: &mut Chunk,
) {
    let bytes = LINE * const { F::SHAPE.bits };
    for (i, out) in to.codes.chunks_exact_mut(8).take(inputs / SUBBLOCK).enumerate() {
        // SAFETY: the chunk has that part; the caller has the instruction set.
        unsafe {
            let p = from.add(i * bytes);
            prefetch_strided::<L>(p, p.add(bytes));
            let all = [
                group::<L, F, 0>(p, table),
                group::<L, F, 4>(p, table),
                group::<L, F, 1>(p, table),
                group::<L, F, 5>(p, table),
                group::<L, F, 2>(p, table),
                group::<L, F, 6>(p, table),
                group::<L, F, 3>(p, table),
                group::<L, F, 7>(p, table),
            ];
            for (j, group) in all.into_iter().enumerate() {
                L::store(out[j / 2 + j % 2 * 4].as_mut_ptr(), group);
            }
        }
    }
}

/// Unpacks a chunk to plain numbers, exactly those of the format's definition. `room` is for the codes on the way.
#[inline(always)]
pub(super) unsafe fn unpack_plain<L: Lines>(
    layout: &PackedLayout,
    bytes: &[u8],
    inputs: usize,
    room: &mut Chunk,
    to: &mut Plain,
) {
    assert!(inputs <= CHUNK);
    let from = bytes[..layout.shape.chunk(inputs)].as_ptr();
    // SAFETY: the chunk is of that form and size; the caller has the instruction set.
    unsafe {
        if layout.shape.is_plain() {
            prefetch_strided::<L>(from, from.add(bytes.len()));
        }
        match layout.form {
            PackedKind::F32 => {
                for (k, to) in to.0[..inputs].iter_mut().enumerate() {
                    L::store_f32(to.as_mut_ptr(), L::from_bits(L::load(from.add(k * LINE))));
                }
            }
            PackedKind::F16 => {
                for (k, to) in to.0[..inputs].iter_mut().enumerate() {
                    L::store_f32(to.as_mut_ptr(), L::halves(from.add(k * LINE / 2)));
                }
            }
            PackedKind::BF16 => {
                for (i, to) in to.0[..inputs].chunks_mut(2).enumerate() {
                    let [low, high] = pairs::<L>(from.add(i * LINE));
                    L::store_f32(to[0].as_mut_ptr(), low);
                    if let Some(to) = to.get_mut(1) {
                        L::store_f32(to.as_mut_ptr(), high);
                    }
                }
            }
            PackedKind::EightFloats => {
                let codes = from.add(layout.shape.head(inputs));
                for (k, to) in to.0[..inputs].iter_mut().enumerate() {
                    let scale = from.add(k / SUBBLOCK * LINE);
                    L::store_f32(to.as_mut_ptr(), float::<L>(codes.add(k * ROWS), scale));
                }
            }
            form => with_form!(form, F => {
                numbers::<L, F>(from, inputs, room);
                codes::<L, F>(from.add(F::SHAPE.head(inputs)), inputs, &layout.table, room);
                scaled::<L, F>(room, inputs, layout.bias, to);
            }),
        }
    }
}

/// A line of pairs of brain floating point: the first of each, and the second.
#[inline(always)]
pub(super) unsafe fn pairs<L: Lines>(p: *const u8) -> [L::F; 2] {
    // SAFETY: the caller vouches for the line and has the instruction set.
    unsafe {
        let pairs = L::load(p);
        let high = L::and(pairs, L::words(0xffff_0000_u32 as i32));
        [L::from_bits(L::left::<16>(pairs)), L::from_bits(high)]
    }
}

/// Floats of eight bits, one for each row, times their scales, which are as much too small as this is too large.
///
/// # Safety
///
/// There are 16 codes and a line of scales; the CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn float<L: Lines>(codes: *const u8, scales: *const u8) -> L::F {
    // SAFETY: passed on to the caller.
    unsafe {
        let q = L::widen_u8(codes);
        let sign = L::left::<24>(L::and(q, L::words(0x80)));
        let exponent = L::left::<20>(L::and(q, L::words(0x7f)));
        let x = L::from_bits(L::or(exponent, L::words(0x4000_0000)));
        let y = L::fma(x, L::splat(2.0), L::splat(-4.0));
        L::mul(L::min(x, y), L::from_bits(L::xor(L::load(scales), sign)))
    }
}

/// `w = scale * code - min`, rounded as the format says.
#[inline(always)]
unsafe fn scaled<L: Lines, F: HasPackedKind>(chunk: &Chunk, inputs: usize, bias: u8, to: &mut Plain) {
    let shape = const { F::SHAPE };
    let bias = if shape.is_wide() { 128.0 } else { f32::from(bias) };
    // SAFETY: all arrays have what a chunk has; the caller has the instruction set.
    unsafe {
        for (i, (line, to)) in chunk.codes.iter().zip(to.0.chunks_exact_mut(4)).enumerate().take(inputs / 4) {
            let run = 4 * i / shape.run;
            let mut line = L::load(line.as_ptr());
            if shape.is_wide() && !L::BIASED {
                line = L::xor(line, L::bytes(0x80));
            }
            let (scale, min) =
                (L::load_f32(chunk.scales[run].as_ptr()), L::load_f32(chunk.mins[run].as_ptr()));
            let byte = L::words(255);
            let words = [
                L::and(line, byte),
                L::and(L::right::<8>(line), byte),
                L::and(L::right::<16>(line), byte),
                L::right::<24>(line),
            ];
            for (word, to) in words.into_iter().zip(to) {
                let mut w = L::mul(scale, L::sub(L::to_f32(word), L::splat(bias)));
                if shape.has_mins() {
                    w = L::sub(w, min);
                }
                L::store_f32(to.as_mut_ptr(), w);
            }
        }
    }
}
