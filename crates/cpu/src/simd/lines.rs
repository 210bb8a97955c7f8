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
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// Numbers by their bits.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    unsafe fn splat(x: f32) -> Self::F;
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

    /// Does the work in a function of its own, for which registers are given out apart from all others.
    unsafe fn apart(work: impl Work<Self>);

    /// Adds to the sums of `T` rows their products with a chunk of a pair of panels.
    #[inline(always)]
    unsafe fn tile<const T: usize, const RUN: usize, const MINS: bool, const WIDE: bool>(t: &Tile<T>) {
        // SAFETY: passed on to the caller.
        unsafe { t.add::<Self, RUN, MINS, WIDE>() }
    }
}

/// What may be done [apart](Lines::apart).
pub(crate) trait Work<L> {
    /// To be inlined.
    unsafe fn run(self);
}

/// `T` rows of rounded input and a chunk of a pair of panels, to be multiplied.
///
/// All pointers are to what a chunk has: codes in lines, 16 scales (and minimums) for each run; for each row its bytes,
/// a scale for every 32 of them, and for each run what its sum begins with or what minimums are multiplied by.
pub(crate) struct Tile<const T: usize> {
    pub codes: [*const u8; 2],
    pub scales: [*const f32; 2],
    pub mins: [*const f32; 2],
    pub rows: [*const u8; T],
    pub row_scales: [*const f32; T],
    pub sides: [*const u32; T],
    /// For each row, 16 sums with each of the panels.
    pub sums: *mut f32,
    pub runs: usize,
}

impl<const T: usize> Tile<T> {
    /// The sums so far.
    #[inline(always)]
    pub(super) unsafe fn load<L: Lines>(&self) -> [[L::F; T]; 2] {
        // SAFETY: there are 32 sums for each row; the caller has the instruction set.
        let sum = |p: usize, i: usize| unsafe { L::load_f32(self.sums.add((2 * i + p) * 16)) };
        std::array::from_fn(|p| std::array::from_fn(|i| sum(p, i)))
    }

    #[inline(always)]
    pub(super) unsafe fn store<L: Lines>(&self, sums: &[[L::F; T]; 2]) {
        for (p, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                // SAFETY: there are 32 sums for each row; the caller has the instruction set.
                unsafe { L::store_f32(self.sums.add((2 * i + p) * 16), *sum) };
            }
        }
    }

    /// What the whole sums of a run begin with.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lines, const MINS: bool>(&self, run: usize) -> [[L::I; T]; 2] {
        // SAFETY: there are sides for each run; the caller has the instruction set.
        let begin = std::array::from_fn(|i| unsafe {
            if MINS { L::words(0) } else { L::repeat(self.sides[i].add(run).cast()) }
        });
        [begin; 2]
    }

    /// Scales the whole sums of a run and adds them to the others.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Lines, const RUN: usize, const MINS: bool>(
        &self,
        run: usize,
        whole: &[[L::I; T]; 2],
        sums: &mut [[L::F; T]; 2],
    ) {
        // SAFETY: there are scales, minimums and sides for each run; the caller has the instruction set.
        unsafe {
            for p in 0..2 {
                let scale = L::load_f32(self.scales[p].add(run * 16));
                for i in 0..T {
                    let by = L::mul(scale, L::splat(*self.row_scales[i].add(run * RUN / 32)));
                    sums[p][i] = L::fma(L::to_f32(whole[p][i]), by, sums[p][i]);
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

    #[inline(always)]
    unsafe fn add<L: Lines, const RUN: usize, const MINS: bool, const WIDE: bool>(&self) {
        // SAFETY: there are lines and bytes for each run; the caller has the instruction set.
        unsafe {
            let mut sums = self.load::<L>();
            for run in 0..self.runs {
                let mut whole = self.begin::<L, MINS>(run);
                for g in 0..RUN / 4 {
                    let line = (run * (RUN / 4) + g) * 64;
                    let w = [L::load(self.codes[0].add(line)), L::load(self.codes[1].add(line))];
                    for i in 0..T {
                        let a = L::repeat(self.rows[i].add(run * RUN + 4 * g));
                        whole[0][i] = L::dot4::<WIDE>(whole[0][i], w[0], a);
                        whole[1][i] = L::dot4::<WIDE>(whole[1][i], w[1], a);
                    }
                }
                self.scale::<L, RUN, MINS>(run, &whole, &mut sums);
            }
            self.store::<L>(&sums);
        }
    }
}
