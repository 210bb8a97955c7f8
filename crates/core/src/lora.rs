//! [`Adapter`]: what is added to a model's linear layers for some sequences, and not for others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::{Backend, Weight};

/// The place of a linear layer among those of a model that adapters may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraTarget(pub u32);

/// A matrix of low rank, kept as the two that make it: `scale * up · down`.
#[derive(Debug)]
pub struct LoraPair<B: Backend> {
    /// [rank, inputs]. Layers that lie in one tensor have one in common.
    pub a: Rc<Weight<B>>,
    /// [outputs, rank]
    pub b: Weight<B>,
    /// Multiplies the product.
    pub scale: f32,
}

impl<B: Backend> LoraPair<B> {
    /// Inputs that meet its outputs.
    pub fn rank(&self) -> usize {
        self.a.rows()
    }
}

/// Matrices of low rank for some of a model's linear layers.
#[derive(Debug)]
pub struct Adapter<B: Backend> {
    /// By the number of their site: every layer of every step asks.
    pairs: Vec<Option<LoraPair<B>>>,
}

impl<B: Backend> Adapter<B> {
    /// An adapter of these parts.
    pub fn new(parts: BTreeMap<LoraTarget, LoraPair<B>>) -> Adapter<B> {
        let mut by_site = Vec::new();
        for (LoraTarget(site), part) in parts {
            by_site.resize_with(site as usize, || None);
            by_site.push(Some(part));
        }
        Adapter { pairs: by_site }
    }

    /// What it adds to the layer at a place.
    pub fn pair(&self, site: LoraTarget) -> Option<&LoraPair<B>> {
        self.pairs.get(site.0 as usize)?.as_ref()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        let mut seen = BTreeSet::new();
        let parts = || self.pairs.iter().flatten();
        let downs = parts().filter(|part| seen.insert(Rc::as_ptr(&part.a)));
        let downs: usize = downs.map(|part| part.a.bytes()).sum();
        downs + parts().map(|part| part.b.bytes()).sum::<usize>()
    }
}

/// Rows of a step that have an adapter.
#[derive(Debug)]
pub struct LoraRows<B: Backend> {
    /// Which.
    pub rows: Range<usize>,
    /// What is added to their layers.
    pub adapter: Rc<Adapter<B>>,
    /// Multiplies all that is added.
    pub scale: f32,
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Backend> Clone for LoraRows<B> {
    fn clone(&self) -> Self {
        LoraRows { rows: self.rows.clone(), adapter: self.adapter.clone(), scale: self.scale }
    }
}

/// The rows of each come after those of the one before, and none is past the last of so many.
pub(crate) fn in_order<B: Backend>(adapted: &[LoraRows<B>], rows: usize) -> bool {
    let ends = adapted.iter().map(|a| a.rows.end);
    let starts = adapted.iter().map(|a| a.rows.start).skip(1).chain([rows]);
    adapted.iter().all(|a| a.rows.start <= a.rows.end) && ends.zip(starts).all(|(end, start)| end <= start)
}
