//! [`PatchEmbed`]: from patches of images to the rows that layers read (ViT).

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::ops::{Epilogue, IndexMode, IndexRows, Linear};
use tallow_core::{Backend, LinearWeights, Result, Tensor};

use crate::Result as LoadResult;
use crate::spec::encoder::{CHANNELS, PatchSpec};
use crate::weights::Weights;

/// Linear layer over each patch, and optionally a class row in front of them.
#[derive(Debug)]
pub(super) struct PatchEmbed<B: Backend> {
    spec: PatchSpec,
    linear: LinearWeights<B>,
    /// [1, dim]
    first: Option<Tensor<B>>,
}

impl<B: Backend> PatchEmbed<B> {
    pub(super) fn load(w: &mut Weights<'_, B>, spec: PatchSpec) -> LoadResult<PatchEmbed<B>> {
        let (dim, side) = (w.spec().dim, spec.side);
        let linear = w.conv2d(Slot::TokenEmbd, [dim, CHANNELS, side, side], spec.bias)?;
        let first = spec.first.map(|name| w.tensor_row(name, dim)).transpose()?;
        Ok(PatchEmbed { spec, linear, first })
    }

    /// Patch embeddings (and class rows) plus position embeddings `positions`: [rows, dim]. `patches`: [patches,
    /// values]
    pub(super) fn forward(
        &self,
        b: &B,
        patches: &Tensor<B>,
        images: usize,
        positions: &Tensor<B>,
    ) -> Result<Tensor<B>> {
        let rows = self.spec.rows() as u32;
        let of = |image: u32| image * rows..(image + 1) * rows;
        let in_front = rows - self.spec.count() as u32;
        let images = 0..images as u32;
        let at: Vec<u32> = images.clone().flat_map(|i| of(i).skip(in_front as usize)).collect();
        let y = b.run(Linear { x: patches, weights: &self.linear, epilogue: Epilogue::NONE })?; // [patches, dim]
        let x =
            b.run(IndexRows { x: &y, indices: &b.upload_row(&at)?, mode: IndexMode::ScatterAdd(positions) })?;
        let Some(first) = &self.first else { return Ok(x) };
        let all = b.upload_row(&vec![0u32; images.len()])?;
        let first = b.run(IndexRows { x: first, indices: &all, mode: IndexMode::Gather })?; // [images, dim]
        let at: Vec<u32> = images.map(|i| of(i).start).collect();
        b.run(IndexRows { x: &first, indices: &b.upload_row(&at)?, mode: IndexMode::ScatterAdd(&x) })
    }
}
