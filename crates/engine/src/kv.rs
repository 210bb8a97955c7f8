//! [`KvPool`]: the cache's memory, page by page and layer by layer.

use tallow_core::{Backend, DType, LayerKv, Result, Tensor};
use tallow_models::spec::DecoderSpec;

/// Keys and values of all layers, on a device.
#[derive(Debug)]
pub struct KvPool<B: Backend> {
    layers: Vec<(Tensor<B>, Tensor<B>)>,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// What keys and values are stored as.
    pub dtype: DType,
    /// Tokens in a page.
    pub page_len: usize,
    /// Pages.
    pub pages: usize,
}

impl KvShape {
    /// Bytes that one page takes in all layers of a model.
    pub fn page_bytes(&self, spec: &DecoderSpec) -> usize {
        let columns: usize = spec.layers.iter().map(|l| 2 * l.mixer.heads.kept_cols(self.dtype)).sum();
        columns * self.page_len * self.dtype.size()
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self, spec: &DecoderSpec) -> usize {
        self.page_bytes(spec).saturating_mul(self.pages)
    }
}

impl<B: Backend> KvPool<B> {
    /// Memory for the cache of a model.
    pub fn new(b: &B, spec: &DecoderSpec, shape: KvShape) -> Result<KvPool<B>> {
        let page = |cols: usize| b.alloc(shape.dtype, shape.pages, shape.page_len * cols);
        let layer = |cols: usize| Ok((page(cols)?, page(cols)?));
        let layers =
            spec.layers.iter().map(|l| layer(l.mixer.heads.kept_cols(shape.dtype))).collect::<Result<_>>()?;
        Ok(KvPool { layers })
    }

    /// Each layer's part.
    pub fn layers(&self) -> Vec<LayerKv<'_, B>> {
        self.layers.iter().map(|(k, v)| LayerKv { k, v }).collect()
    }
}
