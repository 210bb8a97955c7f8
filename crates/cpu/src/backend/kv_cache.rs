//! Writes of keys and values into the KV cache, and the QK norm and RoPE before that and before attention.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tallow_core::{DType, LayerKv, RopePairs, StepPlan, Tensor};

use super::device::Cpu;
use crate::attention::{PageLayout, Spread, flush_tiny, scale_of};
use crate::kernels::Kernels;
use crate::mat::{Mat, MatMut};
use crate::memory::HUGE;
use crate::rowwise::NormTask;
use crate::simd::F8;

/// For so many bytes that are written to KV caches a huge page is touched ahead: half of one, to be ahead soon, and not to make
/// steps of few tokens longer than others.
const WRITTEN_A_TOUCH: usize = HUGE / 2;

/// Pages of a layer's KV cache (its keys or its values), to be written.
enum PagesMut<'a> {
    F32(MatMut<'a, f32>),
    F16(MatMut<'a, f16>),
    BF16(MatMut<'a, bf16>),
    I8(MatMut<'a, i8>),
    F8(MatMut<'a, F8>),
}

/// Position of a head's key or value in a page.
struct Place {
    elements: Spread,
    /// Offset of its scale, if the cache is quantized.
    scale: usize,
}

impl<'a> PagesMut<'a> {
    fn new(t: &'a Tensor<Cpu>) -> PagesMut<'a> {
        match t.dtype() {
            DType::F16 => PagesMut::F16(MatMut::new(t)),
            DType::BF16 => PagesMut::BF16(MatMut::new(t)),
            DType::I8 => PagesMut::I8(MatMut::new(t)),
            DType::F8 => PagesMut::F8(MatMut::new(t)),
            _ => PagesMut::F32(MatMut::new(t)),
        }
    }

    /// Stores one head's key or value, quantized if the cache is.
    ///
    /// # Safety
    ///
    /// Nobody else may use this place of the page meanwhile.
    unsafe fn put(&self, kernels: &Kernels, page: usize, place: &Place, x: &[f32]) {
        let Place { elements, scale } = *place;
        // SAFETY: the caller upholds the same contract.
        unsafe {
            match self {
                PagesMut::F32(m) => put(m, page, elements, x, |from, to| to.copy_from_slice(from)),
                PagesMut::F16(m) => put(m, page, elements, x, |from, to| to.convert_from_f32_slice(from)),
                PagesMut::BF16(m) => put(m, page, elements, x, |from, to| {
                    to.convert_from_f32_slice(from);
                    flush_tiny(to);
                }),
                PagesMut::I8(m) => {
                    let by = put_scale(kernels, m, page, scale, DType::I8, x);
                    put(m, page, elements, x, |from, to| (kernels.to_i8)(from, by, to));
                }
                PagesMut::F8(m) => {
                    let by = put_scale(kernels, m, page, scale, DType::F8, x);
                    put(m, page, elements, x, |from, to| (kernels.to_f8)(from, by, to));
                }
            }
        }
    }
}

/// Stores the scale of a quantized `x`, and returns its inverse, by which `x` is multiplied to get codes.
///
/// # Safety
///
/// Nobody else may use the scale's bytes meanwhile.
unsafe fn put_scale<T: bytemuck::Pod>(
    kernels: &Kernels,
    m: &MatMut<'_, T>,
    page: usize,
    at: usize,
    dtype: DType,
    x: &[f32],
) -> f32 {
    let (reach, mut most) = (dtype.max_abs().unwrap_or(1.0), 0.0);
    (kernels.magnitude)(x, &mut most);
    let (scale, by) = scale_of(most, reach);
    // SAFETY: the caller upholds the same contract.
    let bytes = unsafe { m.part(page, at..at + size_of::<f32>()) };
    bytes.copy_from_slice(bytemuck::cast_slice(&scale.to_le_bytes()));
    by
}

/// Stores `x`, converted by `narrow`, into elements of a row.
///
/// # Safety
///
/// Nobody else may use the elements meanwhile.
unsafe fn put<T: bytemuck::Pod>(
    m: &MatMut<'_, T>,
    row: usize,
    to: Spread,
    x: &[f32],
    narrow: impl Fn(&[f32], &mut [T]),
) {
    // Converted in batches of whole groups: one element alone takes as long.
    const SOME: usize = 64;
    let mut narrowed = [T::zeroed(); SOME];
    for (i, x) in x.chunks(SOME).enumerate() {
        let first = i * SOME;
        // SAFETY: the caller upholds the same contract.
        unsafe {
            if to.is_contiguous() {
                let first = to.element(first);
                narrow(x, m.part(row, first..first + x.len()));
                continue;
            }
            narrow(x, &mut narrowed[..x.len()]);
            // `first` is that of a group: no division for each element.
            let mut at = to.element(first);
            for group in narrowed[..x.len()].chunks(to.together) {
                group.iter().enumerate().for_each(|(i, x)| m.put(row, at + i, *x));
                at += to.stride;
            }
        }
    }
}

/// Writer of a step's tokens into a layer's KV cache. `PageLayout` has the layout of a page.
pub(crate) struct CacheWriter<'a> {
    k: PagesMut<'a>,
    /// None if the values are the keys.
    v: Option<PagesMut<'a>>,
    slots: &'a [u32],
    layout: PageLayout,
    kernels: &'static Kernels,
}

impl<'a> CacheWriter<'a> {
    pub(crate) fn new(
        kernels: &'static Kernels,
        kv: LayerKv<'a, Cpu>,
        plan: &'a StepPlan<Cpu>,
        dim: usize,
    ) -> CacheWriter<'a> {
        let (k, v) = (PagesMut::new(kv.k), kv.v.map(PagesMut::new));
        let layout = PageLayout::new(plan.host().page_len, dim, kv.k.dtype());
        CacheWriter { k, v, slots: Mat::new(&plan.slots).row(0), layout, kernels }
    }

    /// Stores one token's keys, and its values if the cache has them.
    ///
    /// # Safety
    ///
    /// Nobody else may write this token meanwhile.
    pub(crate) unsafe fn put(&self, token: usize, k: &[f32], v: Option<&[f32]>) {
        let (len, dim) = (self.layout.page_len, self.layout.dim);
        let (page, slot) = (self.slots[token] as usize / len, self.slots[token] as usize % len);
        let scale = |head| self.layout.scale(head, slot);
        for (head, k) in k.chunks_exact(dim).enumerate() {
            let key = Place { elements: self.layout.key(head, slot), scale: scale(head) };
            // SAFETY: each token has a slot of its own in the cache, and the caller alone writes this token.
            unsafe { self.k.put(self.kernels, page, &key, k) };
        }
        let Some((pages, v)) = self.v.as_ref().zip(v) else { return };
        for (head, v) in v.chunks_exact(dim).enumerate() {
            let value = Place { elements: self.layout.value(head, slot), scale: scale(head) };
            // SAFETY: as above.
            unsafe { pages.put(self.kernels, page, &value, v) };
        }
    }
}

impl Cpu {
    /// Touches memory of a KV cache before tokens are written there. Where the system has to find and clear memory first, each
    /// of its huge pages takes milliseconds, and all layers of a sequence arrive at theirs in the same step.
    pub(super) fn touch_ahead(&self, kv: &LayerKv<'_, Cpu>, plan: &StepPlan<Cpu>) {
        let Some(last) = plan.max_page() else { return };
        for t in [Some(kv.k), kv.v].into_iter().flatten() {
            let page = t.stride() * t.dtype().size();
            let more = plan.slots.cols() * (page / plan.host().page_len.max(1));
            // What nobody was owed is not made up for at once later.
            let written = (self.written.get() + more).min(2 * WRITTEN_A_TOUCH);
            let used = t.offset() * t.dtype().size() + (last as usize + 1) * page;
            let touched = written >= WRITTEN_A_TOUCH && t.buf().touch_ahead(used);
            self.written.set(if touched { written - WRITTEN_A_TOUCH } else { written });
        }
    }
}

/// QK norm and RoPE of queries or keys.
pub(crate) struct Prep<'a> {
    pub norm: Option<NormTask<'a>>,
    pub rope: Option<(Mat<'a, f32>, RopePairs)>,
    pub dim: usize,
}

impl Prep<'_> {
    pub(crate) fn run(&self, kernels: &Kernels, x: &[f32], position: u32, out: &mut [f32]) {
        match &self.norm {
            Some(norm) => (kernels.norm)(norm, x, out),
            None => out.copy_from_slice(x),
        }
        if let Some((table, pairs)) = self.rope {
            let angles = angles(table, position);
            out.chunks_exact_mut(self.dim).for_each(|head| (kernels.rope)(pairs, angles, head));
        }
    }
}

/// Row of the RoPE table for a position. Positions past its end get the last row: they are bounded before they get
/// here.
fn angles(table: Mat<'_, f32>, position: u32) -> &[f32] {
    match table.rows {
        0 => &[],
        rows => table.row((position as usize).min(rows - 1)),
    }
}
