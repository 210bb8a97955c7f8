//! MLA: the K and V up-projections of each head.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::{Backend, HostWeight, LinearWeights, Stack};

use super::transpose::{Transpose, plain};
use super::{StreamCheck, Weights, not_taken};
use crate::Result;
use crate::spec::MlaSpec;

/// K and V up-projections of all heads.
#[derive(Debug)]
pub(crate) struct UpProjections<B: Backend> {
    /// K up-projections, transposed: [kv_lora_rank, qk_nope_dim] each
    pub(crate) k: Vec<LinearWeights<B>>,
    /// V up-projections: [v_dim, kv_lora_rank] each
    pub(crate) v: Vec<LinearWeights<B>>,
}

impl<B: Backend> Weights<'_, B> {
    /// The K and V up-projections of layer `i`'s heads, stored as two tensors (GGUF) or fused in one (`kv_b_proj`).
    pub(crate) fn up_projections(&mut self, i: usize, spec: &MlaSpec) -> Result<UpProjections<B>> {
        let MlaSpec { q_heads: heads, kv_lora_rank, qk_nope_dim, v_dim, .. } = *spec;
        if !self.names().has(Slot::AttnKB) {
            return self.fused_up_projections(&self.weight_name((Slot::AttnKvB, i))?, spec);
        }
        let (k, v) = (self.weight_name((Slot::AttnKB, i))?, self.weight_name((Slot::AttnVB, i))?);
        let stored = self.stored(&k, &[heads, kv_lora_rank, qk_nope_dim])?;
        let of_keys = self.stacked_weights(&k, stored, heads, kv_lora_rank)?;
        let stored = self.stored(&v, &[heads, v_dim, kv_lora_rank])?;
        let of_values = self.stacked_weights(&v, stored, heads, v_dim)?;
        let linear = |weight| LinearWeights::new(weight, None);
        let (k, v) = (of_keys.into_iter().map(linear), of_values.into_iter().map(linear));
        Ok(UpProjections { k: k.collect(), v: v.collect() })
    }

    /// The fused tensor: per head, rows for K, which are transposed, and then rows for V. K and V have inputs of their own:
    /// the K of all heads count as its first matrices, the V as its last.
    fn fused_up_projections(&mut self, name: &str, spec: &MlaSpec) -> Result<UpProjections<B>> {
        let MlaSpec { q_heads: heads, kv_lora_rank, qk_nope_dim: keys, v_dim, .. } = *spec;
        let (stored, format) = self.stored(name, &[heads * (keys + v_dim), kv_lora_rank])?;
        plain(stored, name, format)?;
        let row = stored.bytes().len() / (heads * (keys + v_dim)).max(1);
        let (mut of_keys, mut of_values) = (Stack::new(heads), Stack::new(heads));
        let head = |h: usize| {
            let first = h * (keys + v_dim);
            let rows = |from: usize, count: usize| &stored.bytes()[from * row..(from + count) * row];
            let transpose =
                Transpose { rows: kv_lora_rank, cols: keys, source_cols: kv_lora_rank, first: 0, step: 1 };
            let arrange = |to: &mut [u8]| transpose.bytes(rows(first, keys), to);
            let id = self.id(name, (h, 2 * heads), keys);
            let stack = Some(&mut of_keys);
            let k = self.permuted_part((stored, name), &id, (format, kv_lora_rank), stack, arrange)?;
            let id = self.id(name, (heads + h, 2 * heads), kv_lora_rank);
            let v = HostWeight::new(format, v_dim, kv_lora_rank, rows(first + keys, v_dim));
            let v = HostWeight { tensor: Some(&id), ..v };
            let v = self.give(name, v, Some(&mut of_values)).map_err(|e| not_taken(stored, name, e))?;
            Ok((LinearWeights::new(k, None), LinearWeights::new(v, None)))
        };
        let all: Result<Vec<_>> = (0..heads).map(head).collect();
        StreamCheck::new(stored, format, heads * (keys + v_dim)).finish(name)?;
        self.loaded(name, stored)?;
        let (k, v) = all?.into_iter().unzip();
        Ok(UpProjections { k, v })
    }
}
