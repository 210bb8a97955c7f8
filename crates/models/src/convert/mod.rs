//! [`Conversion`]: a model on its way into a GGUF file.
//!
//! What the file is going to say is read back before a tensor is written. Where its settings or its words would make
//! another model of it than the one that it came from, it is refused: a file that is nearly right is worse than none.

mod changes;
mod importance;
mod measured;
mod pieces;
mod renaming;
mod settings;
mod tensors;
mod words;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::Model;
use crate::error::{LoadError, Result};
use crate::formats::config::Config;
use crate::formats::gguf::Gguf;
use crate::formats::gguf::write::{Header, Planned, Written};
use crate::formats::map::Mapping;
use crate::formats::{Checkpoint, Kind, Settings, Stored};
use crate::recipe::Outcome;
use crate::tokenizer::Tokenizer;
use crate::weights::Progress;

pub use importance::Importance;
pub use measured::{Inputs, Measured};
use tensors::Target;

/// A model, and the file that it is to become.
#[derive(Debug)]
pub struct Conversion<'a> {
    header: Header,
    /// The header's bytes.
    front: Vec<u8>,
    /// Where tensors start in the file.
    starts: Vec<usize>,
    targets: Vec<Target<'a>>,
    notes: Vec<String>,
}

impl<'a> Conversion<'a> {
    /// Plans a file that is to be called `out`: the model's own formats, or those of its recipe.
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
        // Some readers know which layers have a window, others must be told.
        let attempt = |told: bool| {
            let mut header = header.clone();
            settings::windows(&mut header, model, reader, told);
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

    /// Matrices that are quantized keep more exactly what multiplies larger inputs. `path` is where that was read.
    pub fn caring(mut self, importance: &'a Importance, path: &Path) -> Result<Conversion<'a>> {
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

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        let last = self.starts.last().zip(self.targets.last());
        let end = last.map_or(self.front.len(), |(start, target)| start + target.size());
        end as u64
    }

    /// How many weights there are, and their bytes.
    pub fn weights(&self) -> (usize, usize) {
        let count = |target: &Target<'_>| target.planned.shape.iter().product::<usize>();
        (self.targets.iter().map(count).sum(), self.targets.iter().map(Target::size).sum())
    }

    /// The tensors of the file, and what each is made of.
    pub fn names(&self) -> Vec<Made> {
        self.targets.iter().map(Target::parts).collect()
    }

    /// What somebody should know of the file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the file. `progress` is told how many of its bytes there are.
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
            // Tensors start where the header says.
            put(&vec![0; start - end])?;
            target.write(&mut |bytes| put(bytes).map(|at| end = at))?;
        }
        Ok(out.flush()?)
    }
}

/// A tensor of a file, and what it is made of.
#[derive(Debug, Clone, Default)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Which of the model's tensors it is made of, one after another.
    pub parts: Vec<String>,
    /// Which of their columns its own are, where those come in another order.
    pub columns: Option<Vec<usize>>,
}

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// What was to be read could not be.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It could not be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The checkpoint that a header makes, with tensors of which only the shapes are there, but for what belongs to the
/// settings.
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
