//! [`KvPool`]: the KV cache's memory, layer by layer: pages, and recurrent states.

use std::cell::RefCell;

use tallow_core::{Backend, DType, Result, StateRows};
use tallow_models::blocks::cache::LayerCache;
use tallow_models::spec::DecoderSpec;

/// KV cache and recurrent states of all layers, on a device.
#[derive(Debug)]
pub struct KvPool<B: Backend> {
    layers: Vec<LayerCache<B>>,
    /// For each slot, if the model is recurrent: whether the second of its two state rows is the current one.
    states_swapped: RefCell<Vec<bool>>,
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
    /// Maximum running sequences, each with its recurrent states if the model is recurrent.
    pub sequences: usize,
}

impl KvShape {
    /// Bytes of one page over all layers of a model.
    pub fn page_bytes(&self, spec: &DecoderSpec) -> usize {
        let columns: usize = spec.layers.iter().map(|l| 2 * l.cache_cols(self.dtype)).sum();
        columns * self.page_len * self.dtype.size()
    }

    /// Bytes of the recurrent states of all sequences over all layers: two of each, before and after a step.
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
    /// Allocates the cache of a model.
    pub fn new(b: &B, spec: &DecoderSpec, shape: KvShape) -> Result<KvPool<B>> {
        let KvShape { dtype, page_len, pages, sequences } = shape;
        let layer = |l| LayerCache::new(b, l, dtype, [pages, page_len], sequences);
        let layers = spec.layers.iter().map(layer).collect::<Result<_>>()?;
        let slots = if spec.is_recurrent() { sequences } else { 0 };
        Ok(KvPool { layers, states_swapped: RefCell::new(vec![false; slots]) })
    }

    /// Each layer's cache.
    pub fn layers(&self) -> &[LayerCache<B>] {
        &self.layers
    }

    /// State rows of the sequences in these slots for their next step; empty if the model is not recurrent.
    pub fn states(&self, slots: impl Iterator<Item = usize>) -> Vec<StateRows> {
        let states_swapped = self.states_swapped.borrow();
        let rows = |slot: usize| {
            // A slot out of range is rejected by the ops that read the states.
            let second = u32::from(states_swapped.get(slot).copied().unwrap_or(false));
            StateRows { from: 2 * slot as u32 + second, to: 2 * slot as u32 + 1 - second }
        };
        if states_swapped.is_empty() { Vec::new() } else { slots.map(rows).collect() }
    }

    /// Call after a successful step of the sequences in these slots: swaps their state rows.
    pub fn swap_states(&self, slots: impl Iterator<Item = usize>) {
        let mut states_swapped = self.states_swapped.borrow_mut();
        for slot in slots {
            if let Some(swapped) = states_swapped.get_mut(slot) {
                *swapped = !*swapped;
            }
        }
    }
}
