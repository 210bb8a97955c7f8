//! [`Conversion`]: writing a model as a GGUF file.
//!
//! The planned header is read back before any tensor is written. If its settings or tokenizer would differ from the
//! source model's, conversion is refused: a file that is nearly right is worse than none.

mod changes;
mod importance;
mod measured;
mod pieces;
mod renaming;
mod settings;
mod tensors;
mod words;

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use tallow_checkpoint::config::Config;
use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::gguf::write::{Header, Planned, Written};
use tallow_checkpoint::map::Mapping;
use tallow_checkpoint::{Checkpoint, Kind, Settings, Stored};
use tallow_models::Model;
use tallow_models::recipe::Outcome;
use tallow_models::weights::Progress;
use tallow_models::{LoadError, Result};
use tallow_text::tokenizer::Tokenizer;

pub use importance::Importance;
pub use measured::{Inputs, Measured};
use tensors::Target;

/// A model, and the plan of its GGUF file.
#[derive(Debug)]
pub struct Conversion<'a> {
    header: Header,
    /// Encoded header.
    front: Vec<u8>,
    /// Offset of each tensor in the file.
    starts: Vec<usize>,
    targets: Vec<Target<'a>>,
    notes: Vec<String>,
}

impl<'a> Conversion<'a> {
    /// Plans a file at `out` with the model's own formats, or those of its recipe.
    pub fn new(model: &'a Model, out: &Path) -> Result<Conversion<'a>> {
        match &model.checkpoint.settings {
            Settings::Gguf(meta) => {
                let mut header = Header::default();
                header.copy(meta);
                let targets = tensors::same(model)?;
                Conversion::planned(model, header, targets, Vec::new())
            }
            Settings::Hf(_) => Conversion::from_folder(model, out),
        }
    }

    fn from_folder(model: &'a Model, out: &Path) -> Result<Conversion<'a>> {
        let reader = settings::reader(model)?;
        let mut header = Header::default();
        settings::common(&mut header, model, reader)?;
        let mut notes = Vec::new();
        if Tokenizer::is_in(&model.checkpoint.path) {
            words::set(&mut header, model, out)?;
        } else {
            let path = model.checkpoint.path.join("tokenizer.json");
            notes.push(format!("{} is missing, so the file will have no tokenizer", path.display()));
        }
        let mut targets = renaming::renamed(model, reader)?;
        targets.extend(settings::factors(model)?);
        header.tensors = targets.iter().map(|target| target.planned.clone()).collect();
        // Some readers have the pattern of window layers built in, others need it in the metadata.
        let attempt = |with_pattern: bool| {
            let mut header = header.clone();
            settings::windows(&mut header, model, reader, with_pattern);
            let file = in_memory(out, &header, &targets)?;
            let read = (reader.spec)(&Config::new(&file)?).map_err(|e| {
                let what = format!("converting a {} model of this kind", model.family.name);
                LoadError::unsupported(&model.checkpoint.path, what, format_args!("it would be: {e}"))
            })?;
            Ok::<_, LoadError>((settings::difference(&model.spec, &read), read, header))
        };
        let (difference, read, header) = match attempt(false) {
            Ok(fits @ (None, ..)) => fits,
            _ => attempt(true)?,
        };
        if let Some(what) = difference {
            let why = format!(
                "a GGUF file of a {} model cannot say what this model has there, so it would become another one",
                reader.name
            );
            return Err(LoadError::unsupported(&model.checkpoint.path, format!("converting {what}"), why));
        }
        targets.iter_mut().try_for_each(|target| target.settle(&model.spec, &read))?;
        Conversion::planned(model, header, targets, notes)
    }

    fn planned(
        model: &'a Model,
        mut header: Header,
        targets: Vec<Target<'a>>,
        mut notes: Vec<String>,
    ) -> Result<Conversion<'a>> {
        header.tensors = targets.iter().map(|target| target.planned.clone()).collect();
        header.set("general.quantization_version", Written::Count(2));
        match settings::file_type(model, &header.tensors) {
            Some(number) => header.set("general.file_type", Written::Count(number)),
            None => header.unset("general.file_type"),
        }
        if let Some(recipe) = model.recipe {
            let mut outcome = Outcome::default();
            targets.iter().for_each(|target| target.count(&mut outcome));
            notes.extend(outcome.notes(recipe));
        }
        let Some((front, starts)) = header.bytes() else {
            return Err(LoadError::bad(&model.checkpoint.path, "its tensors", "are too large for a file"));
        };
        Ok(Conversion { header, front, starts, targets, notes })
    }

    /// Quantizes with an imatrix: larger inputs' weights are kept more exactly. `path` is the imatrix file.
    pub fn with_imatrix(mut self, importance: &'a Importance, path: &Path) -> Result<Conversion<'a>> {
        let mut known = 0;
        for target in &mut self.targets {
            known += usize::from(target.care(importance, path)?);
        }
        if known == 0 {
            let why = "none of them is a tensor of this model: the file is of another one";
            return Err(LoadError::bad(path, "its names", why));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.header.set("quantize.imatrix.file", Written::Text(name));
        let entries = u32::try_from(importance.len()).unwrap_or(u32::MAX);
        self.header.set("quantize.imatrix.entries_count", Written::Count(entries));
        if let Some((front, starts)) = self.header.bytes() {
            (self.front, self.starts) = (front, starts);
        }
        Ok(self)
    }

    /// File size in bytes.
    pub fn size(&self) -> u64 {
        let last = self.starts.last().zip(self.targets.last());
        let end = last.map_or(self.front.len(), |(start, target)| start + target.size());
        end as u64
    }

    /// Number of weights, and their bytes.
    pub fn weights(&self) -> (usize, usize) {
        let count = |target: &Target<'_>| target.planned.shape.iter().product::<usize>();
        (self.targets.iter().map(count).sum(), self.targets.iter().map(Target::size).sum())
    }

    /// The file's tensors, and what each is made of.
    pub fn names(&self) -> Vec<Made> {
        self.targets.iter().map(Target::parts).collect()
    }

    /// Notes for the user about the file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the file. `progress` is called with the bytes written so far and the total.
    pub fn write(&self, out: &mut dyn Write, progress: Progress<'_>) -> std::result::Result<(), WriteError> {
        let total = self.size() as usize;
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out.write_all(bytes)?;
            at += bytes.len();
            match progress(at, total) {
                ControlFlow::Continue(()) => Ok(at),
                ControlFlow::Break(()) => Err(WriteError::Load(LoadError::Stopped)),
            }
        };
        let mut end = put(&self.front)?;
        for (target, start) in self.targets.iter().zip(&self.starts) {
            // Padding up to the tensor's offset in the header.
            put(&vec![0; start - end])?;
            target.write(&mut |bytes| put(bytes).map(|at| end = at))?;
        }
        Ok(out.flush()?)
    }
}

/// A tensor of the file, and its sources.
#[derive(Debug, Clone, Default)]
pub struct Made {
    /// Tensor name.
    pub name: String,
    /// Source tensors, concatenated in this order.
    pub parts: Vec<String>,
    /// Source column of each column, if they are permuted.
    pub columns: Option<Vec<usize>>,
    /// Range of the sources' observed matrices that are its own, if not all (see [`TensorId`](tallow_core::TensorId)).
    pub matrices: Option<Range<usize>>,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The model could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file could not be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Checkpoint as a reader would see it: the header, and tensors with shapes but no data, except those that are part of
/// the settings.
fn in_memory(out: &Path, header: &Header, targets: &[Target<'_>]) -> Result<Checkpoint> {
    let mut empty = header.clone();
    empty.tensors.clear();
    let too_large = || LoadError::bad(out, "its header", "is too large");
    let (bytes, _) = empty.bytes().ok_or_else(too_large)?;
    let gguf = Gguf::parse(Arc::new(Mapping::held(out, bytes)))?;
    let tensor = |target: &Target<'_>| {
        let Planned { name, format, shape } = target.planned.clone();
        let file = Mapping::held(out, target.made().unwrap_or_default().to_vec());
        let bytes = 0..file.len();
        (name, Stored { file: Arc::new(file), kind: Kind::Weights(format), shape, bytes })
    };
    let tensors = targets.iter().map(tensor).collect();
    Ok(Checkpoint::in_memory(out, Settings::Gguf(gguf.meta), tensors))
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
