//! [`Target`]: a tensor of a GGUF file, made from the model's tensors, possibly reordered or in another format.

use std::path::Path;

use tallow_checkpoint::Settings;
use tallow_checkpoint::gguf::write::Planned;
use tallow_checkpoint::tensor_names::Slot;
use tallow_core::{DeltaHeads, HostWeight, RopePairs, Sharing};
use tallow_models::Model;
use tallow_models::recipe::{Choice, Outcome};
use tallow_models::spec::DecoderSpec;
use tallow_models::weights::quantized;
use tallow_models::{LoadError, Result};
use tallow_quant::Format;

use super::changes::Change;
use super::pieces::Piece;
use super::{Importance, Made, WriteError};

/// Bytes of unquantized data that are converted at a time.
const AT_ONCE: usize = 64 << 20;

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) planned: Planned,
    from: From<'a>,
    /// Stored format and the recipe's choice, if the recipe applies to the tensor.
    choice: Option<(Format, Choice)>,
    /// Importance of each column (imatrix), per matrix or for all of them.
    care: Option<&'a [f32]>,
}

/// Source of a tensor.
#[derive(Debug)]
enum From<'a> {
    /// Data that is already in memory.
    Made(Vec<u8>),
    /// Tensors of the checkpoint.
    Stored(Stacked<'a>),
}

/// Concatenated tensors of a checkpoint, with the same changes for each matrix.
#[derive(Debug)]
struct Stacked<'a> {
    pieces: Vec<Piece<'a>>,
    /// Its slot, if the source is no GGUF file, whose tensors stay as they are.
    slot: Option<Slot>,
    /// Matrices per piece.
    matrices: usize,
    /// [rows, cols] of a matrix as stored.
    shape: [usize; 2],
    changes: Vec<Change>,
}

/// The tensors of a GGUF source, in the formats that they will have.
pub(super) fn same(model: &Model) -> Result<Vec<Target<'_>>> {
    let mut targets = Vec::new();
    for (name, stored) in model.checkpoint.tensors() {
        let pieces = vec![Piece::new(name.to_owned(), stored)];
        targets.push(Target::stored(model, name.to_owned(), (pieces, &stored.shape), None, Vec::new())?);
    }
    Ok(targets)
}

impl<'a> Target<'a> {
    /// A tensor with its data in memory.
    pub(super) fn new_made(planned: Planned, bytes: Vec<u8>) -> Target<'a> {
        Target { planned, from: From::Made(bytes), choice: None, care: None }
    }

    /// A tensor made of `pieces`, which together have `shape`, in the format that it will have.
    pub(super) fn stored(
        model: &Model,
        name: String,
        (pieces, shape): (Vec<Piece<'a>>, &[usize]),
        slot: Option<Slot>,
        changes: Vec<Change>,
    ) -> Result<Target<'a>> {
        let Some(own) = pieces[0].format() else {
            return Err(refused(&pieces[0], ["which is no weights", "floats and blocks are"]));
        };
        // A bias has one element per row of its layer.
        let is_row = shape.len() < 2 || name.ends_with(".bias");
        let (leading, stored) = match *shape {
            [ref leading @ .., n] if is_row => (leading, [n, 1]),
            [ref leading @ .., rows, cols] => (leading, [rows, cols]),
            [] | [_] => (&[][..], [1, 1]),
        };
        let matrices = leading.iter().product::<usize>() / pieces.len();
        let stacked = Stacked { pieces, slot, matrices: matrices.max(1), shape: stored, changes };
        let [rows, cols] = stacked.changes.iter().fold(stored, |shape, change| change.shape(shape));
        let mut shape = leading.to_vec();
        shape.extend([rows, cols].into_iter().take(if is_row { 1 } else { 2 }));
        let first = &stacked.pieces[0];
        let is_kept = is_row || slot == Some(Slot::SsmConv1d);
        let format = if is_kept { own } else { model.wanted_format(&first.name, own, cols) };
        let choice = if is_kept { None } else { model.recipe_choice(&first.name, own, cols) };
        if let Some(choice) = choice.filter(|_| matches!(model.checkpoint.settings, Settings::Gguf(_))) {
            once(model, first, own, choice)?;
        }
        if first.is_shuffled() && model.recipe.is_none() {
            let why = "such files cannot keep the order of its inputs; with a format to quantize it to, as in --quant q4_k_m, it is written in the usual order";
            return Err(refused(first, ["which was quantized with act-order", why]));
        }
        let is_flat = is_kept || shape[..shape.len() - 1].iter().product::<usize>() == 1;
        let format = match format {
            // Readers accept 1-D tensors and routers only as f32.
            f if f.is_plain() && (is_flat || name.contains("ffn_gate_inp")) => Format::F32,
            f if f.gguf_id().is_none() => Format::BF16,
            f => f,
        };
        stacked.changes.iter().try_fold(stored, |shape, change| stacked.allows(change, shape))?;
        let choice = choice.map(|choice| (own, choice)).filter(|_| !is_flat);
        let planned = Planned { name, format, shape };
        if planned.size().is_none() {
            return Err(refused(first, ["whose rows are no whole blocks", "rows of whole blocks are"]));
        }
        Ok(Target { planned, from: From::Stored(stacked), choice, care: None })
    }

    /// Adds it to the recipe's statistics.
    pub(super) fn count(&self, outcome: &mut Outcome) {
        if let Some((stored, choice)) = self.choice {
            outcome.count(stored, choice, self.planned.format);
        }
    }

    /// Size in the file in bytes.
    pub(super) fn size(&self) -> usize {
        self.planned.size().unwrap_or(0)
    }

    /// Data of the tensor, if already in memory.
    pub(super) fn made(&self) -> Option<&[u8]> {
        match &self.from {
            From::Made(bytes) => Some(bytes),
            From::Stored(_) => None,
        }
    }

    /// Name and sources.
    pub(super) fn parts(&self) -> Made {
        let mut made = Made { name: self.planned.name.clone(), ..Made::default() };
        if let From::Stored(stacked) = &self.from {
            made.parts = stacked.pieces.iter().map(|piece| piece.name.clone()).collect();
            made.columns = stacked.changes.iter().find_map(|change| match change {
                Change::Columns(runs) => Some(runs.iter().cloned().flatten().collect()),
                _ => None,
            });
            made.matrices = match stacked.slot {
                Some(Slot::AttnKB) => Some(0..stacked.matrices),
                Some(Slot::AttnVB) => Some(stacked.matrices..2 * stacked.matrices),
                _ => None,
            };
        }
        made
    }

    /// Sets the imatrix importances of its columns, if there are any; returns whether there were.
    pub(super) fn care(&mut self, importance: &'a Importance, path: &Path) -> Result<bool> {
        let Some(care) = importance.of(&self.planned.name) else { return Ok(false) };
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        let matrices: usize = self.planned.shape.iter().rev().skip(2).product();
        if care.len() != cols && care.len() != cols.saturating_mul(matrices) {
            let why = format!("has {} numbers; expected {cols} for each of {matrices} matrices", care.len());
            return Err(LoadError::bad(path, &self.planned.name, why));
        }
        self.care = Some(care);
        Ok(true)
    }

    /// Adds the changes for what a GGUF reader interprets differently from the model.
    pub(super) fn settle(&mut self, model: &DecoderSpec, read: &DecoderSpec) -> Result<()> {
        let From::Stored(stacked) = &mut self.from else { return Ok(()) };
        let is_weight = self.planned.name.ends_with(".weight");
        if stacked.slot.is_some_and(Slot::is_norm)
            && model.norm.weight_offset != read.norm.weight_offset
            && is_weight
        {
            stacked.changes.push(Change::Offset(model.norm.weight_offset - read.norm.weight_offset));
        }
        stacked.permute_rope_pairs(model, read)?;
        stacked.interleave_value_heads(model, read)
    }

    /// Writes its data through `put`, in parts.
    pub(super) fn write(
        &self,
        put: &mut dyn FnMut(&[u8]) -> std::result::Result<(), WriteError>,
    ) -> std::result::Result<(), WriteError> {
        let stacked = match &self.from {
            From::Made(bytes) => return put(bytes),
            From::Stored(stacked) => stacked,
        };
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        for (i, piece) in stacked.pieces.iter().enumerate() {
            for matrix in 0..stacked.matrices {
                let mut numbers = piece.matrix(matrix, stacked.matrices, stacked.shape)?;
                let mut shape = stacked.shape;
                for change in &stacked.changes {
                    numbers = change.apply(numbers, shape)?;
                    shape = change.shape(shape);
                }
                let ((format, bytes), to) = (numbers, self.planned.format);
                if format == to {
                    bytes.chunks(AT_ONCE).try_for_each(&mut *put)?;
                } else {
                    let care = self.care_of(i * stacked.matrices + matrix);
                    self.quantize((format, &bytes), (to, cols), care, put)?;
                }
            }
            piece.release()?;
        }
        Ok(())
    }

    /// Column importances of a matrix.
    fn care_of(&self, matrix: usize) -> Option<&[f32]> {
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        let care = self.care?;
        if care.len() == cols { Some(care) } else { care.get(matrix * cols..(matrix + 1) * cols) }
    }

    /// Converts a matrix's rows to the file's format, in parts.
    fn quantize(
        &self,
        (format, bytes): (Format, &[u8]),
        (to, cols): (Format, usize),
        care: Option<&[f32]>,
        put: &mut dyn FnMut(&[u8]) -> std::result::Result<(), WriteError>,
    ) -> std::result::Result<(), WriteError> {
        let width = format.row_bytes(cols).unwrap_or(0).max(1);
        for bytes in bytes.chunks((AT_ONCE / width).max(1) * width) {
            let weight = HostWeight::new(format, bytes.len() / width, cols, bytes);
            put(&quantized(&weight, to, care).map_err(LoadError::Device)?)?;
        }
        Ok(())
    }
}

impl Stacked<'_> {
    /// Permutes Q and K rows from half-split to interleaved RoPE pairs.
    fn permute_rope_pairs(&mut self, model: &DecoderSpec, read: &DecoderSpec) -> Result<()> {
        let pairs = |spec: &DecoderSpec| spec.ropes.first().map(|rope| (rope.pairs, rope.dim));
        let heads = model.layers.iter().find_map(|layer| layer.mixer.heads());
        let (Some((RopePairs::Halves, rotated)), Some((RopePairs::Interleaved, _)), Some(heads)) =
            (pairs(model), pairs(read), heads)
        else {
            return Ok(());
        };
        let count = match self.slot {
            Some(Slot::AttnQ) => heads.q,
            Some(Slot::AttnK) => heads.kv,
            _ => return Ok(()),
        };
        let rows = self.changes.iter().fold(self.shape, |shape, change| change.shape(shape))[0];
        let (dim, half) = ((rows / count.max(1)).max(1), rotated / 2);
        let row = |i: usize| {
            let (head, at) = (i / dim, i % dim);
            head * dim + if at < 2 * half { at / 2 + at % 2 * half } else { at }
        };
        self.change(Change::Rows((0..rows).map(row).map(|row| row..row + 1).collect()))
    }

    /// Reorders value heads from grouped (heads of one key head adjacent) to round-robin (as far apart as there are key
    /// heads).
    fn interleave_value_heads(&mut self, model: &DecoderSpec, read: &DecoderSpec) -> Result<()> {
        let heads = |spec: &DecoderSpec| {
            spec.layers.iter().find_map(|layer| layer.mixer.gated_delta().map(|delta| delta.heads))
        };
        let (Some(mine), Some(DeltaHeads { sharing: Sharing::RoundRobin, .. })) = (heads(model), heads(read))
        else {
            return Ok(());
        };
        let DeltaHeads { keys, values, value_dim, sharing, .. } = mine;
        if sharing == Sharing::RoundRobin || keys == values {
            return Ok(());
        }
        let some = |first: usize, each: usize| {
            let old = move |i: usize| i % keys * (values / keys) + i / keys;
            (0..values).map(move |i| first + old(i) * each..first + (old(i) + 1) * each)
        };
        let before = 2 * mine.key_cols();
        let Some(slot) = self.slot else { return Ok(()) };
        self.change(match slot {
            Slot::SsmQkv | Slot::SsmConv1d => {
                Change::Rows(std::iter::once(0..before).chain(some(before, value_dim)).collect())
            }
            Slot::SsmGate => Change::Rows(some(0, value_dim).collect()),
            Slot::SsmOut => Change::Columns(some(0, value_dim).collect()),
            Slot::SsmBetaAlpha => {
                let what = ["which has heads in an order of its own", "that of other heads is"];
                return Err(refused(&self.pieces[0], what));
            }
            Slot::SsmBeta | Slot::SsmAlpha | Slot::SsmDt | Slot::SsmA => Change::Rows(some(0, 1).collect()),
            _ => return Ok(()),
        })
    }

    /// Adds a change that only permutes.
    fn change(&mut self, change: Change) -> Result<()> {
        let shape = self.changes.iter().fold(self.shape, |shape, change| change.shape(shape));
        if change.shape(shape) != shape {
            let (piece, [rows, cols]) = (&self.pieces[0], change.shape(shape));
            let why = format!("makes {shape:?}; the settings ask for [{rows}, {cols}]");
            return Err(LoadError::bad(piece.stored.file.path(), format!("tensor {:?}", piece.name), why));
        }
        self.allows(&change, shape)?;
        self.changes.push(change);
        Ok(())
    }

    /// Shape after a change of a matrix [rows, cols], or an error if the change is impossible.
    fn allows(&self, change: &Change, shape: [usize; 2]) -> Result<[usize; 2]> {
        let piece = &self.pieces[0];
        if let Some(what) = piece.format().and_then(|format| change.refuses(format)) {
            return Err(refused(piece, what));
        }
        if !change.is_within(shape) {
            let why = format!("makes {shape:?}, and the settings ask for what is not there");
            return Err(LoadError::bad(piece.stored.file.path(), format!("tensor {:?}", piece.name), why));
        }
        Ok(change.shape(shape))
    }
}

/// Returns an error if a tensor that is already quantized would be requantized without permission.
fn once(model: &Model, piece: &Piece<'_>, own: Format, choice: Choice) -> Result<()> {
    if own.is_plain() || model.requantize || own == choice.fitting {
        return Ok(());
    }
    let why = format!(
        "requantizing from type {} is disabled: what it has lost stays lost, and more is lost. Start from the F16, \
         BF16 or F32 model, or take --allow-requantize",
        own.to_string().to_lowercase()
    );
    Err(LoadError::bad(piece.stored.file.path(), format!("tensor {:?}", piece.name), why))
}

/// Error for a tensor: what it would need, and why that is impossible.
fn refused(piece: &Piece<'_>, [what, why]: [&str; 2]) -> LoadError {
    let what = format!("converting tensor {:?}, {what},", piece.name);
    LoadError::unsupported(piece.stored.file.path(), what, why)
}
