//! [`KvPool`]: the cache's memory, layer by layer: pages, and states of sequences.

use std::cell::RefCell;

use tallow_core::{Backend, DType, Result, StateRows};
use tallow_models::blocks::cache::LayerCache;
use tallow_models::spec::DecoderSpec;

/// What layers keep of sequences, on a device.
#[derive(Debug)]
pub struct KvPool<B: Backend> {
    layers: Vec<LayerCache<B>>,
    /// For each place, if layers keep states: is the second of its two rows the one that holds its sequence's?
    turned: RefCell<Vec<bool>>,
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
    /// Sequences under way at once, of which layers may keep a state.
    pub sequences: usize,
}

impl KvShape {
    /// Bytes that one page takes in all layers of a model.
    pub fn page_bytes(&self, spec: &DecoderSpec) -> usize {
        let columns: usize = spec.layers.iter().map(|l| 2 * l.cache_cols(self.dtype)).sum();
        columns * self.page_len * self.dtype.size()
    }

    /// Bytes of the states of all sequences in all layers of a model: of each the one before a step, and that after it.
    pub fn state_bytes(&self, spec: &DecoderSpec) -> usize {
        let numbers = spec.layers.iter().fold(0usize, |n, l| n.saturating_add(l.state_len()));
        numbers.saturating_mul(2 * DType::F32.size()).saturating_mul(self.sequences)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self, spec: &DecoderSpec) -> usize {
        self.page_bytes(spec).saturating_mul(self.pages).saturating_add(self.state_bytes(spec))
    }
}

impl<B: Backend> KvPool<B> {
    /// Memory for the cache of a model.
    pub fn new(b: &B, spec: &DecoderSpec, shape: KvShape) -> Result<KvPool<B>> {
        let KvShape { dtype, page_len, pages, sequences } = shape;
        let layer = |l| LayerCache::new(b, l, dtype, [pages, page_len], sequences);
        let layers = spec.layers.iter().map(layer).collect::<Result<_>>()?;
        let places = if spec.is_recurrent() { sequences } else { 0 };
        Ok(KvPool { layers, turned: RefCell::new(vec![false; places]) })
    }

    /// Each layer's part.
    pub fn layers(&self) -> &[LayerCache<B>] {
        &self.layers
    }

    /// The rows of the states of sequences in these places, for their next step; none where layers keep no states.
    pub fn states(&self, places: impl Iterator<Item = usize>) -> Vec<StateRows> {
        let turned = self.turned.borrow();
        let rows = |place: usize| {
            // A place past the last is refused with the plan.
            let second = u32::from(turned.get(place).copied().unwrap_or(false));
            StateRows { from: 2 * place as u32 + second, to: 2 * place as u32 + 1 - second }
        };
        if turned.is_empty() { Vec::new() } else { places.map(rows).collect() }
    }

    /// A step of sequences in these places has gone well: what it wrote is what the next one reads.
    pub fn stepped(&self, places: impl Iterator<Item = usize>) {
        let mut turned = self.turned.borrow_mut();
        for place in places {
            if let Some(turned) = turned.get_mut(place) {
                *turned = !*turned;
            }
        }
    }
}
