//! [`LayerCache`]: what a layer keeps of sequences between steps, on a device.

use tallow_core::{Backend, DType, Error, LayerKv, LayerState, Result, Tensor};

use crate::spec::LayerSpec;

/// What a layer keeps of sequences between steps.
#[derive(Debug)]
pub enum LayerCache<B: Backend> {
    /// Keys and values of all tokens, in pages.
    Pages {
        /// [pages, page length * key columns]
        k: Tensor<B>,
        /// [pages, page length * value columns]
        v: Tensor<B>,
    },
    /// Nothing: it looks at another layer's.
    None,
    /// A state that does not grow. A sequence has two rows, of which a step reads one and writes the other.
    State {
        /// [rows, (kernel - 1) * columns]
        window: Tensor<B>,
        /// [rows, elements of all heads' matrices]
        matrices: Tensor<B>,
    },
}

impl<B: Backend> LayerCache<B> {
    /// Room for what `layer` keeps: so many pages of so many tokens, or states of so many sequences.
    pub fn new(
        b: &B,
        layer: &LayerSpec,
        dtype: DType,
        [pages, page_len]: [usize; 2],
        sequences: usize,
    ) -> Result<LayerCache<B>> {
        if layer.mixer.kv_source.is_some() {
            return Ok(LayerCache::None);
        }
        let Some(delta) = layer.gated_delta else {
            let page = || b.alloc(dtype, pages, page_len * layer.cache_cols(dtype));
            return Ok(LayerCache::Pages { k: page()?, v: page()? });
        };
        let state = |len: usize| b.alloc(DType::F32, 2 * sequences, len);
        Ok(LayerCache::State {
            window: state(delta.window_len())?,
            matrices: state(delta.heads.state_len())?,
        })
    }

    /// Its keys and values.
    pub fn kv(&self) -> Result<LayerKv<'_, B>> {
        match self {
            LayerCache::Pages { k, v } => Ok(LayerKv { k, v }),
            LayerCache::State { .. } => Err(other("keys and values", "a state")),
            LayerCache::None => Err(other("keys and values", "nothing")),
        }
    }

    /// Its state.
    pub fn state(&self) -> Result<LayerState<'_, B>> {
        match self {
            LayerCache::State { window, matrices } => Ok(LayerState { window, matrices }),
            LayerCache::Pages { .. } => Err(other("a state", "keys and values")),
            LayerCache::None => Err(other("a state", "nothing")),
        }
    }
}

fn other(want: &str, got: &str) -> Error {
    Error::Shape { op: "layer", what: "what is kept of sequences", want: want.into(), got: got.into() }
}
