//! Unpacks weights for GEMM and dequantization: one chunk of a panel at a time, into the nearest cache.

use tallow_quant::Scales;

use crate::pack::{
    CHUNK, HasPackedKind, LINE, PackedKind, PackedLayout, ROWS, SCALE_AND_ZERO, SUBBLOCK, ZERO_POINT_BIAS,
    with_packed_kind,
};
use crate::simd::Lines;

/// 1 in each byte of a word.
const EACH: i32 = 0x0101_0101;

/// An unpacked chunk of a panel: one byte per code, and scales. Fields that a `PackedKind` does not have are
/// unspecified.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    /// Line `i` has inputs `4 i` to `4 i + 3` of all rows.
    pub codes: [[u8; LINE]; CHUNK / 4],
    /// Scales of each run.
    pub scales: [[f32; ROWS]; CHUNK / 16],
    /// Mins, which are subtracted; one per run.
    pub mins: [[f32; ROWS]; CHUNK / 16],
    pub int: IntScales,
}

/// Scales of a chunk with integer scales, whose products are summed without rounding.
#[repr(C, align(64))]
pub(crate) struct IntScales {
    /// Integer factors of the sums, one per step.
    pub by: [[i32; ROWS]; CHUNK / 16],
    /// Integer mins of two runs, as two `i16` in a word.
    pub mins: [[i32; ROWS]; CHUNK / 32],
    /// d, and -dmin.
    pub scales: [[f32; ROWS]; 2],
}

/// A chunk of a panel as f32, input by input.
#[repr(C, align(64))]
pub(crate) struct Plain(pub [[f32; ROWS]; CHUNK]);

impl Chunk {
    pub(crate) const EMPTY: Chunk = Chunk {
        codes: [[0; LINE]; CHUNK / 4],
        scales: [[0.0; ROWS]; CHUNK / 16],
        mins: [[0.0; ROWS]; CHUNK / 16],
        int: IntScales {
            by: [[0; ROWS]; CHUNK / 16],
            mins: [[0; ROWS]; CHUNK / 32],
            scales: [[0.0; ROWS]; 2],
        },
    };
}

impl Plain {
    pub(crate) const EMPTY: Plain = Plain([[0.0; ROWS]; CHUNK]);
}

/// Prefetches what comes about 16 KiB after the lines `from..to`.
///
/// Weights are read front to back. Prefetched in that order, lines come from one page after another, and hardware
/// prefetchers, which work within a page, have one page to look ahead in. Here four pages are interleaved: for every
/// four lines that are read, one line of each of four pages of the next 16 KiB is prefetched. On some processors this
/// speeds up a core's reads by half; on none does it slow them down.
#[inline(always)]
pub(crate) unsafe fn prefetch_strided<L: Lines>(from: *const u8, to: *const u8) {
    const BLOCK: usize = 1 << 14;
    const FOUR: usize = 4 * LINE;
    let mut at = from.addr().next_multiple_of(FOUR);
    while at < to.addr() {
        let line = (at & !(BLOCK - 1)) + BLOCK + at % BLOCK / 4;
        for page in 0..4 {
            // SAFETY: a prefetch of an invalid address does nothing; the caller has the instruction set.
            unsafe { L::prefetch(from.with_addr(line + page * BLOCK / 4)) };
        }
        at += FOUR;
    }
}

/// Unpacks a chunk of `inputs` inputs, to be multiplied with quantized rows.
#[inline(always)]
pub(crate) unsafe fn unpack<L: Lines>(layout: &PackedLayout, from: &[u8], inputs: usize, to: &mut Chunk) {
    assert!(inputs <= CHUNK);
    with_packed_kind!(layout.kind, F => {
        let shape = layout.shape_of::<F>();
        let from = from[..shape.chunk(inputs)].as_ptr();
        // SAFETY: the chunk is of kind `F` with `inputs` inputs, as its length shows; the caller has the instruction
        // set.
        unsafe {
            if const { F::SHAPE.has_int_scales() } {
                assert!(inputs == CHUNK);
                int_scales::<L, F>(from, layout, &mut to.int);
            } else {
                float_scales::<L, F>(from, layout, inputs, to);
            }
            codes::<L, F>(from, layout, inputs, to);
        }
    });
}

/// Header of a chunk: scales and mins.
pub(super) struct Header<L: Lines> {
    from: *const u8,
    runs: usize,
    /// log2 of the runs that share a scale.
    shared: u32,
    /// d and dmin, where the chunk has them: run scales and mins are multiples of them.
    d: L::F,
    dmin: L::F,
}

impl<L: Lines> Header<L> {
    /// The header of a chunk of `inputs` inputs. With `prefetches`, what comes after it is prefetched.
    ///
    /// # Safety
    ///
    /// The chunk at `from` is of kind `F` with `inputs` inputs, laid out as `layout` says, and the CPU has the
    /// instruction set.
    #[inline(always)]
    pub(super) unsafe fn new<F: HasPackedKind>(
        from: *const u8,
        layout: &PackedLayout,
        inputs: usize,
        prefetches: bool,
    ) -> Header<L> {
        let shape = layout.shape_of::<F>();
        // SAFETY: the caller upholds the same contract; a prefetch of an invalid address does nothing.
        unsafe {
            if prefetches {
                prefetch_strided::<L>(from, from.add(shape.head(inputs)));
            }
            let none = L::splat(0.0);
            let (d, dmin) = match shape.scales {
                Scales::Bytes | Scales::F32 => (L::load_f32(from.cast()), none),
                Scales::BytesMin | Scales::NibblesMin => (L::widen_f16(from), L::widen_f16(from.add(32))),
                _ => (none, none),
            };
            Header { from, runs: inputs / shape.run, shared: shape.shared, d, dmin }
        }
    }

    /// Scale and min of a run (the min is unspecified where the kind has none).
    ///
    /// # Safety
    ///
    /// The chunk has the run.
    #[inline(always)]
    pub(super) unsafe fn run<F: HasPackedKind>(&self, run: usize) -> (L::F, L::F) {
        let (d, dmin) = (self.d, self.dmin);
        // SAFETY: the header is laid out as `F` says; the caller has the instruction set.
        unsafe {
            let byte = |i: usize| self.from.add(LINE + ROWS * i);
            match const { F::SHAPE }.scales {
                Scales::Plain | Scales::PlainF32 | Scales::F32 => (d, dmin),
                Scales::F16 => (L::widen_f16(self.from.add(32 * run)), dmin),
                Scales::F16Add => {
                    let add = L::widen_f16(self.from.add(64 * run + 32));
                    (L::widen_f16(self.from.add(64 * run)), L::mul(add, L::splat(-1.0)))
                }
                Scales::F16Zero => (L::widen_f16(self.from.add(SCALE_AND_ZERO * (run >> self.shared))), dmin),
                Scales::Bytes => (L::mul(d, L::to_f32(L::widen_i8(byte(run)))), dmin),
                Scales::BytesMin => {
                    let (by, min) = (L::widen_u8(byte(run)), L::widen_u8(byte(self.runs + run)));
                    (L::mul(d, L::to_f32(by)), L::mul(dmin, L::to_f32(min)))
                }
                Scales::NibblesMin => {
                    let both = L::widen_u8(byte(run));
                    let (by, min) = (L::and(both, L::words(15)), L::right::<4>(both));
                    (L::mul(d, L::to_f32(by)), L::mul(dmin, L::to_f32(min)))
                }
                Scales::Exponents => {
                    // `2^(e - 128)`, as a product of two powers: the smallest are subnormal.
                    let e = L::widen_u8(self.from.add(ROWS * run));
                    let (low, high) = (L::right::<1>(e), L::right::<1>(L::add(e, L::words(1))));
                    let low = L::from_bits(L::left::<23>(L::add(low, L::words(63))));
                    let high = L::from_bits(L::left::<23>(L::add(high, L::words(63))));
                    (L::mul(low, high), dmin)
                }
            }
        }
    }

    /// Zero point of a run, where runs have such.
    ///
    /// # Safety
    ///
    /// The chunk has the run.
    #[inline(always)]
    pub(super) unsafe fn zero_point(&self, run: usize) -> L::I {
        // SAFETY: the caller upholds the same contract.
        unsafe { zero_point::<L>(self.from, run >> self.shared) }
    }

    /// d, which multiplies sums of [`by`](Header::by), and -dmin, which multiplies sums of [`mins`](Header::mins).
    #[inline(always)]
    pub(super) unsafe fn scales(&self) -> [L::F; 2] {
        // SAFETY: by the contract of `new`, the CPU has the instruction set.
        unsafe { [self.d, L::mul(self.dmin, L::splat(-1.0))] }
    }

    /// Integer factors of the sums of a step of a full chunk.
    ///
    /// # Safety
    ///
    /// The chunk has the step.
    #[inline(always)]
    pub(super) unsafe fn by<F: HasPackedKind>(&self, step: usize) -> L::I {
        let shape = const { F::SHAPE };
        // SAFETY: the header is laid out as `F` says; the caller has the instruction set.
        unsafe {
            let byte = self.from.add(LINE + ROWS * (step * shape.step() / shape.run));
            match shape.scales {
                // The upper half of a word is another factor in `Lines::dot2`: clear it.
                Scales::Bytes if shape.is_narrow() => L::and(L::widen_i8(byte), L::words(0xffff)),
                Scales::Bytes => L::widen_i8(byte),
                Scales::BytesMin => L::widen_u8(byte),
                Scales::NibblesMin => L::and(L::widen_u8(byte), L::words(15)),
                _ => L::words(1),
            }
        }
    }

    /// Integer mins of two runs of a full chunk, as two `i16` in a word.
    ///
    /// # Safety
    ///
    /// The chunk has the pair.
    #[inline(always)]
    pub(super) unsafe fn mins<F: HasPackedKind>(&self, pair: usize) -> L::I {
        let shape = const { F::SHAPE };
        let runs = CHUNK / shape.run;
        // SAFETY: as for `by`.
        unsafe {
            let byte = |run: usize| L::widen_u8(self.from.add(LINE + ROWS * run));
            let one = |run: usize| match shape.scales {
                Scales::NibblesMin => L::right::<4>(byte(run)),
                _ => byte(runs + run),
            };
            L::or(one(2 * pair), L::left::<16>(one(2 * pair + 1)))
        }
    }
}

/// Zero point `at` of the chunk at `from`, in words.
///
/// # Safety
///
/// The chunk has it, and the CPU the instruction set.
#[inline(always)]
unsafe fn zero_point<L: Lines>(from: *const u8, at: usize) -> L::I {
    // SAFETY: the bytes lie behind the scales.
    unsafe { L::widen_u8(from.add(SCALE_AND_ZERO * at + 2 * ROWS)) }
}

/// Writes the integer scales of a full chunk.
#[inline(always)]
unsafe fn int_scales<L: Lines, F: HasPackedKind>(from: *const u8, layout: &PackedLayout, to: &mut IntScales) {
    let shape = const { F::SHAPE };
    // SAFETY: the caller guarantees a full chunk of kind `F`, and has the instruction set.
    unsafe {
        let header = Header::<L>::new::<F>(from, layout, CHUNK, true);
        for (step, by) in to.by.iter_mut().take(CHUNK / shape.step()).enumerate() {
            L::store(by.as_mut_ptr().cast(), header.by::<F>(step));
        }
        if shape.has_mins() {
            for (pair, mins) in to.mins.iter_mut().take(CHUNK / shape.run / 2).enumerate() {
                L::store(mins.as_mut_ptr().cast(), header.mins::<F>(pair));
            }
        }
        let [d, dmin] = header.scales();
        L::store_f32(to.scales[0].as_mut_ptr(), d);
        L::store_f32(to.scales[1].as_mut_ptr(), dmin);
    }
}

/// Writes the f32 scales and mins of all runs.
#[inline(always)]
unsafe fn float_scales<L: Lines, F: HasPackedKind>(
    from: *const u8,
    layout: &PackedLayout,
    inputs: usize,
    to: &mut Chunk,
) {
    // SAFETY: the caller guarantees a chunk of kind `F` with `inputs` inputs, and has the instruction set.
    unsafe {
        let header = Header::<L>::new::<F>(from, layout, inputs, true);
        let runs = to.scales.iter_mut().zip(&mut to.mins).take(header.runs);
        for (run, (scale, min)) in runs.enumerate() {
            let (by, of_min) = header.run::<F>(run);
            L::store_f32(scale.as_mut_ptr(), by);
            if const { F::SHAPE.has_mins() } {
                L::store_f32(min.as_mut_ptr(), of_min);
            }
        }
    }
}

/// Codes of group `G` of the sub-block with planes at `p`, as [`Lines::dot4`] takes them.
///
/// # Safety
///
/// The sub-block has as many lines as codes have bits; the CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn group<L: Lines, F: HasPackedKind, const G: usize>(
    p: *const u8,
    table: &[i8; 16],
) -> L::I {
    let shape = const { F::SHAPE };
    let (j, half) = (G % 4, G / 4);
    // SAFETY: the caller upholds the same contract.
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
        if shape.is_looked_up() {
            group = L::look_up(table, group);
        }
        if shape.is_bytes() && L::BIASED {
            group = L::xor(group, L::bytes(0x80));
        }
        group
    }
}

/// Bits of each byte from bit `from` on, as many as `mask` has, moved to bit `to`.
#[inline(always)]
unsafe fn bits<L: Lines>(line: L::I, from: usize, to: usize, mask: u8) -> L::I {
    // SAFETY: the caller has the instruction set.
    unsafe {
        // `from` and `to` are constants after inlining, and one arm is left.
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

/// Unpacks the codes of the chunk at `from`. Those with zero points are moved, so that [`ZERO_POINT_BIAS`] stands for
/// zero in all runs: what follows is the same as for codes with a bias.
#[inline(always)]
unsafe fn codes<L: Lines, F: HasPackedKind>(
    from: *const u8,
    layout: &PackedLayout,
    inputs: usize,
    to: &mut Chunk,
) {
    let shape = layout.shape_of::<F>();
    let (bytes, head) = (LINE * shape.bits, shape.head(inputs));
    let table = layout.table::<L>();
    for (i, out) in to.codes.chunks_exact_mut(8).take(inputs / SUBBLOCK).enumerate() {
        // SAFETY: the chunk has that sub-block, which is a run where there are zero points; the caller has the
        // instruction set.
        unsafe {
            let p = from.add(head + i * bytes);
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
            // `ZERO_POINT_BIAS - zero` in each of a word's bytes. No sum of bytes carries over.
            let moved_by = match const { F::SHAPE.has_zero_points() } {
                true => L::mul_add(
                    zero_point::<L>(from, i >> shape.shared),
                    L::words(-EACH),
                    L::words(ZERO_POINT_BIAS * EACH),
                ),
                false => L::words(0),
            };
            for (j, mut group) in all.into_iter().enumerate() {
                if const { F::SHAPE.has_zero_points() } {
                    group = L::add(group, moved_by);
                }
                L::store(out[j / 2 + j % 2 * 4].as_mut_ptr(), group);
            }
        }
    }
}

/// Dequantizes a chunk to f32, with the exact values that the format defines. `scratch` is for the codes.
#[inline(always)]
pub(crate) unsafe fn unpack_plain<L: Lines>(
    layout: &PackedLayout,
    bytes: &[u8],
    inputs: usize,
    scratch: &mut Chunk,
    to: &mut Plain,
) {
    assert!(inputs <= CHUNK);
    let from = bytes[..layout.shape.chunk(inputs)].as_ptr();
    // SAFETY: the chunk is of kind `layout.kind` and has `inputs` inputs; the caller has the instruction set.
    unsafe {
        if layout.shape.is_plain() {
            prefetch_strided::<L>(from, from.add(bytes.len()));
        }
        match layout.kind {
            PackedKind::F32 => {
                for (k, to) in to.0[..inputs].iter_mut().enumerate() {
                    L::store_f32(to.as_mut_ptr(), L::from_bits(L::load(from.add(k * LINE))));
                }
            }
            PackedKind::F16 => {
                for (k, to) in to.0[..inputs].iter_mut().enumerate() {
                    L::store_f32(to.as_mut_ptr(), L::widen_f16(from.add(k * LINE / 2)));
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
            kind => with_packed_kind!(kind, F => {
                float_scales::<L, F>(from, layout, inputs, scratch);
                codes::<L, F>(from, layout, inputs, scratch);
                scaled::<L, F>(scratch, inputs, layout.bias, to);
            }),
        }
    }
}

/// Widens a line of BF16 pairs: the first of each, and the second.
#[inline(always)]
pub(super) unsafe fn pairs<L: Lines>(p: *const u8) -> [L::F; 2] {
    // SAFETY: the caller guarantees a line at `p`, and has the instruction set.
    unsafe {
        let pairs = L::load(p);
        let high = L::and(pairs, L::words(0xffff_0000_u32 as i32));
        [L::from_bits(L::left::<16>(pairs)), L::from_bits(high)]
    }
}

/// FP8 (E4M3) codes, one for each row, times their scales. Codes are widened too small by the factor that packed scales are too
/// large.
///
/// # Safety
///
/// There are 16 codes and a line of scales; the CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn float<L: Lines>(codes: *const u8, scales: *const u8) -> L::F {
    // SAFETY: the caller upholds the same contract.
    unsafe { L::mul(L::widen_f8(codes), L::from_bits(L::load(scales))) }
}

/// `w = scale * (code - bias) - min`, rounded as the format says.
#[inline(always)]
unsafe fn scaled<L: Lines, F: HasPackedKind>(chunk: &Chunk, inputs: usize, bias: u8, to: &mut Plain) {
    let shape = const { F::SHAPE };
    let bias = if shape.is_wide() { 128.0 } else { f32::from(bias) };
    // SAFETY: all arrays have the size of a full chunk; the caller has the instruction set.
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
