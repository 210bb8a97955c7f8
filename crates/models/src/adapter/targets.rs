//! [`Targets`]: the linear layers of a model that LoRA adapters may target, and their names in adapter files.

use std::path::PathBuf;

use tallow_checkpoint::Settings;
use tallow_checkpoint::tensor_names::{Names, Pattern, Slot};
use tallow_core::{Heads, LoraTarget};

use super::{AdapterFile, Origin, Pair};
use crate::Model;
use crate::error::{LoadError, Result};
use crate::families::Family;
use crate::weights::Target;

/// A target of an adapter's pair.
pub(super) struct Found {
    pub site: LoraTarget,
    /// The rows of `lora_b` that it takes, if not all in order.
    pub rows: Option<Vec<usize>>,
    pub blocks: bool,
}

/// The LoRA targets of a model, by their [`LoraTarget`].
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    pub all: Vec<Target>,
    path: PathBuf,
    family: &'static Family,
    is_gguf: bool,
    /// Heads and RoPE width, where GGUF files of the family permute the rows of Q and K.
    reordered: Option<(Heads, usize)>,
}

impl Targets {
    /// The targets `all` of a model.
    pub(crate) fn new(model: &Model, all: Vec<Target>) -> Targets {
        let spec = &model.spec;
        let heads = spec.layers.first().and_then(|layer| layer.mixer.heads());
        let rope_dim = spec.ropes.first().map(|rope| rope.dim);
        Targets {
            all,
            path: model.checkpoint.path.clone(),
            family: model.family,
            is_gguf: matches!(model.checkpoint.settings, Settings::Gguf(_)),
            reordered: heads.zip(rope_dim).filter(|_| spec.gguf_permutes_qk),
        }
    }

    /// The layers that a pair of an adapter targets: one, or several fused in one tensor.
    pub(super) fn find(&self, file: &AdapterFile, name: &str, pair: &Pair) -> Result<Vec<Found>> {
        let own = match &file.origin {
            Origin::Gguf(arch) if !self.family.gguf.contains(&arch.as_str()) => {
                let why = format!("{} is a {} model", self.path.display(), self.family.name);
                let field = format!("general.architecture = {arch:?}");
                return Err(LoadError::bad(&file.path, field, why));
            }
            Origin::Gguf(_) if self.is_gguf => Some((bare(name).to_owned(), None)),
            Origin::Peft if !self.is_gguf => Some((bare(name).to_owned(), None)),
            Origin::Gguf(_) => self.elsewhere(&self.family.gguf_names, &self.family.hf_names, name),
            Origin::Peft => self.elsewhere(&self.family.hf_names, &self.family.gguf_names, name),
        };
        let found: Vec<(usize, &Target)> = match &own {
            Some((own, _)) => self.all.iter().enumerate().filter(|(_, t)| bare(&t.name) == own).collect(),
            None => Vec::new(),
        };
        let order = own.and_then(|(_, slot)| self.order(slot?, pair.up.rows));
        if found.is_empty() {
            return Err(self.not_found(file, name, pair));
        }
        found.into_iter().map(|(i, target)| self.fit(i, target, pair, order.as_deref())).collect()
    }

    /// Translates a layer name of the other kind of file to the model's own, and returns the layer's slot.
    fn elsewhere(&self, theirs: &Names, ours: &Names, name: &str) -> Option<(String, Option<Slot>)> {
        // GGUF files have the value heads of Gated DeltaNet in another order.
        let mut slots = theirs.iter().filter(|(slot, _)| !slot.is_whole() && !slot.is_gated_delta());
        slots.find_map(|(slot, theirs)| {
            let at = Pattern::new(bare(theirs.text())).parse(bare(name))?;
            let own = bare(&ours.name(slot, at)?).to_owned();
            // Two slots may share a name where a file has only one of them.
            self.all.iter().any(|t| bare(&t.name) == own).then_some((own, Some(slot)))
        })
    }

    /// For each row of the model's tensor the adapter's row, where the two kinds of files order Q and K differently.
    fn order(&self, slot: Slot, rows: usize) -> Option<Vec<usize>> {
        let (heads, rope_dim) = self.reordered?;
        let heads = match slot {
            Slot::AttnQ => heads.q,
            Slot::AttnK => heads.kv,
            _ => return None,
        };
        let (dim, half) = ((rows / heads.max(1)).max(1), rope_dim / 2);
        // GGUF stores RoPE pairs side by side; other files store them half the RoPE width apart.
        let deinterleaved = |i: usize| {
            let (head, at) = (i / dim, i % dim);
            head * dim + if at < 2 * half { at / 2 + at % 2 * half } else { at }
        };
        let order: Vec<usize> = (0..rows).map(deinterleaved).collect();
        if self.is_gguf {
            return Some(order);
        }
        let mut back = vec![0; rows];
        order.into_iter().enumerate().for_each(|(i, from)| back[from.min(rows - 1)] = i);
        Some(back)
    }

    /// Checks a pair's shapes against a target.
    fn fit(&self, i: usize, target: &Target, pair: &Pair, order: Option<&[usize]>) -> Result<Found> {
        let ((outputs, inputs), Pair { down, up, .. }) = (target.shape, pair);
        let wrong = |half: &super::Half, want: String| {
            let shape = format!("[{outputs}, {inputs}]");
            let why = format!(
                "has shape {:?}; {want} is expected, for {:?} of {} has shape {shape}",
                half.stored.shape,
                target.name,
                self.path.display()
            );
            Err(LoadError::bad(half.path(), half.field(), why))
        };
        if down.cols != inputs {
            return wrong(down, format!("[{}, {inputs}]", down.rows));
        }
        if up.rows != outputs {
            return wrong(up, format!("[{outputs}, {}]", up.cols));
        }
        let place = |row: usize| order.map_or(row, |order| order[row]);
        let rows = match (&target.runs, order) {
            (None, None) => None,
            (None, Some(order)) => Some(order.to_vec()),
            (Some(runs), _) => Some(runs.iter().cloned().flatten().map(place).collect()),
        };
        let site = LoraTarget(u32::try_from(i).unwrap_or(u32::MAX));
        Ok(Found { site, rows, blocks: target.blocks })
    }

    fn not_found(&self, file: &AdapterFile, name: &str, pair: &Pair) -> LoadError {
        let what = format!("an adapter of {name:?} ({})", pair.down.field());
        let names = [&self.family.hf_names, &self.family.gguf_names];
        let is = |slot| names.iter().filter_map(|n| n.get(slot)).any(|own| bare(own.text()) == bare(name));
        let why = if name.contains("expert") || name.contains("_exps") {
            "adapters of attention and of what all tokens go through are; those of experts are not implemented".into()
        } else if is(Slot::TokenEmbd) || is(Slot::Output) {
            "adapters of embeddings and of the output head are not implemented".into()
        } else {
            let model = self.path.display();
            format!("{model} is a {} model, and has no such layer that could take one", self.family.name)
        };
        LoadError::unsupported(&file.path, what, why)
    }
}

/// A layer name without the prefixes that only some files put in front of a decoder's.
fn bare(name: &str) -> &str {
    let around = ["model.", "language_model.", "transformer."];
    let mut name = name;
    while let Some(rest) = around.iter().find_map(|around| name.strip_prefix(around)) {
        name = rest;
    }
    name
}
