//! A model's tensors on their way into a GGUF file: other names, perhaps another order, perhaps another format.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use tallow_core::{Heads, HostWeight, RopePairs};
use tallow_quant::Format;

use super::{Importance, WriteError};
use crate::Model;
use crate::error::{LoadError, Result};
use crate::families::Family;
use crate::formats::gguf::write::Planned;
use crate::formats::names::{EXPERT, Layout, Names, Part, is_redundant, of_layer};
use crate::formats::{Kind, Stored};
use crate::spec::{DecoderSpec, LatentSpec};
use crate::weights::{Turn, named, not_finite, quantized, room};

/// Bytes of plain numbers that are made into another format at once.
const AT_ONCE: usize = 64 << 20;

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) planned: Planned,
    from: From<'a>,
    /// How much the error of each column counts, for each matrix or for all alike.
    care: Option<&'a [f32]>,
}

/// What a tensor of the file is made of.
#[derive(Debug)]
enum From<'a> {
    /// Bytes that are there already.
    Made(Vec<u8>),
    /// Tensors of the checkpoint, one after another.
    Stored { parts: Vec<(String, &'a Stored)>, part: Part, order: Order },
}

/// What becomes of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// They stay.
    Same,
    /// Rows become columns.
    Turned,
    /// Queries, keys and values that come head by head come one after another.
    ByHead(Heads),
    /// The two that turn together, which are half a head apart, come to stand side by side.
    Beside { heads: usize, turned: usize },
    /// Of rows that come head by head, first for keys and then for values, those for keys alone, turned.
    Keys { keys: usize, values: usize, rank: usize },
    /// And those for values.
    Values { keys: usize, values: usize },
    /// Each gets this more.
    Lifted(f32),
}

/// A GGUF file's tensors, in the formats that they are to have.
pub(super) fn same(model: &Model) -> Result<Vec<Target<'_>>> {
    let mut targets = Vec::new();
    for (name, stored) in model.checkpoint.tensors() {
        let (parts, shape) = (vec![(name.to_owned(), stored)], stored.shape.clone());
        targets.push(Target::stored(model, name.to_owned(), shape, parts, (Part::Whole, Order::Same))?);
    }
    Ok(targets)
}

/// A folder's tensors, named as `reader` wants them. Nothing is left over but what loading leaves over, too.
pub(super) fn renamed<'a>(model: &'a Model, reader: &Family) -> Result<Vec<Target<'a>>> {
    let (names, to, layers) = (model.names(), reader.gguf_names, model.spec.layers.len());
    let mut all = Renaming { model, names, layout: to.layout, used: BTreeSet::new(), targets: Vec::new() };
    let parts = names.beside(&to);
    let (of_layers, alone): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|(_, from, _)| from.contains("{}"));
    for (part, from, to) in alone {
        all.part(part, from, to)?;
    }
    for layer in 0..layers {
        for (part, from, to) in &of_layers {
            all.part(*part, &of_layer(from, layer), &of_layer(to, layer))?;
        }
    }
    for layer in 0..layers {
        all.latent(layer, [names.latent.up, to.latent.k, to.latent.v])?;
    }
    let spare = |name: &str| {
        let past = names.layer(name).is_some_and(|layer| layer >= layers);
        past || is_redundant(name) || names.spares(name) || model.family.reads(name)
    };
    match model.checkpoint.tensors().find(|(name, _)| !all.used.contains(*name) && !spare(name)) {
        None => Ok(all.targets),
        Some((name, stored)) => {
            let why = "what GGUF files have in its place is not known here";
            Err(LoadError::unsupported(stored.file.path(), format!("converting tensor {name:?}"), why))
        }
    }
}

/// Tensors that are being renamed.
struct Renaming<'a> {
    model: &'a Model,
    names: Names,
    layout: Layout,
    used: BTreeSet<String>,
    targets: Vec<Target<'a>>,
}

impl<'a> Renaming<'a> {
    /// The tensor of that name, if it is there.
    fn find(&self, name: &str) -> Option<(String, &'a Stored)> {
        let short = name.strip_prefix(self.names.base);
        let mut names = [Some(name), short].into_iter().flatten();
        names.find_map(|name| Some((name.to_owned(), self.model.checkpoint.get(name)?)))
    }

    /// Takes what the checkpoint has of a part: a weight, a bias, each of all experts or heads.
    fn part(&mut self, part: Part, from: &str, to: &str) -> Result<()> {
        if from.is_empty() || to.is_empty() {
            return Ok(());
        }
        let kinds: &[&str] = if part == Part::Whole { &[""] } else { &[".weight", ".bias"] };
        for kind in kinds {
            let (from, to) = (format!("{from}{kind}"), format!("{to}{kind}"));
            let found = match [EXPERT, "{head}"].into_iter().find(|many| from.contains(many)) {
                None => self.find(&from).into_iter().collect(),
                Some(many) => {
                    let each = |i: usize| self.find(&from.replace(many, &i.to_string()));
                    (0..).map_while(each).collect::<Vec<_>>()
                }
            };
            // Where a family has no norm before a block, its name may be that of one behind.
            let Some((_, first)) = found.first().filter(|(name, _)| !self.used.contains(name)) else {
                continue;
            };
            self.used.extend(found.iter().map(|(name, _)| name.clone()));
            if self.model.spec.tied && to == "output.weight" {
                continue;
            }
            let mut shape = first.shape.clone();
            if found.len() > 1 || from.contains(EXPERT) {
                shape.insert(0, found.len());
            }
            if let Some((name, other)) = found.iter().find(|(_, stored)| stored.shape != first.shape) {
                let why = format!("has shape {:?}, and others of its kind {:?}", other.shape, first.shape);
                return Err(LoadError::bad(other.file.path(), format!("tensor {name:?}"), why));
            }
            let order = self.order(part, &mut shape);
            self.targets.push(Target::stored(self.model, to, shape, found, (part, order))?);
        }
        Ok(())
    }

    /// Cuts in two what makes keys and values of a narrow row.
    fn latent(&mut self, layer: usize, [up, k, v]: [&str; 3]) -> Result<()> {
        let (mixer, latent) = (&self.model.spec.layers[layer].mixer, self.model.spec.layers[layer].latent);
        let Some(LatentSpec { rank, plain: keys, value: values, .. }) = latent else { return Ok(()) };
        let Some((name, stored)) = self.find(&named(&of_layer(up, layer))) else { return Ok(()) };
        let heads = mixer.heads.q;
        if stored.shape != [heads * (keys + values), rank] {
            let why = format!(
                "has shape {:?}; the settings ask for {:?}",
                stored.shape,
                [heads * (keys + values), rank]
            );
            return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
        }
        self.used.insert(name.clone());
        for (to, shape, order) in [
            (k, vec![heads, rank, keys], Order::Keys { keys, values, rank }),
            (v, vec![heads, values, rank], Order::Values { keys, values }),
        ] {
            let (to, from) = (named(&of_layer(to, layer)), vec![(name.clone(), stored)]);
            self.targets.push(Target::stored(self.model, to, shape, from, (Part::Linear, order))?);
        }
        Ok(())
    }

    /// What the two kinds of layout make of a part.
    fn order(&self, part: Part, shape: &mut [usize]) -> Order {
        let linear = matches!(part, Part::Linear | Part::Queries | Part::Keys | Part::Joint);
        match (self.names.layout, self.layout) {
            (Layout::Columns, Layout::Rows) if linear && shape.len() > 1 => {
                let last = shape.len();
                shape.swap(last - 2, last - 1);
                Order::Turned
            }
            (Layout::RowsByHead, Layout::Rows) if part == Part::Joint => {
                self.model.spec.layers.first().map_or(Order::Same, |l| Order::ByHead(l.mixer.heads))
            }
            _ => Order::Same,
        }
    }
}

impl<'a> Target<'a> {
    /// A tensor whose bytes are there already.
    pub(super) fn new_made(planned: Planned, bytes: Vec<u8>) -> Target<'a> {
        Target { planned, from: From::Made(bytes), care: None }
    }

    /// A tensor of some of the checkpoint's, in the format that it is to have.
    fn stored(
        model: &Model,
        name: String,
        shape: Vec<usize>,
        parts: Vec<(String, &'a Stored)>,
        (part, order): (Part, Order),
    ) -> Result<Target<'a>> {
        let (first, stored) = &parts[0];
        let refused = |what: &str, why: &str| {
            let what = format!("converting tensor {first:?}, {what}");
            Err(LoadError::unsupported(stored.file.path(), what, why))
        };
        let Some(own) = stored.format() else {
            return refused("which is no weights", "floats and blocks are");
        };
        if matches!(order, Order::Turned | Order::Keys { .. }) && !own.is_plain() {
            return refused("which has to be turned", "only plain numbers can be");
        }
        let cols = shape.last().copied().unwrap_or(0);
        let format = if shape.len() < 2 { own } else { model.source().wanted(first, own, cols) };
        if let Kind::Grouped(matrix) = &stored.kind
            && matrix.is_shuffled()
        {
            return refused(
                "which was quantized with act-order",
                "such files cannot keep the order of its inputs",
            );
        }
        let flat = shape.len() < 2 || shape[..shape.len() - 1].iter().product::<usize>() == 1;
        let format = match format {
            // Readers take rows of numbers, and what routes, as f32 only.
            f if f.is_plain() && (flat || name.contains("ffn_gate_inp")) => Format::F32,
            f if f.gguf_id().is_none() => Format::BF16,
            f => f,
        };
        let planned = Planned { name, format, shape };
        match planned.size() {
            Some(_) => Ok(Target { planned, from: From::Stored { parts, part, order }, care: None }),
            None => refused("whose rows are no whole blocks", "rows of whole blocks are"),
        }
    }

    /// Bytes in the file.
    pub(super) fn size(&self) -> usize {
        self.planned.size().unwrap_or(0)
    }

    /// Its bytes, if they are there already.
    pub(super) fn made(&self) -> Option<&[u8]> {
        match &self.from {
            From::Made(bytes) => Some(bytes),
            From::Stored { .. } => None,
        }
    }

    /// The tensors that it is made of.
    pub(super) fn parts(&self) -> Vec<String> {
        match &self.from {
            From::Made(_) => Vec::new(),
            From::Stored { parts, .. } => parts.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Takes what is known of its inputs, if anything is.
    pub(super) fn care(&mut self, importance: &'a Importance, path: &Path) -> Result<bool> {
        let Some(care) = importance.of(&self.planned.name) else { return Ok(false) };
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        let matrices: usize = self.planned.shape.iter().rev().skip(2).product();
        if care.len() != cols && care.len() != cols.saturating_mul(matrices) {
            let why = format!("has {} numbers; {cols} for each of {matrices} matrices are due", care.len());
            return Err(LoadError::bad(path, &self.planned.name, why));
        }
        self.care = Some(care);
        Ok(true)
    }

    /// Makes up for what a reader of such files takes otherwise than the model has it.
    pub(super) fn settle(&mut self, model: &DecoderSpec, read: &DecoderSpec) {
        let From::Stored { part, order, .. } = &mut self.from else { return };
        let pairs = |spec: &DecoderSpec| spec.ropes.first().map(|rope| (rope.pairs, rope.dim));
        let heads = model.layers.first().map(|layer| layer.mixer.heads);
        let beside = match (pairs(model), pairs(read), heads) {
            (Some((RopePairs::Halves, turned)), Some((RopePairs::Neighbours, _)), Some(heads)) => {
                Some((heads, turned))
            }
            _ => None,
        };
        match (*part, beside) {
            (Part::Norm, _)
                if model.norm.lift != read.norm.lift && self.planned.name.ends_with(".weight") =>
            {
                *order = Order::Lifted(model.norm.lift - read.norm.lift);
            }
            (Part::Queries, Some((heads, turned))) => *order = Order::Beside { heads: heads.q, turned },
            (Part::Keys, Some((heads, turned))) => *order = Order::Beside { heads: heads.kv, turned },
            _ => {}
        }
    }

    /// Gives its bytes to `put`, some at a time.
    pub(super) fn write(
        &self,
        put: &mut dyn FnMut(&[u8]) -> std::result::Result<(), WriteError>,
    ) -> std::result::Result<(), WriteError> {
        let (parts, order) = match &self.from {
            From::Made(bytes) => return put(bytes),
            From::Stored { parts, order, .. } => (parts, *order),
        };
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        let mut matrix = 0;
        for (name, stored) in parts {
            let damaged = |i: usize| {
                let why = format!("element {i} is not a finite number: the file is damaged");
                LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why)
            };
            let (format, bytes) = self.read(stored, &damaged)?;
            let bytes = order.put(format, bytes, cols)?;
            let format = if let Order::Lifted(_) = order { Format::F32 } else { format };
            let (to, width) = (self.planned.format, format.row_bytes(cols).unwrap_or(0));
            if format == to {
                bytes.chunks(AT_ONCE).try_for_each(&mut *put)?;
            } else {
                // A matrix after another: each has inputs of its own.
                let each = self.planned.shape.iter().rev().nth(1).map_or(bytes.len(), |rows| rows * width);
                for bytes in bytes.chunks(each.max(1)) {
                    self.quantize((format, bytes), (to, cols), self.care_of(matrix), put)?;
                    matrix += 1;
                }
            }
            stored.file.intact()?;
            stored.file.release(stored.bytes.clone());
        }
        Ok(())
    }

    /// What is known of the inputs of a matrix.
    fn care_of(&self, matrix: usize) -> Option<&[f32]> {
        let cols = self.planned.shape.last().copied().unwrap_or(0);
        let care = self.care?;
        if care.len() == cols { Some(care) } else { care.get(matrix * cols..(matrix + 1) * cols) }
    }

    /// Brings rows of a matrix into the format of the file, some at a time.
    fn quantize(
        &self,
        (format, bytes): (Format, &[u8]),
        (to, cols): (Format, usize),
        care: Option<&[f32]>,
        put: &mut dyn FnMut(&[u8]) -> std::result::Result<(), WriteError>,
    ) -> std::result::Result<(), WriteError> {
        let width = format.row_bytes(cols).unwrap_or(0).max(1);
        for bytes in bytes.chunks((AT_ONCE / width).max(1) * width) {
            let weight =
                HostWeight { format, rows: bytes.len() / width, cols, bytes, spent: HostWeight::KEPT };
            put(&quantized(&weight, to, care).map_err(LoadError::Device)?)?;
        }
        Ok(())
    }

    /// What the checkpoint has, and in which format.
    fn read<'s>(
        &self,
        stored: &'s Stored,
        damaged: &dyn Fn(usize) -> LoadError,
    ) -> Result<(Format, Cow<'s, [u8]>)> {
        match &stored.kind {
            Kind::Grouped(matrix) => {
                if let Some(i) = matrix.fault() {
                    return Err(damaged(i));
                }
                let mut bytes = room(matrix.size())?;
                matrix.write(None, &mut bytes);
                Ok((matrix.format(), bytes.into()))
            }
            Kind::Weights(format) => match not_finite(*format, stored.bytes()) {
                Some(i) => Err(damaged(i)),
                None => Ok((*format, stored.bytes().into())),
            },
            // Refused when this was planned.
            Kind::Other(_) => Ok((Format::F32, Cow::Borrowed(&[]))),
        }
    }
}

impl Order {
    /// Puts a tensor's elements in order; rows have so many `cols` afterwards.
    fn put(self, format: Format, bytes: Cow<'_, [u8]>, cols: usize) -> Result<Cow<'_, [u8]>> {
        let row = format.row_bytes(cols).unwrap_or(0).max(1);
        // A bias has an element for each row of its weights.
        let flat = bytes.len() == row;
        Ok(match self {
            Order::Same => bytes,
            Order::Turned => {
                let rows = bytes.len() / row;
                let mut to = room(bytes.len())?;
                Turn { rows, cols, across: rows, first: 0, step: 1 }.bytes(&bytes, &mut to);
                to.into()
            }
            Order::Lifted(by) => {
                let mut numbers = vec![0.0; cols];
                let mut to = room(bytes.len() / row * cols * 4)?;
                for (from, to) in bytes.chunks_exact(row).zip(to.chunks_exact_mut((cols * 4).max(1))) {
                    // Norms are plain numbers: loading refuses others.
                    let _ = tallow_quant::unpack(format, from, &mut numbers);
                    let lifted = numbers.iter().flat_map(|x| (x + by).to_le_bytes());
                    to.iter_mut().zip(lifted).for_each(|(to, byte)| *to = byte);
                }
                to.into()
            }
            Order::Keys { keys, values, rank } => {
                let row = format.row_bytes(rank).unwrap_or(0);
                let heads = bytes.chunks_exact(((keys + values) * row).max(1));
                let mut to = room(heads.len() * keys * row)?;
                let turn = Turn { rows: rank, cols: keys, across: rank, first: 0, step: 1 };
                let pairs = heads.zip(to.chunks_exact_mut((keys * row).max(1)));
                pairs.for_each(|(head, to)| turn.bytes(&head[..keys * row], to));
                to.into()
            }
            Order::Values { keys, values } => {
                let heads = bytes.chunks_exact(((keys + values) * row).max(1));
                heads.flat_map(|head| &head[keys * row..]).copied().collect::<Vec<u8>>().into()
            }
            Order::ByHead(heads) => {
                let each = bytes.len() / (3 * heads.q).max(1);
                moved(&bytes, each, |i| 3 * (i % heads.q) + i / heads.q)?
            }
            Order::Beside { heads, turned } => {
                let width = if flat { format.row_bytes(1).unwrap_or(row) } else { row };
                let dim = (bytes.len() / width / heads.max(1)).max(1);
                let half = turned / 2;
                moved(&bytes, width, |i| {
                    let (head, at) = (i / dim, i % dim);
                    let from = if at < 2 * half { at / 2 + at % 2 * half } else { at };
                    head * dim + from
                })?
            }
        })
    }
}

/// Pieces of `each` bytes in another order: piece `i` is what piece `from(i)` was.
fn moved(bytes: &[u8], each: usize, from: impl Fn(usize) -> usize) -> Result<Cow<'static, [u8]>> {
    let mut to = room(bytes.len())?;
    for (i, to) in to.chunks_exact_mut(each.max(1)).enumerate() {
        let at = from(i) * each;
        if let Some(from) = bytes.get(at..at + each) {
            to.copy_from_slice(from);
        }
    }
    Ok(to.into())
}
