//! How a page of the cache is laid out, and how a segment of a sequence is found in its pages.
//!
//! A page holds, for each key head, blocks of [`BLOCK`] slots: keys as `[block][element][slot]`, values as
//! `[block][slot][element]`. So scores of neighbouring positions and elements of one value each fill a vector, nothing
//! is summed across lanes, and a block is one piece of memory. Where a page is no multiple of a block, its last block is
//! shorter.

use half::{bf16, f16};

use super::{AttendTask, BLOCK, BLOCKS, SEGMENT};
use crate::mat::Mat;
use crate::simd::{self, Element, Simd};

/// Blocks of a tile: as many streams are read at a time.
pub(super) const STREAMS: usize = super::TILE / BLOCK;

/// Where elements lie in a page.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub page_len: usize,
    pub dim: usize,
}

impl Layout {
    /// Where the key of a head in a slot begins, and how far apart its elements are.
    pub(crate) fn key(self, head: usize, slot: usize) -> (usize, usize) {
        let block = slot / BLOCK * BLOCK;
        let width = BLOCK.min(self.page_len - block);
        ((head * self.page_len + block) * self.dim + slot - block, width)
    }

    /// Where the value of a head in a slot begins. Its elements lie together.
    pub(crate) fn value(self, head: usize, slot: usize) -> usize {
        (head * self.page_len + slot) * self.dim
    }
}

/// The cache of one layer, by what its elements are.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
}

impl Pages<'_> {
    /// Some elements of a page that lie together, widened.
    #[inline(always)]
    unsafe fn read<S: Simd>(&self, page: usize, at: usize, out: &mut [f32]) {
        let within = at..at + out.len();
        // SAFETY: the caller has the instruction set.
        unsafe {
            match self {
                Pages::F32(m) => out.copy_from_slice(&m.row(page)[within]),
                Pages::F16(m) => simd::widen_f16::<S>(&m.row(page)[within], out),
                Pages::BF16(m) => simd::widen_bf16::<S>(&m.row(page)[within], out),
            }
        }
    }

    /// One element of a page, widened.
    fn element(&self, page: usize, at: usize) -> f32 {
        match self {
            Pages::F32(m) => m.row(page)[at],
            Pages::F16(m) => m.row(page)[at].to_f32_const(),
            Pages::BF16(m) => m.row(page)[at].to_f32_const(),
        }
    }
}

/// Where the blocks of a segment are, each `BLOCK * dim` elements, and those that will be wanted next.
///
/// Blocks past the sequence's end point to something that may be read.
pub(super) struct Segment<E> {
    /// Blocks of keys, then the first of the values.
    pub k: [*const E; BLOCKS + STREAMS],
    /// Blocks of values, then the first of the next segment's keys.
    pub v: [*const E; BLOCKS + STREAMS],
    /// Is it in the CPU's caches?
    pub near: bool,
}

/// Something to bring segments from.
pub(super) trait Bring {
    type E: Element;

    /// Segment `index` of the task's sequence.
    unsafe fn bring<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<Self::E>;
}

/// The pages themselves, where their length is a multiple of a block.
pub(super) struct Direct<'a, E> {
    pub k: Mat<'a, E>,
    pub v: Mat<'a, E>,
}

impl<E: Element> Bring for Direct<'_, E> {
    type E = E;

    #[inline(always)]
    unsafe fn bring<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<E> {
        let (size, last) = (BLOCK * t.heads.dim, (t.len - 1) / BLOCK);
        let layout = Layout { page_len: t.page_len, dim: t.heads.dim };
        let block = |i: usize| {
            let (page, slot) = t.slot((index * BLOCKS + i).min(last) * BLOCK);
            // Keys and values of a block begin at the same place.
            (page, layout.value(t.head, slot))
        };
        let mut segment = Segment {
            k: [std::ptr::null(); BLOCKS + STREAMS],
            v: [std::ptr::null(); BLOCKS + STREAMS],
            near: false,
        };
        for i in 0..BLOCKS + STREAMS {
            let (page, at) = block(i);
            let (k, v) = (&self.k.row(page)[at..][..size], &self.v.row(page)[at..][..size]);
            if i < BLOCKS {
                (segment.k[i], segment.v[i]) = (k.as_ptr(), v.as_ptr());
            } else {
                segment.v[i] = k.as_ptr();
            }
            if i < STREAMS {
                segment.k[BLOCKS + i] = v.as_ptr();
            }
        }
        segment
    }
}

/// Elements that need no widening, or have been widened.
pub(super) enum Wide<'a> {
    /// The pages are such.
    Direct(Direct<'a, f32>),
    /// Memory for a copy: [BLOCKS, dim, BLOCK] and [BLOCKS, BLOCK, dim].
    Copied { k: &'a mut [f32], v: &'a mut [f32] },
}

impl Bring for Wide<'_> {
    type E = f32;

    #[inline(always)]
    unsafe fn bring<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<f32> {
        let (k, v) = match self {
            // SAFETY: passed on to the caller.
            Wide::Direct(direct) => return unsafe { direct.bring::<S>(t, index) },
            Wide::Copied { k, v } => (k, v),
        };
        // SAFETY: passed on to the caller.
        unsafe { widen::<S>(t, index, k, v) };
        let size = BLOCK * t.heads.dim;
        let mut segment = Segment {
            k: [std::ptr::null(); BLOCKS + STREAMS],
            v: [std::ptr::null(); BLOCKS + STREAMS],
            near: true,
        };
        for i in 0..BLOCKS + STREAMS {
            let at = i % BLOCKS * size;
            let (k, v) = (&k[at..][..size], &v[at..][..size]);
            segment.k[i] = if i < BLOCKS { k.as_ptr() } else { v.as_ptr() };
            segment.v[i] = if i < BLOCKS { v.as_ptr() } else { k.as_ptr() };
        }
        segment
    }
}

/// Copies a segment, widened, to where its blocks lie together. What is past the sequence's end is left as it is.
#[inline(always)]
unsafe fn widen<S: Simd>(t: &AttendTask<'_>, index: usize, k: &mut [f32], v: &mut [f32]) {
    let (dim, start) = (t.heads.dim, index * SEGMENT);
    let layout = Layout { page_len: t.page_len, dim };
    let end = t.len.min(start + SEGMENT);
    let blocks = k.chunks_exact_mut(BLOCK * dim).zip(v.chunks_exact_mut(BLOCK * dim));
    for (first, (k, v)) in (start..end).step_by(BLOCK).zip(blocks) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            if t.page_len.is_multiple_of(BLOCK) {
                let (page, slot) = t.slot(first);
                let at = layout.value(t.head, slot);
                t.k.read::<S>(page, at, k);
                t.v.read::<S>(page, at, v);
                continue;
            }
            for i in 0..BLOCK.min(end - first) {
                let (page, slot) = t.slot(first + i);
                let (at, apart) = layout.key(t.head, slot);
                (0..dim).for_each(|d| k[d * BLOCK + i] = t.k.element(page, at + d * apart));
                t.v.read::<S>(page, layout.value(t.head, slot), &mut v[i * dim..][..dim]);
            }
        }
    }
}
