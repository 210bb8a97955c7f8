//! What each head has of its own where keys and values come from a narrow row.

use tallow_core::{Backend, HostWeight, LinearWeights};

use super::turn::{Turn, plain};
use super::{Passing, Weights, named, not_taken};
use crate::blocks::latent::LatentHead;
use crate::error::Result;
use crate::formats::names::of_layer;
use crate::spec::LatentSpec;

impl<B: Backend> Weights<'_, B> {
    /// The matrices of each of layer `i`'s heads: in two tensors, or head by head in one.
    pub(crate) fn latent_heads(
        &mut self,
        i: usize,
        heads: usize,
        spec: &LatentSpec,
    ) -> Result<Vec<LatentHead<B>>> {
        let (names, LatentSpec { rank, plain, value, .. }) = (self.names().latent, *spec);
        if names.k.is_empty() {
            return self.heads_of_one(&named(&of_layer(names.up, i)), heads, spec);
        }
        let (k, v) = (named(&of_layer(names.k, i)), named(&of_layer(names.v, i)));
        let stored = self.stored(&k, &[heads, rank, plain])?;
        let of_keys = self.matrices(&k, stored, heads, rank)?;
        let stored = self.stored(&v, &[heads, value, rank])?;
        let of_values = self.matrices(&v, stored, heads, value)?;
        let linear = |name: &str, i, weight| {
            LinearWeights::new(weight, None).with_tensor_id(self.called(name), i, heads)
        };
        let head =
            |(i, (of_keys, of_values))| LatentHead { k: linear(&k, i, of_keys), v: linear(&v, i, of_values) };
        Ok(of_keys.into_iter().zip(of_values).enumerate().map(head).collect())
    }

    /// Each head has rows for its keys, which are turned, and rows for its values.
    fn heads_of_one(&mut self, name: &str, heads: usize, spec: &LatentSpec) -> Result<Vec<LatentHead<B>>> {
        let LatentSpec { rank, plain: keys, value, .. } = *spec;
        let (stored, format) = self.stored(name, &[heads * (keys + value), rank])?;
        plain(stored, name, format)?;
        let row = stored.bytes().len() / (heads * (keys + value)).max(1);
        let head = |h: usize| {
            let first = h * (keys + value);
            let rows = |from: usize, count: usize| &stored.bytes()[from * row..(from + count) * row];
            let turn = Turn { rows: rank, cols: keys, across: rank, first: 0, step: 1 };
            let arrange = |to: &mut [u8]| turn.bytes(rows(first, keys), to);
            let k = self.rearranged((stored, name), format, (rank, keys), arrange)?;
            let bytes = rows(first + keys, value);
            let v = HostWeight { format, rows: value, cols: rank, bytes, release: HostWeight::KEEP_ROWS };
            let v = self.give(name, v).map_err(|e| not_taken(stored, name, e))?;
            Ok(LatentHead { k: LinearWeights::new(k, None), v: LinearWeights::new(v, None) })
        };
        let all = (0..heads).map(head).collect();
        Passing::new(stored, format, heads * (keys + value)).finish(name)?;
        self.loaded(name, stored)?;
        all
    }
}
