//! Layout of a KV cache page, and the blocks of a segment of a sequence in its pages.
//!
//! A page holds, per KV head, blocks of [`BLOCK`] slots: keys as `[block][element][slot]`, values as
//! `[block][slot][element]`. So a vector holds either the scores of adjacent positions or adjacent elements of one
//! value, nothing is summed across lanes, and a block is contiguous. If the page length is not a multiple of a block,
//! the last block is shorter. 8-bit elements are followed by the `f32` scales of the head's slots.
//!
//! A cache whose values are its keys has pages of keys alone (see [`keys_as_values`]).
//!
//! i8 elements are multiplied in pairs (paired layout). So two elements of a key are adjacent,
//! `[block][element / 2][slot][2]`, and two slots of a value, `[block][slot / 2][element][2]`, if pages are whole
//! blocks and the head dimension is even.

use half::{bf16, f16};
use tallow_core::{Backend, DType, Tensor};

use super::{AttendTask, BLOCK, BLOCKS, SEGMENT, TILE, keys_as_values};
use crate::mat::Mat;
use crate::memory::Buf;
use crate::simd::{self, Element, F8, Simd};

/// Blocks per tile: that many streams are read concurrently.
pub(super) const STREAMS: usize = super::TILE / BLOCK;

/// Layout of a page.
#[derive(Clone, Copy)]
pub(crate) struct PageLayout {
    pub page_len: usize,
    pub dim: usize,
    /// Bytes of a scale, 0 without scales.
    scale: usize,
    /// True if elements are laid out in pairs that are multiplied together (i8).
    pub paired: bool,
}

/// Element offsets of one head in one slot: `together` adjacent elements, the next such group `stride` elements after
/// the first.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub at: usize,
    pub together: usize,
    pub stride: usize,
}

impl Spread {
    pub(crate) fn element(self, i: usize) -> usize {
        self.at + i / self.together * self.stride + i % self.together
    }

    /// True if all elements are contiguous.
    pub(crate) fn is_contiguous(self) -> bool {
        self.together == self.stride
    }
}

impl PageLayout {
    pub(crate) fn new(page_len: usize, dim: usize, dtype: DType) -> PageLayout {
        let scale = if dtype.max_abs().is_some() { size_of::<f32>() } else { 0 };
        let paired = dtype == DType::I8 && page_len.is_multiple_of(BLOCK) && dim.is_multiple_of(2);
        PageLayout { page_len, dim, scale, paired }
    }

    /// Offset of a head.
    fn head(self, head: usize) -> usize {
        head * self.page_len * (self.dim + self.scale)
    }

    /// Offset of the scale of a head in a slot.
    pub(crate) fn scale(self, head: usize, slot: usize) -> usize {
        self.head(head) + self.page_len * self.dim + slot * self.scale
    }

    /// Offset of a head's block that begins with `slot`.
    pub(super) fn block(self, head: usize, slot: usize) -> usize {
        self.head(head) + slot * self.dim
    }

    /// Location of the key of a head in a slot.
    pub(crate) fn key(self, head: usize, slot: usize) -> Spread {
        let together = if self.paired { 2 } else { 1 };
        let block = slot / BLOCK * BLOCK;
        let width = BLOCK.min(self.page_len - block);
        let at = self.block(head, block) + (slot - block) * together;
        Spread { at, together, stride: width * together }
    }

    /// Location of the value of a head in a slot.
    pub(crate) fn value(self, head: usize, slot: usize) -> Spread {
        match self.paired {
            true => Spread { at: self.block(head, slot / 2 * 2) + slot % 2, together: 1, stride: 2 },
            false => Spread { at: self.block(head, slot), together: 1, stride: 1 },
        }
    }
}

/// KV cache of one layer, by element type.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    F32(Mat<'a, f32>),
    F16(Mat<'a, f16>),
    BF16(Mat<'a, bf16>),
    I8(Mat<'a, i8>),
    F8(Mat<'a, F8>),
}

/// Element type of a cache that is read in place.
pub(crate) trait InPages: Element {
    /// The pages, if they have this element type.
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
    pub(crate) fn new<B: Backend<Buf = Buf>>(t: &'a Tensor<B>) -> Pages<'a> {
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

    /// Bytes of a page with scales, and the factor that its scales are to be multiplied by.
    fn scaled(&self, page: usize) -> Option<(&'a [u8], f32)> {
        match self {
            Pages::I8(m) => Some((bytemuck::cast_slice(m.row(page)), 1.0)),
            Pages::F8(m) => Some((bytemuck::cast_slice(m.row(page)), F8::OF_HALF)),
            _ => None,
        }
    }

    /// Reads contiguous elements of a page, widened to `f32`.
    #[inline(always)]
    unsafe fn read<S: Simd>(&self, page: usize, at: usize, out: &mut [f32]) {
        let within = at..at + out.len();
        // SAFETY: the caller guarantees the instruction set.
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

    /// Reads one element of a page, widened to `f32`.
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

/// Pointers to the blocks of a segment, each `BLOCK * dim` elements, and to those to prefetch next.
///
/// Blocks past the sequence's end point to memory that is safe to read.
pub(super) struct Segment<E> {
    /// Blocks of keys, then the first of the values: behind the last tile that is read.
    pub k: [*const E; BLOCKS + STREAMS],
    /// Blocks of values, then the keys that are read next, in the same place.
    pub v: [*const E; BLOCKS + STREAMS],
    /// True if the segment is in the CPU's caches.
    pub near: bool,
}

impl<E> Segment<E> {
    /// Prefetches the second tile of the values from `seen` on, part `part` of `of`. The first tile has been requested
    /// by then. Without this, memory would idle while scores become weights.
    #[inline(always)]
    pub(super) fn fetch_values(&self, seen: usize, dim: usize, (part, of): (usize, usize)) {
        const LINE: usize = 64;
        let lines = BLOCK * dim * size_of::<E>() / LINE;
        let first = seen / BLOCK + STREAMS;
        for line in STREAMS * lines * part / of..STREAMS * lines * (part + 1) / of {
            simd::prefetch_l2(self.v[first + line / lines].cast::<u8>().wrapping_add(line % lines * LINE));
        }
    }
}

/// Source of segments.
pub(super) trait Bring {
    type E: Copy;

    /// Loads segment `index` of the task's sequence.
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
        self.segment(t, index)
    }
}

impl<E: bytemuck::Pod> Direct<'_, E> {
    /// Segment `index`, with what to prefetch behind it. Addresses are the same for every instruction set: one function has them.
    #[inline(never)]
    fn segment(&self, t: &AttendTask<'_>, index: usize) -> Segment<E> {
        let (size, first, last) = (BLOCK * t.heads.dim, index * BLOCKS, (t.len - 1) / BLOCK);
        let layout = t.layout();
        let block = |i: usize| {
            let (page, slot) = t.slot(i.min(last) * BLOCK);
            // Keys and values of a block have the same offset.
            (page, layout.block(t.head, slot))
        };
        let at = |of: &Mat<'_, E>, (page, at): (usize, usize)| {
            let elements = &of.row(page)[at..];
            debug_assert!(elements.len() >= size);
            elements.as_ptr()
        };
        let blocks = |of: &Mat<'_, E>| std::array::from_fn(|i| at(of, block(first + i)));
        let mut segment = Segment { k: blocks(&self.k), v: blocks(&self.v), near: false };
        // After the last tile of the keys come the first of the values, and after that of the values the next keys: of this
        // sequence, or those that the thread reads next.
        let seen = t.see(0..t.count()).start / TILE * STREAMS;
        let end = (last + 1 - first).min(BLOCKS).next_multiple_of(STREAMS);
        for i in 0..STREAMS {
            segment.k[end + i] = at(&self.v, block(seen.max(first) + i));
            segment.v[end + i] = match t.next.filter(|_| first + end > last) {
                Some(next) => at(&self.k, next.block(t, i)),
                None => at(&self.k, block(first + end + i)),
            };
        }
        segment
    }
}

/// The thread's next task, whose first keys are prefetched at the end of this one: a short sequence is read in a rush at the start
/// of its task otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Next<'a> {
    pages: &'a [u32],
    len: usize,
    head: usize,
    /// The first position that it attends to.
    first: usize,
}

impl<'a> AttendTask<'a> {
    /// This task for the one before it.
    pub(crate) fn as_next(&self) -> Option<Next<'a>> {
        let first = (self.count() > 0 && self.len > 0).then(|| self.see(0..self.count()).start)?;
        Some(Next { pages: self.pages, len: self.len, head: self.head, first })
    }
}

impl Next<'_> {
    /// The page and offset of one of its first blocks.
    fn block(&self, t: &AttendTask<'_>, i: usize) -> (usize, usize) {
        let position = (self.first / TILE * STREAMS + i).min((self.len - 1) / BLOCK) * BLOCK;
        let page = self.pages[position / t.page_len] as usize;
        (page, t.layout().block(self.head, position % t.page_len))
    }
}

/// Keys read in place, where the page length is a multiple of a block, and their transpose as values.
pub(super) struct Keys<'a, E> {
    pub k: Mat<'a, E>,
    /// Buffer for the values: [BLOCKS, BLOCK, dim]
    pub v: &'a mut [E],
}

impl<E: bytemuck::Pod> Bring for Keys<'_, E> {
    type E = E;

    #[inline(always)]
    unsafe fn load_kv<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<E> {
        let (dim, last) = (t.heads.dim, (t.len - 1) / BLOCK);
        let layout = t.layout();
        let block = |i: usize| {
            let (page, slot) = t.slot((index * BLOCKS + i).min(last) * BLOCK);
            &self.k.row(page)[layout.block(t.head, slot)..][..BLOCK * dim]
        };
        let k = std::array::from_fn(|i| block(i).as_ptr());
        for (i, v) in self.v.chunks_exact_mut(BLOCK * dim).take(BLOCKS).enumerate() {
            if index * BLOCKS + i <= last {
                keys_as_values::transpose(block(i), dim, v);
            }
        }
        let v = std::array::from_fn(|i| match i < BLOCKS {
            true => self.v[i * BLOCK * dim..].as_ptr(),
            false => k[i],
        });
        Segment { k, v, near: true }
    }
}

/// Segments of `f32` elements: the cache's own, or widened.
pub(super) enum Wide<'a> {
    /// `f32` pages, read in place.
    Direct(Direct<'a, f32>),
    /// Buffers for a copy: [BLOCKS, dim, BLOCK] and [BLOCKS, BLOCK, dim].
    Copied { k: &'a mut [f32], v: &'a mut [f32] },
}

impl Bring for Wide<'_> {
    type E = f32;

    #[inline(always)]
    unsafe fn load_kv<S: Simd>(&mut self, t: &AttendTask<'_>, index: usize) -> Segment<f32> {
        let (k, v) = match self {
            // SAFETY: the caller upholds this function's contract.
            Wide::Direct(direct) => return unsafe { direct.load_kv::<S>(t, index) },
            Wide::Copied { k, v } => (k, v),
        };
        // SAFETY: the caller upholds this function's contract.
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

/// Copies a segment to contiguous `f32` blocks. Slots past the sequence's end are left unchanged.
#[inline(always)]
unsafe fn widen<S: Simd>(t: &AttendTask<'_>, index: usize, k: &mut [f32], v: &mut [f32]) {
    let (dim, start) = (t.heads.dim, index * SEGMENT);
    let layout = t.layout();
    let whole_blocks = t.page_len.is_multiple_of(BLOCK) && !layout.paired;
    let end = t.len.min(start + SEGMENT);
    let blocks = k.chunks_exact_mut(BLOCK * dim).zip(v.chunks_exact_mut(BLOCK * dim));
    for (first, (k, v)) in (start..end).step_by(BLOCK).zip(blocks) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            if whole_blocks {
                let (page, slot) = t.slot(first);
                let at = layout.block(t.head, slot);
                t.k.read::<S>(page, at, k);
                match &t.v {
                    Some(pages) => pages.read::<S>(page, at, v),
                    None => keys_as_values::transpose(k, dim, v),
                }
                continue;
            }
            for i in 0..BLOCK.min(end - first) {
                let (page, slot) = t.slot(first + i);
                let (key, value) = (layout.key(t.head, slot), layout.value(t.head, slot));
                (0..dim).for_each(|d| k[d * BLOCK + i] = t.k.element(page, key.element(d)));
                (0..dim).for_each(|d| {
                    v[i * dim + d] = match &t.v {
                        Some(pages) => pages.element(page, value.element(d)),
                        None => k[d * BLOCK + i],
                    }
                });
            }
        }
    }
}

impl AttendTask<'_> {
    /// Layout of the pages.
    pub(super) fn layout(&self) -> PageLayout {
        PageLayout::new(self.page_len, self.heads.dim, self.k.dtype())
    }

    /// True if elements have scales.
    pub(super) fn is_scaled(&self) -> bool {
        self.k.dtype().max_abs().is_some()
    }

    /// Loads the scales of the keys and of the values of a segment: [2, SEGMENT]. They are zero past the sequence's
    /// end.
    pub(super) fn load_scales(&self, index: usize, out: &mut [f32]) {
        let (k, v) = out.split_at_mut(SEGMENT);
        let layout = self.layout();
        let (start, end) = (index * SEGMENT, self.len.min((index + 1) * SEGMENT));
        // If pages are whole blocks, the scales of a block are one cache line.
        let step = if self.page_len.is_multiple_of(BLOCK) { BLOCK } else { 1 };
        let size = size_of::<f32>();
        for (pages, out) in [(self.k, k), (self.v.unwrap_or(self.k), v)] {
            out[end - start..].fill(0.0);
            let place = |at: usize| {
                let (page, slot) = self.slot(at);
                (pages.scaled(page), layout.scale(self.head, slot))
            };
            for at in (start..end).step_by(step) {
                let (Some((bytes, by)), from) = place(at) else { continue };
                // Prefetches one segment ahead.
                if let (Some((ahead, _)), from) = place((at + SEGMENT).min(self.len - 1)) {
                    simd::prefetch_l2(ahead[from..].as_ptr());
                }
                let scales = bytes[from..from + step * size].chunks_exact(size);
                let out = out[at - start..].iter_mut().zip(scales).take(end - at);
                out.for_each(|(o, x)| *o = f32::from_le_bytes([x[0], x[1], x[2], x[3]]) * by);
            }
        }
    }
}
