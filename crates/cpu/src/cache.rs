//! The way of keys and values into the cache, and of queries into attention.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tallow_core::{DType, LayerKv, RopePairs, StepPlan, Tensor};

use crate::backend::Cpu;
use crate::kernels::{Kernels, Layout, NormTask, keep};
use crate::mat::{Mat, MatMut};

/// The cache of one layer, to be written.
enum PagesMut<'a> {
    F32(MatMut<'a, f32>),
    F16(MatMut<'a, f16>),
    BF16(MatMut<'a, bf16>),
}

impl<'a> PagesMut<'a> {
    fn new(t: &'a Tensor<Cpu>) -> PagesMut<'a> {
        match t.dtype() {
            DType::F16 => PagesMut::F16(MatMut::new(t)),
            DType::BF16 => PagesMut::BF16(MatMut::new(t)),
            _ => PagesMut::F32(MatMut::new(t)),
        }
    }

    /// Sets elements that lie `apart` from each other, from `at` on.
    ///
    /// # Safety
    ///
    /// Nobody else may use the elements meanwhile.
    unsafe fn put(&self, page: usize, at: usize, apart: usize, x: &[f32]) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                PagesMut::F32(m) => put(m, page, at, apart, x, |from, to| to.copy_from_slice(from)),
                PagesMut::F16(m) => put(m, page, at, apart, x, |from, to| to.convert_from_f32_slice(from)),
                PagesMut::BF16(m) => put(m, page, at, apart, x, |from, to| {
                    to.convert_from_f32_slice(from);
                    keep(to);
                }),
            }
        }
    }
}

/// Sets elements that lie `apart` from each other in a row, from `at` on, to what `narrow` makes of `x`.
///
/// # Safety
///
/// Nobody else may use the elements meanwhile.
unsafe fn put<T: bytemuck::Pod>(
    m: &MatMut<'_, T>,
    row: usize,
    at: usize,
    apart: usize,
    x: &[f32],
    narrow: impl Fn(&[f32], &mut [T]),
) {
    // Many at a time: to narrow one alone takes as long.
    const SOME: usize = 64;
    let mut narrowed = [T::zeroed(); SOME];
    for (i, x) in x.chunks(SOME).enumerate() {
        let first = at + i * SOME * apart;
        // SAFETY: passed on to the caller.
        unsafe {
            if apart == 1 {
                narrow(x, m.part(row, first..first + x.len()));
                continue;
            }
            narrow(x, &mut narrowed[..x.len()]);
            for (i, x) in narrowed[..x.len()].iter().enumerate() {
                m.put(row, first + i * apart, *x);
            }
        }
    }
}

/// Where the step's tokens go in a layer's cache. The kernel module says how a page is laid out.
pub(crate) struct CacheWriter<'a> {
    k: PagesMut<'a>,
    v: PagesMut<'a>,
    slots: &'a [u32],
    layout: Layout,
}

impl<'a> CacheWriter<'a> {
    pub(crate) fn new(kv: LayerKv<'a, Cpu>, plan: &'a StepPlan<Cpu>, dim: usize) -> CacheWriter<'a> {
        let (k, v) = (PagesMut::new(kv.k), PagesMut::new(kv.v));
        let layout = Layout { page_len: plan.host.page_len, dim };
        CacheWriter { k, v, slots: Mat::new(&plan.slots).row(0), layout }
    }

    /// Stores one token's keys and values.
    ///
    /// # Safety
    ///
    /// Nobody else may write this token meanwhile.
    pub(crate) unsafe fn put(&self, token: usize, k: &[f32], v: &[f32]) {
        let (len, dim) = (self.layout.page_len, self.layout.dim);
        let (page, slot) = (self.slots[token] as usize / len, self.slots[token] as usize % len);
        for (head, (k, v)) in k.chunks_exact(dim).zip(v.chunks_exact(dim)).enumerate() {
            let ((key, apart), value) = (self.layout.key(head, slot), self.layout.value(head, slot));
            // SAFETY: a token's slot is its own.
            unsafe {
                self.k.put(page, key, apart, k);
                self.v.put(page, value, 1, v);
            }
        }
    }
}

/// The norm and the rotation that queries or keys go through.
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
            out.chunks_exact_mut(self.dim).for_each(|head| (kernels.rotate)(pairs, angles, head));
        }
    }
}

/// The angles of a position. Past the table's end the last ones serve: positions are bounded before they get here.
fn angles(table: Mat<'_, f32>, position: u32) -> &[f32] {
    match table.rows {
        0 => &[],
        rows => table.row((position as usize).min(rows - 1)),
    }
}
