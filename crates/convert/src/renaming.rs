//! Maps a Hugging Face folder's tensors to their GGUF names.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use tallow_checkpoint::tensor_names::{
    Index, Indices, Joint, Layout, Names, Pattern, Rate, Slot, is_redundant, named,
};
use tallow_models::Model;
use tallow_models::blocks::gated_delta_net::by_key_head;
use tallow_models::families::Family;
use tallow_models::spec::{GatedDeltaSpec, LayerSpec, Mixer, MlaSpec, MoeSpec};
use tallow_models::weights::{Pair, Runs, Transpose, by_head, bytes_alone};
use tallow_models::{LoadError, Result};

use super::changes::Change;
use super::pieces::Piece;
use super::tensors::Target;

/// A folder's tensors, named for `reader`. Only tensors that loading also ignores may be left over.
pub(super) fn renamed<'a>(model: &'a Model, reader: &'a Family) -> Result<Vec<Target<'a>>> {
    let (names, layers) = (model.names(), model.stored_layers());
    let mut all = Renaming {
        model,
        names,
        layers,
        before: 0,
        to: &reader.gguf_names,
        used: BTreeSet::new(),
        targets: Vec::new(),
    };
    for (slot, from) in names.iter().filter(|(_, from)| !from.has(Index::Layer)) {
        all.slot(slot, from, 0)?;
    }
    let count = model.spec.layers.len();
    (0..count).try_for_each(|layer| all.layer(layer))?;
    if all.layers.len() > count {
        let (names, number) = model.mtp_names();
        (all.names, all.before) = (names, count - number);
        all.layer(count)?;
    }
    let spare = |name: &str| {
        model.is_of_mtp(name) || is_redundant(name) || names.is_unused(name) || model.family.reads(name)
    };
    match model.checkpoint.tensors().find(|(name, _)| !all.used.contains(*name) && !spare(name)) {
        None => Ok(all.targets),
        Some((name, stored)) => {
            let why = "what GGUF files have in its place is not known here";
            Err(LoadError::unsupported(stored.file.path(), format!("converting tensor {name:?}"), why))
        }
    }
}

/// State of the renaming.
struct Renaming<'a> {
    model: &'a Model,
    names: &'a Names,
    /// Layers of the file, the MTP layer among them.
    layers: Vec<LayerSpec>,
    /// Layers of the file before the first that these names number.
    before: usize,
    to: &'a Names,
    used: BTreeSet<String>,
    targets: Vec<Target<'a>>,
}

impl<'a> Renaming<'a> {
    /// Adds all tensors of a layer.
    fn layer(&mut self, layer: usize) -> Result<()> {
        let names = self.names;
        // Where the MTP layer is a part of its own, there is no number in what it alone has.
        for (slot, from) in names.iter().filter(|(slot, from)| from.has(Index::Layer) || slot.is_nextn()) {
            self.slot(slot, from, layer)?;
        }
        self.latent(layer)?;
        self.joint(layer)?;
        self.recalled(layer)
    }

    /// The tensor of that name, if it exists.
    fn find(&self, name: &str) -> Option<Piece<'a>> {
        let short = name.strip_prefix(self.names.base);
        let mut names = [Some(name), short].into_iter().flatten();
        names.find_map(|name| Some(Piece::new(name.to_owned(), self.model.checkpoint.get(name)?)))
    }

    /// The tensor of that name, if it exists; an error if its shape differs.
    fn shaped(&mut self, name: &str, shape: &[usize]) -> Result<Option<Piece<'a>>> {
        let Some(piece) = self.find(name) else { return Ok(None) };
        if piece.stored.shape != shape {
            let why = format!("has shape {:?}; the settings ask for {shape:?}", piece.stored.shape);
            return Err(LoadError::bad(piece.stored.file.path(), format!("tensor {:?}", piece.name), why));
        }
        self.used.insert(piece.name.clone());
        Ok(Some(piece))
    }

    /// The weight in a slot, if it exists; an error if its shape differs.
    fn weight(&mut self, slot: Slot, layer: usize, shape: &[usize]) -> Result<Option<Piece<'a>>> {
        match self.names.weight(slot, layer - self.before) {
            Some(name) => self.shaped(&name, shape),
            None => Ok(None),
        }
    }

    /// Adds a GGUF tensor made of `pieces`, which together have `shape`, with `changes` applied.
    fn add(
        &mut self,
        to: String,
        pieces: Vec<Piece<'a>>,
        shape: &[usize],
        (slot, changes): (Slot, Vec<Change>),
    ) -> Result<()> {
        self.targets.push(Target::stored(self.model, to, (pieces, shape), Some(slot), changes)?);
        Ok(())
    }

    /// Adds the tensors in a slot of a layer, if GGUF files have it: weight and bias, one per expert or head.
    fn slot(&mut self, slot: Slot, from: Pattern, layer: usize) -> Result<()> {
        let Some(to) = self.to.name(slot, layer) else { return Ok(()) };
        let kinds: &[&str] = if slot.is_whole() { &[""] } else { &[".weight", ".bias"] };
        for kind in kinds {
            let to = format!("{to}{kind}");
            let each = |i: usize| {
                let at = Indices { layer: layer - self.before, expert: i, head: i };
                self.find(&format!("{}{kind}", from.fill(at)))
            };
            let is_many = from.has(Index::Expert) || from.has(Index::Head);
            let found: Vec<_> = (0..if is_many { usize::MAX } else { 1 }).map_while(each).collect();
            // Where a family has no norm before a block, that name may be of one behind it, which is added already.
            let Some(first) = found.first().filter(|piece| !self.used.contains(&piece.name)) else {
                continue;
            };
            let first = first.stored;
            self.used.extend(found.iter().map(|piece| piece.name.clone()));
            if self.model.spec.tied_embeddings && slot == Slot::Output && *kind == ".weight" {
                continue;
            }
            if let Some(Piece { name, stored, .. }) = found.iter().find(|p| p.stored.shape != first.shape) {
                let why = format!("has shape {:?}, and others of its kind {:?}", stored.shape, first.shape);
                return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
            }
            let mut shape = first.shape.clone();
            if found.len() > 1 || from.has(Index::Expert) {
                shape.insert(0, found.len());
            }
            if let (Slot::SsmConv1d, [cols, 1, kernel]) = (slot, shape.as_slice()) {
                shape = vec![*cols, *kernel];
            }
            let changes = self.changes(slot, &shape);
            self.add(to, found, &shape, (slot, changes))?;
        }
        Ok(())
    }

    /// Transformations that a tensor needs between the two layouts.
    fn changes(&self, slot: Slot, shape: &[usize]) -> Vec<Change> {
        match (self.names.layout, self.to.layout, shape) {
            (Layout::Columns, Layout::Rows, &[cols, rows]) if !slot.is_table() => {
                vec![Change::Transposed(Transpose { rows, cols, source_cols: rows, first: 0, step: 1 })]
            }
            (Layout::RowsByHead, Layout::Rows, _) if slot == Slot::AttnQkv => {
                let heads = self.model.spec.layers.iter().find_map(|layer| layer.mixer.heads());
                let rows = |heads| (0..3).flat_map(|part| by_head(heads, part, 3)).collect();
                heads.map(|heads| Change::Rows(rows(heads))).into_iter().collect()
            }
            _ if slot == Slot::SsmA => match (self.names.rate, self.to.rate) {
                (Rate::Logarithm, Rate::Negative) => vec![Change::Rates],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// MLA: splits `kv_b` into the K and the V part.
    fn latent(&mut self, layer: usize) -> Result<()> {
        let spec = &self.layers[layer];
        let Mixer::Mla(MlaSpec { q_heads: heads, kv_lora_rank, qk_nope_dim: keys, v_dim: values, .. }) =
            spec.mixer
        else {
            return Ok(());
        };
        let rows = keys + values;
        let Some(up) = self.weight(Slot::AttnKvB, layer, &[heads * rows, kv_lora_rank])? else {
            return Ok(());
        };
        let transpose =
            Transpose { rows: kv_lora_rank, cols: keys, source_cols: kv_lora_rank, first: 0, step: 1 };
        let some = |rows: Range<usize>| Change::Rows(iter::once(rows).collect());
        for (slot, change) in [
            (Slot::AttnKB, vec![some(0..keys), Change::Transposed(transpose)]),
            (Slot::AttnVB, vec![some(keys..rows)]),
        ] {
            let Some(to) = self.to.weight(slot, layer) else { continue };
            self.add(to, vec![up.clone()], &[heads, rows, kv_lora_rank], (slot, change))?;
        }
        Ok(())
    }

    /// Splits a fused gate and up of all experts, and adds the matching down.
    fn joint(&mut self, layer: usize) -> Result<()> {
        if !self.names.has(Slot::FfnGateUpExpsT) {
            return Ok(());
        }
        let Some(MoeSpec { expert, experts }) = self.layers[layer].ffn.moe().copied() else {
            return Ok(());
        };
        let (count, width, dim) = (experts.count, expert.width, self.model.spec.dim);
        let half = |i: usize| match self.names.joint {
            Joint::InTurn => (i * width, 1),
            Joint::Alternating => (i, 2),
        };
        for (from, slot, shape, rows, (first, step)) in [
            (Slot::FfnGateUpExpsT, Slot::FfnGateExps, [count, 2 * width, dim], width, half(0)),
            (Slot::FfnGateUpExpsT, Slot::FfnUpExps, [count, 2 * width, dim], width, half(1)),
            (Slot::FfnDownExps, Slot::FfnDownExps, [count, dim, width], dim, (0, 1)),
        ] {
            let from = self.names.name(from, layer - self.before);
            let to = self.to.name(slot, layer);
            let (Some(from), Some(to)) = (from, to) else { continue };
            let [_, outputs, cols] = shape;
            let some: Runs = (0..rows).map(|row| first + row * step).map(|row| row..row + 1).collect();
            let some = if rows < outputs { vec![Change::Rows(some)] } else { Vec::new() };
            if let Some(pair) = self.pair(&from, shape)? {
                self.add(named(&to), vec![pair], &shape, (slot, some.clone()))?;
            } else if let Some(plain) = self.shaped(&from, &[count, cols, outputs])? {
                let transpose =
                    Change::Transposed(Transpose { rows, cols, source_cols: outputs, first, step });
                self.add(named(&to), vec![plain], &[count, cols, outputs], (slot, vec![transpose]))?;
            }
            if let Some(bias) = self.shaped(&format!("{from}_bias"), &[count, outputs])? {
                self.add(format!("{to}.bias"), vec![bias], &[count, outputs], (slot, some))?;
            }
        }
        Ok(())
    }

    /// Matrices whose MXFP4 codes and exponents are separate tensors, if they exist.
    fn pair(&mut self, name: &str, [count, rows, cols]: [usize; 3]) -> Result<Option<Piece<'a>>> {
        let Some((of_codes, of_exponents)) = Pair::shapes(count, rows, cols) else { return Ok(None) };
        let Some(codes) = self.shaped(&format!("{name}_blocks"), &of_codes)? else { return Ok(None) };
        let name = format!("{name}_scales");
        let Some(exponents) = self.shaped(&name, &of_exponents)? else {
            return Err(LoadError::bad(
                &self.model.checkpoint.path,
                format!("tensor {name:?}"),
                "is missing",
            ));
        };
        bytes_alone(codes.stored, &codes.name)?;
        bytes_alone(exponents.stored, &exponents.name)?;
        Ok(Some(Piece { exponents: Some(exponents.stored), ..codes }))
    }

    /// Gated DeltaNet: splits the tensors grouped by key head into Q, K, V and the gates.
    fn recalled(&mut self, layer: usize) -> Result<()> {
        let Mixer::GatedDelta(GatedDeltaSpec { heads, .. }) = self.layers[layer].mixer else {
            return Ok(());
        };
        let (rows, dim) = (heads.cols() + heads.value_cols(), self.model.spec.dim);
        let Some(all) = self.weight(Slot::SsmIn, layer, &[rows, dim])? else { return Ok(()) };
        let mut seen = by_key_head(heads, [heads.key_dim; 2], heads.value_dim);
        let gates = seen.split_off(3 * heads.keys);
        for (slot, runs) in [(Slot::SsmQkv, seen), (Slot::SsmGate, gates)] {
            let Some(to) = self.to.weight(slot, layer) else { continue };
            self.add(to, vec![all.clone()], &[rows, dim], (slot, vec![Change::Rows(runs)]))?;
        }
        Ok(())
    }
}
