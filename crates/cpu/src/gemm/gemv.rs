//! GEMV: products of a pair of packed panels with a few rows of input. Weights go from memory through registers,
//! once.
//!
//! The same sums in the same order as in [`tiles`](super::tiles), which writes unpacked weights to memory first: that pays off
//! when many rows use them. More rows than fit into registers are multiplied tile by tile; all but the first find the pair in the
//! cache.
//!
//! ```text
//! for each chunk of 256 inputs
//!   for each panel of the pair                        (16 rows of the weight: `L` is a line, 16 x 4 codes)
//!     for each sub-block of 32 inputs, each step of it (16 or 32 inputs: `PanelShape::step`)
//!       for each group of 4 inputs: w = 16 x 4 codes, from one to three planes
//!         for each row i of x:  int_sums[i] += w · x[i][group]                            `dot_group`
//!       float scales:           f[i]   += scale * int_sums[i] + min * row_sums[i]         `multiply`
//!       integer scales:         all[i] += scale * int_sums[i]                             `multiply_int`
//!     sums[i] += x_scale[i] * f[i], or x_scale[i] * (d * all[i] - dmin * (mins · row_sums[i]))
//! ```
//!
//! Codes without mins begin their `int_sums` with a row sum, which corrects for the bias of the codes ([`RowSums`]). Zero
//! points, which differ between the rows of a weight, multiply row sums: those products are added before the scale.
//!
//! [`RowSums`]: crate::quantize::RowSums
//!
//! One panel after the other, so that memory is read front to back, and so that an input element is used once where
//! it is loaded and needs no register of its own; only floats with one row take both at once, where software prefetches
//! (`multiply_plain`). The code for each number of rows is a function of its own ([`Lines::outlined`]); otherwise the
//! compiler runs out of registers, and takes very long.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::rows::{RowKernel, in_tiles};
use super::unpack::{Header, float, group, pairs, prefetch_strided};
use super::{Kind, Sums};
use crate::choices::{Prefetch, PrefetchChoices};
use crate::mat::Mat;
use crate::pack::{
    CHUNK, HasPackedKind, LINE, PAIR, PackedKind, PackedLayout, PackedWeights, ROWS, SUBBLOCK,
    ZERO_POINT_BIAS, with_packed_kind,
};
use crate::quantize::QuantizedView;
use crate::simd::{IntKind, Lines, OfRun, StepKind, Work, dot4, scale_int};

/// A pair of panels, to be multiplied with a few rows.
pub(crate) struct GemvTask<'a> {
    pub w: PackedWeights<'a>,
    pub pair: usize,
    pub x: GemvRows<'a>,
    /// Rows of the input.
    pub rows: Range<usize>,
    /// Sums of each of `rows`.
    pub sums: &'a mut [Sums],
    pub prefetch: Prefetch,
}

/// Rows of input, quantized or f32.
#[derive(Clone, Copy)]
pub(crate) enum GemvRows<'a> {
    Quantized(QuantizedView<'a>),
    /// Float rows, for float weights.
    Plain(Mat<'a, f32>),
}

/// Multiplies the pair with all rows.
#[inline(always)]
pub(crate) unsafe fn gemv<L: Lines>(t: &mut GemvTask<'_>) {
    let rows = t.sums.len();
    // SAFETY: the caller upholds the same contract.
    unsafe { in_tiles::<GemvTile<L>, _>(t, rows) }
}

/// [`SomeRows`], by the kind of the weights.
struct GemvTile<L>(PhantomData<L>);

impl<L: Lines> RowKernel<GemvTask<'_>> for GemvTile<L> {
    const MAX_ROWS: usize = L::GEMV_ROWS;

    #[inline(always)]
    unsafe fn tile<const T: usize>(t: &mut GemvTask<'_>, row: usize) {
        let Some(sums) = t.sums[row..].first_chunk_mut::<T>() else { return };
        let (w, pair, x, first, prefetch) = (t.w, t.pair, t.x, t.rows.start + row, t.prefetch);
        // SAFETY: the caller has the instruction set.
        with_packed_kind!(w.layout.kind, F => unsafe {
            L::outlined(SomeRows { w, pair, x, first, sums, prefetch, kind: PhantomData::<F> });
        });
    }
}

/// A pair of panels, to be multiplied with `T` rows.
struct SomeRows<'a, F, const T: usize> {
    w: PackedWeights<'a>,
    pair: usize,
    x: GemvRows<'a>,
    first: usize,
    sums: &'a mut [Sums; T],
    prefetch: Prefetch,
    kind: PhantomData<F>,
}

impl<L: Lines, F: HasPackedKind, const T: usize> Work<L> for SomeRows<'_, F, T> {
    #[inline(always)]
    unsafe fn run(self) {
        let is_plain = const { F::SHAPE.is_plain() };
        // SAFETY: the caller upholds the same contract.
        unsafe {
            match self.x {
                GemvRows::Quantized(x) if !is_plain => self.quantized::<L>(x),
                GemvRows::Plain(x) if is_plain => self.plain::<L>(x),
                _ => debug_assert!(false, "input of another kind than weights"),
            }
        }
    }
}

impl<F: HasPackedKind, const T: usize> SomeRows<'_, F, T> {
    /// Quantized weights: all chunks.
    #[inline(always)]
    unsafe fn quantized<L: Lines>(self, x: QuantizedView<'_>) {
        if const { matches!(F::KIND, PackedKind::EightF16) } && self.w.cols == SUBBLOCK {
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.one_subblock::<L>(x) };
        }
        let (sums, layout, prefetch) = (self.sums.as_mut_ptr().cast::<f32>(), self.w.layout, self.prefetch);
        for start in (0..self.w.cols).step_by(CHUNK) {
            let inputs = start..self.w.cols.min(start + CHUNK);
            let (codes, scales, row_sums) = x.chunk(self.first..self.first + T, &inputs);
            let mut scratch;
            // A single row has no distance to others, so it need not be copied.
            let rows = if inputs.len() == CHUNK || T == 1 {
                let (codes, scales, row_sums) = (codes.as_ptr(), scales.as_ptr(), row_sums.as_ptr());
                Rows { codes, scales, row_sums, layout, kind: PhantomData::<F> }
            } else {
                scratch = Spread::<T>::EMPTY;
                scratch.fill(codes, scales, row_sums, layout)
            };
            for p in 0..self.w.panels {
                let (chunk, n) = self.w.chunk(2 * self.pair + p, start / CHUNK);
                // SAFETY: the chunk is of kind `F` with `n` inputs, `rows` has its codes, scales and sums, and there
                // are sums for T rows; the caller has the instruction set.
                unsafe {
                    if !const { F::SHAPE.has_int_scales() } {
                        multiply::<L, F, T>(chunk.as_ptr(), n, &rows, sums.add(p * ROWS), prefetch);
                    } else {
                        // Blocks of these formats are full chunks (256 weights).
                        assert!(n == CHUNK);
                        multiply_int::<L, F, T>(chunk.as_ptr(), &rows, sums.add(p * ROWS), prefetch);
                    }
                }
            }
        }
    }

    /// Weights of a single sub-block of 8-bit codes, as `lora_b` of low rank: so little work that the overhead of the
    /// loops over sub-blocks would dominate.
    #[inline(always)]
    unsafe fn one_subblock<L: Lines>(self, x: QuantizedView<'_>) {
        let (codes, scales, row_sums) = x.chunk(self.first..self.first + T, &(0..SUBBLOCK));
        for p in 0..self.w.panels {
            let (chunk, _) = self.w.chunk(2 * self.pair + p, 0);
            let lines = chunk[LINE..].chunks_exact(LINE).take(self.w.groups());
            // SAFETY: the chunk begins with its scales, and rows have codes for a sub-block, a scale and a row sum
            // each; the caller has the instruction set.
            unsafe {
                let mut int_sums = [L::words(0); T];
                for i in 0..T {
                    int_sums[i] = L::repeat(row_sums[i..].as_ptr().cast());
                }
                for (group, line) in lines.enumerate() {
                    let w = L::load(line.as_ptr());
                    let w = if L::BIASED { L::xor(w, L::bytes(0x80)) } else { w };
                    for i in 0..T {
                        int_sums[i] = L::dot4::<true>(
                            int_sums[i],
                            w,
                            L::repeat(codes[i * SUBBLOCK + 4 * group..].as_ptr()),
                        );
                    }
                }
                let scale = L::widen_f16(chunk.as_ptr());
                for i in 0..T {
                    let f = L::fma(L::to_f32(int_sums[i]), scale, L::splat(0.0));
                    let sums = self.sums[i].0[p].as_mut_ptr();
                    L::store_f32(sums, L::fma(f, L::splat(scales[i]), L::load_f32(sums)));
                }
            }
        }
    }

    /// Float weights: all chunks.
    #[inline(always)]
    unsafe fn plain<L: Lines>(self, x: Mat<'_, f32>) {
        let (sums, prefetch) = (self.sums.as_mut_ptr().cast::<f32>(), self.prefetch);
        let mut scratch;
        for start in (0..self.w.cols).step_by(CHUNK) {
            let inputs = start..self.w.cols.min(start + CHUNK);
            // A single row has no distance to others, so it need not be copied.
            let rows = if T == 1 {
                x.row(self.first)[inputs].as_ptr()
            } else {
                scratch = [[0.0; CHUNK]; T];
                for i in 0..T {
                    scratch[i][..inputs.len()].copy_from_slice(&x.row(self.first + i)[inputs.clone()]);
                }
                scratch.as_ptr().cast()
            };
            let chunk = |p: usize| self.w.chunk(2 * self.pair + p, start / CHUNK);
            // SAFETY: the chunks are of kind `F` with `n` inputs, and there are sums for T rows; the caller has the
            // instruction set.
            unsafe {
                if const { T == 1 } && self.w.panels == 2 && prefetch == Prefetch::Strided {
                    let ((first, n), (second, _)) = (chunk(0), chunk(1));
                    multiply_plain::<L, F, T, 2>([first.as_ptr(), second.as_ptr()], n, rows, sums, prefetch);
                } else {
                    for p in 0..self.w.panels {
                        let (chunk, n) = chunk(p);
                        multiply_plain::<L, F, T, 1>([chunk.as_ptr()], n, rows, sums.add(p * ROWS), prefetch);
                    }
                }
            }
        }
    }
}

/// The same inputs (at most a chunk) of some rows, at the distance of full chunks: so offsets between rows are known
/// at compile time.
struct Rows<'a, F> {
    codes: *const u8,
    scales: *const f32,
    row_sums: *const u32,
    /// Layout of the weights.
    layout: &'a PackedLayout,
    kind: PhantomData<F>,
}

impl<F: HasPackedKind> Rows<'_, F> {
    /// Distance between the row sums of two rows.
    const ROW_SUMS: usize =
        CHUNK / F::SHAPE.run / if F::SHAPE.has_int_scales() && F::SHAPE.has_mins() { 2 } else { 1 };
}

/// Rows of less than a chunk, copied to the distance of full chunks.
struct Spread<const T: usize> {
    codes: [[u8; CHUNK]; T],
    row_sums: [[u32; CHUNK / 16]; T],
}

impl<const T: usize> Spread<T> {
    const EMPTY: Spread<T> = Spread { codes: [[0; _]; _], row_sums: [[0; _]; _] };

    #[inline(always)]
    fn fill<'a, F: HasPackedKind>(
        &mut self,
        codes: &[u8],
        scales: &[f32],
        row_sums: &[u32],
        layout: &'a PackedLayout,
    ) -> Rows<'a, F> {
        spread(codes, self.codes.as_flattened_mut(), T, CHUNK);
        spread(row_sums, self.row_sums.as_flattened_mut(), T, Rows::<F>::ROW_SUMS);
        Rows {
            codes: self.codes.as_ptr().cast(),
            scales: scales.as_ptr(),
            row_sums: self.row_sums.as_ptr().cast(),
            layout,
            kind: PhantomData,
        }
    }
}

/// Copies contiguous rows to a stride of `stride` elements.
fn spread<T: Copy>(from: &[T], to: &mut [T], rows: usize, stride: usize) {
    for (from, to) in from.chunks_exact(from.len() / rows).zip(to.chunks_mut(stride)) {
        to[..from.len()].copy_from_slice(from);
    }
}

/// Adds to the sums of `T` rows, [`PAIR`] elements apart, their products with a chunk of codes of a panel.
#[inline(always)]
unsafe fn multiply<L: Lines, F: HasPackedKind, const T: usize>(
    from: *const u8,
    inputs: usize,
    x: &Rows<'_, F>,
    sums: *mut f32,
    prefetch: Prefetch,
) {
    let shape = const { F::SHAPE };
    // SAFETY: the chunk has these sub-blocks, and rows have codes, scales and sums for them; the caller has the
    // instruction set.
    unsafe {
        let header = Header::<L>::new::<F>(from, x.layout, inputs, is_strided::<L, T>(&prefetch));
        let head = x.layout.shape_of::<F>().head(inputs);
        let mut f = [L::splat(0.0); T];
        for at in 0..inputs / SUBBLOCK {
            let planes = from.add(head + at * LINE * shape.bits);
            if is_strided::<L, T>(&prefetch) {
                prefetch_subblock::<L>(planes, shape.bits);
            } else if const { F::SHAPE.bits == 5 } {
                // Groups take the line of upper bits, the last, first.
                for line in 0..shape.bits {
                    L::touch(planes.add(line * LINE));
                }
            }
            for r in 0..SUBBLOCK / shape.run {
                let run = at * (SUBBLOCK / shape.run) + r;
                let row_sums = x.row_sums.add(run);
                let mut int_sums = [L::words(0); T];
                if !shape.has_mins() && !shape.has_zero_points() {
                    for i in 0..T {
                        int_sums[i] = L::repeat(row_sums.add(i * Rows::<F>::ROW_SUMS).cast());
                    }
                }
                dot_step::<L, F, T>(
                    &mut int_sums,
                    r,
                    planes,
                    x.codes.add(at * SUBBLOCK),
                    x.layout.table::<L>(),
                );
                let (scale, min) = header.run::<F>(run);
                // A row sum is `-ZERO_POINT_BIAS` times the sum of the row's codes, so all below is exact.
                let zero = match shape.has_zero_points() {
                    true => L::mul(L::to_f32(header.zero_point(run)), L::splat(1.0 / ZERO_POINT_BIAS as f32)),
                    false => L::splat(0.0),
                };
                for i in 0..T {
                    let mut products = L::to_f32(int_sums[i]);
                    if shape.has_zero_points() {
                        let row_sum = L::repeat(row_sums.add(i * Rows::<F>::ROW_SUMS).cast());
                        products = L::fma(zero, L::to_f32(row_sum), products);
                    }
                    f[i] = L::fma(products, scale, f[i]);
                    if shape.has_mins() {
                        let row_sum = f32::from_bits(*row_sums.add(i * Rows::<F>::ROW_SUMS));
                        f[i] = L::fma(min, L::splat(row_sum), f[i]);
                    }
                }
                part::<L, F, T>();
            }
        }
        for i in 0..T {
            let to = sums.add(PAIR * i);
            L::store_f32(to, L::fma(f[i], L::splat(*x.scales.add(i)), L::load_f32(to)));
        }
    }
}

/// The same for integer scales, where all products of a chunk are summed without rounding.
#[inline(always)]
unsafe fn multiply_int<L: Lines, F: HasPackedKind, const T: usize>(
    from: *const u8,
    x: &Rows<'_, F>,
    sums: *mut f32,
    prefetch: Prefetch,
) {
    let shape = const { F::SHAPE };
    let (step, min_pairs) = const { (Kind::<F>::STEP, Kind::<F>::MINS) };
    // SAFETY: the chunk has these sub-blocks, and rows have codes, scales and sums for them; the caller has the
    // instruction set.
    unsafe {
        let header = Header::<L>::new::<F>(from, x.layout, CHUNK, is_strided::<L, T>(&prefetch));
        let mut all = [L::words(0); T];
        // Of codes of two bits, where they lie.
        let mut quarters = [[L::words(0); T]; 4];
        if const { F::SHAPE.is_one_run() } {
            for i in 0..T {
                all[i] = L::repeat(x.row_sums.add(i * Rows::<F>::ROW_SUMS).cast());
            }
        }
        for at in 0..CHUNK / SUBBLOCK {
            let planes = from.add(shape.head(CHUNK) + at * LINE * shape.bits);
            if is_strided::<L, T>(&prefetch) {
                prefetch_subblock::<L>(planes, shape.bits);
            } else if const { F::SHAPE.bits == 5 } {
                // Groups take the line of upper bits, the last, first.
                for line in 0..shape.bits {
                    L::touch(planes.add(line * LINE));
                }
            }
            if const { F::SHAPE.is_one_run() } {
                let codes = x.codes.add(at * SUBBLOCK);
                match const { has_quarter_sums::<L, F, T>() } {
                    true => dot_quarters::<L, F, T>(&mut quarters, planes, codes),
                    false => dot_step::<L, F, T>(&mut all, 0, planes, codes, x.layout.table::<L>()),
                }
                part::<L, F, T>();
                continue;
            }
            if const { L::SUMS_IN_16_BITS && Kind::<F>::MINS > 0 } {
                // Nothing is added to the products of a run before its factor.
                for r in 0..SUBBLOCK / shape.run {
                    let by = header.by::<F>((at * (SUBBLOCK / shape.run) + r) * (shape.run / step));
                    let by = L::or(by, L::left::<16>(by));
                    let codes = x.codes.add(at * SUBBLOCK);
                    dot_in_pairs::<L, F, OfRun<Kind<F>>, T>(
                        &mut all,
                        r,
                        planes,
                        codes,
                        x.layout.table::<L>(),
                        by,
                    );
                    part::<L, F, T>();
                }
                continue;
            }
            if const { has_nibble_sums::<L, F, T>() && Kind::<F>::MINS > 0 && F::SHAPE.run == 2 * Kind::<F>::STEP }
            {
                // The two steps of a run have one factor.
                let (mut low, mut high) = ([L::words(0); T], [L::words(0); T]);
                dot_nibbles::<L, F, T>([&mut low, &mut high], planes, x.codes.add(at * SUBBLOCK));
                let by = header.by::<F>(2 * at);
                for i in 0..T {
                    all[i] = L::dot2::<true>(all[i], low[i], by);
                    all[i] = L::dot2::<true>(all[i], L::right_signed::<4>(high[i]), by);
                }
                continue;
            }
            for r in 0..SUBBLOCK / step {
                let i_step = at * (SUBBLOCK / step) + r;
                let mut int_sums = [L::words(0); T];
                if min_pairs == 0 {
                    for i in 0..T {
                        int_sums[i] = L::repeat(x.row_sums.add(i * Rows::<F>::ROW_SUMS + i_step).cast());
                    }
                }
                dot_step::<L, F, T>(
                    &mut int_sums,
                    r,
                    planes,
                    x.codes.add(at * SUBBLOCK),
                    x.layout.table::<L>(),
                );
                let by = header.by::<F>(i_step);
                for i in 0..T {
                    all[i] = match const { Kind::<F>::NARROW } {
                        true => L::dot2::<true>(all[i], int_sums[i], by),
                        false => L::mul_add(int_sums[i], by, all[i]),
                    };
                }
                part::<L, F, T>();
            }
        }
        if const { has_quarter_sums::<L, F, T>() } {
            for i in 0..T {
                let [first, second, third, fourth] = quarters.map(|of_rows| of_rows[i]);
                let low = L::add(first, L::right_signed::<2>(second));
                let high = L::add(L::right_signed::<4>(third), L::right_signed::<6>(fourth));
                all[i] = L::add(all[i], L::add(low, high));
            }
        }
        let scales = header.scales();
        let mut mins = [L::words(0); T];
        for pair in 0..min_pairs {
            let min = header.mins::<F>(pair);
            for i in 0..T {
                mins[i] = L::dot2::<false>(
                    mins[i],
                    min,
                    L::repeat(x.row_sums.add(i * Rows::<F>::ROW_SUMS + pair).cast()),
                );
            }
        }
        for i in 0..T {
            let to = sums.add(PAIR * i);
            let (row, mins) = (x.scales.add(i), (min_pairs > 0).then_some(mins[i]));
            L::store_f32(to, scale_int::<L>(all[i], mins, scales, row, L::load_f32(to)));
        }
    }
}

/// True if weights are prefetched, for a branch within a loop: it has that with few rows alone, as it takes registers. The choice is
/// read from memory each time, since otherwise the compiler makes two loops of it, and puts more registers aside in both.
#[inline(always)]
fn is_strided<L: Lines, const T: usize>(prefetch: &Prefetch) -> bool {
    let rows = const { if L::LINES < 32 { 2 } else { PrefetchChoices::ROWS } };
    // SAFETY: a reference is valid for reads.
    T > rows || unsafe { std::ptr::read_volatile(prefetch) == Prefetch::Strided }
}

/// Prefetches what comes after a sub-block of so many lines: far ahead, and the next but one into the nearest cache.
#[inline(always)]
unsafe fn prefetch_subblock<L: Lines>(planes: *const u8, lines: usize) {
    // SAFETY: the caller guarantees a sub-block at `planes`, and has the instruction set; a prefetch may be of any address.
    unsafe {
        prefetch_strided::<L>(planes, planes.add(LINE * lines));
        for line in 0..lines {
            L::prefetch_next(planes.add(LINE * (2 * lines + line)));
        }
    }
}

/// Adds the products of step `r` of a sub-block. Integer sums are exact in any order: groups are in that of their lines, which two
/// share that are four apart. Prefetchers of some processors give up where memory is read in an order like 0 4 1 5.
#[inline(always)]
unsafe fn dot_step<L: Lines, F: HasPackedKind, const T: usize>(
    int_sums: &mut [L::I; T],
    r: usize,
    planes: *const u8,
    codes: *const u8,
    table: &[i8; 16],
) {
    // SAFETY: the caller upholds the same contract.
    unsafe {
        if const { L::SUMS_IN_16_BITS && Kind::<F>::GROUPS > 1 } {
            return dot_in_pairs::<L, F, Kind<F>, T>(int_sums, r, planes, codes, table, L::words(0x1_0001));
        }
        let all = const { F::SHAPE.step() >= SUBBLOCK };
        if const { has_nibble_sums::<L, F, T>() && F::SHAPE.step() >= SUBBLOCK } {
            let mut high = [L::words(0); T];
            dot_nibbles::<L, F, T>([int_sums, &mut high], planes, codes);
            for i in 0..T {
                int_sums[i] = L::add(int_sums[i], L::right_signed::<4>(high[i]));
            }
            return;
        }
        macro_rules! add {
            ($($g:literal)*) => {{
                $(
                    if all || r == $g / 4 {
                        dot_group::<L, F, T, $g>(int_sums, planes, codes, table);
                        if const { F::SHAPE.bits == 3 && T > 2 } {
                            // Three lines make eight groups: the compiler would unpack them all at once.
                            part::<L, F, T>();
                        }
                    }
                )*
            }};
        }
        match const { F::SHAPE.bits } {
            8 => add!(0 1 2 3 4 5 6 7),
            _ => add!(0 4 1 5 2 6 3 7),
        }
    }
}

/// True if high nibbles are multiplied where they lie, in bytes that are 16 times as large: that saves a shift, but takes sums of
/// their own.
const fn has_nibble_sums<L: Lines, F: HasPackedKind, const T: usize>() -> bool {
    L::BIASED && F::SHAPE.bits == 4 && !F::SHAPE.is_looked_up() && 4 + 4 * T <= L::LINES
}

/// Adds the products of the low nibbles of a sub-block, and 16 times those of the high ones.
#[inline(always)]
unsafe fn dot_nibbles<L: Lines, F: HasPackedKind, const T: usize>(
    [low, high]: [&mut [L::I; T]; 2],
    planes: *const u8,
    codes: *const u8,
) {
    // SAFETY: the caller guarantees a sub-block of four lines at `planes` and its codes, and has the instruction set.
    unsafe {
        for j in 0..4 {
            let w = L::load(planes.add(j * LINE));
            let nibbles = [L::and(w, L::bytes(0x0f)), L::and(w, L::bytes(0xf0))];
            for i in 0..T {
                let codes = codes.add(i * CHUNK + 4 * j);
                low[i] = dot4::<L, Kind<F>>(low[i], nibbles[0], L::repeat(codes));
                high[i] = dot4::<L, Kind<F>>(high[i], nibbles[1], L::repeat(codes.add(16)));
            }
        }
    }
}

/// True if codes of two bits are multiplied where they lie, in bytes that are up to 64 times as large: that saves shifts, but takes
/// sums of their own, which nothing may be done with within a chunk.
const fn has_quarter_sums<L: Lines, F: HasPackedKind, const T: usize>() -> bool {
    L::BIASED && F::SHAPE.bits == 2 && F::SHAPE.is_one_run() && 8 + 4 * T <= L::LINES
}

/// Adds the products of the codes of a sub-block, those in the lowest two bits of bytes first, and then 4, 16 and 64 times those of
/// the others.
#[inline(always)]
unsafe fn dot_quarters<L: Lines, F: HasPackedKind, const T: usize>(
    sums: &mut [[L::I; T]; 4],
    planes: *const u8,
    codes: *const u8,
) {
    // SAFETY: the caller guarantees a sub-block of two lines at `planes` and its codes, and has the instruction set.
    unsafe {
        for half in 0..2 {
            let w = L::load(planes.add(half * LINE));
            for (j, sums) in sums.iter_mut().enumerate() {
                let quarter = L::and(w, L::bytes(3 << (2 * j)));
                for i in 0..T {
                    let codes = codes.add(i * CHUNK + 16 * half + 4 * j);
                    sums[i] = dot4::<L, Kind<F>>(sums[i], quarter, L::repeat(codes));
                }
            }
        }
    }
}

/// Ends a part of a sub-block: the compiler would keep lines that several parts read, in more registers than there may be.
#[inline(always)]
fn part<L: Lines, F: HasPackedKind, const T: usize>() {
    if const { F::SHAPE.bits + 4 * T + 8 > L::LINES } {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The same with products that are summed in pairs in 16 bits, over as many groups as fit, and then multiplied by the halves of
/// `by`: ones, or the factor of what `K` sums.
#[inline(always)]
unsafe fn dot_in_pairs<L: Lines, F: HasPackedKind, K: StepKind, const T: usize>(
    sums: &mut [L::I; T],
    r: usize,
    planes: *const u8,
    codes: *const u8,
    table: &[i8; 16],
    by: L::I,
) {
    macro_rules! add {
        ($first:literal $($g:literal)*) => {{
            let w = group::<L, F, $first>(planes, table);
            let mut pairs = [w; T];
            for i in 0..T {
                pairs[i] = L::products(w, L::repeat(codes.add(i * CHUNK + 4 * $first)));
            }
            $(
                let w = group::<L, F, $g>(planes, table);
                for i in 0..T {
                    let products = L::products(w, L::repeat(codes.add(i * CHUNK + 4 * $g)));
                    pairs[i] = L::add_products(pairs[i], products);
                }
            )*
            for i in 0..T {
                sums[i] = L::dot2::<false>(sums[i], pairs[i], by);
            }
        }};
    }
    // SAFETY: the caller upholds the same contract.
    unsafe {
        match const { (K::GROUPS, K::STEP >= SUBBLOCK) } {
            (8, _) => add!(0 4 1 5 2 6 3 7),
            (4, true) => {
                add!(0 4 1 5);
                add!(2 6 3 7);
            }
            (4, false) if r == 0 => add!(0 1 2 3),
            (4, false) => add!(4 5 6 7),
            (_, all) => {
                if all || r == 0 {
                    add!(0 1);
                    add!(2 3);
                }
                if all || r == 1 {
                    add!(4 5);
                    add!(6 7);
                }
            }
        }
    }
}

/// Adds the products of group `G` (four inputs) of a sub-block.
#[inline(always)]
unsafe fn dot_group<L: Lines, F: HasPackedKind, const T: usize, const G: usize>(
    int_sums: &mut [L::I; T],
    planes: *const u8,
    codes: *const u8,
    table: &[i8; 16],
) {
    // SAFETY: the caller guarantees a sub-block at `planes` and its codes, and has the instruction set.
    unsafe {
        let w = group::<L, F, G>(planes, table);
        for i in 0..T {
            let a = L::repeat(codes.add(i * CHUNK + 4 * G));
            int_sums[i] = dot4::<L, Kind<F>>(int_sums[i], w, a);
        }
    }
}

/// Adds to the sums of `T` rows, [`PAIR`] elements apart, their products with a chunk of floats of each of `P` panels. Rows of
/// `x` are [`CHUNK`] elements apart.
///
/// Each FMA waits for the one before it. With one row, a single panel leaves too few of them to do meanwhile; but the hardware's
/// prefetchers follow one panel twice as fast as two.
#[inline(always)]
unsafe fn multiply_plain<L: Lines, F: HasPackedKind, const T: usize, const P: usize>(
    from: [*const u8; P],
    inputs: usize,
    x: *const f32,
    sums: *mut f32,
    prefetch: Prefetch,
) {
    /// Inputs whose weights are prefetched together.
    const SOME: usize = 8;
    let bytes = const { F::SHAPE.bits / 8 * ROWS };
    // SAFETY: the chunks and the rows of `x` have `inputs` inputs, and there are `T` sums of each panel; the caller has the
    // instruction set.
    unsafe {
        let mut f = [[L::splat(0.0); T]; P];
        for p in 0..P {
            for i in 0..T {
                f[p][i] = L::load_f32(sums.add(PAIR * i + ROWS * p));
            }
        }
        let head = const { F::SHAPE }.head(inputs);
        // The chunk of the other panel comes next in memory, and is read meanwhile.
        let other = from[P - 1].addr() - from[0].addr();
        for some in (0..inputs).step_by(SOME) {
            if is_strided::<L, T>(&prefetch) {
                for from in from {
                    let w = from.wrapping_add(head + some * bytes + other);
                    prefetch_strided::<L>(w, w.wrapping_add(SOME * bytes));
                }
            }
            for k in (some..inputs.min(some + SOME)).step_by(2) {
                for odd in 0..2 {
                    if k + odd == inputs {
                        break;
                    }
                    // Not in a closure, which would not be inlined.
                    let mut w = [L::splat(0.0); P];
                    for p in 0..P {
                        let scales = from[p].wrapping_add(some / SUBBLOCK * LINE);
                        w[p] = number::<L, F>(from[p].add(head + k * bytes), odd, scales);
                    }
                    for i in 0..T {
                        let a = L::splat(*x.add(i * CHUNK + k + odd));
                        for p in 0..P {
                            f[p][i] = L::fma(w[p], a, f[p][i]);
                        }
                    }
                }
            }
        }
        for p in 0..P {
            for i in 0..T {
                L::store_f32(sums.add(PAIR * i + ROWS * p), f[p][i]);
            }
        }
    }
}

/// Weights of the first or the second of two inputs as f32, times `scales` if they have any (FP8).
#[inline(always)]
unsafe fn number<L: Lines, F: HasPackedKind>(two: *const u8, i: usize, scales: *const u8) -> L::F {
    // SAFETY: the caller guarantees the weights of that input, and has the instruction set.
    unsafe {
        match F::KIND {
            PackedKind::BF16 => pairs::<L>(two)[i],
            PackedKind::F16 => L::widen_f16(two.add(i * LINE / 2)),
            PackedKind::EightFloats => float::<L>(two.add(i * ROWS), scales),
            _ => L::load_f32(two.add(i * LINE).cast()),
        }
    }
}
