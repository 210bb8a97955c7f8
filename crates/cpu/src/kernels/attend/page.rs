//! How a page of the cache is laid out, and how a segment of a sequence is found in its pages.
//!
//! A page holds, for each key head, blocks of [`BLOCK`] slots: keys as `[block][element][slot]`, values as
//! `[block][slot][element]`. So scores of neighbouring positions and elements of one value each fill a vector, nothing
//! is summed across lanes, and a block is one piece of memory. Where a page is no multiple of a block, its last block is
//! shorter. Behind a head's elements are the scales of its slots, if elements have eight bits.
//!
//! Whole numbers are multiplied two at a time. So two elements of a key lie together, `[block][element / 2][slot][2]`, and
//! two slots of a value, `[block][slot / 2][element][2]`, where pages are whole blocks and elements come in pairs.

use half::{bf16, f16};
use tallow_core::{DType, Tensor};

use super::{AttendTask, BLOCK, BLOCKS, SEGMENT};
use crate::backend::Cpu;
use crate::mat::Mat;
use crate::simd::{self, Element, F8, Simd};

/// Blocks of a tile: as many streams are read at a time.
pub(super) const STREAMS: usize = super::TILE / BLOCK;

/// Where elements lie in a page.
#[derive(Clone, Copy)]
pub(crate) struct PageLayout {
    pub page_len: usize,
    pub dim: usize,
    /// Bytes of a scale, if there are any.
    scale: usize,
    /// Do two that are multiplied together lie together?
    pub paired: bool,
}

/// Where the elements of a head in a slot are: some side by side, then as many again so far from the first.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub at: usize,
    pub together: usize,
    pub apart: usize,
}

impl Spread {
    pub(crate) fn element(self, i: usize) -> usize {
        self.at + i / self.together * self.apart + i % self.together
    }

    /// Are all side by side?
    pub(crate) fn is_whole(self) -> bool {
        self.together == self.apart
    }
}

impl PageLayout {
    pub(crate) fn new(page_len: usize, dim: usize, dtype: DType) -> PageLayout {
        let scale = if dtype.reach().is_some() { size_of::<f32>() } else { 0 };
        let paired = dtype == DType::I8 && page_len.is_multiple_of(BLOCK) && dim.is_multiple_of(2);
        PageLayout { page_len, dim, scale, paired }
    }

    /// Where what belongs to a head begins.
    fn head(self, head: usize) -> usize {
        head * self.page_len * (self.dim + self.scale)
    }

    /// Where the scale of a head in a slot is.
    pub(crate) fn scale(self, head: usize, slot: usize) -> usize {
        self.head(head) + self.page_len * self.dim + slot * self.scale
    }

    /// Where a head's block begins, which begins with the slot.
    pub(super) fn block(self, head: usize, slot: usize) -> usize {
        self.head(head) + slot * self.dim
    }

    /// Where the key of a head in a slot is.
    pub(crate) fn key(self, head: usize, slot: usize) -> Spread {
        let together = if self.paired { 2 } else { 1 };
        let block = slot / BLOCK * BLOCK;
        let width = BLOCK.min(self.page_len - block);
        let at = self.block(head, block) + (slot - block) * together;
        Spread { at, together, apart: width * together }
    }

    /// Where the value of a head in a slot is.
    pub(crate) fn value(self, head: usize, slot: usize) -> Spread {
        match self.paired {
            true => Spread { at: self.block(head, slot / 2 * 2) + slot % 2, together: 1, apart: 2 },
            false => Spread { at: self.block(head, slot), together: 1, apart: 1 },
        }
    }
}

/// The cache of one layer, by what its elements are.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
    I8(Mat<'a, i8>),
    F8(Mat<'a, F8>),
}

/// What a cache that is read as it is may have for elements.
pub(in crate::kernels) trait InPages: Element {
    /// The pages, if that is what they have.
    fn of(pages: Pages<'_>) -> Option<Mat<'_, Self>>;
}

macro_rules! in_pages {
    ($($t:ty => $name:ident),*) => {
        $(impl InPages for $t {
            fn of(pages: Pages<'_>) -> Option<Mat<'_, $t>> {
                if let Pages::$name(m) = pages { Some(m) } else { None }
            }
        })*
    };
}
in_pages!(f16 => F16, F8 => F8);

impl<'a> Pages<'a> {
    pub(crate) fn new(t: &'a Tensor<Cpu>) -> Pages<'a> {
        match t.dtype() {
            DType::F16 => Pages::F16(Mat::new(t)),
            DType::BF16 => Pages::BF16(Mat::new(t)),
            DType::I8 => Pages::I8(Mat::new(t)),
            DType::F8 => Pages::F8(Mat::new(t)),
            _ => Pages::F32(Mat::new(t)),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Pages::F32(_) => DType::F32,
            Pages::F16(_) => DType::F16,
            Pages::BF16(_) => DType::BF16,
            Pages::I8(_) => DType::I8,
            Pages::F8(_) => DType::F8,
        }
    }

    /// The bytes of a page that has scales, and what they are to be multiplied by.
    fn scaled(&self, page: usize) -> Option<(&'a [u8], f32)> {
        match self {
            Pages::I8(m) => Some((bytemuck::cast_slice(m.row(page)), 1.0)),
            Pages::F8(m) => Some((bytemuck::cast_slice(m.row(page)), F8::TOO_LARGE)),
            _ => None,
        }
    }

    /// Some elements of a page that lie together, widened.
    #[inline(always)]
    unsafe fn read<S: Simd>(&self, page: usize, at: usize, out: &mut [f32]) {
        let within = at..at + out.len();
        // SAFETY: the caller has the instruction set.
        unsafe {
            match self {
                Pages::F32(m) => out.copy_from_slice(&m.row(page)[within]),
                Pages::F16(m) => simd::widen::<S, f16>(&m.row(page)[within], out),
                Pages::BF16(m) => simd::widen::<S, bf16>(&m.row(page)[within], out),
                Pages::I8(m) => {
                    out.iter_mut().zip(&m.row(page)[within]).for_each(|(o, x)| *o = f32::from(*x))
                }
                Pages::F8(m) => simd::widen::<S, F8>(&m.row(page)[within], out),
            }
        }
    }

    /// One element of a page, widened.
    fn element(&self, page: usize, at: usize) -> f32 {
        match self {
            Pages::F32(m) => m.row(page)[at],
            Pages::F16(m) => m.row(page)[at].to_f32_const(),
            Pages::BF16(m) => m.row(page)[at].to_f32_const(),
            Pages::I8(m) => f32::from(m.row(page)[at]),
            Pages::F8(m) => m.row(page)[at].half().to_f32_const(),
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

impl<E> Segment<E> {
    /// Has the second tile of the values from `seen` on fetched, the `part`th of so many parts of it. The first is on its way
    /// by then. Else memory would have nothing to do while scores become weights.
    #[inline(always)]
    pub(super) fn fetch_values(&self, seen: usize, dim: usize, (part, of): (usize, usize)) {
        const LINE: usize = 64;
        let lines = BLOCK * dim * size_of::<E>() / LINE;
        let first = seen / BLOCK + STREAMS;
        for line in STREAMS * lines * part / of..STREAMS * lines * (part + 1) / of {
            simd::prefetch(self.v[first + line / lines].cast::<u8>().wrapping_add(line % lines * LINE));
        }
    }
}

/// Something to bring segments from.
pub(super) trait Bring {
    type E: Copy;

    /// Segment `index` of the task's sequence.
    unsafe fn load_kv<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<Self::E>;
}

/// The pages themselves, where their length is a multiple of a block.
pub(super) struct Direct<'a, E> {
    pub k: Mat<'a, E>,
    pub v: Mat<'a, E>,
}

impl<E: bytemuck::Pod> Bring for Direct<'_, E> {
    type E = E;

    #[inline(always)]
    unsafe fn load_kv<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<E> {
        let (size, last) = (BLOCK * t.heads.dim, (t.len - 1) / BLOCK);
        let layout = t.layout();
        let block = |i: usize| {
            let (page, slot) = t.slot((index * BLOCKS + i).min(last) * BLOCK);
            // Keys and values of a block begin at the same place.
            (page, layout.block(t.head, slot))
        };
        let mut segment = Segment {
            k: [std::ptr::null(); BLOCKS + STREAMS],
            v: [std::ptr::null(); BLOCKS + STREAMS],
            near: false,
        };
        for i in 0..BLOCKS + STREAMS {
            let (page, at) = block(i);
            let (k, v) = (&self.k.row(page)[at..], &self.v.row(page)[at..]);
            debug_assert!(k.len() >= size && v.len() >= size);
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
    unsafe fn load_kv<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<f32> {
        let (k, v) = match self {
            // SAFETY: passed on to the caller.
            Wide::Direct(direct) => return unsafe { direct.load_kv::<S>(t, index) },
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
    let layout = t.layout();
    let whole = t.page_len.is_multiple_of(BLOCK) && !layout.paired;
    let end = t.len.min(start + SEGMENT);
    let blocks = k.chunks_exact_mut(BLOCK * dim).zip(v.chunks_exact_mut(BLOCK * dim));
    for (first, (k, v)) in (start..end).step_by(BLOCK).zip(blocks) {
        // SAFETY: the caller has the instruction set.
        unsafe {
            if whole {
                let (page, slot) = t.slot(first);
                let at = layout.block(t.head, slot);
                t.k.read::<S>(page, at, k);
                t.v.read::<S>(page, at, v);
                continue;
            }
            for i in 0..BLOCK.min(end - first) {
                let (page, slot) = t.slot(first + i);
                let (key, value) = (layout.key(t.head, slot), layout.value(t.head, slot));
                (0..dim).for_each(|d| k[d * BLOCK + i] = t.k.element(page, key.element(d)));
                (0..dim).for_each(|d| v[i * dim + d] = t.v.element(page, value.element(d)));
            }
        }
    }
}

impl AttendTask<'_> {
    /// How the pages are laid out.
    pub(super) fn layout(&self) -> PageLayout {
        PageLayout::new(self.page_len, self.heads.dim, self.k.dtype())
    }

    /// Have elements scales?
    pub(super) fn is_scaled(&self) -> bool {
        self.k.dtype().reach().is_some()
    }

    /// Brings what the keys of a segment are multiplied by, and what the values are, a segment of each. Of positions past
    /// the sequence's end nothing is left.
    pub(super) fn load_scales(&self, index: usize, out: &mut [f32]) {
        let (k, v) = out.split_at_mut(SEGMENT);
        let layout = self.layout();
        let (start, end) = (index * SEGMENT, self.len.min((index + 1) * SEGMENT));
        // Where a page is whole blocks the scales of one are a line.
        let step = if self.page_len.is_multiple_of(BLOCK) { BLOCK } else { 1 };
        let size = size_of::<f32>();
        for (pages, out) in [(self.k, k), (self.v, v)] {
            out[end - start..].fill(0.0);
            let place = |at: usize| {
                let (page, slot) = self.slot(at);
                (pages.scaled(page), layout.scale(self.head, slot))
            };
            for at in (start..end).step_by(step) {
                let (Some((bytes, by)), from) = place(at) else { continue };
                // It is as far ahead as the segment is long, and then is there.
                if let (Some((ahead, _)), from) = place((at + SEGMENT).min(self.len - 1)) {
                    simd::prefetch(ahead[from..].as_ptr());
                }
                let scales = bytes[from..from + step * size].chunks_exact(size);
                let out = out[at - start..].iter_mut().zip(scales).take(end - at);
                out.for_each(|(o, x)| *o = f32::from_le_bytes([x[0], x[1], x[2], x[3]]) * by);
            }
        }
    }
}
