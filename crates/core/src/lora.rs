//! [`Adapter`]: a LoRA adapter, applied to some rows of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::{LoraTarget, Memory, Weight};

/// LoRA factors of one linear layer's delta: `scale * b · a`.
#[derive(Debug)]
pub struct LoraPair<B: Memory> {
    /// [rank, inputs] (`lora_a`). Shared by layers that are parts of one checkpoint tensor.
    pub a: Rc<Weight<B>>,
    /// [outputs, rank] (`lora_b`)
    pub b: Weight<B>,
    /// Multiplies the delta.
    pub scale: f32,
}

impl<B: Memory> LoraPair<B> {
    /// LoRA rank.
    pub fn rank(&self) -> usize {
        self.a.rows()
    }
}

/// A LoRA adapter on the device: factors for some of a model's linear layers.
#[derive(Debug)]
pub struct Adapter<B: Memory> {
    /// Indexed by [`LoraTarget`], because every layer of every step looks one up.
    pairs: Vec<Option<LoraPair<B>>>,
}

impl<B: Memory> Adapter<B> {
    /// Builds an adapter from its factors by target.
    pub fn new(parts: BTreeMap<LoraTarget, LoraPair<B>>) -> Adapter<B> {
        let mut by_site = Vec::new();
        for (LoraTarget(site), part) in parts {
            by_site.resize_with(site as usize, || None);
            by_site.push(Some(part));
        }
        Adapter { pairs: by_site }
    }

    /// The factors for a target, if the adapter has any.
    pub fn pair(&self, site: LoraTarget) -> Option<&LoraPair<B>> {
        self.pairs.get(site.0 as usize)?.as_ref()
    }

    /// Bytes on the device; a shared `lora_a` counts once.
    pub fn bytes(&self) -> usize {
        let mut seen = BTreeSet::new();
        let parts = || self.pairs.iter().flatten();
        let downs = parts().filter(|part| seen.insert(Rc::as_ptr(&part.a)));
        let downs: usize = downs.map(|part| part.a.bytes()).sum();
        downs + parts().map(|part| part.b.bytes()).sum::<usize>()
    }
}

/// A range of a step's rows and their LoRA adapter.
#[derive(Debug)]
pub struct LoraRows<B: Memory> {
    /// Row range.
    pub rows: Range<usize>,
    /// The adapter of these rows.
    pub adapter: Rc<Adapter<B>>,
    /// Multiplies every delta of the adapter.
    pub scale: f32,
}

// By hand: deriving would ask for `B: Clone`.
impl<B: Memory> Clone for LoraRows<B> {
    fn clone(&self) -> Self {
        LoraRows { rows: self.rows.clone(), adapter: self.adapter.clone(), scale: self.scale }
    }
}

/// Whether the row ranges are ascending, disjoint and within `rows`.
pub(crate) fn in_order<B: Memory>(adapted: &[LoraRows<B>], rows: usize) -> bool {
    let ends = adapted.iter().map(|a| a.rows.end);
    let starts = adapted.iter().map(|a| a.rows.start).skip(1).chain([rows]);
    adapted.iter().all(|a| a.rows.start <= a.rows.end) && ends.zip(starts).all(|(end, start)| end <= start)
}
