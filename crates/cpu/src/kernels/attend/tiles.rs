//! Attention of many rows by AMX, whose tiles multiply 16 rows with 16 columns, in bf16.
//!
//! Tiles sum as [`paired`] says, and what comes before and after them is what few rows go through. So results are the same to
//! the last bit, and a row may be computed either way.
//!
//! A segment is copied to where it lies as tiles want it. Then rows are taken in groups of [`GROUP`]. A group goes through three
//! steps: scores, by tiles; weights, by vectors; values, by tiles. While vectors work on one group, tiles work on the scores
//! of the next and the values of the one before: a processor does both at a time, if they come mixed.
//!
//! # Safety
//!
//! As for [`kernels`](crate::kernels): only on a CPU that has AMX, in a process that may use it (see [`Isa`](crate::Isa)).

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::page::{Layout, Pages};
use super::paired::{self, SPAN};
use super::softmax::{self, Running, padded};
use super::weights;
use super::{AttendTask, BLOCK, Kept, SEGMENT, Stage, carve, finish};
use crate::mat::Mat;
use crate::simd::Avx512;

/// Rows that are multiplied together: two tiles.
const GROUP: usize = 32;
/// Rows, and columns, of a tile.
const SIDE: usize = 16;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Stretches of a segment that one tile takes.
const SPANS: usize = SEGMENT / SPAN;
/// Numbers from one row of scores to the next: rows of a power of two would all want the same places of the cache.
const WIDE: usize = SEGMENT + 16;
/// From this many rows on a copy of a segment pays.
const MANY: usize = 17;

/// Shapes of the tiles, as the processor wants them.
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// All tiles are whole: 16 rows of 64 bytes.
    const fn whole() -> Config {
        let mut config = [0; 64];
        config[0] = 1;
        let mut i = 0;
        while i < 8 {
            (config[16 + 2 * i], config[48 + i]) = (64, 16);
            i += 1;
        }
        Config(config)
    }
}

/// [`attend_bf16`](super::attend_bf16), by tiles where rows are many.
pub(in crate::kernels) fn attend_bf16(t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    match (t.k, t.v, stage) {
        (Pages::BF16(k), Pages::BF16(v), Stage::Whole | Stage::Segments(..)) if t.count() >= MANY => {
            let mut before = Config([0; 64]);
            // TODO-MERGE: `amx::shape(Shape::Whole)` instead of the three.
            // SAFETY: this is in the kernel table that is handed out only where the CPU and the system allow it.
            unsafe {
                asm!("sttilecfg [{0}]", in(reg) &mut before, options(nostack, preserves_flags));
                asm!("ldtilecfg [{0}]", in(reg) const { &Config::whole() }, options(nostack, preserves_flags));
                run(t, Cache { k, v }, stage, scratch);
                asm!("ldtilecfg [{0}]", in(reg) &before, options(nostack, preserves_flags));
            }
        }
        _ => (crate::kernels::avx512::TABLE.attend_bf16)(t, stage, scratch),
    }
}

/// The pages.
#[derive(Clone, Copy)]
struct Cache<'a> {
    k: Mat<'a, bf16>,
    v: Mat<'a, bf16>,
}

/// Tiles one after the other, each a line for each of its 16 rows.
///
/// Of what is multiplied from the left a line is a row's 32 numbers. From the right it is two numbers of each of 16 columns:
/// the line's two of the 32.
struct Room<'a> {
    /// Queries: tiles [rows / 16, dim / 32]
    q: *mut u8,
    /// Keys: tiles [positions / 16, dim / 32]
    k: *mut u8,
    /// Values: tiles [dim / 16, positions / 32]
    v: *mut u8,
    /// Scores of two groups: [2, GROUP, WIDE]
    s: [*mut f32; 2],
    /// Weights of two groups: tiles [2, GROUP / 16, positions / 32]
    w: [*mut u8; 2],
    /// Of two groups: largest scores, and sums of weights.
    most: [*mut f32; 2],
    sum: [*mut f32; 2],
    /// Of one group: [GROUP, dims]
    values: *mut f32,
    /// Elements of a head, with those that lack to whole pairs of tiles.
    dims: usize,
    total: Running<'a>,
}

impl<'a> Room<'a> {
    fn new(scratch: &'a mut Vec<f32>, rows: usize, dim: usize) -> Room<'a> {
        let (dims, wide) = (dim.next_multiple_of(SPAN), padded(dim));
        let (segment, group) = (SEGMENT * dims / 2, GROUP * SEGMENT / 2);
        let parts = carve(
            scratch,
            [
                rows.next_multiple_of(GROUP) * dims / 2,
                segment,
                segment,
                GROUP * WIDE,
                GROUP * WIDE,
                group,
                group,
                4 * GROUP,
                GROUP * dims,
                rows,
                rows,
                rows * wide,
            ],
        );
        let [q, k, v, s0, s1, w0, w1, some, values, most, sum, total] = parts;
        let [most0, most1, sum0, sum1] = [0, 1, 2, 3].map(|i| some[i * GROUP..].as_mut_ptr());
        Room {
            q: q.as_mut_ptr().cast(),
            k: k.as_mut_ptr().cast(),
            v: v.as_mut_ptr().cast(),
            s: [s0.as_mut_ptr(), s1.as_mut_ptr()],
            w: [w0.as_mut_ptr().cast(), w1.as_mut_ptr().cast()],
            most: [most0, most1],
            sum: [sum0, sum1],
            values: values.as_mut_ptr(),
            dims,
            total: Running { most, sum, values: total, wide },
        }
    }
}

/// 32 rows times 32 columns, by four tiles at a time.
#[derive(Clone, Copy)]
struct Product {
    /// The tiles of the first 16 rows, one after the other, and those of the first 16 columns.
    left: *const u8,
    right: *const u8,
    /// How many there are of each.
    steps: usize,
    /// Bytes to those of the other 16 rows, and of the other 16 columns.
    apart: usize,
    /// Where the sums go, and the bytes of a row there.
    out: *mut f32,
    width: usize,
}

/// Products under way.
struct Products {
    all: Vec<Product>,
    /// The one that is next, and its step.
    next: usize,
    step: usize,
}

impl Products {
    /// Forgets what is done and takes others.
    fn set(&mut self, products: impl Iterator<Item = Product>) {
        self.all.clear();
        self.all.extend(products.filter(|p| p.steps > 0));
        (self.next, self.step) = (0, 0);
    }

    /// Steps to do.
    fn len(&self) -> usize {
        self.all[self.next..].iter().map(|p| p.steps).sum::<usize>() - self.step
    }

    /// Does some steps, if there are any.
    #[inline(always)]
    unsafe fn advance(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(p) = self.all.get(self.next) else { return };
            // SAFETY: whoever made the product vouches for what it names; the caller has the instructions.
            unsafe {
                if self.step == 0 {
                    asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        options(nostack, preserves_flags));
                }
                let (left, right) = (p.left.add(self.step * TILE), p.right.add(self.step * TILE));
                asm!(
                    "tileloadd tmm4, [{l} + {line}*1]",
                    "tileloadd tmm6, [{r} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{s} + {line}*1]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{m} + {line}*1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    l = in(reg) left, m = in(reg) left.add(p.apart),
                    r = in(reg) right, s = in(reg) right.add(p.apart),
                    line = in(reg) 64usize,
                    options(nostack, preserves_flags, readonly),
                );
                self.step += 1;
                if self.step == p.steps {
                    asm!(
                        "tilestored [{o} + {width}*1], tmm0",
                        "tilestored [{o} + {width}*1 + 64], tmm1",
                        "tilestored [{p} + {width}*1], tmm2",
                        "tilestored [{p} + {width}*1 + 64], tmm3",
                        o = in(reg) p.out, p = in(reg) p.out.byte_add(SIDE * p.width),
                        width = in(reg) p.width,
                        options(nostack, preserves_flags),
                    );
                    (self.next, self.step) = (self.next + 1, 0);
                }
            }
        }
    }
}

/// Copies keys and values of the positions `seen` of a segment, which are whole stretches. What is past the sequence's end
/// is zero.
#[inline(always)]
unsafe fn copy(t: &AttendTask<'_>, from: Cache<'_>, room: &Room<'_>, start: usize, seen: Range<usize>) {
    let layout = Layout { page_len: t.page_len, dim: t.heads.dim };
    let (dim, dims) = (t.heads.dim, room.dims);
    // Of two runs of 16 words, one of the first, one of the second, and so on.
    let turns: [u16; SPAN] = std::array::from_fn(|i| (i / 2 + i % 2 * SIDE) as u16);
    // SAFETY: pages have room for all positions before the end, the room for a segment; the caller has the instructions.
    unsafe {
        let turns = _mm512_loadu_si512(turns.as_ptr().cast());
        for at in seen.clone().step_by(BLOCK) {
            let first = start + at;
            let to = room.k.add(at / BLOCK * (dims / SPAN) * TILE);
            for line in dim / 2..dims / 2 {
                _mm512_store_si512(to.add(line * 64).cast(), _mm512_setzero_si512());
            }
            if first >= t.len {
                continue;
            }
            if t.page_len.is_multiple_of(BLOCK) {
                let (page, slot) = t.slot(first);
                let keys = from.k.row(page)[layout.value(t.head, slot)..][..BLOCK * dim].as_ptr();
                for line in 0..dim / 2 {
                    let two = _mm512_loadu_si512(keys.add(line * 2 * BLOCK).cast());
                    _mm512_store_si512(to.add(line * 64).cast(), _mm512_permutexvar_epi16(turns, two));
                }
                if dim % 2 == 1 {
                    let one = _mm512_castsi256_si512(_mm256_loadu_si256(keys.add((dim - 1) * BLOCK).cast()));
                    let two = _mm512_maskz_permutexvar_epi16(0x5555_5555, turns, one);
                    _mm512_store_si512(to.add(dim / 2 * 64).cast(), two);
                }
                continue;
            }
            let to = to.cast::<bf16>();
            for i in 0..BLOCK.min(t.len - first) {
                let (page, slot) = t.slot(first + i);
                let (key, apart) = layout.key(t.head, slot);
                let page = from.k.row(page);
                for d in 0..dim {
                    to.add(d / 2 * SPAN + i * 2 + d % 2).write(page[key + d * apart]);
                }
            }
            if dim % 2 == 1 {
                (0..BLOCK).for_each(|i| to.add(dim / 2 * SPAN + i * 2 + 1).write(bf16::ZERO));
            }
        }
        for at in seen.step_by(2) {
            let value = |at: usize| {
                let (page, slot) = t.slot((start + at).min(t.len - 1));
                from.v.row(page)[layout.value(t.head, slot)..][..dim].as_ptr()
            };
            let (one, two) = (value(at), value(at + 1));
            let left = t.len.saturating_sub(start + at);
            for column in (0..dims).step_by(SIDE) {
                let some = |of: bool| match dim.saturating_sub(column) {
                    n if n >= SIDE && of => 0xffff,
                    n if of => ((1u32 << n) - 1) as u16,
                    _ => 0,
                };
                let load = |p: *const bf16, mask| _mm256_maskz_loadu_epi16(mask, p.wrapping_add(column).cast());
                let (one, two) = (load(one, some(left > 0)), load(two, some(left > 1)));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(one), two);
                let to = room.v.add((column / SIDE * SPANS + at / SPAN) * TILE + at % SPAN / 2 * 64);
                _mm512_store_si512(to.cast(), _mm512_permutexvar_epi16(turns, both));
            }
        }
    }
}

/// Lays out the queries, scaled and rounded. What lacks to whole groups and tiles is zero.
fn load_queries(t: &AttendTask<'_>, room: &mut Room<'_>) {
    let (dim, dims, scale) = (t.heads.dim, room.dims, t.scale_to_two());
    for i in 0..t.count().next_multiple_of(GROUP) {
        for first in (0..dims).step_by(SPAN) {
            // SAFETY: the room is for so many rows of so many elements.
            let to = unsafe {
                let tile = room.q.add((i / SIDE * (dims / SPAN) + first / SPAN) * TILE);
                std::slice::from_raw_parts_mut(tile.add(i % SIDE * 64).cast::<u16>(), SPAN)
            };
            to.fill(0);
            if i < t.count() && first < dim {
                let (row, head) = t.place(i);
                let from = &t.q.row(row)[head * dim..(head + 1) * dim][first..dim.min(first + SPAN)];
                to.iter_mut().zip(from).for_each(|(o, q)| *o = (paired::query(q * scale).to_bits() >> 16) as u16);
            }
        }
    }
}

/// A group of rows in a segment.
struct Part {
    /// Which of two rooms it has.
    which: usize,
    rows: Range<usize>,
    /// Positions of the segment that some row sees, in whole stretches.
    seen: Range<usize>,
}

impl Part {
    fn spans(&self) -> usize {
        self.seen.len() / SPAN
    }

    /// Scores of all rows, stretch by stretch.
    fn scores(&self, room: &Room<'_>) -> impl Iterator<Item = Product> {
        let depth = room.dims / SPAN;
        let (which, q, k, s) = (self.which, room.q, room.k, room.s);
        let first = self.rows.start / SIDE;
        self.seen.clone().step_by(SPAN).map(move |at| Product {
            // Within the room: as many tiles as it has been made for.
            left: q.wrapping_add(first * depth * TILE),
            right: k.wrapping_add(at / BLOCK * depth * TILE),
            steps: depth,
            apart: depth * TILE,
            out: s[which].wrapping_add(at),
            width: WIDE * size_of::<f32>(),
        })
    }

    /// Values of all rows, 32 elements at a time.
    fn values(&self, room: &Room<'_>) -> impl Iterator<Item = Product> {
        let (dims, v, w, out) = (room.dims, room.v, room.w[self.which], room.values);
        let (first, steps) = (self.seen.start / SPAN * TILE, self.spans());
        (0..dims).step_by(SPAN).map(move |column| Product {
            left: w.wrapping_add(first),
            right: v.wrapping_add(column / SIDE * SPANS * TILE + first),
            steps,
            apart: SPANS * TILE,
            out: out.wrapping_add(column),
            width: dims * size_of::<f32>(),
        })
    }
}

/// Goes through some segments.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run(t: &AttendTask<'_>, from: Cache<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
    let (rows, all) = (t.count(), t.segments());
    let mut room = Room::new(scratch, rows, t.heads.dim);
    let mut products = Products { all: Vec::new(), next: 0, step: 0 };
    load_queries(t, &mut room);
    room.total.clear();
    let (segments, kept) = match stage {
        Stage::Segments(some, kept) => (some.clone(), Some(*kept)),
        _ => (all.clone(), None),
    };
    for index in segments {
        let start = index * SEGMENT;
        let part = |first: usize| {
            let rows = first..rows.min(first + GROUP);
            let seen = t.see(rows.clone());
            let here = |p: usize| p.clamp(start, start + SEGMENT) - start;
            let seen = here(seen.start) / SPAN * SPAN..here(seen.end).next_multiple_of(SPAN);
            // Nothing may be seen of it, and then nothing is multiplied.
            let seen = seen.start..seen.end.max(seen.start);
            Part { which: first / GROUP % 2, rows, seen }
        };
        let kept = kept.map(|kept| (kept, (index - all.start) * rows));
        // SAFETY: passed on to the caller.
        unsafe {
            let seen = part(0).seen.start..part((rows - 1) / GROUP * GROUP).seen.end;
            copy(t, from, &room, start, seen);
            products.set(part(0).scores(&room));
            products.advance(products.len());
            let mut before = None;
            for first in (0..rows).step_by(GROUP) {
                let now = part(first);
                let next = (first + GROUP < rows).then(|| part(first + GROUP));
                let values = before.iter().flat_map(|p: &Part| p.values(&room));
                products.set(values.chain(next.iter().flat_map(|p| p.scores(&room))));
                let each = products.len().div_ceil(now.rows.len());
                for r in 0..now.rows.len() {
                    products.advance(each);
                    weigh(t, &room, &now, r, start);
                }
                products.advance(products.len());
                if let Some(before) = before {
                    end(&mut room, &before, kept);
                }
                before = Some(now);
            }
            if let Some(last) = before {
                products.set(last.values(&room));
                products.advance(products.len());
                end(&mut room, &last, kept);
            }
        }
    }
    if kept.is_none() {
        finish(t, &room.total);
    }
}

/// The weights of a row of a group.
#[inline(always)]
unsafe fn weigh(t: &AttendTask<'_>, room: &Room<'_>, part: &Part, r: usize, start: usize) {
    let (which, seen) = (part.which, part.seen.clone());
    let own = t.sees(part.rows.start + r);
    let here = |p: usize| p.clamp(start + seen.start, start + seen.end) - start - seen.start;
    let odd: [u16; 2 * SIDE] = std::array::from_fn(|i| (2 * i + 1) as u16);
    // SAFETY: the room has scores and weights for all rows of a group; the caller has the instructions.
    unsafe {
        let odd = _mm512_loadu_si512(odd.as_ptr().cast());
        let s = std::slice::from_raw_parts_mut(room.s[which].add(r * WIDE + seen.start), seen.len());
        let to = room.w[which].add((r / SIDE * SPANS + seen.start / SPAN) * TILE + r % SIDE * 64);
        let (most, sum) = weights::weigh::<Avx512>(
            s,
            here(own.start)..here(own.end),
            t.softcap,
            #[inline(always)]
            |_, at, w| {
                let [low, high] = w.map(|w| _mm512_castps_si512(w));
                let both = _mm512_permutex2var_epi16(low, odd, high);
                _mm512_store_si512(to.add(at / SPAN * TILE).cast(), both);
            },
        );
        (*room.most[which].add(r), *room.sum[which].add(r)) = (most, sum);
    }
}

/// Adds a group whose values are there to the segments before, or keeps it.
#[inline(always)]
unsafe fn end(room: &mut Room<'_>, part: &Part, kept: Option<(Kept<'_>, usize)>) {
    for at in (0..part.rows.len()).step_by(SIDE) {
        let count = SIDE.min(part.rows.len() - at);
        let rows = part.rows.start + at..part.rows.start + at + count;
        // SAFETY: the room has as much for a group, and nothing writes to it now; the rest is passed on to the caller.
        unsafe {
            let some = |p: *mut f32, n: usize| std::slice::from_raw_parts_mut(p, n);
            let segment = Running {
                most: some(room.most[part.which].add(at), count),
                sum: some(room.sum[part.which].add(at), count),
                values: some(room.values.add(at * room.dims), count * room.dims),
                wide: room.dims,
            };
            match kept {
                Some((kept, row)) => kept.keep(row, rows, &segment),
                None => softmax::merge::<Avx512>(&segment, &mut room.total, rows),
            }
        }
    }
}
