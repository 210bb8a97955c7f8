//! [`Weights`]: loads a checkpoint's tensors onto a device, one at a time.
//!
//! Each tensor's shape is checked against the settings before the tensor is handed to the device. Rows that the device
//! has read are checked for NaN and infinity, and their pages of the file are released, before it reads more. At the
//! end no tensor of the checkpoint may be left over: one that no block asked for means that the model is not what we
//! think it is.

mod experts;
mod mla;
mod parts;
mod quantize;
mod stream_check;
mod tensor_ref;
mod transpose;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use tallow_checkpoint::grouped::Grouped;
use tallow_checkpoint::tensor_names::{Index, Indices, Layout, Names, Slot, is_redundant, named};
use tallow_checkpoint::{Checkpoint, Kind, Stored};
use tallow_core::{
    Backend, Error, HostWeight, LinearWeight, LinearWeights, LoraTarget, Norm, Stack, Tensor, TensorId,
    Weight,
};
use tallow_quant::Format;

use crate::error::{LoadError, Result};
use crate::recipe::{Choice, Quantizing};
use crate::spec::{Bias, NormSpec};

pub use experts::{Pair, bytes_alone};
pub(crate) use mla::UpProjections;
pub use parts::{Runs, by_head};
pub use quantize::{quantized, room};
use stream_check::StreamCheck;
pub use stream_check::not_finite;
use tensor_ref::TensorRef;
pub use transpose::Transpose;

/// Called with the bytes loaded so far and the bytes in total; returns whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>;

/// Loads tensors of a checkpoint onto a device.
pub struct Weights<'a, B: Backend> {
    b: &'a B,
    source: Source<'a>,
    used: BTreeSet<String>,
    targets: Vec<Target>,
    /// The tensor whose absence was the last error, and its shape.
    missing: Option<(String, Vec<usize>)>,
    /// The last order of inputs (act-order) on the device: layers over one input name the same, one after another.
    order: Option<(Vec<u32>, Tensor<B>)>,
    done: usize,
    total: usize,
    progress: Progress<'a>,
}

/// A linear layer that adapters may target.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Name of its tensor, without `.weight`.
    pub name: String,
    /// Outputs and inputs of the tensor.
    pub shape: (usize, usize),
    /// The tensor's rows that the layer has, if not all in order.
    pub runs: Option<Runs>,
    /// True if its weights are quantized in blocks.
    pub blocks: bool,
}

/// Context for loading a model's weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// Tensor names in that checkpoint.
    pub names: &'a Names,
    /// Sizes and norm settings that blocks ask for.
    pub spec: Common,
    /// The recipe that matrices are quantized by, if they are.
    pub quantizing: Option<Quantizing>,
}

impl Source<'_> {
    /// Format on the device of rows of `cols` elements in tensor `name`.
    pub(crate) fn wanted(&self, name: &str, format: Format, cols: usize) -> Format {
        self.quantizing.map_or(format, |how| how.format(self.names, name, (format, cols)))
    }

    /// The recipe's choice for rows of `cols` elements in tensor `name`; `None` if it leaves the tensor alone.
    pub(crate) fn choice(&self, name: &str, format: Format, cols: usize) -> Option<Choice> {
        self.quantizing.and_then(|how| how.choice(self.names, name, (format, cols)))
    }

    /// Format of a tensor on the device; `None` if it holds no weights.
    pub(crate) fn format(&self, name: &str, stored: &Stored) -> Option<Format> {
        let format = stored.format()?;
        match *stored.shape.as_slice() {
            [.., _, cols] => Some(self.wanted(name, format, cols)),
            _ => Some(format),
        }
    }

    /// Bytes of a tensor as handed to the device.
    pub(crate) fn size(&self, name: &str, stored: &Stored) -> usize {
        match self.format(name, stored) {
            Some(format) if Some(format) != stored.format() => {
                let cols = stored.shape.last().copied().unwrap_or(0);
                format.row_bytes(cols).map_or(0, |row| row * (stored.len() / cols.max(1)))
            }
            _ => stored.size(),
        }
    }

    /// Bytes of all tensors as handed to the device.
    pub(crate) fn bytes(&self) -> usize {
        let needed = self.checkpoint.tensors().filter(|(name, _)| !self.names.is_unused(name));
        needed.map(|(name, stored)| self.size(name, stored)).sum()
    }
}

/// Settings common to all blocks of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Common {
    /// Width of a hidden state.
    pub dim: usize,
    /// Settings shared by all norms.
    pub norm: NormSpec,
    /// Width of the per-layer embedding (PLE), if there is one.
    pub per_layer_dim: Option<usize>,
}

impl<'a, B: Backend> Weights<'a, B> {
    pub(crate) fn new(b: &'a B, source: Source<'a>, progress: Progress<'a>) -> Weights<'a, B> {
        let (used, targets, total) = (BTreeSet::new(), Vec::new(), source.bytes());
        Weights { b, source, used, targets, missing: None, order: None, done: 0, total, progress }
    }

    /// The device that weights are loaded onto.
    pub(crate) fn device(&self) -> &'a B {
        self.b
    }

    /// Switches to other tensor names, such as from a seq2seq model's encoder to its decoder.
    pub(crate) fn with_names(&mut self, names: &'a Names) {
        self.source.names = names;
    }

    pub(crate) fn names(&self) -> &'a Names {
        self.source.names
    }

    pub(crate) fn spec(&self) -> Common {
        self.source.spec
    }

    /// The tensor that was missing, if that is why loading failed, and its shape.
    pub(crate) fn missing(self) -> Option<(String, Vec<usize>)> {
        self.missing
    }

    fn path(&self) -> &'a Path {
        &self.source.checkpoint.path
    }

    /// The tensor `name`, or `name` without the prefix that some files leave out.
    fn find<'n>(&self, name: &'n str) -> Option<(&'n str, &'a Stored)> {
        let short = name.strip_prefix(self.names().base);
        let mut names = [Some(name), short].into_iter().flatten();
        names.find_map(|name| self.source.checkpoint.get(name).map(|stored| (name, stored)))
    }

    /// True if two weights are the same, byte for byte, or the checkpoint has only the second.
    pub(crate) fn repeats<'n>(&self, of: impl Into<TensorRef<'n>>, second: Slot) -> bool {
        let stored = |name: Result<String>| self.find(&name.ok()?).map(|(_, stored)| stored);
        let (Some(a), b) = (stored(self.weight_name(of)), stored(self.weight_name(second))) else {
            return true;
        };
        b.is_some_and(|b| a.shape == b.shape && a.format() == b.format() && a.bytes() == b.bytes())
    }

    /// The tensor `name`; an error if it is missing or has another shape.
    fn shaped(&mut self, name: &str, shape: &[usize]) -> Result<&'a Stored> {
        let field = || format!("tensor {name:?}");
        let Some((name, stored)) = self.find(name) else {
            self.missing = Some((name.to_owned(), shape.to_vec()));
            return Err(LoadError::bad(self.path(), field(), "is missing"));
        };
        if stored.shape != shape {
            let why = format!("has shape {:?}; the settings ask for {shape:?}", stored.shape);
            return Err(LoadError::bad(stored.file.path(), field(), why));
        }
        self.used.insert(name.to_owned());
        Ok(stored)
    }

    /// As [`shaped`](Self::shaped), for a tensor that holds all of a matrix's weights; with its format.
    fn stored(&mut self, name: &str, shape: &[usize]) -> Result<(&'a Stored, Format)> {
        let stored = self.shaped(name, shape)?;
        let why = match &stored.kind {
            Kind::Weights(format) => return Ok((stored, *format)),
            Kind::Grouped(_) => {
                "it is quantized in groups, which is read only where a matrix has a row for each output"
                    .into()
            }
            Kind::Other(elements) => {
                format!("its elements are {elements}; floats or GGUF blocks are expected")
            }
        };
        Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why))
    }

    /// Counts a tensor as loaded and releases its pages.
    fn loaded(&mut self, name: &str, stored: &Stored) -> Result<()> {
        stored.file.release(stored.bytes.clone());
        self.done += self.source.size(name, stored);
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Stopped),
        }
    }

    /// A weight, packed for the device: [rows, cols]
    pub(crate) fn weight<'n>(
        &mut self,
        of: impl Into<TensorRef<'n>>,
        rows: usize,
        cols: usize,
    ) -> Result<Weight<B>> {
        let name = self.weight_name(of)?;
        match self.unbiased_linear(&name, rows, cols)?.weight {
            LinearWeight::InOrder(weight) => Ok(weight),
            LinearWeight::ActOrder { .. } => {
                let why = "its inputs come in another order, which a table cannot have";
                Err(LoadError::unsupported(self.path(), format!("tensor {name:?}"), why))
            }
        }
    }

    /// A linear layer with weight `name` and no bias: [rows, cols]
    pub(crate) fn unbiased_linear(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<LinearWeights<B>> {
        let (weight, order) = self.matrix(name, rows, cols, None)?;
        let order = order.map(|order| self.order(order)).transpose()?;
        Ok(LinearWeights { weight: LinearWeight::new(weight, order), bias: None, lora_target: None })
    }

    /// A linear layer's weight, perhaps the next of a stack, and the order in which its columns take inputs, if not one after the
    /// other.
    fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        stack: Option<&mut Stack<B>>,
    ) -> Result<(Weight<B>, Option<Vec<u32>>)> {
        let shape = [rows, cols];
        if let Some(Kind::Grouped(matrix)) = self.find(name).map(|(_, stored)| &stored.kind) {
            let stored = self.shaped(name, &shape)?;
            return self.grouped((stored, name), matrix, (rows, cols), stack);
        }
        let stored = self.stored(name, &shape)?;
        Ok((self.whole_weight(name, stored, rows, stack)?, None))
    }

    /// Matrix `matrix` of the `of` in tensor `name`, by the file's own name.
    fn id(&self, name: &str, (matrix, of): (usize, usize), cols: usize) -> TensorId {
        let tensor = self.find(name).map_or(name, |(name, _)| name).into();
        TensorId { tensor, matrix, of, cols }
    }

    /// A whole tensor as one weight of `rows` rows, perhaps the next of a stack.
    fn whole_weight(
        &mut self,
        name: &str,
        stored: (&'a Stored, Format),
        rows: usize,
        stack: Option<&mut Stack<B>>,
    ) -> Result<Weight<B>> {
        let mut one = self.matrices(name, stored, 1, rows, stack)?;
        one.pop().ok_or_else(|| LoadError::bad(self.path(), format!("tensor {name:?}"), "is empty"))
    }

    /// The `count` weights of `rows` rows each that are stacked in a tensor.
    fn stacked_weights(
        &mut self,
        name: &str,
        stored: (&'a Stored, Format),
        count: usize,
        rows: usize,
    ) -> Result<Vec<Weight<B>>> {
        self.matrices(name, stored, count, rows, Some(&mut Stack::new(count)))
    }

    /// The matrices of a tensor, as the next ones of a stack, if there is one.
    fn matrices(
        &mut self,
        name: &str,
        (stored, format): (&'a Stored, Format),
        count: usize,
        rows: usize,
        mut stack: Option<&mut Stack<B>>,
    ) -> Result<Vec<Weight<B>>> {
        let (check, bytes) = (StreamCheck::new(stored, format, count * rows), stored.bytes());
        let (size, cols) = (bytes.len() / count.max(1), stored.len() / (count * rows).max(1));
        let id = self.id(name, (0, count), cols);
        let id = |i: usize| TensorId { matrix: i, ..id.clone() };
        let weight = |i: usize| HostWeight {
            as_stored: true,
            ..HostWeight::new(format, rows, cols, &bytes[i * size..(i + 1) * size])
        };
        if self.source.wanted(name, format, cols) == format {
            let packed = |i: usize| self.b.find_packed(&HostWeight { tensor: Some(&id(i)), ..weight(i) });
            if let Some(weights) = (0..count).map(packed).collect() {
                self.loaded(name, stored)?;
                return Ok(weights);
            }
        }
        let prepare = |i: usize| {
            let release_rows = |of: Range<usize>| check.release_rows(i * rows + of.start..i * rows + of.end);
            let weight = HostWeight { release: &release_rows, tensor: Some(&id(i)), ..weight(i) };
            self.give(name, weight, stack.as_deref_mut())
        };
        let weights: std::result::Result<Vec<_>, _> = (0..count).map(prepare).collect();
        // Report damage first: an error that damaged data causes on the device would mislead.
        check.finish(name)?;
        let weights = weights.map_err(|e| not_taken(stored, name, e))?;
        self.loaded(name, stored)?;
        Ok(weights)
    }

    /// Hands a matrix of tensor `name` to the device, quantized first if the recipe says so.
    fn give(
        &self,
        name: &str,
        weight: HostWeight<'_>,
        stack: Option<&mut Stack<B>>,
    ) -> std::result::Result<Weight<B>, Error> {
        let wanted = self.source.wanted(name, weight.format, weight.cols);
        if wanted == weight.format {
            return self.prepare(weight, stack);
        }
        let bytes = quantized(&weight, wanted, None)?;
        (weight.release)(0..weight.rows);
        let HostWeight { rows, cols, tensor, .. } = weight;
        self.prepare(HostWeight { tensor, ..HostWeight::new(wanted, rows, cols, &bytes) }, stack)
    }

    fn prepare(
        &self,
        weight: HostWeight<'_>,
        stack: Option<&mut Stack<B>>,
    ) -> std::result::Result<Weight<B>, Error> {
        match stack {
            Some(stack) => self.b.prepare_stacked(weight, stack),
            None => self.b.prepare(weight),
        }
    }

    /// The same of a matrix that is made of several tensors (GPTQ, AWQ and the like).
    fn grouped(
        &mut self,
        (stored, name): (&'a Stored, &str),
        matrix: &Grouped,
        (rows, cols): (usize, usize),
        stack: Option<&mut Stack<B>>,
    ) -> Result<(Weight<B>, Option<Vec<u32>>)> {
        if let Some(i) = matrix.fault() {
            let why = format!("element {i} is not a finite number: the file is damaged");
            return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
        }
        let (mut bytes, order) = (room(matrix.size())?, matrix.order());
        matrix.write(order.as_deref(), &mut bytes);
        let weight = HostWeight::new(matrix.format(), rows, cols, &bytes);
        let weight = HostWeight { tensor: Some(&self.id(name, (0, 1), cols)), ..weight };
        let weight = self.prepare(weight, stack).map_err(|e| not_taken(stored, name, e))?;
        self.loaded(name, stored)?;
        Ok((weight, order))
    }

    /// An order of inputs on the device, or those of several layers, one after the other: [1, inputs]
    fn order(&mut self, order: Vec<u32>) -> Result<Tensor<B>> {
        if let Some((last, on_device)) = &self.order
            && *last == order
        {
            return Ok(on_device.clone());
        }
        let on_device = self.b.upload_row(&order)?;
        self.order = Some((order, on_device.clone()));
        Ok(on_device)
    }

    /// A linear layer with a single output; some files store its weight as a vector.
    pub(crate) fn gate(&mut self, of: (Slot, usize), cols: usize) -> Result<LinearWeights<B>> {
        let layer = self.name(of.into())?;
        let name = named(&layer);
        let flat = self.find(&name).is_some_and(|(_, stored)| stored.shape.len() == 1);
        let shape = [1, cols];
        let stored = self.stored(&name, if flat { &shape[1..] } else { &shape[..] })?;
        let weight = self.whole_weight(&name, stored, 1, None)?;
        let site = self.target(&layer, (1, cols), None);
        Ok(LinearWeights { lora_target: Some(site), ..LinearWeights::new(weight, None) })
    }

    /// A tensor's values as `f32`, with `offset` added to each.
    fn numbers(&mut self, name: &str, shape: &[usize], offset: f32) -> Result<Vec<f32>> {
        let (stored, format) = self.stored(name, shape)?;
        let mut data = vec![0.0f32; stored.len()];
        let unpacked = tallow_quant::unpack(format, stored.bytes(), &mut data);
        unpacked.map_err(|e| LoadError::bad(stored.file.path(), format!("tensor {name:?}"), e))?;
        if let Some(i) = data.iter().position(|x| !x.is_finite()) {
            let why = format!("element {i} is {}: the file is damaged", data[i]);
            return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
        }
        self.loaded(name, stored)?;
        data.iter_mut().for_each(|x| *x += offset);
        Ok(data)
    }

    /// A [rows, cols] table as `f32`, for the host.
    pub(crate) fn table(&mut self, of: (Slot, usize), rows: usize, cols: usize) -> Result<Vec<f32>> {
        let name = self.weight_name(of)?;
        self.numbers(&name, &[rows, cols], 0.0)
    }

    /// As [`tensor_row`](Self::tensor_row), of the tensor in a slot.
    pub(crate) fn slot_row(&mut self, of: (Slot, usize), len: usize) -> Result<Tensor<B>> {
        let name = self.weight_name(of)?;
        self.tensor_row(&name, len)
    }

    /// A vector of `f32` on the device: [1, len]
    pub(crate) fn tensor_row(&mut self, name: &str, len: usize) -> Result<Tensor<B>> {
        self.vector(name, &[len])
    }

    /// A tensor of that shape, flattened, as `f32` on the device: [1, elements]
    pub(crate) fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<B>> {
        let numbers = self.numbers(name, shape, 0.0)?;
        Ok(self.b.upload_row(&numbers)?)
    }

    /// A 2D convolution whose stride is its kernel size, as a linear layer over the flattened patch.
    pub(crate) fn conv2d(&mut self, slot: Slot, shape: [usize; 4], bias: Bias) -> Result<LinearWeights<B>> {
        let name = self.weight_name(slot)?;
        let stored = self.stored(&name, &shape)?;
        let weight = self.whole_weight(&name, stored, shape[0], None)?;
        Ok(LinearWeights::new(weight, self.bias(slot, shape[0], bias)?))
    }

    /// An error: something about the checkpoint is not supported.
    pub(crate) fn refuse(&self, what: &str, why: &str) -> LoadError {
        LoadError::unsupported(self.path(), what, why)
    }

    /// A layer's bias, as `f32`; `None` if it has none.
    fn bias_numbers(&mut self, of: TensorRef<'_>, len: usize, bias: Bias) -> Result<Option<Vec<f32>>> {
        let name = format!("{}.bias", self.name(of)?);
        match bias {
            Bias::No => Ok(None),
            Bias::IfPresent if self.find(&name).is_none() => Ok(None),
            Bias::Yes | Bias::IfPresent => self.numbers(&name, &[len], 0.0).map(Some),
        }
    }

    /// As [`bias_numbers`](Self::bias_numbers), on the device.
    pub(crate) fn bias<'n>(
        &mut self,
        of: impl Into<TensorRef<'n>>,
        len: usize,
        bias: Bias,
    ) -> Result<Option<Tensor<B>>> {
        let numbers = self.bias_numbers(of.into(), len, bias)?;
        Ok(numbers.map(|x| self.b.upload_row(&x)).transpose()?)
    }

    /// A linear layer: [rows, cols]
    pub(crate) fn linear<'n>(
        &mut self,
        of: impl Into<TensorRef<'n>>,
        rows: usize,
        cols: usize,
        bias: Bias,
    ) -> Result<LinearWeights<B>> {
        let name = self.name(of.into())?;
        let layer = match self.names().layout {
            Layout::Rows | Layout::RowsByHead => self.unbiased_linear(&named(&name), rows, cols)?,
            Layout::Columns => LinearWeights::new(self.transposed(&named(&name), rows, cols)?, None),
        };
        let site = self.target(&name, (rows, cols), None);
        Ok(LinearWeights { bias: self.bias(name.as_str(), rows, bias)?, lora_target: Some(site), ..layer })
    }

    /// Registers a linear layer as LoRA target. `runs`: which of the tensor's rows the layer has, if not all in order.
    fn target(&mut self, name: &str, shape: (usize, usize), runs: Option<Runs>) -> LoraTarget {
        let tensor = named(name);
        let format = self.find(&tensor).and_then(|(name, stored)| self.source.format(name, stored));
        let blocks = format.is_some_and(|format| !format.is_plain());
        let site = LoraTarget(u32::try_from(self.targets.len()).unwrap_or(u32::MAX));
        self.targets.push(Target { name: name.into(), shape, runs, blocks });
        site
    }

    /// The LoRA targets so far, by index.
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.clone()
    }

    /// A norm.
    pub(crate) fn norm<'n>(&mut self, of: impl Into<TensorRef<'n>>, width: usize) -> Result<Norm<B>> {
        let (name, spec) = (self.name(of.into())?, self.spec().norm);
        let weight = self.numbers(&named(&name), &[width], spec.weight_offset)?;
        let weight = self.b.upload_row(&weight)?;
        Ok(Norm { kind: spec.kind, weight, bias: self.bias(name.as_str(), width, spec.bias)?, eps: spec.eps })
    }

    /// A norm without learned weights (all ones).
    pub(crate) fn unit_norm(&self, width: usize) -> Result<Norm<B>> {
        let spec = self.spec().norm;
        let weight = self.b.upload_row(&vec![1.0; width])?;
        Ok(Norm { kind: spec.kind, weight, bias: None, eps: spec.eps })
    }

    /// Norm weights with a separate set per head, from one tensor or one per head: [1, heads * dim]
    pub(crate) fn per_head_norms(
        &mut self,
        (slot, layer): (Slot, usize),
        heads: usize,
        dim: usize,
    ) -> Result<Tensor<B>> {
        let (name, offset) = (self.pattern(slot)?, self.spec().norm.weight_offset);
        let mut row = Vec::new();
        match name.has(Index::Head) {
            true => {
                for head in 0..heads {
                    let name = name.fill(Indices { layer, head, ..Indices::default() });
                    row.extend(self.numbers(&named(&name), &[dim], offset)?);
                }
            }
            false => row.extend(self.numbers(&named(&name.fill(layer.into())), &[heads, dim], offset)?),
        }
        Ok(self.b.upload_row(&row)?)
    }

    /// Checks that no tensor is left unread except those that `spare` allows, and that the files were not cut short
    /// while they were read.
    pub(crate) fn finish(self, family: &str, spare: impl Fn(&str) -> bool) -> Result<()> {
        let checkpoint = self.source.checkpoint;
        checkpoint.intact()?;
        checkpoint.release();
        let spare = |name: &str| {
            self.used.contains(name) || is_redundant(name) || self.names().is_unused(name) || spare(name)
        };
        let left: Vec<&str> = checkpoint.tensors().map(|(name, _)| name).filter(|n| !spare(n)).collect();
        match left.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => {
                let more =
                    if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
                let why = format!("a {family} model has no such tensor, so this is something else");
                Err(LoadError::unsupported(self.path(), format!("tensor {first:?}{more}"), why))
            }
        }
    }
}

/// The error for a tensor that the device refused.
fn not_taken(stored: &Stored, name: &str, e: Error) -> LoadError {
    match e {
        Error::Refused(r) => LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), r),
        other => LoadError::Device(other),
    }
}
