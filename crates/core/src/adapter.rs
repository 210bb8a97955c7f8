//! [`Adapter`]: what is added to a model's linear layers for some sequences, and not for others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::{Backend, Weight};

/// The place of a linear layer among those of a model that adapters may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site(pub u32);

/// A matrix of low rank, kept as the two that make it: `scale * up · down`.
#[derive(Debug)]
pub struct LowRank<B: Backend> {
    /// [rank, inputs]. Layers that lie in one tensor have one in common.
    pub down: Rc<Weight<B>>,
    /// [outputs, rank]
    pub up: Weight<B>,
    /// Multiplies the product.
    pub scale: f32,
}

impl<B: Backend> LowRank<B> {
    /// Inputs that meet its outputs.
    pub fn rank(&self) -> usize {
        self.down.rows()
    }
}

/// Matrices of low rank for some of a model's linear layers.
#[derive(Debug)]
pub struct Adapter<B: Backend> {
    /// By the number of their site: every layer of every step asks.
    parts: Vec<Option<LowRank<B>>>,
}

impl<B: Backend> Adapter<B> {
    /// An adapter of these parts.
    pub fn new(parts: BTreeMap<Site, LowRank<B>>) -> Adapter<B> {
        let mut by_site = Vec::new();
        for (Site(site), part) in parts {
            by_site.resize_with(site as usize, || None);
            by_site.push(Some(part));
        }
        Adapter { parts: by_site }
    }

    /// What it adds to the layer at a place.
    pub fn part(&self, site: Site) -> Option<&LowRank<B>> {
        self.parts.get(site.0 as usize)?.as_ref()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        let mut seen = BTreeSet::new();
        let parts = || self.parts.iter().flatten();
        let downs = parts().filter(|part| seen.insert(Rc::as_ptr(&part.down)));
        let downs: usize = downs.map(|part| part.down.bytes()).sum();
        downs + parts().map(|part| part.up.bytes()).sum::<usize>()
    }
}

/// Rows of a step that have an adapter.
#[derive(Debug)]
pub struct Adapted<B: Backend> {
    /// Which.
    pub rows: Range<usize>,
    /// What is added to their layers.
    pub by: Rc<Adapter<B>>,
    /// Multiplies all that is added.
    pub scale: f32,
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Backend> Clone for Adapted<B> {
    fn clone(&self) -> Self {
        Adapted { rows: self.rows.clone(), by: self.by.clone(), scale: self.scale }
    }
}

/// The rows of each come after those of the one before, and none is past the last of so many.
pub(crate) fn in_turn<B: Backend>(adapted: &[Adapted<B>], rows: usize) -> bool {
    let ends = adapted.iter().map(|a| a.rows.end);
    let starts = adapted.iter().map(|a| a.rows.start).skip(1).chain([rows]);
    adapted.iter().all(|a| a.rows.start <= a.rows.end) && ends.zip(starts).all(|(end, start)| end <= start)
}
