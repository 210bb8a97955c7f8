//! [`Lines`]: what kernels do with the 64-byte lines of packed weights: 16 rows side by side, on every instruction set.
//!
//! # Safety
//!
//! As for [`Simd`](super::Simd): only on a CPU that has the instruction set, with pointers valid for what is named.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

/// Operations on lines of 64 bytes, and on 16 numbers, one for each row of a panel.
pub(crate) trait Lines: Copy + 'static {
    /// 64 bytes, or 16 words.
    type I: Copy;
    /// 16 numbers.
    type F: Copy;

    /// Are signed codes multiplied with 128 added to them, which is taken away from the sum? Else as they are.
    const BIASED: bool;
    /// Rows of input that a panel is multiplied with at a time on its way from memory.
    const FEW: usize;
    /// Rows of input that a pair of panels is multiplied with at a time, in whole numbers.
    const TOKENS: usize;
    /// The same in `f32`.
    const TOKENS_F32: usize;

    unsafe fn load(p: *const u8) -> Self::I;
    unsafe fn store(p: *mut u8, v: Self::I);
    /// Asks for a line that will be read soon.
    unsafe fn prefetch(p: *const u8);
    /// Asks for a line that will be read next.
    unsafe fn prefetch_next(p: *const u8);
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    /// Every byte `x`.
    unsafe fn bytes(x: u8) -> Self::I;
    /// Every word `x`.
    unsafe fn words(x: i32) -> Self::I;
    /// Every word the four bytes at `p`.
    unsafe fn repeat(p: *const u8) -> Self::I;
    /// Words shifted to the left.
    unsafe fn left<const N: u32>(a: Self::I) -> Self::I;
    /// Words shifted to the right, zeros coming in.
    unsafe fn right<const N: u32>(a: Self::I) -> Self::I;
    /// For each byte below 16, the byte of `table` that it numbers.
    unsafe fn look_up(table: &[i8; 16], codes: Self::I) -> Self::I;
    /// Adds to each word the product of its four bytes of `w` with those of `a`, which are signed. Bytes of `w` are below
    /// 128; or, where `WIDE`, any (with [`BIASED`](Lines::BIASED)) or signed (without), `a` being above -128.
    unsafe fn dot4<const WIDE: bool>(sum: Self::I, w: Self::I, a: Self::I) -> Self::I;
    /// Adds to each word the products of the two halves of `a`, signed, with those of `b`. Where `ONE`, second halves of
    /// `b` are zero.
    unsafe fn dot2<const ONE: bool>(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `a * b + c`, words.
    unsafe fn mul_add(a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// Numbers by their bits.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    unsafe fn splat(x: f32) -> Self::F;
    /// The smaller of two.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn load_f32(p: *const f32) -> Self::F;
    unsafe fn store_f32(p: *mut f32, v: Self::F);
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// 16 halves.
    unsafe fn halves(p: *const u8) -> Self::F;
    /// 16 unsigned bytes, as words.
    unsafe fn widen_u8(p: *const u8) -> Self::I;
    /// 16 signed bytes, as words.
    unsafe fn widen_i8(p: *const u8) -> Self::I;
    /// 32 signed bytes, as halves of words.
    unsafe fn pairs_i8(p: *const u8) -> Self::I;

    /// Does the work in a function of its own, for which registers are given out apart from all others.
    unsafe fn apart(work: impl Work<Self>);

    /// Adds to the sums of `T` rows their products with a chunk of a pair of panels, whose runs are `RUN` inputs.
    #[inline(always)]
    unsafe fn tile<const T: usize, const RUN: usize, const MINS: bool, const WIDE: bool>(t: &Tile<T>) {
        // SAFETY: passed on to the caller.
        unsafe { t.add::<Self, RUN, MINS, WIDE>() }
    }

    /// The same where all products of the chunk add up without rounding.
    #[inline(always)]
    unsafe fn whole_tile<const T: usize, K: WholeKind>(t: &WholeTile<T>) {
        // SAFETY: passed on to the caller.
        unsafe { t.add::<Self, K>() }
    }
}

/// What may be done [apart](Lines::apart).
pub(crate) trait Work<L> {
    /// To be inlined.
    unsafe fn run(self);
}

/// `T` rows of rounded input and a chunk of a pair of panels, to be multiplied, every run of weights having a scale.
///
/// All pointers are to what a chunk has: codes in lines, 16 scales (and minimums) for each run; for each row its bytes, its
/// scale, and for each run what its sum begins with or what minimums are multiplied by.
pub(crate) struct Tile<const T: usize> {
    pub codes: [*const u8; 2],
    pub scales: [*const f32; 2],
    pub mins: [*const f32; 2],
    pub rows: [*const u8; T],
    pub row_scales: *const f32,
    pub sides: [*const u32; T],
    /// For each row, 16 sums with each of the panels.
    pub sums: *mut f32,
    pub runs: usize,
}

/// The whole sums of `T` rows with each of two panels.
pub(super) type WholeSums<L, const T: usize> = [[<L as Lines>::I; T]; 2];

/// Adds to whole sums the products of `STEP` inputs: of the panels whose lines are at `codes` with rows whose bytes are at
/// `rows`.
#[inline(always)]
unsafe fn add_groups<L: Lines, const T: usize, const STEP: usize, const WIDE: bool>(
    whole: &mut WholeSums<L, T>,
    codes: [*const u8; 2],
    rows: [*const u8; T],
) {
    // SAFETY: the caller vouches for lines and bytes and has the instruction set.
    unsafe {
        for g in 0..STEP / 4 {
            let w = [L::load(codes[0].add(64 * g)), L::load(codes[1].add(64 * g))];
            for i in 0..T {
                let a = L::repeat(rows[i].add(4 * g));
                whole[0][i] = L::dot4::<WIDE>(whole[0][i], w[0], a);
                whole[1][i] = L::dot4::<WIDE>(whole[1][i], w[1], a);
            }
        }
    }
}

impl<const T: usize> Tile<T> {
    /// Adds to the sums those of a chunk.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lines>(&self, chunk: &[[L::F; T]; 2]) {
        for (p, chunk) in chunk.iter().enumerate() {
            for (i, of_chunk) in chunk.iter().enumerate() {
                // SAFETY: there are 32 sums and a scale for each row; the caller has the instruction set.
                unsafe {
                    let sum = self.sums.add((2 * i + p) * 16);
                    let by = L::splat(*self.row_scales.add(i));
                    L::store_f32(sum, L::fma(*of_chunk, by, L::load_f32(sum)));
                }
            }
        }
    }

    /// What the whole sums of a run begin with, where its lines are, and where its bytes.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lines, const RUN: usize, const MINS: bool>(
        &self,
        run: usize,
    ) -> (WholeSums<L, T>, [*const u8; 2], [*const u8; T]) {
        // SAFETY: there are lines, bytes and sides for each run; the caller has the instruction set.
        unsafe {
            let begin = std::array::from_fn(|i| match MINS {
                true => L::words(0),
                false => L::repeat(self.sides[i].add(run).cast()),
            });
            ([begin; 2], self.codes.map(|c| c.add(run * RUN * 16)), self.rows.map(|r| r.add(run * RUN)))
        }
    }

    /// Scales the whole sums of a run and adds them to those of the chunk.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Lines, const MINS: bool>(
        &self,
        run: usize,
        whole: &WholeSums<L, T>,
        sums: &mut [[L::F; T]; 2],
    ) {
        // SAFETY: there are scales, minimums and sides for each run; the caller has the instruction set.
        unsafe {
            for p in 0..2 {
                let scale = L::load_f32(self.scales[p].add(run * 16));
                for i in 0..T {
                    sums[p][i] = L::fma(L::to_f32(whole[p][i]), scale, sums[p][i]);
                }
                if MINS {
                    let min = L::load_f32(self.mins[p].add(run * 16));
                    for i in 0..T {
                        let less = L::splat(f32::from_bits(*self.sides[i].add(run)));
                        sums[p][i] = L::fma(min, less, sums[p][i]);
                    }
                }
            }
        }
    }

    /// Adds to the sums of `T` rows their products with a chunk of a pair of panels.
    #[inline(always)]
    unsafe fn add<L: Lines, const RUN: usize, const MINS: bool, const WIDE: bool>(&self) {
        // SAFETY: there are lines and bytes for each run; the caller has the instruction set.
        unsafe {
            let mut sums = [[L::splat(0.0); T]; 2];
            for run in 0..self.runs {
                let (mut whole, codes, rows) = self.begin::<L, RUN, MINS>(run);
                add_groups::<L, T, RUN, WIDE>(&mut whole, codes, rows);
                self.scale::<L, MINS>(run, &whole, &mut sums);
            }
            self.store::<L>(&sums);
        }
    }
}

/// How products of a chunk add up whose weights are whole numbers times one scale.
pub(crate) trait WholeKind {
    /// Inputs whose products are added before they are multiplied.
    const STEP: usize;
    /// Do these sums fit 16 bits?
    const NARROW: bool;
    /// Pairs of runs, if each run has a minimum.
    const MINS: usize;
    /// As for [`Lines::dot4`].
    const WIDE: bool;
}

/// The same where the weights of a chunk are whole numbers times one scale.
///
/// All pointers are to what a chunk has: codes in lines; for each step what 16 rows are multiplied by, and for each pair of
/// runs their minimums, side by side; for each row its bytes, its scale, and what its sums begin with or what minimums are
/// multiplied by.
pub(crate) struct WholeTile<const T: usize> {
    pub codes: [*const u8; 2],
    pub by: [*const i32; 2],
    pub less: [*const i32; 2],
    /// 16 scales of products, and 16 of minimums, less than zero.
    pub scales: [*const f32; 2],
    pub rows: [*const u8; T],
    pub row_scales: *const f32,
    pub sides: [*const u32; T],
    /// For each row, 16 sums with each of the panels.
    pub sums: *mut f32,
}

/// Adds to sums of 16 rows those of a chunk, which are whole numbers.
#[inline(always)]
pub(crate) unsafe fn scale_whole<L: Lines, K: WholeKind>(
    all: L::I,
    mins: L::I,
    [d, dmin]: [L::F; 2],
    row_scale: *const f32,
    sums: L::F,
) -> L::F {
    // SAFETY: the caller vouches for the scale, and has the instruction set.
    unsafe {
        let all = L::to_f32(all);
        let all = match K::MINS {
            0 => L::mul(all, d),
            _ => L::fma(all, d, L::mul(L::to_f32(mins), dmin)),
        };
        L::fma(all, L::splat(*row_scale), sums)
    }
}

impl<const T: usize> WholeTile<T> {
    /// Steps of a chunk.
    pub(super) const fn steps<K: WholeKind>() -> usize {
        256 / K::STEP
    }

    /// What the whole sums of a step begin with, where its lines are, and where its bytes.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lines, K: WholeKind>(
        &self,
        step: usize,
    ) -> (WholeSums<L, T>, [*const u8; 2], [*const u8; T]) {
        // SAFETY: there are lines, bytes and, without minimums, sides for each step; the caller has the instruction set.
        unsafe {
            let begin = std::array::from_fn(|i| match K::MINS {
                0 => L::repeat(self.sides[i].add(step).cast()),
                _ => L::words(0),
            });
            let codes = self.codes.map(|c| c.add(step * K::STEP * 16));
            ([begin; 2], codes, self.rows.map(|r| r.add(step * K::STEP)))
        }
    }

    /// Multiplies the whole sums of a step and adds them to the others.
    #[inline(always)]
    pub(super) unsafe fn multiply<L: Lines, K: WholeKind>(
        &self,
        step: usize,
        whole: &WholeSums<L, T>,
        all: &mut WholeSums<L, T>,
    ) {
        // SAFETY: there is a factor for each step; the caller has the instruction set.
        unsafe {
            for p in 0..2 {
                let by = L::load(self.by[p].add(step * 16).cast());
                for i in 0..T {
                    all[p][i] = match K::NARROW {
                        true => L::dot2::<true>(all[p][i], whole[p][i], by),
                        false => L::mul_add(whole[p][i], by, all[p][i]),
                    };
                }
            }
        }
    }

    /// Scales the sums of the chunk and adds them to the others.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Lines, K: WholeKind>(&self, all: &WholeSums<L, T>) {
        // SAFETY: there are minimums for each pair of runs, and sums for each row; the caller has the instruction set.
        unsafe {
            for p in 0..2 {
                let scales = [L::load_f32(self.scales[p]), L::load_f32(self.scales[p].add(16))];
                for i in 0..T {
                    let mut mins = L::words(0);
                    for pair in 0..K::MINS {
                        let less = L::load(self.less[p].add(pair * 16).cast());
                        mins = L::dot2::<false>(mins, less, L::repeat(self.sides[i].add(pair).cast()));
                    }
                    let sums = self.sums.add((2 * i + p) * 16);
                    let (row, sum) = (self.row_scales.add(i), L::load_f32(sums));
                    L::store_f32(sums, scale_whole::<L, K>(all[p][i], mins, scales, row, sum));
                }
            }
        }
    }

    /// Adds to the sums of `T` rows their products with a chunk of a pair of panels.
    #[inline(always)]
    unsafe fn add<L: Lines, K: WholeKind>(&self) {
        // SAFETY: there is for each step what the tile says; the caller has the instruction set.
        unsafe {
            let mut all = [[L::words(0); T]; 2];
            for step in 0..Self::steps::<K>() {
                let (mut whole, codes, rows) = self.begin::<L, K>(step);
                match (K::STEP, K::WIDE) {
                    (16, true) => add_groups::<L, T, 16, true>(&mut whole, codes, rows),
                    (_, true) => add_groups::<L, T, 32, true>(&mut whole, codes, rows),
                    (16, _) => add_groups::<L, T, 16, false>(&mut whole, codes, rows),
                    _ => add_groups::<L, T, 32, false>(&mut whole, codes, rows),
                }
                self.multiply::<L, K>(step, &whole, &mut all);
            }
            self.scale::<L, K>(&all);
        }
    }
}
