//! safetensors: an 8-byte header length, the JSON header, and the tensors.
//!
//! Enforces the format's own rules: tensors fill the rest of the file, without gaps or overlaps.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use tallow_quant::Format;

use super::map::Mapping;
use super::{Kind, Stored, StoredTensors};
use crate::error::{FileError, Result};

/// The format's own limit.
const MOST_HEADER: u64 = 100_000_000;

/// Header entry of a tensor.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    /// Slowest dimension first.
    shape: Vec<usize>,
    /// Byte range behind the header, end exclusive.
    data_offsets: (usize, usize),
}

impl Entry {
    /// Bytes per element; `None` for types below one byte or unknown.
    fn size(&self) -> Option<usize> {
        match self.dtype.as_str() {
            "F64" | "I64" | "U64" => Some(8),
            "F32" | "I32" | "U32" => Some(4),
            "F16" | "BF16" | "I16" | "U16" => Some(2),
            "BOOL" | "I8" | "U8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self.dtype.as_str() {
            "F32" => Kind::Weights(Format::F32),
            "F16" => Kind::Weights(Format::F16),
            "BF16" => Kind::Weights(Format::BF16),
            other => Kind::Other(other.to_owned()),
        }
    }

    /// Error in the tensor's byte range, given that the previous tensor ends at `start`.
    fn fault(&self, start: usize) -> Option<String> {
        let (from, to) = self.data_offsets;
        if from > to {
            return Some(format!("begins at byte {from} and ends before that, at {to}"));
        }
        if from != start {
            return Some(format!(
                "begins at byte {from}, where {start} is the next: bytes are shared or left over"
            ));
        }
        let size = self.size()?;
        let bytes = self.shape.iter().try_fold(size, |n, d| n.checked_mul(*d));
        let (dtype, shape) = (&self.dtype, &self.shape);
        match bytes {
            None => Some(format!("has shape {shape:?}, whose product overflows")),
            Some(want) if want != to - from => {
                Some(format!("has {} bytes, and shape {shape:?} of {dtype} takes {want}", to - from))
            }
            Some(_) => None,
        }
    }
}

/// The header, in file order.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Header, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value();
                    let entry = entry.map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
                    entries.push((name, entry));
                }
                Ok(Header(entries))
            }
        }

        from.deserialize_map(Entries)
    }
}

/// Adds the tensors of one file.
pub fn parse(file: &Arc<Mapping>, tensors: &mut StoredTensors) -> Result<()> {
    let bad = |field: &str, why: String| Err(FileError::bad(file.path(), field, why));
    let Some((length, rest)) = file.split_first_chunk() else {
        return bad("the file", format!("has {} bytes, which is no safetensors file", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER || length > rest.len() as u64 {
        let most = MOST_HEADER.min(rest.len() as u64);
        let why = format!(
            "should have {length} bytes, and there is room for {most}: the file is damaged or cut short"
        );
        return bad("the header", why);
    }
    let (header, data) = rest.split_at(length as usize);
    let Header(mut entries) = match serde_json::from_slice(header) {
        Ok(header) => header,
        Err(e) => return bad("the header", format!("{e}; the file is damaged")),
    };
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let (first, mut at) = (8 + header.len(), 0);
    for (name, entry) in entries {
        let field = format!("tensor {name:?}");
        if let Some(why) = entry.fault(at) {
            return bad(&field, why);
        }
        at = entry.data_offsets.1;
        if at > data.len() {
            let why =
                format!("ends at byte {at}, and there are {}: the file is cut short or damaged", data.len());
            return bad(&field, why);
        }
        let bytes = first + entry.data_offsets.0..first + at;
        let stored = Stored { file: file.clone(), kind: entry.kind(), shape: entry.shape, bytes };
        if let Some(twin) = tensors.insert(name, stored) {
            return bad(&field, format!("is there twice: in {} too", twin.file.path().display()));
        }
    }
    match data.len() - at {
        0 => Ok(()),
        left => bad("the file", format!("has {left} bytes behind its last tensor: it is damaged")),
    }
}

/// The files of a folder's model: a single one, or those named in the index.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        return shards(folder, &index);
    }
    // Some folders have a single file with another name.
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(|e| FileError::io(folder, e))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found),
        0 => Err(no_weights(folder)),
        n => {
            let why = format!(
                "{n} .safetensors files and no model.safetensors.index.json to say which belong together"
            );
            Err(FileError::bad(folder, "the folder", why))
        }
    }
}

fn no_weights(folder: &Path) -> FileError {
    match super::pickle_in(folder) {
        Some(path) => super::pickle(&path),
        None => FileError::bad(folder, "the folder", "holds no .safetensors and no .gguf file"),
    }
}

/// The largest real index has about 20 MB.
const MOST_INDEX: u64 = 64 << 20;

/// `model.safetensors.index.json`.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files named in an index, each once. The index is untrusted: it may name only files inside the folder.
fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let bad = |field: &str, why: String| Err(FileError::bad(index, field, why));
    let Index { weight_map } = super::read_json_as(index, MOST_INDEX)?;
    if let Some((tensor, name)) = weight_map.iter().find(|(_, name)| !is_plain_name(name)) {
        return bad(tensor, format!("names the file {name:?}, which is not a plain file name"));
    }
    let mut names: Vec<&str> = weight_map.values().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let root = root(folder)?;
    let mut files = Vec::new();
    for name in names {
        let path = folder.join(name);
        let real = match path.canonicalize() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let why = format!("names {name}, which is not there: the folder is not all of the model");
                return bad("weight_map", why);
            }
            other => other.map_err(|e| FileError::io(&path, e))?,
        };
        if !real.starts_with(&root) {
            let why = format!("{name} is a link out of {}; copy the file there instead", root.display());
            return bad("weight_map", why);
        }
        files.push(path);
    }
    match files.is_empty() {
        true => bad("weight_map", "names no files".into()),
        false => Ok(files),
    }
}

/// Directory that a shard must resolve into: the folder, or the model's folder in the Hugging Face cache, whose
/// snapshots are symlinks.
fn root(folder: &Path) -> Result<PathBuf> {
    let real = folder.canonicalize().map_err(|e| FileError::io(folder, e))?;
    let named = |p: &Path, start: &str| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start));
    let snapshots = real.parent().filter(|p| named(p, "snapshots"));
    let model = snapshots.and_then(Path::parent).filter(|p| named(p, "models--"));
    Ok(model.map_or(real.clone(), Path::to_path_buf))
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.len() < 256 && !name.contains(['/', '\\', '\0', ':'])
}
