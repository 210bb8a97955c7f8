//! [`Lines`]: operations on the 64-byte lines of packed weights (16 rows interleaved), for every instruction set.
//!
//! # Safety
//!
//! As for [`Simd`](super::Simd): call only on a CPU that has the instruction set, with pointers valid for what each
//! method names.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::marker::PhantomData;

/// Operations on 64-byte lines, and on 16 floats, one per row of a panel.
pub(crate) trait Lines: Copy + 'static {
    /// 64 bytes, or 16 32-bit words.
    type I: Copy;
    /// 16 floats.
    type F: Copy;

    /// True if signed codes are multiplied with 128 added (u8 x i8 dot products); the sum is corrected for it.
    const BIASED: bool;
    /// Lines that fit into registers.
    const LINES: usize;
    /// Rows of x per GEMV register tile.
    const GEMV_ROWS: usize;
    /// Most rows for which weights take GEMV, until that was [tried](crate::choices::KernelChoices).
    const GEMV_MAX_ROWS: usize = Self::GEMV_ROWS;
    /// Rows of x per GEMM register tile, in integers.
    const GEMM_ROWS: usize;
    /// The same where sums of fewer than 32 inputs are multiplied by integers, which takes registers of its own.
    const GEMM_ROWS_OF_SHORT_SUMS: usize = Self::GEMM_ROWS;
    /// Panels of a pair per GEMM register tile in `f32`, one or two.
    const GEMM_PANELS_F32: usize = 2;
    /// Rows of x per GEMM register tile in `f32`.
    const GEMM_ROWS_F32: usize;
    /// True if products of bytes are summed in pairs in 16 bits first: then it takes fewer instructions to add those of several
    /// groups before they are widened ([`products`](Lines::products)).
    const SUMS_IN_16_BITS: bool;

    unsafe fn load(p: *const u8) -> Self::I;
    unsafe fn store(p: *mut u8, v: Self::I);
    /// Prefetches a line that will be read soon.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches a line that will be read next.
    unsafe fn prefetch_next(p: *const u8);
    /// Reads a byte of a line, where the order in which lines are first read matters to prefetchers.
    unsafe fn touch(p: *const u8);
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    /// Broadcasts a byte.
    unsafe fn bytes(x: u8) -> Self::I;
    /// Broadcasts a 32-bit word.
    unsafe fn words(x: i32) -> Self::I;
    /// Broadcasts the four bytes at `p` to all words.
    unsafe fn repeat(p: *const u8) -> Self::I;
    /// Shifts words left.
    unsafe fn left<const N: u32>(a: Self::I) -> Self::I;
    /// Shifts words right, filling with zeros.
    unsafe fn right<const N: u32>(a: Self::I) -> Self::I;
    /// Shifts signed words right.
    unsafe fn right_signed<const N: u32>(a: Self::I) -> Self::I;
    /// Looks up each byte, below 16, in `table`.
    unsafe fn look_up(table: &[i8; 16], codes: Self::I) -> Self::I;
    /// Adds to each word the dot product of its four bytes of `w` with those of `a`, which are signed. Bytes of `w` are
    /// below 128; or, with `WIDE`, any (if [`BIASED`](Lines::BIASED)) or signed (if not) with `a` above -128.
    unsafe fn dot4<const WIDE: bool>(sum: Self::I, w: Self::I, a: Self::I) -> Self::I;
    /// Products of the bytes of `w`, below 128, with those of `a`: summed in pairs in the two halves of each word where there are
    /// [`SUMS_IN_16_BITS`](Lines::SUMS_IN_16_BITS), else all four in the word.
    unsafe fn products(w: Self::I, a: Self::I) -> Self::I {
        // SAFETY: the caller upholds the same contract.
        unsafe { Self::dot4::<false>(Self::words(0), w, a) }
    }
    /// Sums of [`products`](Lines::products), which fit.
    unsafe fn add_products(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the caller upholds the same contract.
        unsafe { Self::add(a, b) }
    }
    /// Adds to each word the products of the two i16 halves of `a` with those of `b`. With `ONE`, the upper halves of
    /// `b` are zero.
    unsafe fn dot2<const ONE: bool>(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `a + b` on words.
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    /// `a * b + c` on words.
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// Reinterprets words as floats.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load_f32(p: *const f32) -> Self::F;
    unsafe fn store_f32(p: *mut f32, v: Self::F);
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Loads 16 f16 values.
    unsafe fn widen_f16(p: *const u8) -> Self::F;
    /// Loads 16 FP8 (E4M3) codes as floats, each divided by [`F8::OF_HALF`](super::F8::OF_HALF).
    unsafe fn widen_f8(p: *const u8) -> Self::F;
    /// Loads 16 unsigned bytes as words.
    unsafe fn widen_u8(p: *const u8) -> Self::I;
    /// Loads 16 signed bytes as words.
    unsafe fn widen_i8(p: *const u8) -> Self::I;
    /// Loads 32 signed bytes as i16 halves of words.
    unsafe fn pairs_i8(p: *const u8) -> Self::I;

    /// Runs `work` in a function of its own (not inlined), so that its registers are allocated separately.
    unsafe fn outlined(work: impl Work<Self>);

    /// Adds the products of `T` rows of x with a chunk of a pair of panels to their sums.
    #[inline(always)]
    unsafe fn tile<K: RunKind, const T: usize>(t: &Tile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { t.add::<Self, K>() }
    }

    /// The same for a chunk with integer scales, whose products add up exactly.
    #[inline(always)]
    unsafe fn int_tile<K: IntKind, const T: usize>(t: &IntTile<T>) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { t.add::<Self, K>() }
    }
}

/// Work for [`Lines::outlined`].
pub(crate) trait Work<L> {
    /// Must be inlined.
    unsafe fn run(self);
}

/// Products that are summed in integers, before any scale.
pub(crate) trait StepKind {
    /// Inputs that are summed: a run, or less where the scales are integers.
    const STEP: usize;
    /// As for [`Lines::dot4`].
    const WIDE: bool;
    /// Most groups of four inputs whose [`Lines::products`] may be added: 1, 2, 4 or 8.
    const GROUPS: usize;
}

/// Accumulation of the products of a chunk that has a float scale for each run. A run is a step.
pub(crate) trait RunKind: StepKind {
    /// True if each run has a minimum.
    const MINS: bool;
}

/// Accumulation of the products of a chunk whose weights are integers times one scale.
pub(crate) trait IntKind: StepKind {
    /// True if the sums of steps fit 16 bits.
    const NARROW: bool;
    /// Number of pairs of runs if each run has a minimum, else 0.
    const MINS: usize;
    /// Inputs of a run, one or more steps.
    const RUN: usize;
    /// As `GROUPS`, in a run.
    const RUN_GROUPS: usize;
}

/// The products of a run, which are summed at once.
pub(crate) struct OfRun<K>(PhantomData<K>);

impl<K: IntKind> StepKind for OfRun<K> {
    const STEP: usize = K::RUN;
    const WIDE: bool = K::WIDE;
    const GROUPS: usize = K::RUN_GROUPS;
}

/// [`Lines::dot4`] of codes of a kind.
#[inline(always)]
pub(crate) unsafe fn dot4<L: Lines, K: StepKind>(sum: L::I, w: L::I, a: L::I) -> L::I {
    // SAFETY: the caller upholds the same contract.
    unsafe {
        match K::WIDE {
            true => L::dot4::<true>(sum, w, a),
            false => L::dot4::<false>(sum, w, a),
        }
    }
}

/// GEMM tile: `T` rows of quantized input times a chunk of a pair of panels with one scale per run of weights.
///
/// All pointers are to the start of the chunk: codes in lines, 16 scales (and minimums) per run; per row its bytes, its
/// scale, and per run the initial value of its integer sum or the factor of the minimums (`row_sums`).
pub(crate) struct Tile<const T: usize> {
    pub codes: [*const u8; 2],
    pub scales: [*const f32; 2],
    pub mins: [*const f32; 2],
    pub rows: [*const u8; T],
    pub row_scales: *const f32,
    pub row_sums: [*const u32; T],
    /// Per row, 16 sums with each of the panels.
    pub sums: *mut f32,
    pub runs: usize,
}

/// Integer sums of `T` rows with each of two panels.
pub(super) type IntSums<L, const T: usize> = [[<L as Lines>::I; T]; 2];

/// Adds the products of a step to integer sums: panels with lines at `codes` times rows with bytes at `rows`.
#[inline(always)]
unsafe fn add_groups<L: Lines, K: StepKind, const T: usize>(
    int_sums: &mut IntSums<L, T>,
    codes: [*const u8; 2],
    rows: [*const u8; T],
) {
    // SAFETY: the caller guarantees the lines, the bytes and the instruction set.
    unsafe {
        for g in 0..K::STEP / 4 {
            let w = [L::load(codes[0].add(64 * g)), L::load(codes[1].add(64 * g))];
            for i in 0..T {
                let a = L::repeat(rows[i].add(4 * g));
                int_sums[0][i] = dot4::<L, K>(int_sums[0][i], w[0], a);
                int_sums[1][i] = dot4::<L, K>(int_sums[1][i], w[1], a);
            }
        }
    }
}

impl<const T: usize> Tile<T> {
    /// Adds the sums of the chunk, times the row scales, to the running sums.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lines>(&self, chunk: &[[L::F; T]; 2]) {
        for p in 0..2 {
            // SAFETY: the caller upholds the same contract.
            unsafe { self.store_panel::<L>(p, &chunk[p]) };
        }
    }

    /// The same for panel `p`.
    #[inline(always)]
    pub(super) unsafe fn store_panel<L: Lines>(&self, p: usize, chunk: &[L::F; T]) {
        for (i, of_chunk) in chunk.iter().enumerate() {
            // SAFETY: there are 32 sums and a scale for each row; the caller guarantees the instruction set.
            unsafe {
                let sum = self.sums.add((2 * i + p) * 16);
                let by = L::splat(*self.row_scales.add(i));
                L::store_f32(sum, L::fma(*of_chunk, by, L::load_f32(sum)));
            }
        }
    }

    /// Initial integer sums of a run, its lines, and its bytes.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lines, K: RunKind>(
        &self,
        run: usize,
    ) -> (IntSums<L, T>, [*const u8; 2], [*const u8; T]) {
        // SAFETY: there are lines, bytes and row sums for each run; the caller guarantees the instruction set.
        unsafe {
            let begin = std::array::from_fn(|i| match K::MINS {
                true => L::words(0),
                false => L::repeat(self.row_sums[i].add(run).cast()),
            });
            let codes = self.codes.map(|c| c.add(run * K::STEP * 16));
            ([begin; 2], codes, self.rows.map(|r| r.add(run * K::STEP)))
        }
    }

    /// Scales the integer sums of a run and adds them to those of the chunk.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Lines, K: RunKind>(
        &self,
        run: usize,
        int_sums: &IntSums<L, T>,
        sums: &mut [[L::F; T]; 2],
    ) {
        for p in 0..2 {
            // SAFETY: the caller upholds the same contract.
            unsafe { self.scale_panel::<L, K>(p, run, &int_sums[p], &mut sums[p]) };
        }
    }

    /// The same for panel `p`.
    #[inline(always)]
    pub(super) unsafe fn scale_panel<L: Lines, K: RunKind>(
        &self,
        p: usize,
        run: usize,
        int_sums: &[L::I; T],
        sums: &mut [L::F; T],
    ) {
        // SAFETY: there are scales, minimums and row sums for each run; the caller guarantees the instruction set.
        unsafe {
            let scale = L::load_f32(self.scales[p].add(run * 16));
            for i in 0..T {
                sums[i] = L::fma(L::to_f32(int_sums[i]), scale, sums[i]);
            }
            if K::MINS {
                let min = L::load_f32(self.mins[p].add(run * 16));
                for i in 0..T {
                    let row_sum = L::splat(f32::from_bits(*self.row_sums[i].add(run)));
                    sums[i] = L::fma(min, row_sum, sums[i]);
                }
            }
        }
    }

    /// Adds the products of `T` rows with a chunk of a pair of panels to their sums.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lines, K: RunKind>(&self) {
        // SAFETY: there are lines and bytes for each run; the caller guarantees the instruction set.
        unsafe {
            let mut sums = [[L::splat(0.0); T]; 2];
            for run in 0..self.runs {
                let (mut int_sums, codes, rows) = self.begin::<L, K>(run);
                add_groups::<L, K, T>(&mut int_sums, codes, rows);
                self.scale::<L, K>(run, &int_sums, &mut sums);
            }
            self.store::<L>(&sums);
        }
    }
}

/// GEMM tile for a chunk whose weights are integers times one scale.
///
/// All pointers are to the start of the chunk: codes in lines; per step the integer scales of 16 rows (`by`), and per
/// pair of runs their minimums, side by side (`mins`); per row its bytes, its scale, and the initial value of its sums
/// or the factors of the minimums (`row_sums`).
pub(crate) struct IntTile<const T: usize> {
    pub codes: [*const u8; 2],
    pub by: [*const i32; 2],
    pub mins: [*const i32; 2],
    /// 16 scales of products, and 16 negated scales of minimums.
    pub scales: [*const f32; 2],
    pub rows: [*const u8; T],
    pub row_scales: *const f32,
    pub row_sums: [*const u32; T],
    /// Per row, 16 sums with each of the panels.
    pub sums: *mut f32,
}

/// Scales the integer sums of a chunk, and those of its minimums if it has any, and adds them to the sums of 16 rows.
#[inline(always)]
pub(crate) unsafe fn scale_int<L: Lines>(
    all: L::I,
    mins: Option<L::I>,
    [d, dmin]: [L::F; 2],
    row_scale: *const f32,
    sums: L::F,
) -> L::F {
    // SAFETY: the caller guarantees the scale and the instruction set.
    unsafe {
        let all = L::to_f32(all);
        let all = match mins {
            None => L::mul(all, d),
            Some(mins) => L::fma(all, d, L::mul(L::to_f32(mins), dmin)),
        };
        L::fma(all, L::splat(*row_scale), sums)
    }
}

impl<const T: usize> IntTile<T> {
    /// Steps per chunk.
    pub(super) const fn steps<K: IntKind>() -> usize {
        256 / K::STEP
    }

    /// Initial integer sums of a step, its lines, and its bytes.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lines, K: IntKind>(
        &self,
        step: usize,
    ) -> (IntSums<L, T>, [*const u8; 2], [*const u8; T]) {
        // SAFETY: there are lines, bytes and, without minimums, row sums for each step; the caller guarantees the
        // instruction set.
        unsafe {
            let begin = std::array::from_fn(|i| match K::MINS {
                0 => L::repeat(self.row_sums[i].add(step).cast()),
                _ => L::words(0),
            });
            let codes = self.codes.map(|c| c.add(step * K::STEP * 16));
            ([begin; 2], codes, self.rows.map(|r| r.add(step * K::STEP)))
        }
    }

    /// Multiplies the integer sums of a step by its integer scales and adds them to those of the chunk.
    #[inline(always)]
    pub(super) unsafe fn multiply<L: Lines, K: IntKind>(
        &self,
        step: usize,
        int_sums: &IntSums<L, T>,
        all: &mut IntSums<L, T>,
    ) {
        for p in 0..2 {
            // SAFETY: the caller upholds the same contract.
            unsafe { self.multiply_panel::<L, K>(p, step, &int_sums[p], &mut all[p]) };
        }
    }

    /// The same for panel `p`.
    #[inline(always)]
    pub(super) unsafe fn multiply_panel<L: Lines, K: IntKind>(
        &self,
        p: usize,
        step: usize,
        int_sums: &[L::I; T],
        all: &mut [L::I; T],
    ) {
        // SAFETY: there is a factor for each step; the caller guarantees the instruction set.
        unsafe {
            let by = L::load(self.by[p].add(step * 16).cast());
            for i in 0..T {
                all[i] = match K::NARROW {
                    true => L::dot2::<true>(all[i], int_sums[i], by),
                    false => L::mul_add(int_sums[i], by, all[i]),
                };
            }
        }
    }

    /// The same for both panels, where sums do not fit 16 bits.
    #[inline(always)]
    pub(super) unsafe fn multiply_words<L: Lines>(
        &self,
        step: usize,
        int_sums: &IntSums<L, T>,
        all: &mut IntSums<L, T>,
    ) {
        for p in 0..2 {
            // SAFETY: there is a factor for each step; the caller guarantees the instruction set.
            unsafe {
                let by = L::load(self.by[p].add(step * 16).cast());
                for i in 0..T {
                    all[p][i] = L::mul_add(int_sums[p][i], by, all[p][i]);
                }
            }
        }
    }

    /// Scales the sums of the chunk and adds them to the running sums.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Lines, K: IntKind>(&self, all: &IntSums<L, T>) {
        // SAFETY: as for `scale_panel`.
        unsafe {
            if const { K::MINS == 0 || 4 * T + 3 > L::LINES } {
                for p in 0..2 {
                    self.scale_panel::<L, K>(p, &all[p]);
                }
                return;
            }
            // Both panels at once: what is loaded for one serves the other.
            let mut mins = [[L::words(0); T]; 2];
            for pair in 0..K::MINS {
                let first = L::load(self.mins[0].add(pair * 16).cast());
                let second = L::load(self.mins[1].add(pair * 16).cast());
                for i in 0..T {
                    let row_sum = L::repeat(self.row_sums[i].add(pair).cast());
                    mins[0][i] = L::dot2::<false>(mins[0][i], first, row_sum);
                    mins[1][i] = L::dot2::<false>(mins[1][i], second, row_sum);
                }
            }
            for p in 0..2 {
                let scales = [L::load_f32(self.scales[p]), L::load_f32(self.scales[p].add(16))];
                for i in 0..T {
                    let sums = self.sums.add((2 * i + p) * 16);
                    let (row, sum) = (self.row_scales.add(i), L::load_f32(sums));
                    let sum = scale_int::<L>(all[p][i], Some(mins[p][i]), scales, row, sum);
                    L::store_f32(sums, sum);
                }
            }
        }
    }

    /// The same for panel `p`.
    #[inline(always)]
    pub(super) unsafe fn scale_panel<L: Lines, K: IntKind>(&self, p: usize, all: &[L::I; T]) {
        // SAFETY: there are minimums for each pair of runs, and sums for each row; the caller guarantees the
        // instruction set.
        unsafe {
            let scales = [L::load_f32(self.scales[p]), L::load_f32(self.scales[p].add(16))];
            for i in 0..T {
                let mut mins = L::words(0);
                for pair in 0..K::MINS {
                    let min = L::load(self.mins[p].add(pair * 16).cast());
                    mins = L::dot2::<false>(mins, min, L::repeat(self.row_sums[i].add(pair).cast()));
                }
                let sums = self.sums.add((2 * i + p) * 16);
                let (row, sum) = (self.row_scales.add(i), L::load_f32(sums));
                let mins = (K::MINS > 0).then_some(mins);
                L::store_f32(sums, scale_int::<L>(all[i], mins, scales, row, sum));
            }
        }
    }

    /// Adds the products of `T` rows with a chunk of a pair of panels to their sums.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lines, K: IntKind>(&self) {
        // SAFETY: the pointers of the tile are valid for every step; the caller guarantees the instruction set.
        unsafe {
            let mut all = [[L::words(0); T]; 2];
            for step in 0..Self::steps::<K>() {
                let (mut int_sums, codes, rows) = self.begin::<L, K>(step);
                add_groups::<L, K, T>(&mut int_sums, codes, rows);
                self.multiply::<L, K>(step, &int_sums, &mut all);
            }
            self.scale::<L, K>(&all);
        }
    }
}
