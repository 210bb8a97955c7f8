//! Products of a pair of panels with a few rows of input: weights go from memory through registers, once.
//!
//! The same sums in the same order as in [`dot`](super::dot), where weights are unpacked first: that pays when many rows
//! use them.

#![allow(clippy::needless_range_loop, reason = "loops over register tiles are clearest by index")]

use std::ops::Range;

use tallow_quant::{Format, with_block};

use super::dot::Sums;
use super::linear::Packed;
use super::unpack::{Head, groups, look_ahead, pairs};
use crate::activations::Rounded;
use crate::mat::Mat;
use crate::packed::{CHUNK, LINE, PART, Packing, ROWS};
use crate::simd::Lines;

/// Rows that are a few.
pub(crate) const FEW: usize = 4;

/// A pair of panels, to be multiplied with a few rows.
pub(crate) struct FewTask<'a> {
    pub w: Packed<'a>,
    pub pair: usize,
    pub x: FewRows<'a>,
    /// Which rows.
    pub rows: Range<usize>,
    /// For each of them.
    pub sums: &'a mut [Sums],
}

/// The input.
#[derive(Clone, Copy)]
pub(crate) enum FewRows<'a> {
    Rounded(Rounded<'a>),
    /// For weights that are plain numbers.
    Plain(Mat<'a, f32>),
}

#[inline(always)]
pub(super) unsafe fn few<L: Lines>(t: &mut FewTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe {
        match t.rows.len() {
            1 => all_chunks::<L, 1>(t),
            2 => all_chunks::<L, 2>(t),
            3 => all_chunks::<L, 3>(t),
            _ => all_chunks::<L, FEW>(t),
        }
    }
}

/// The chunks of both panels, in the order in which they lie in memory.
#[inline(always)]
unsafe fn all_chunks<L: Lines, const T: usize>(t: &mut FewTask<'_>) {
    let format = t.w.format;
    for start in (0..t.w.cols).step_by(CHUNK) {
        let (first, n) = t.w.chunk(2 * t.pair, start / CHUNK);
        let (second, _) = t.w.chunk(2 * t.pair + 1, start / CHUNK);
        let (inputs, from) = (start..start + n, [first.as_ptr(), second.as_ptr()]);
        let sums = t.sums[..T].as_mut_ptr().cast::<f32>();
        match t.x {
            // SAFETY: the chunks are of that format and size, and there are sums for T rows; the caller has the
            // instruction set.
            FewRows::Rounded(x) => unsafe {
                let x = rows::<T>(x, t.rows.start, &inputs);
                with_block!(format, B => whole::<L, B, T>(from, n, &x, sums));
            },
            FewRows::Plain(x) => {
                let x = std::array::from_fn(|i| x.row(t.rows.start + i)[inputs.clone()].as_ptr());
                // SAFETY: as above.
                unsafe { plain::<L, T>(format, from, n, x, sums) };
            }
        }
    }
}

/// The same inputs of some rows.
struct Rows<const T: usize> {
    codes: [*const u8; T],
    scales: [*const f32; T],
    sides: [*const u32; T],
}

#[inline(always)]
fn rows<const T: usize>(x: Rounded<'_>, first: usize, inputs: &Range<usize>) -> Rows<T> {
    let (codes, scales, sides) = x.chunk(first..first + T, inputs);
    Rows {
        codes: std::array::from_fn(|i| codes[codes.len() / T * i..].as_ptr()),
        scales: std::array::from_fn(|i| scales[scales.len() / T * i..].as_ptr()),
        sides: std::array::from_fn(|i| sides[sides.len() / T * i..].as_ptr()),
    }
}

/// Loads the sums of `T` rows with both panels.
#[inline(always)]
unsafe fn load<L: Lines, const T: usize>(sums: *const f32) -> [[L::F; T]; 2] {
    // SAFETY: the caller vouches for the sums and has the instruction set.
    std::array::from_fn(|p| std::array::from_fn(|i| unsafe { L::load_f32(sums.add((2 * i + p) * ROWS)) }))
}

#[inline(always)]
unsafe fn store<L: Lines, const T: usize>(sums: *mut f32, f: &[[L::F; T]; 2]) {
    for (p, f) in f.iter().enumerate() {
        for (i, f) in f.iter().enumerate() {
            // SAFETY: the caller vouches for the sums and has the instruction set.
            unsafe { L::store_f32(sums.add((2 * i + p) * ROWS), *f) };
        }
    }
}

/// Adds the products of groups `J` and `J + 4` of part `at` to the sums of their halves.
#[inline(always)]
unsafe fn dot_groups<L: Lines, B: Packing, const T: usize, const J: usize>(
    halves: &mut [[L::I; 2]; T],
    planes: *const u8,
    x: &Rows<T>,
    at: usize,
) {
    // SAFETY: the caller vouches for the part and has the instruction set.
    unsafe {
        let groups = groups::<L, B, J>(planes);
        for i in 0..T {
            for half in 0..2 {
                let a = L::repeat(x.codes[i].add(at * PART + half * PART / 2 + 4 * J));
                halves[i][half] = match const { B::LAYOUT.is_wide() } {
                    true => L::dot4::<true>(halves[i][half], groups[half], a),
                    false => L::dot4::<false>(halves[i][half], groups[half], a),
                };
            }
        }
    }
}

/// A chunk of codes of both panels.
#[inline(always)]
unsafe fn whole<L: Lines, B: Packing, const T: usize>(
    from: [*const u8; 2],
    inputs: usize,
    x: &Rows<T>,
    sums: *mut f32,
) {
    let layout = const { B::LAYOUT };
    // SAFETY: the chunks have the parts, rows have what belongs to them; the caller has the instruction set.
    unsafe {
        let heads = [Head::<L>::new::<B>(from[0], inputs), Head::<L>::new::<B>(from[1], inputs)];
        let mut f = load::<L, T>(sums);
        for at in 0..inputs / PART {
            for p in 0..2 {
                let planes = from[p].add(layout.head(inputs) + at * LINE * layout.bits);
                look_ahead::<L>(planes, planes.add(LINE * layout.bits));
                // The sums of either half, which are runs of their own or added up: whole numbers do not mind.
                let mut halves = [[L::words(0); 2]; T];
                dot_groups::<L, B, T, 0>(&mut halves, planes, x, at);
                dot_groups::<L, B, T, 1>(&mut halves, planes, x, at);
                dot_groups::<L, B, T, 2>(&mut halves, planes, x, at);
                dot_groups::<L, B, T, 3>(&mut halves, planes, x, at);
                for r in 0..PART / layout.run {
                    let run = at * (PART / layout.run) + r;
                    let (scale, min) = heads[p].run::<B>(run);
                    for i in 0..T {
                        let [low, high] = halves[i];
                        let mut sum = if layout.run == PART { L::plus(low, high) } else { halves[i][r] };
                        let side = x.sides[i].add(run);
                        if !layout.has_mins() {
                            sum = L::plus(sum, L::repeat(side.cast()));
                        }
                        let by = L::mul(scale, L::splat(*x.scales[i].add(at)));
                        f[p][i] = L::fma(L::to_f32(sum), by, f[p][i]);
                        if layout.has_mins() {
                            f[p][i] = L::fma(min, L::splat(f32::from_bits(*side)), f[p][i]);
                        }
                    }
                }
            }
        }
        store::<L, T>(sums, &f);
    }
}

/// Adds the products of one input.
#[inline(always)]
unsafe fn step<L: Lines, const T: usize>(
    f: &mut [[L::F; T]; 2],
    x: &[*const f32; T],
    k: usize,
    w: [L::F; 2],
) {
    // SAFETY: the caller vouches for the input and has the instruction set.
    unsafe {
        for i in 0..T {
            let a = L::splat(*x[i].add(k));
            f[0][i] = L::fma(w[0], a, f[0][i]);
            f[1][i] = L::fma(w[1], a, f[1][i]);
        }
    }
}

/// A chunk of plain numbers of both panels.
#[inline(always)]
unsafe fn plain<L: Lines, const T: usize>(
    format: Format,
    from: [*const u8; 2],
    inputs: usize,
    x: [*const f32; T],
    sums: *mut f32,
) {
    // SAFETY: the chunks have the inputs, and so have the rows; the caller has the instruction set.
    unsafe {
        let mut f = load::<L, T>(sums);
        match format {
            Format::BF16 => {
                for k in (0..inputs).step_by(2) {
                    let line = [from[0].add(k / 2 * LINE), from[1].add(k / 2 * LINE)];
                    look_ahead::<L>(line[0], line[0].add(LINE));
                    look_ahead::<L>(line[1], line[1].add(LINE));
                    let ([a, b], [c, d]) = (pairs::<L>(line[0]), pairs::<L>(line[1]));
                    step::<L, T>(&mut f, &x, k, [a, c]);
                    if k + 1 < inputs {
                        step::<L, T>(&mut f, &x, k + 1, [b, d]);
                    }
                }
            }
            Format::F16 => {
                for k in 0..inputs {
                    let half = [from[0].add(k * LINE / 2), from[1].add(k * LINE / 2)];
                    look_ahead::<L>(half[0], half[0].add(LINE / 2));
                    look_ahead::<L>(half[1], half[1].add(LINE / 2));
                    step::<L, T>(&mut f, &x, k, [L::halves(half[0]), L::halves(half[1])]);
                }
            }
            _ => {
                for k in 0..inputs {
                    let line = [from[0].add(k * LINE), from[1].add(k * LINE)];
                    look_ahead::<L>(line[0], line[0].add(LINE));
                    look_ahead::<L>(line[1], line[1].add(LINE));
                    step::<L, T>(
                        &mut f,
                        &x,
                        k,
                        [L::from_bits(L::load(line[0])), L::from_bits(L::load(line[1]))],
                    );
                }
            }
        }
        store::<L, T>(sums, &f);
    }
}
