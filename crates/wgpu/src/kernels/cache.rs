//! Layout of the KV cache.
//!
//! Within a page, keys are `[head][element][token]`, since neighbouring invocations read neighbouring tokens, and
//! values `[head][token][element]`, since there they read neighbouring elements. 16-bit elements are packed in pairs
//! and 8-bit codes in fours along a head's elements; a page's scales, `[head][token]`, follow all its codes. Where the
//! values are the keys (MLA) they lie as values do.

use tallow_core::{DType, Error, Heads, LayerKv, Result, StepPlan};

use crate::device::{MAX_BLOCKS, Wgpu};
use crate::gpu::{Access, Arg, Kernel};

/// Binding names of the blocks of a KV cache.
const KEYS: [&str; MAX_BLOCKS] = ["k0", "k1", "k2", "k3"];
const VALUES: [&str; MAX_BLOCKS] = ["v0", "v1", "v2", "v3"];

/// Layout of a KV cache, as far as it is fixed in a kernel's source.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    dtype: DType,
    pub heads: Heads,
    page_len: usize,
    /// Blocks of memory, and pages per block if there are several.
    blocks: usize,
    each: usize,
    /// True if the values are the keys.
    pub keys_as_values: bool,
}

impl Pages {
    pub(super) fn new(kv: &LayerKv<'_, Wgpu>, heads: Heads, plan: &StepPlan<Wgpu>) -> Result<Pages> {
        let (dtype, page_len, blocks) = (kv.k.dtype(), plan.host().page_len, kv.k.buf().blocks().len());
        let each = if blocks == 1 { 1 } else { kv.k.buf().rows_each() };
        let keys_as_values = kv.v.is_none();
        let pages = Pages { dtype, heads, page_len, blocks, each, keys_as_values };
        let refuse = |why: String| Err(Error::Device { device: "the GPU".into(), why });
        if !heads.dim.is_multiple_of(pages.pack()) {
            let dim = heads.dim;
            let pack = pages.pack();
            return refuse(format!(
                "a cache of {dtype} needs heads whose width {pack} divides, and these have {dim}"
            ));
        }
        match kv.k.offset() == 0 && kv.v.is_none_or(|v| v.offset() == 0) {
            true => Ok(pages),
            false => refuse("a cache begins where its memory does".into()),
        }
    }

    /// Elements per 32-bit word.
    pub(super) fn pack(&self) -> usize {
        4 / self.dtype.size()
    }

    /// True if elements are 8-bit codes with scales.
    pub(super) fn is_scaled(&self) -> bool {
        self.dtype.max_abs().is_some()
    }

    /// Adds the blocks of keys and of values. To read, keys that are values as well go by both names.
    pub(super) fn args<'a>(&self, kv: &LayerKv<'a, Wgpu>, access: Access, args: &mut Vec<Arg<'a>>) {
        let values = match access {
            Access::Read => Some(kv.v.unwrap_or(kv.k)),
            _ => kv.v,
        };
        for (names, t) in [(KEYS, Some(kv.k)), (VALUES, values)] {
            let blocks = t.map(|t| t.buf().blocks()).unwrap_or_default().iter().zip(names);
            args.extend(blocks.map(|(block, name)| Arg { name, of: "u32", access, block }));
        }
    }

    /// Adds what `kv_layout.wgsl`, `kv_load.wgsl` and `kv_store.wgsl` need.
    pub(super) fn define(&self, kernel: Kernel) -> Kernel {
        let (len, pack) = (self.page_len, self.pack());
        kernel
            .with("DTYPE", self.dtype.name())
            .with("SCALED", self.is_scaled())
            .with("BLOCKS", self.blocks)
            .with("KEYS_AS_VALUES", self.keys_as_values)
            .with("BLOCK_PAGES", self.each)
            .with("DIM", self.heads.dim)
            .with("PAGE_LEN", len)
            .with("PACK", pack)
            .with("PAGE_WORDS", len * self.heads.cache_cols(self.dtype) / pack)
            .with("SCALES", len * self.heads.kv_cols() / pack)
    }

    /// The largest 8-bit code, if elements are stored as codes.
    pub(super) fn max_code(&self) -> Option<f32> {
        self.dtype.max_abs()
    }
}
