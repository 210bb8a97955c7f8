//! Model files: mapped, validated, and exposed as named tensors and metadata.
//!
//! [`Checkpoint`] abstracts over the file kinds: code behind it does not see which one a tensor came from.

pub mod config;
pub mod digest;
mod error;
pub mod gguf;
pub mod grouped;
pub mod map;
pub mod safetensors;
pub mod tensor_names;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Gguf, Metadata};
use grouped::Grouped;
use map::Mapping;
use serde_json::Value;
use tallow_quant::Format;

pub use error::{FileError, Result};

/// Tensors by name.
pub type StoredTensors = BTreeMap<String, Stored>;

/// A tensor in a file.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The mapped file.
    pub file: Arc<Mapping>,
    /// Element type.
    pub kind: Kind,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub bytes: Range<usize>,
}

impl Stored {
    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        self.file.get(self.bytes.clone()).unwrap_or_default()
    }

    /// Weight type on the device; `None` if it is not weights.
    pub fn format(&self) -> Option<Format> {
        match &self.kind {
            Kind::Weights(format) => Some(*format),
            Kind::Grouped(matrix) => Some(matrix.format()),
            Kind::Other(_) => None,
        }
    }

    /// Bytes on the device.
    pub fn size(&self) -> usize {
        match &self.kind {
            Kind::Grouped(matrix) => matrix.size(),
            Kind::Weights(_) | Kind::Other(_) => self.bytes.len(),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Element type of a stored tensor.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A known weight type.
    Weights(Format),
    /// Quantized integers with scales in other tensors (GPTQ, AWQ, ...).
    Grouped(Arc<Grouped>),
    /// Any other type, by its name in the file.
    Other(String),
}

/// Model settings.
#[derive(Debug, Clone)]
pub enum Settings {
    /// `config.json` of a Hugging Face folder.
    Hf(Value),
    /// Metadata of a GGUF file.
    Gguf(Metadata),
}

/// A model's files, mapped and validated without copying.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The path that was opened.
    pub path: PathBuf,
    /// Model settings.
    pub settings: Settings,
    tensors: StoredTensors,
}

impl Checkpoint {
    /// Opens a GGUF file (possibly split), a Hugging Face folder, or a folder with one GGUF model.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let meta = std::fs::metadata(path).map_err(|e| FileError::io(path, e))?;
        if meta.is_dir() {
            return Checkpoint::open_folder(path);
        }
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("safetensors") => match path.parent() {
                Some(folder) if folder.as_os_str().is_empty() => Checkpoint::open_folder(Path::new(".")),
                Some(folder) => Checkpoint::open_folder(folder),
                None => Err(FileError::bad(path, "the file", "stands in no folder")),
            },
            Some(other) if PICKLES.contains(&other) && !is_gguf(path)? => Err(pickle(path)),
            _ => Checkpoint::open_gguf(path),
        }
    }

    /// A GGUF model compiled into the binary.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Result<Checkpoint> {
        let gguf = Gguf::parse(Arc::new(Mapping::embedded(name, bytes)))?;
        Checkpoint::from_parts(Path::new(name), vec![gguf])
    }

    /// A checkpoint that is not in a file.
    pub fn in_memory(path: &Path, settings: Settings, tensors: StoredTensors) -> Checkpoint {
        Checkpoint { path: path.into(), settings, tensors }
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint> {
        let config = folder.join("config.json");
        if !config.exists() {
            return match gguf_in(folder)? {
                Some(path) => Checkpoint::open_gguf(&path),
                None => Err(match pickle_in(folder) {
                    Some(path) => pickle(&path),
                    None => {
                        FileError::bad(folder, "config.json", "is missing, and no .gguf file is there either")
                    }
                }),
            };
        }
        let json = read_json(&config)?;
        let mut tensors = StoredTensors::new();
        for file in safetensors::files(folder)? {
            safetensors::parse(&Arc::new(Mapping::open(&file)?), &mut tensors)?;
        }
        // MLX writes the same object under both keys, without a `quant_method`.
        match json.get("quantization").filter(|_| json["quantization_config"]["quant_method"].is_null()) {
            Some(mlx @ serde_json::Value::Object(_)) => grouped::find_mlx(mlx, &config, &mut tensors)?,
            _ => grouped::find(&json["quantization_config"], &config, &mut tensors)?,
        }
        let settings = Settings::Hf(json);
        Ok(Checkpoint { path: folder.into(), settings, tensors })
    }

    fn open_gguf(path: &Path) -> Result<Checkpoint> {
        let first = Gguf::parse(Arc::new(Mapping::open(path)?))?;
        let count = first.meta.uint("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Checkpoint::from_parts(path, vec![first]);
        }
        let mut parts = Vec::new();
        for part in split_names(path, count)? {
            if !part.exists() {
                let name = part.file_name().unwrap_or_default().to_string_lossy();
                let why = format!("is {count}, and {name} is not there: all parts belong in one folder");
                return Err(FileError::bad(path, "split.count", why));
            }
            let gguf = Gguf::parse(Arc::new(Mapping::open(&part)?))?;
            let number = gguf.meta.uint("split.no")?;
            if number != Some(parts.len() as u64) || gguf.meta.uint("split.count")? != Some(count) {
                let why = format!("is {number:?}; part {} of {count} should stand here", parts.len());
                return Err(FileError::bad(&part, "split.no", why));
            }
            parts.push(gguf);
        }
        Checkpoint::from_parts(path, parts)
    }

    /// Only the first part has metadata; all have tensors.
    fn from_parts(path: &Path, parts: Vec<Gguf>) -> Result<Checkpoint> {
        let mut tensors = StoredTensors::new();
        let mut meta = None;
        for part in parts {
            for t in part.tensors {
                let stored = Stored {
                    file: part.file.clone(),
                    kind: Kind::Weights(t.format),
                    shape: t.shape,
                    bytes: t.bytes,
                };
                if tensors.insert(t.name.clone(), stored).is_some() {
                    let why = "is there twice, in two parts of the model";
                    return Err(FileError::bad(part.file.path(), format_args!("tensor {:?}", t.name), why));
                }
            }
            meta.get_or_insert(part.meta);
        }
        match meta {
            Some(meta) => Ok(Checkpoint { path: path.into(), settings: Settings::Gguf(meta), tensors }),
            None => Err(FileError::bad(path, "the file", "has no parts")),
        }
    }

    /// Digest of the settings, and of every byte of the files with the tensors.
    pub fn digest(&self) -> Result<[u8; 32]> {
        let (settings, first) = match &self.settings {
            Settings::Hf(json) => (json.to_string(), None),
            Settings::Gguf(meta) => (String::new(), Some(&*meta.file)),
        };
        let mut files: Vec<&Mapping> = first.into_iter().collect();
        for stored in self.tensors.values() {
            if !files.iter().any(|file| std::ptr::eq(*file, &*stored.file)) {
                files.push(&stored.file);
            }
        }
        let settings = Mapping::held(&self.path, settings.into_bytes());
        files.push(&settings);
        digest::of_files(&files)
    }

    /// Adds the tensors of a subfolder, prefixed with `{folder}/`.
    pub fn add(&mut self, folder: &str) -> Result<()> {
        let mut tensors = StoredTensors::new();
        for file in safetensors::files(&self.path.join(folder))? {
            safetensors::parse(&Arc::new(Mapping::open(&file)?), &mut tensors)?;
        }
        self.tensors.extend(tensors.into_iter().map(|(name, t)| (format!("{folder}/{name}"), t)));
        Ok(())
    }

    /// In a multimodal checkpoint, keeps only the text model's tensors, renamed as in a text-only model.
    pub fn keep_text(&mut self) {
        let Settings::Hf(json) = &self.settings else { return };
        if ![config::TEXT, "vision_config"].iter().any(|part| json[*part].is_object()) {
            return;
        }
        let text = std::mem::take(&mut self.tensors)
            .into_iter()
            .filter(|(name, _)| !tensor_names::is_of_senses(name));
        self.tensors =
            text.map(|(name, stored)| (tensor_names::within(&name).unwrap_or(name), stored)).collect();
    }

    /// Tensor by name.
    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(name, t)| (name.as_str(), t))
    }

    /// Parses a JSON file in the model's folder. `None` for GGUF models or if there is no such file.
    pub fn json_file(&self, name: &str) -> Result<Option<Value>> {
        self.file(name).map(|path| read_json(&path)).transpose()
    }

    /// Reads a text file of at most `most` bytes in the model's folder.
    pub fn text_file(&self, name: &str, most: usize) -> Result<Option<String>> {
        let Some(path) = self.file(name) else { return Ok(None) };
        let bytes = read_at_most(&path, most as u64)?;
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|e| FileError::bad(&path, "the file", format_args!("is not UTF-8 text: {e}")))
    }

    /// Path of a file in the model's folder, if it exists.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = matches!(self.settings, Settings::Hf(_)).then(|| self.path.join(name))?;
        path.exists().then_some(path)
    }

    /// Fails if a file was truncated, so that bytes read so far may not have come from it.
    pub fn intact(&self) -> Result<()> {
        self.tensors.values().try_for_each(|t| t.file.intact())
    }

    /// Drops all mapped pages from resident memory; later reads fault them in again.
    pub fn release(&self) {
        let files: BTreeMap<_, _> = self.tensors.values().map(|t| (t.file.path(), &t.file)).collect();
        files.into_values().for_each(|file| file.release(0..file.len()));
    }
}

/// The largest real configs have 1 to 2 MB; a parsed JSON may take thirty times its size in memory.
const MOST_SETTINGS: u64 = 8 << 20;

/// Reads a JSON config file.
pub fn read_json(path: &Path) -> Result<Value> {
    read_json_as(path, MOST_SETTINGS)
}

/// Reads a JSON file of at most `most` bytes.
fn read_json_as<T: serde::de::DeserializeOwned>(path: &Path, most: u64) -> Result<T> {
    serde_json::from_slice(&read_at_most(path, most)?).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let why = match e.classify() {
            serde_json::error::Category::Data => format!("is not what it should be: {e}"),
            serde_json::error::Category::Eof => format!("is not JSON: it ends too early, in line {line}"),
            _ => {
                let words = e.to_string();
                let words = words.split(" at line ").next().filter(|words| *words != "expected value");
                let what = words.unwrap_or("what stands there is no value");
                format!("is not JSON: line {line}, column {column}: {what}")
            }
        };
        FileError::bad(path, "the file", why)
    })
}

fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    let size = regular(path)?.len();
    if size > most {
        let why = format_args!("has {size} bytes; {most} are the most that is read");
        return Err(FileError::bad(path, "the file", why));
    }
    std::fs::read(path).map_err(|e| FileError::io(path, e))
}

/// Metadata of a regular file. Must be checked before opening: opening a FIFO blocks until it has a writer.
pub fn regular(path: &Path) -> Result<std::fs::Metadata> {
    let meta = std::fs::metadata(path).map_err(|e| FileError::io(path, e))?;
    match meta.is_file() {
        true => Ok(meta),
        false => Err(FileError::bad(path, "the path", "leads to a folder or a device, not to a file")),
    }
}

/// True if a file starts with the GGUF magic, whatever its name.
fn is_gguf(path: &Path) -> Result<bool> {
    use std::io::Read;
    regular(path)?;
    let mut magic = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| FileError::io(path, e))?;
    file.take(4).read_to_end(&mut magic).map_err(|e| FileError::io(path, e))?;
    Ok(magic == *b"GGUF")
}

/// File extensions of Python pickles.
const PICKLES: [&str; 5] = ["bin", "pt", "pth", "pkl", "ckpt"];

/// Error for a pickle checkpoint.
fn pickle(path: &Path) -> FileError {
    let why = "pickle files can run any code when they are read; get the model's .safetensors or .gguf files, or convert it";
    FileError::unsupported(path, "a pickle checkpoint", why)
}

/// The first pickle in a folder.
fn pickle_in(folder: &Path) -> Option<PathBuf> {
    let is_pickle = |p: &PathBuf| {
        let extension = p.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        extension.is_some_and(|e| PICKLES.contains(&e.as_str()))
    };
    std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok().map(|e| e.path())).filter(is_pickle).min()
}

/// Most file names listed in an error.
const LISTED: usize = 20;

/// The single GGUF model in a folder: a file, or the first part of a split one.
fn gguf_in(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| FileError::io(folder, e))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
        .filter(|p| split_number(p).is_none_or(|(_, number, _)| number == 1))
        .collect();
    found.sort();
    match found.len() {
        0 | 1 => Ok(found.pop()),
        n => {
            let names = found.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
            let names: Vec<_> = names.take(LISTED).collect();
            let more = if n > LISTED { format!(" and {} more", n - LISTED) } else { String::new() };
            let why = format!("holds {n} GGUF models; name one of them: {}{more}", names.join(", "));
            Err(FileError::bad(folder, "the folder", why))
        }
    }
}

/// Splits `name-00002-of-00005.gguf` into name, number and count.
fn split_number(path: &Path) -> Option<(String, u64, u64)> {
    let stem = path.file_stem()?.to_str()?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    Some((name.to_owned(), number.parse().ok()?, count.parse().ok()?))
}

/// File names of all parts, from any one of them.
fn split_names(path: &Path, count: u64) -> Result<Vec<PathBuf>> {
    let Some((name, _, named)) = split_number(path) else {
        let why = format!(
            "is {count}, but the file's name does not say which part it is (name-00001-of-{count:05}.gguf)"
        );
        return Err(FileError::bad(path, "split.count", why));
    };
    if named != count || count > 10_000 {
        return Err(FileError::bad(
            path,
            "split.count",
            format_args!("is {count}, but the file's name says {named}"),
        ));
    }
    Ok((1..=count).map(|i| path.with_file_name(format!("{name}-{i:05}-of-{count:05}.gguf"))).collect())
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
