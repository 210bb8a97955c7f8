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
    pub fn new(by_target: BTreeMap<LoraTarget, LoraPair<B>>) -> Adapter<B> {
        let mut pairs = Vec::new();
        for (LoraTarget(target), pair) in by_target {
            pairs.resize_with(target as usize, || None);
            pairs.push(Some(pair));
        }
        Adapter { pairs }
    }

    /// The factors for a target, if the adapter has any.
    pub fn pair(&self, target: LoraTarget) -> Option<&LoraPair<B>> {
        self.pairs.get(target.0 as usize)?.as_ref()
    }

    /// Bytes on the device; a shared `lora_a` counts once.
    pub fn bytes(&self) -> usize {
        let mut seen = BTreeSet::new();
        let pairs = || self.pairs.iter().flatten();
        let distinct = pairs().filter(|pair| seen.insert(Rc::as_ptr(&pair.a)));
        let lora_a: usize = distinct.map(|pair| pair.a.bytes()).sum();
        lora_a + pairs().map(|pair| pair.b.bytes()).sum::<usize>()
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

/// True if the row ranges are ascending, disjoint and within `rows`.
pub(crate) fn in_order<B: Memory>(adapted: &[LoraRows<B>], rows: usize) -> bool {
    let ends = adapted.iter().map(|a| a.rows.end);
    let starts = adapted.iter().map(|a| a.rows.start).skip(1).chain([rows]);
    adapted.iter().all(|a| a.rows.start <= a.rows.end) && ends.zip(starts).all(|(end, start)| end <= start)
}
