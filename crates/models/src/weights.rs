//! [`Weights`]: from a checkpoint's tensors to a device's weights, one at a time.
//!
//! Each tensor is checked against the shape that the settings ask for, handed to the device, and its pages of the file
//! let go. At the end no tensor of the checkpoint may be left over: one that nobody asked for means that the model is
//! not what we think it is.

use std::collections::BTreeSet;
use std::path::Path;

use tallow_core::{Backend, Error, HostWeight, Linear, Memory, Norm, Tensor, Weight};
use tallow_quant::Format;

use crate::Model;
use crate::error::{LoadError, Result};
use crate::formats::names::{Names, is_redundant, of_layer};
use crate::formats::{Kind, Stored};
use crate::spec::{Bias, DecoderSpec};

/// Told how many bytes of how many have been loaded.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// A checkpoint's tensors on their way to a device.
pub struct Weights<'a, B: Backend> {
    b: &'a B,
    model: &'a Model,
    used: BTreeSet<String>,
    done: usize,
    progress: Progress<'a>,
}

/// A tensor's name, from what [`Names`] says of it.
pub(crate) fn named(name: &str) -> String {
    format!("{name}.weight")
}

impl<'a, B: Backend> Weights<'a, B> {
    pub(crate) fn new(b: &'a B, model: &'a Model, progress: Progress<'a>) -> Weights<'a, B> {
        Weights { b, model, used: BTreeSet::new(), done: 0, progress }
    }

    pub(crate) fn names(&self) -> Names {
        self.model.names()
    }

    pub(crate) fn spec(&self) -> &'a DecoderSpec {
        &self.model.spec
    }

    fn path(&self) -> &'a Path {
        &self.model.checkpoint.path
    }

    /// The tensor of that name, if its shape is right.
    fn stored(&mut self, name: &str, shape: &[usize]) -> Result<(&'a Stored, Format)> {
        let field = || format!("tensor {name:?}");
        let Some(stored) = self.model.checkpoint.get(name) else {
            return Err(LoadError::bad(self.path(), field(), "is missing"));
        };
        if stored.shape != shape {
            let why = format!("has shape {:?}; the settings ask for {shape:?}", stored.shape);
            return Err(LoadError::bad(stored.file.path(), field(), why));
        }
        match &stored.kind {
            Kind::Weights(format) => {
                self.used.insert(name.to_owned());
                Ok((stored, *format))
            }
            Kind::Other(elements) => {
                let why = format!("its elements are {elements}; floats or GGUF blocks are expected");
                Err(LoadError::unsupported(stored.file.path(), field(), why))
            }
        }
    }

    /// Counts a tensor as loaded and lets go of its pages.
    fn loaded(&mut self, stored: &Stored) {
        stored.file.release(stored.bytes.clone());
        self.done += stored.bytes.len();
        (self.progress)(self.done, self.model.checkpoint.weight_bytes());
    }

    /// A matrix, as the device likes to have it.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight<B>> {
        let (stored, format) = self.stored(name, &[rows, cols])?;
        finite(stored, format, name)?;
        let weight = self.b.prepare(HostWeight { format, rows, cols, bytes: stored.bytes() });
        let weight = weight.map_err(|e| match e {
            Error::Refused(r) => LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), r),
            other => LoadError::Device(other),
        })?;
        self.loaded(stored);
        Ok(weight)
    }

    /// A row of numbers, as `f32`.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Tensor<B>> {
        let (stored, format) = self.stored(name, &[len])?;
        let mut data = vec![0.0f32; len];
        let unpacked = tallow_quant::unpack(format, stored.bytes(), &mut data);
        unpacked.map_err(|e| LoadError::bad(stored.file.path(), format!("tensor {name:?}"), e))?;
        if let Some(i) = data.iter().position(|x| !x.is_finite()) {
            let why = format!("element {i} is {}: the file is damaged", data[i]);
            return Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
        }
        self.loaded(stored);
        Ok(self.b.upload_row(&data)?)
    }

    /// A linear layer of layer `i`.
    pub(crate) fn linear(
        &mut self,
        (pattern, i): (&str, usize),
        rows: usize,
        cols: usize,
        bias: Bias,
    ) -> Result<Linear<B>> {
        let name = of_layer(pattern, i);
        let weight = self.matrix(&named(&name), rows, cols)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::No => None,
            Bias::IfThere if self.model.checkpoint.get(&bias_name).is_none() => None,
            Bias::Yes | Bias::IfThere => Some(self.vector(&bias_name, rows)?),
        };
        Ok(Linear { weight, bias })
    }

    /// A norm of layer `i`.
    pub(crate) fn norm(&mut self, (pattern, i): (&str, usize), width: usize) -> Result<Norm<B>> {
        let weight = self.vector(&named(&of_layer(pattern, i)), width)?;
        let spec = self.spec().norm;
        Ok(Norm { kind: spec.kind, weight, bias: None, eps: spec.eps })
    }

    /// Nothing is left over, and everything read was really in the files.
    pub(crate) fn finish(self) -> Result<()> {
        self.model.checkpoint.intact()?;
        let family = self.model.family;
        let spare = |name: &str| {
            let tied_head = self.spec().tied && name == named(self.names().head);
            self.used.contains(name) || tied_head || is_redundant(name) || family.reads(name)
        };
        let left: Vec<&str> =
            self.model.checkpoint.tensors().map(|(name, _)| name).filter(|n| !spare(n)).collect();
        match left.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => {
                let more =
                    if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
                let why = format!("a {} model has no such tensor, so this is something else", family.name);
                Err(LoadError::unsupported(self.path(), format!("tensor {first:?}{more}"), why))
            }
        }
    }
}

/// Plain numbers must be finite. Blocks are not looked into: what is wrong there shows in the logits.
fn finite(stored: &Stored, format: Format, name: &str) -> Result<()> {
    // All bits of the exponent set: infinite, or not a number.
    let bad = |high: fn(&[u8]) -> bool, size: usize| stored.bytes().chunks_exact(size).position(high);
    let found = match format {
        Format::F32 => bad(|b| b[3] & 0x7F == 0x7F && b[2] & 0x80 != 0, 4),
        Format::BF16 => bad(|b| b[1] & 0x7F == 0x7F && b[0] & 0x80 != 0, 2),
        Format::F16 => bad(|b| b[1] & 0x7C == 0x7C, 2),
        _ => None,
    };
    match found {
        None => Ok(()),
        Some(i) => {
            let why = format!("element {i} is not a finite number: the file is damaged");
            Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why))
        }
    }
}
