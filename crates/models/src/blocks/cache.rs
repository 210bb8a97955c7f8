//! [`LayerCache`]: what a layer keeps of sequences between steps: its KV cache or its recurrent state.

use tallow_core::{Backend, DType, Error, LayerKv, LayerState, Result, StepPlan, Tensor};

use crate::spec::{LayerSpec, Mixer};

/// A layer's KV cache or recurrent state, on a device.
#[derive(Debug)]
pub enum LayerCache<B: Backend> {
    /// KV cache in pages (PagedAttention).
    Pages {
        /// [pages, page length * key columns]
        k: Tensor<B>,
        /// [pages, page length * value columns]; none if the values are the keys (MLA).
        v: Option<Tensor<B>>,
        /// True if its pages are those of sliding-window layers (see [`Step::swa_pages`](tallow_core::Step::swa_pages)).
        swa: bool,
    },
    /// No cache: the layer reads another's (shared KV).
    None,
    /// Recurrent states of constant size, one a row. A step reads the state of a sequence from one row and writes
    /// another.
    State {
        /// Convolution state: [rows, (kernel - 1) * columns]
        window: Tensor<B>,
        /// State matrices of the gated delta rule: [rows, elements of all heads' matrices]
        matrices: Tensor<B>,
    },
}

impl<B: Backend> LayerCache<B> {
    /// Allocates the cache of `layer`: `pages` pages of `page_len` tokens, or `state_rows` recurrent states.
    pub fn new(
        b: &B,
        layer: &LayerSpec,
        dtype: DType,
        [pages, page_len]: [usize; 2],
        state_rows: usize,
    ) -> Result<LayerCache<B>> {
        let page = || b.alloc(dtype, pages, page_len * layer.cache_cols(dtype));
        let state = |len: usize| b.alloc(DType::F32, state_rows, len);
        Ok(match &layer.mixer {
            Mixer::Attention(_) => LayerCache::Pages { k: page()?, v: Some(page()?), swa: false },
            Mixer::Mla(_) => LayerCache::Pages { k: page()?, v: None, swa: false },
            Mixer::SharedKv(_) => LayerCache::None,
            Mixer::GatedDelta(delta) => LayerCache::State {
                window: state(delta.window_len())?,
                matrices: state(delta.heads.state_len())?,
            },
        })
    }

    /// Marks its pages as those of sliding-window layers.
    pub fn with_swa_pages(self) -> LayerCache<B> {
        match self {
            LayerCache::Pages { k, v, .. } => LayerCache::Pages { k, v, swa: true },
            other => other,
        }
    }

    /// The plan of a step for the layer's KV cache.
    pub fn plan<'a>(&self, plan: &'a StepPlan<B>) -> Result<&'a StepPlan<B>> {
        plan.of_cache(matches!(self, LayerCache::Pages { swa: true, .. }))
    }

    /// The KV cache; an error if the layer has none.
    pub fn kv(&self) -> Result<LayerKv<'_, B>> {
        match self {
            LayerCache::Pages { k, v, .. } => Ok(LayerKv { k, v: v.as_ref() }),
            LayerCache::State { .. } => Err(other("keys and values", "a state")),
            LayerCache::None => Err(other("keys and values", "nothing")),
        }
    }

    /// The recurrent state; an error if the layer has none.
    pub fn state(&self) -> Result<LayerState<'_, B>> {
        match self {
            LayerCache::State { window, matrices: states } => Ok(LayerState { window, states }),
            LayerCache::Pages { .. } => Err(other("a state", "keys and values")),
            LayerCache::None => Err(other("a state", "nothing")),
        }
    }
}

fn other(want: &str, got: &str) -> Error {
    Error::Shape { op: "layer", what: "what is kept of sequences", want: want.into(), got: got.into() }
}
