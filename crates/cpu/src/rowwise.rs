//! Kernels that work on one row at a time.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): call only on a CPU that has the instruction set of `S` or `L`, with exclusive
//! access to the output that is passed.

use std::cmp::Ordering;

use tallow_core::{Activation, NormKind, RopePairs};

use crate::simd::{self, Simd};

/// Norm of rows, applied in groups as wide as its weight.
pub(crate) struct NormTask<'a> {
    pub kind: NormKind,
    pub weight: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub eps: f32,
}

/// Calls `whole` at every full vector of `n` elements, then `rest` with the remainder.
#[inline(always)]
fn lanes<S: Simd>(n: usize, mut whole: impl FnMut(usize), rest: impl FnOnce(usize, usize)) {
    let full = n / S::LANES * S::LANES;
    for i in (0..full).step_by(S::LANES) {
        whole(i);
    }
    if full < n {
        rest(full, n - full);
    }
}

/// Sum of `f` over all elements.
#[inline(always)]
unsafe fn total<S: Simd>(x: &[f32], f: impl Fn(S::V) -> S::V) -> f32 {
    let p = x.as_ptr();
    // SAFETY: `lanes` stays within the slice; the caller guarantees the instruction set.
    unsafe {
        let mut sum = S::splat(0.0);
        let mut tail = 0.0;
        lanes::<S>(
            x.len(),
            |i| sum = S::add(sum, f(S::load(p.add(i)))),
            |i, n| {
                // Lane by lane: `f` of the padding lanes must not be summed.
                let mut lane = [0.0; 16];
                S::store(lane.as_mut_ptr(), f(S::load_some(p.add(i), n)));
                tail = lane[..n].iter().sum();
            },
        );
        S::sum(sum) + tail
    }
}

#[inline(always)]
pub(crate) unsafe fn norm<S: Simd>(task: &NormTask<'_>, x: &[f32], out: &mut [f32]) {
    let width = task.weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        // SAFETY: all slices have `width` elements, and `lanes` stays within them; the caller guarantees the
        // instruction set.
        unsafe {
            let n = width as f32;
            let mean = if task.kind == NormKind::Layer { total::<S>(x, |v| v) / n } else { 0.0 };
            let away = S::splat(-mean);
            let squares = total::<S>(x, |v| {
                let d = S::add(v, away);
                S::mul(d, d)
            });
            let by = S::splat(1.0 / (squares / n + task.eps).sqrt());
            let (p, w, o) = (x.as_ptr(), task.weight.as_ptr(), out.as_mut_ptr());
            let bias = task.bias.map(<[f32]>::as_ptr);
            let one = |v: S::V, w: S::V, b: S::V| S::fma(S::mul(S::add(v, away), by), w, b);
            let zero = S::splat(0.0);
            lanes::<S>(
                width,
                |i| {
                    let b = bias.map_or(zero, |b| S::load(b.add(i)));
                    S::store(o.add(i), one(S::load(p.add(i)), S::load(w.add(i)), b));
                },
                |i, n| {
                    let b = bias.map_or(zero, |b| S::load_some(b.add(i), n));
                    S::store_some(o.add(i), n, one(S::load_some(p.add(i), n), S::load_some(w.add(i), n), b));
                },
            );
        }
    }
}

/// Error function for GELU, to about 2e-7 (Abramowitz and Stegun 7.1.26).
#[inline(always)]
unsafe fn erf<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let size = S::max(x, S::sub(zero, x));
        let one = S::splat(1.0);
        let t = S::div(one, S::fma(size, S::splat(0.327_591_1), one));
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = S::fma(p, t, S::splat(c));
        }
        let tail = S::mul(S::mul(p, t), simd::exp::<S>(S::sub(zero, S::mul(size, size))));
        let positive = S::sub(one, tail);
        // The sign of x, as ±1 (or 0 at 0, where the error function is 0 too).
        let sign = S::min(S::max(S::mul(x, S::splat(f32::MAX)), S::splat(-1.0)), one);
        S::mul(positive, sign)
    }
}

#[inline(always)]
pub(crate) unsafe fn activate<S: Simd>(act: Activation, x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let half = S::splat(0.5);
        match act {
            Activation::Silu => S::mul(x, simd::sigmoid::<S>(x)),
            Activation::Gelu => {
                let e = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
                S::mul(S::mul(half, x), S::add(S::splat(1.0), e))
            }
            Activation::GeluTanh => {
                let cubic = S::mul(S::mul(x, x), x);
                let inner = S::mul(S::splat(0.797_884_6), S::fma(cubic, S::splat(0.044_715), x));
                S::mul(S::mul(half, x), S::add(S::splat(1.0), simd::tanh::<S>(inner)))
            }
            Activation::Relu2 => {
                let r = S::max(x, S::splat(0.0));
                S::mul(r, r)
            }
            Activation::Relu => S::max(S::splat(0.0), x),
            Activation::QuickGelu | Activation::Clamped => {
                let x = if act == Activation::Clamped { S::min(S::splat(Activation::LIMIT), x) } else { x };
                S::mul(x, simd::sigmoid::<S>(S::mul(x, S::splat(Activation::SLOPE))))
            }
        }
    }
}

/// The up value as the activation multiplies it: clamped and plus one for [`Activation::Clamped`], else unchanged.
#[inline(always)]
pub(crate) unsafe fn gated<S: Simd>(act: Activation, up: S::V) -> S::V {
    match act {
        // SAFETY: the caller guarantees the instruction set.
        Activation::Clamped => unsafe {
            let held = S::min(S::splat(Activation::LIMIT), S::max(S::splat(-Activation::LIMIT), up));
            S::add(held, S::splat(1.0))
        },
        _ => up,
    }
}

#[inline(always)]
pub(crate) unsafe fn glu<S: Simd>(act: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    let n = out.len().min(gate.len()).min(up.map_or(usize::MAX, <[f32]>::len));
    let (g, o) = (gate.as_ptr(), out.as_mut_ptr());
    // SAFETY: `n` is within all slices; the caller guarantees the instruction set.
    unsafe {
        match up.map(<[f32]>::as_ptr) {
            Some(u) => lanes::<S>(
                n,
                |i| {
                    let up = gated::<S>(act, S::load(u.add(i)));
                    S::store(o.add(i), S::mul(activate::<S>(act, S::load(g.add(i))), up));
                },
                |i, n| {
                    let up = gated::<S>(act, S::load_some(u.add(i), n));
                    S::store_some(o.add(i), n, S::mul(activate::<S>(act, S::load_some(g.add(i), n)), up));
                },
            ),
            None => lanes::<S>(
                n,
                |i| S::store(o.add(i), activate::<S>(act, S::load(g.add(i)))),
                |i, n| S::store_some(o.add(i), n, activate::<S>(act, S::load_some(g.add(i), n))),
            ),
        }
    }
}

/// `x[i] = f(x[i])`
#[inline(always)]
unsafe fn change<S: Simd>(x: &mut [f32], f: impl Fn(S::V) -> S::V) {
    let p = x.as_mut_ptr();
    // SAFETY: `lanes` stays within the slice; the caller guarantees the instruction set.
    unsafe {
        lanes::<S>(
            x.len(),
            |i| S::store(p.add(i), f(S::load(p.add(i)))),
            |i, n| S::store_some(p.add(i), n, f(S::load_some(p.add(i), n))),
        );
    }
}

/// `x[i] = f(x[i], y[i])`
#[inline(always)]
unsafe fn combine<S: Simd>(x: &mut [f32], y: &[f32], f: impl Fn(S::V, S::V) -> S::V) {
    let (n, p, q) = (x.len().min(y.len()), x.as_mut_ptr(), y.as_ptr());
    // SAFETY: `n` is within both slices; the caller guarantees the instruction set.
    unsafe {
        lanes::<S>(
            n,
            |i| S::store(p.add(i), f(S::load(p.add(i)), S::load(q.add(i)))),
            |i, n| S::store_some(p.add(i), n, f(S::load_some(p.add(i), n), S::load_some(q.add(i), n))),
        );
    }
}

#[inline(always)]
pub(crate) unsafe fn softcap<S: Simd>(x: &mut [f32], cap: f32) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (cap, by) = (S::splat(cap), S::splat(1.0 / cap));
        change::<S>(x, |v| S::mul(cap, simd::tanh::<S>(S::mul(v, by))));
    }
}

#[inline(always)]
pub(crate) unsafe fn gate<S: Simd>(x: &mut [f32], y: &[f32]) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { combine::<S>(x, y, |x, y| S::mul(x, simd::sigmoid::<S>(y))) }
}

#[inline(always)]
pub(crate) unsafe fn add_scaled<S: Simd>(out: &mut [f32], scale: f32, x: &[f32]) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let scale = S::splat(scale);
        combine::<S>(out, x, |o, x| S::fma(scale, x, o));
    }
}

/// RoPE of one head. Plain code: the compiler vectorizes it.
#[inline(always)]
pub(crate) fn rope(pairs: RopePairs, angles: &[f32], head: &mut [f32]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    let head = &mut head[..angles.len()];
    match pairs {
        RopePairs::Halves => {
            let (a, b) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        RopePairs::Interleaved => {
            for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
            }
        }
    }
}

/// Columns of the largest elements (top k). Plain code that the compiler vectorizes.
#[inline(always)]
pub(crate) fn largest(x: &[f32], ids: &mut [u32]) {
    const CHUNK: usize = 32;
    let k = ids.len();
    // NaN is never compared: it fails `>= least`.
    let before = |a: &u32, b: &u32| {
        let (p, q) = (x[*a as usize], x[*b as usize]);
        q.partial_cmp(&p).unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    let (mut best, mut least) = (Vec::with_capacity(2 * k + CHUNK), f32::NEG_INFINITY);
    for (chunk, first) in x.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        // After a while most chunks have no element large enough. That is tested without a branch per element.
        if !chunk.iter().fold(false, |any, v| any | (*v >= least)) {
            continue;
        }
        best.extend(chunk.iter().zip(first..).filter(|(v, _)| **v >= least).map(|(_, id)| id));
        if best.len() >= 2 * k {
            best.select_nth_unstable_by(k - 1, before);
            best.truncate(k);
            // A later element equal to the last of them loses the tie.
            least = x[best[k - 1] as usize].next_up();
        }
    }
    best.sort_unstable_by(before);
    best.truncate(k);
    if best.len() < k {
        let missing = x.iter().zip(0..).filter(|(v, _)| v.is_nan()).map(|(_, id)| id);
        best.extend(missing.take(k - best.len()));
    }
    ids.copy_from_slice(&best);
}

/// The sum of `exp((x - max) / temperature)` over the elements that top-k left out, for some temperatures.
pub(crate) struct TailTask<'a> {
    pub x: &'a [f32],
    /// The top k, largest first.
    pub top: &'a [f32],
    pub temperatures: &'a [f32],
}

#[inline(always)]
pub(crate) unsafe fn tail_sum<S: Simd>(task: &TailTask<'_>, sums: &mut [f32]) {
    // Sums of a block are taken in f32, and those of blocks in f64.
    const BLOCK: usize = 256;
    let (max, least) = (task.top[0], task.top[task.top.len() - 1]);
    // Elements equal to the last of the top k are counted: some of them are in it.
    let count = |x: &[f32]| x.iter().map(|v| u32::from(*v == least)).sum::<u32>();
    let is_number = !task.x.iter().fold(false, |any, v| any | v.is_nan());
    let ties = task.x.chunks(BLOCK).map(count).sum::<u32>() - count(task.top);
    for (i, t) in task.temperatures.iter().enumerate() {
        if i > 0 && *t == task.temperatures[i - 1] {
            sums[i] = sums[i - 1];
            continue;
        }
        let mut rest = [0.0; BLOCK];
        let mut sum = f64::from(ties) * (f64::from(least - max) / f64::from(*t)).exp();
        for block in task.x.chunks(BLOCK) {
            for (rest, v) in rest.iter_mut().zip(block) {
                *rest = if *v < least { *v } else { f32::NEG_INFINITY };
            }
            // SAFETY: the caller guarantees the instruction set.
            sum += f64::from(unsafe {
                let (max, t) = (S::splat(max), S::splat(*t));
                total::<S>(&rest[..block.len()], |v| simd::exp::<S>(S::div(S::sub(v, max), t)))
            });
        }
        sums[i] = if is_number { sum as f32 } else { f32::NAN };
    }
}
