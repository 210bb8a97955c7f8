//! [`KvPool`]: the KV cache's memory, layer by layer: pages, and recurrent states.

use std::ops::Range;

use tallow_core::{Backend, DType, Error, Reading, Result, Tensor};
use tallow_models::blocks::cache::LayerCache;
use tallow_models::spec::{DecoderSpec, LayerSpec};

/// KV cache and recurrent states of all layers, on a device.
#[derive(Debug)]
pub struct KvPool<B: Backend> {
    layers: Vec<LayerCache<B>>,
}

/// Dimensions of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Data type of K and V.
    pub dtype: DType,
    /// Tokens per page.
    pub page_len: usize,
    /// Number of pages.
    pub pages: usize,
    /// Pages of the sliding-window layers (SWA), if these have their own: of each sequence only those that a window can still
    /// reach, and some more for prefixes. 0 if they have the same pages as the other layers.
    pub swa_pages: usize,
    /// Rows of recurrent states, if the model has any: two for each running sequence, more for snapshots.
    pub state_rows: usize,
}

impl KvShape {
    /// The same with one more page, of each kind, and one more row if there are recurrent states, that no sequence has.
    pub fn with_scratch(self) -> KvShape {
        let more = |count: usize| count + usize::from(count > 0);
        KvShape {
            pages: self.pages + 1,
            swa_pages: more(self.swa_pages),
            state_rows: more(self.state_rows),
            ..self
        }
    }

    /// Shape of a draft model's KV cache: all its layers have the same pages.
    pub fn of_draft_model(self) -> KvShape {
        KvShape { swa_pages: 0, ..self }
    }

    /// True if a layer has the pages of sliding-window layers.
    fn is_swa(&self, layer: &LayerSpec) -> bool {
        self.swa_pages > 0 && layer.mixer.sees().is_some()
    }

    /// Bytes of one page over all layers of a model that have such pages: the sliding-window layers, if `swa`, or the others.
    fn page_bytes(&self, spec: &DecoderSpec, swa: bool) -> usize {
        let layers = spec.layers.iter().filter(|layer| self.is_swa(layer) == swa);
        let columns: usize = layers.map(|l| l.kv_cache_cols(self.dtype)).sum();
        columns * self.page_len * self.dtype.size()
    }

    /// Bytes of a row of recurrent states over all layers of a model.
    pub fn state_row_bytes(spec: &DecoderSpec) -> usize {
        let numbers = spec.layers.iter().fold(0usize, |n, l| n.saturating_add(l.state_len()));
        numbers.saturating_mul(DType::F32.size())
    }

    /// Bytes of all recurrent states over all layers of a model.
    pub fn state_bytes(&self, spec: &DecoderSpec) -> usize {
        KvShape::state_row_bytes(spec).saturating_mul(self.state_rows)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self, spec: &DecoderSpec) -> usize {
        let pages = self.page_bytes(spec, false).saturating_mul(self.pages);
        let swa_pages = self.page_bytes(spec, true).saturating_mul(self.swa_pages);
        pages.saturating_add(swa_pages).saturating_add(self.state_bytes(spec))
    }
}

impl<B: Backend> KvPool<B> {
    /// Allocates the cache of a model.
    pub fn new(b: &B, spec: &DecoderSpec, shape: KvShape) -> Result<KvPool<B>> {
        let KvShape { dtype, page_len, pages, swa_pages, state_rows } = shape;
        let layer = |l| match shape.is_swa(l) {
            false => LayerCache::new(b, l, dtype, [pages, page_len], state_rows),
            true => Ok(LayerCache::new(b, l, dtype, [swa_pages, page_len], state_rows)?.with_swa_pages()),
        };
        Ok(KvPool { layers: spec.layers.iter().map(layer).collect::<Result<_>>()? })
    }

    /// K and V of one page in each layer that has any, as rows of their tensors.
    fn rows(&self, page: usize) -> Vec<Tensor<B>> {
        let of = |layer: &LayerCache<B>| match layer {
            LayerCache::Pages { k, v, .. } => {
                [Some(k), v.as_ref()].into_iter().flatten().map(|t| t.row_range(page..page + 1)).collect()
            }
            LayerCache::None | LayerCache::State { .. } => Vec::new(),
        };
        self.layers.iter().flat_map(of).collect()
    }

    /// The parts of a recurrent state, as rows of the tensors of each layer that has any.
    fn parts(&self, state: usize) -> Vec<Tensor<B>> {
        let of = |layer: &LayerCache<B>| match layer {
            LayerCache::State { window, matrices } => {
                vec![window.row_range(state..state + 1), matrices.row_range(state..state + 1)]
            }
            LayerCache::None | LayerCache::Pages { .. } => Vec::new(),
        };
        self.layers.iter().flat_map(of).collect()
    }

    /// Bytes of each part of a recurrent state, in order; none in a model without.
    pub(crate) fn state_parts(&self) -> Vec<usize> {
        self.parts(0).iter().map(Tensor::bytes).collect()
    }

    /// Bytes of a page over all layers.
    pub(crate) fn page_bytes(&self) -> usize {
        self.rows(0).iter().map(Tensor::bytes).sum()
    }

    /// Types and sizes of the parts of a page and of a recurrent state, in words.
    pub(crate) fn layout(&self) -> String {
        self.rows(0).iter().chain(&self.parts(0)).map(|row| format!("{row:?} ")).collect()
    }

    /// Copies a page's K and V to the host, layer by layer.
    pub(crate) fn read_page(&self, b: &B, page: usize, to: &mut [u8]) -> Result<()> {
        read(b, &self.rows(page), to)
    }

    /// Copies a page's K and V from the host, layer by layer. No sequence may be using the page.
    pub(crate) fn write_page(&self, b: &B, page: usize, from: &[u8]) -> Result<()> {
        write(b, &self.rows(page), from)
    }

    /// Copies some parts of a recurrent state to the host.
    pub(crate) fn read_state(&self, b: &B, state: usize, parts: Range<usize>, to: &mut [u8]) -> Result<()> {
        read(b, self.parts(state).get(parts).unwrap_or_default(), to)
    }

    /// Copies some parts of a recurrent state from the host. No sequence may be using the state.
    pub(crate) fn write_state(&self, b: &B, state: usize, parts: Range<usize>, from: &[u8]) -> Result<()> {
        write(b, self.parts(state).get(parts).unwrap_or_default(), from)
    }

    /// Each layer's cache.
    pub fn layers(&self) -> &[LayerCache<B>] {
        &self.layers
    }
}

/// Copies rows to the host, one behind the other.
fn read<B: Backend>(b: &B, rows: &[Tensor<B>], mut to: &mut [u8]) -> Result<()> {
    let mut wanted = Vec::with_capacity(rows.len());
    for from in rows {
        let (own, rest) = to.split_at_mut_checked(from.bytes()).ok_or_else(|| wrong_size(from))?;
        wanted.push(Reading { from, to: own });
        to = rest;
    }
    b.read(&mut wanted)
}

/// Copies rows from the host, where they lie one behind the other.
fn write<B: Backend>(b: &B, rows: &[Tensor<B>], mut from: &[u8]) -> Result<()> {
    for row in rows {
        let (own, rest) = from.split_at_checked(row.bytes()).ok_or_else(|| wrong_size(row))?;
        b.write(row, own)?;
        from = rest;
    }
    Ok(())
}

/// The bytes of a page or a state end before one of its parts.
fn wrong_size<B: Backend>(part: &Tensor<B>) -> Error {
    Error::Shape {
        op: "cache",
        what: "the bytes",
        want: format!("{} for {part:?}", part.bytes()),
        got: "fewer".into(),
    }
}
